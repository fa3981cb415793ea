"""Publications on their way into the log: one, or a run of many that came together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

Property = tuple[str, str]


class Run(NamedTuple):
    """One or many publications of one client to one topic that came together."""

    topic: bytes
    client: bytes | None
    at_us: int
    """When the broker received them, in microseconds of Unix time."""
    qos: int
    retain: bool
    rows: int
    data: bytes
    """The packets as they came; or the payload alone, of a single publication."""
    head: int
    """What stands before the payload in the first packet; 0 if there is none."""
    size: int
    """The size of the first packet."""
    properties: tuple[Property, ...] = ()
    published_us: int | None = None
    """When the device says that it published it, if it does."""
    first: int | None = None
    """Its first offset, if that is known already; otherwise the log gives it."""

    @classmethod
    def of(
        cls,
        topic: str,
        payload: bytes,
        at_us: int,
        *,
        client: str | None = None,
        qos: int = 0,
        retain: bool = False,
        properties: Sequence[Property] = (),
        published_us: int | None = None,
    ) -> Run:
        """A single publication."""
        name = None if client is None else client.encode()
        size = len(payload)
        return cls(topic.encode(), name, at_us, qos, retain, 1, payload, 0, size, tuple(properties), published_us)
