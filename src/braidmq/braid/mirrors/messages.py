"""What a broker and its mirrors tell each other. The owner of a journal is named by its identity.

Blocks are told, one message a commit, and acknowledged by how far the copy is. A copy begins with a call, and with the
parts of a snapshot if it cannot go on where it is.
"""

from __future__ import annotations

from braidmq.host import Message


class AskMirror(Message, frozen=True, array_like=True, gc=False):
    """May you hold a copy of my journal, which has so many bytes?"""

    owner: str
    size: int


class MirrorOffer(Message, frozen=True, array_like=True, gc=False):
    identity: str
    machine: str
    """Where it runs: brokers with the same one may fail together."""
    failure_domain: str
    refusal: str = ""
    """Why it may not; empty if it may."""
    position: int = 0
    """How far the copy is that it has already."""


class BeginCopy(Message, frozen=True, array_like=True, gc=False):
    """Hold a copy of this journal; where are you? If it is fresh, the copy begins with the journal's first byte."""

    owner: str
    journal_id: int
    epoch: int
    is_fresh: bool = False


class CopyBegun(Message, frozen=True, array_like=True, gc=False):
    """Here I am: in this journal, behind a block with this head, and last told of this term."""

    journal_id: int
    position: int
    head: bytes
    term: int


class CopyRefused(Message, frozen=True, array_like=True, gc=False):
    """There is no copy, or there cannot be one any longer; the answer to anything, or told."""

    owner: str
    reason: str
    is_farewell: bool = False
    """Whether the mirror ends in good order."""


class SnapshotPart(Message, frozen=True, array_like=True, gc=False):
    """Some of the snapshot at a position, whose file has so many bytes; the first part begins it anew."""

    owner: str
    position: int
    size: int
    offset: int
    data: bytes


class SnapshotTaken(Message, frozen=True, array_like=True, gc=False):
    """So much of it is here; the last part is answered with `CopyBegun`."""

    offset: int


class CopyBlocks(Message, frozen=True, array_like=True, gc=False):
    """What stands at a position of the stream. The term is 0 for a copy that does not count yet."""

    owner: str
    term: int
    position: int
    data: bytes


class CopyHeartbeat(Message, frozen=True, array_like=True, gc=False):
    """The owner is here, and its journal ends there."""

    owner: str
    term: int
    end: int


class CopyHeld(Message, frozen=True, array_like=True, gc=False):
    """The copy has everything up to a position, and knows of this term."""

    owner: str
    term: int
    position: int
    has_gap: bool = False
    """Whether something behind that has come, or is known to be there, and what is between is missing."""
    received: int = 0
    """Up to where the stream has come, with a block that is not whole; 0 if that is not said."""


class AskTakenUp(Message, frozen=True, array_like=True, gc=False):
    """The owner stood still, or has started again: which of its sessions were taken up from the copy, in so many
    seconds?"""

    owner: str
    seconds: float
    has_started: bool = False
    """Whether it also wants to know how far the copy is."""


class TakenUp(Message, frozen=True, array_like=True, gc=False):
    """By client id, the epoch of the session in the copy. From now on the owner is heard again."""

    sessions: tuple[tuple[str, int], ...]
    head: int = 0
    """The last offset of the history in the copy."""
    row: int = 0
    """The last message in it that waits for a client, by its number in the store."""


class DropCopy(Message, frozen=True, array_like=True, gc=False):
    """You are no mirror any more, unless you know of a later term."""

    owner: str
    term: int


class CopyDropped(Message, frozen=True, array_like=True, gc=False):
    pass
