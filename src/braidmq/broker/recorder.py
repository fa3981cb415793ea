"""What keeps publications to be read later, behind a narrow interface.

The core tells the recorder what clients of this broker publish to topics that it wants, and commits it, with the
store, before anything of it is acknowledged. `NoRecorder` wants nothing: for a broker without a log.
"""

from __future__ import annotations

from typing import Final, Protocol

from braidmq.broker.message import Message

NOT_LOGGED: Final = -1
"""The offset of a publication whose topic is not logged."""

LOST: Final = -2
"""The offset of one that the log should have, and had no room for."""


class Recorder(Protocol):
    dirty: bool
    """Whether something waits for a commit before it may be acknowledged."""

    def wants(self, topic: str) -> bool: ...

    def record_run(self, topic: bytes, client: str, at: float, run: bytes, count: int, head: int, size: int) -> None:
        """Plain QoS 0 publications to one topic as they came: `head` bytes before the payload of the first, whose size
        is `size`. They need no commit."""
        ...

    def record_plain(self, topic: bytes, client: str, at: float, payload: bytes, qos: int) -> None:
        """A publication of QoS 1 or 2 that is neither retained nor has properties."""
        ...

    def record(self, message: Message, at: float) -> None:
        """Any publication."""
        ...

    def commit(self) -> None:
        """Writes what waits, or raises LogError and keeps it for the next try."""
        ...


class NoRecorder:
    dirty = False

    def wants(self, topic: str) -> bool:
        return False

    def record_run(
        self, topic: bytes, client: str, at: float, run: bytes, count: int, head: int, size: int
    ) -> None: ...
    def record_plain(self, topic: bytes, client: str, at: float, payload: bytes, qos: int) -> None: ...
    def record(self, message: Message, at: float) -> None: ...
    def commit(self) -> None: ...
