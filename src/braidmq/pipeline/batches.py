"""A batch of rows on its way into a broker, part by part, over its admin port (see the broker's `ledger`)."""

from __future__ import annotations

import base64
import http.client
import json
import time
from typing import Any, Final

from braidmq.pipeline import admin_port

PART_ROWS: Final = 2_000
PART_BYTES: Final = 4 * 2**20
"""A part is sent when it has so many rows, or payloads of so many bytes."""

TIMEOUT_S: Final = 30.0
"""How long a broker may take to answer."""

RETRY_S: Final = 60.0
"""For how long a broker that is down, or that asks for patience, is tried again."""

PAUSE_S: Final = 0.25

Row = tuple[str, bytes, int, bool, list[tuple[str, str]]]
"""Topic, payload, QoS, retain, user properties."""


class BatchError(Exception):
    """The batch could not be published; the text says why."""


class Batch:
    """One writer's batch: rows are added, and `finish` makes them count. Sent again, it is published only once."""

    def __init__(self, url: str, token: str | None, writer: str, number: int, retry_s: float = RETRY_S) -> None:
        self._url = url
        self._token = token
        self._writer = writer
        self._number = number
        self._retry_s = retry_s
        self._part = 0
        self._rows: list[tuple[str, str, int, bool, list[tuple[str, str]]]] = []
        self._bytes = 0
        self._connection: http.client.HTTPConnection | None = None
        self.is_repeated = False
        """Whether the broker had it already."""

    def add(self, row: Row) -> None:
        if len(self._rows) >= PART_ROWS or self._bytes >= PART_BYTES:
            self._send(is_last=False)
        topic, payload, qos, retain, properties = row
        self._rows.append((topic, base64.b64encode(payload).decode(), qos, retain, properties))
        self._bytes += len(payload)

    def finish(self) -> None:
        """Sends what is left. Once it returns, the broker has the whole batch and will not lose it."""
        self._send(is_last=True)
        self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _send(self, is_last: bool) -> None:
        part = {"writer": self._writer, "batch": self._number, "part": self._part, "is_last": is_last}
        body = json.dumps(part | {"rows": self._rows}).encode()
        self._rows = []
        self._bytes = 0
        self._part += 1
        if not self.is_repeated:
            self.is_repeated = self._post(body)["receipt"] == "repeated"

    def _post(self, body: bytes) -> dict[str, Any]:
        """Tries until the broker has taken it, or refuses it for good, or time is over."""
        ends_at = time.monotonic() + self._retry_s
        while True:
            try:
                status, answer = self._post_once(body)
            except (OSError, http.client.HTTPException, ValueError) as error:
                self.close()
                status, answer = 503, {"error": f"it does not answer ({error})"}
            if status == 200:
                return answer
            text = f"the broker at {self._url} did not take batch {self._number} of {self._writer}"
            if status == 401:
                raise BatchError(f"{text}: it wants the token of its admin port: give it with the option token")
            if status != 503 or time.monotonic() >= ends_at:
                raise BatchError(f"{text}: {answer.get('error', f'status {status}')}")
            time.sleep(PAUSE_S)

    def _post_once(self, body: bytes) -> tuple[int, dict[str, Any]]:
        if self._connection is None:
            self._connection = admin_port.connection(self._url, TIMEOUT_S)
        self._connection.request("POST", "/publish", body, admin_port.headers(self._token, "application/json"))
        response = self._connection.getresponse()
        data = response.read()
        if response.status == 401:
            return 401, {}
        answer = json.loads(data)
        return response.status, answer if isinstance(answer, dict) else {}
