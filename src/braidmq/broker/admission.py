"""What a CONNECT waits for in a federation: whether the client's session may be opened here."""

from __future__ import annotations

from enum import Enum, auto


class Arrived(Enum):
    HERE = auto()
    """No other broker has the session any more."""
    ELSEWHERE = auto()
    """The client itself has gone to another broker since."""
    FOREIGN = auto()
    """Another broker has a session of this client identifier, and it is another user's."""
    UNREACHABLE = auto()
    """So it seems, but that broker does not answer."""
