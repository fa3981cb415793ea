"""A subscription, as data."""

from __future__ import annotations

import msgspec


class Subscribed(msgspec.Struct, frozen=True):
    """What a session asked for with one filter."""

    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    identifier: int = 0
