"""How a broker's admin port is reached from Spark, where nothing but the standard library may be installed."""

from __future__ import annotations

import http.client
from urllib.parse import urlsplit


def connection(url: str, timeout_s: float) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    make = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return make(parts.hostname or "", parts.port, timeout=timeout_s)


def headers(token: str | None, content_type: str = "") -> dict[str, str]:
    found = {"Content-Type": content_type} if content_type else {}
    return found | {"Authorization": f"Bearer {token}"} if token else found
