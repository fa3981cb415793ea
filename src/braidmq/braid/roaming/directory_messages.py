"""What brokers tell each other about which of them has a client id (`directory`)."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from braidmq.host import Address, Message
from braidmq.keys import Key
from braidmq.overlay import Peer
from braidmq.security.identity import is_foreign

PAGE_MAX = 1000
"""Entries in one message."""


class SessionHolder(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Which broker has a client id, since when, and for which user: of two the one with the higher epoch."""

    client_id: str
    address: Address
    name: str
    epoch: int
    owner: str = ""
    mirrors: tuple[Address, ...] = ()
    """The brokers that have a copy of what the holder has."""

    def is_contested(self, name: str, owner: str) -> bool:
        """Whether another broker has a session of another user under the same client id."""
        return name != self.name and bool(owner) and is_foreign(self.owner, owner)


class DirectoryEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a registrar knows. `claim` names the claim that made it; `before` and `earlier` had the client id before."""

    holder: SessionHolder
    claim: int = 0
    before: SessionHolder | None = None
    earlier: SessionHolder | None = None


class Claim(Message, frozen=True, array_like=True, gc=False):
    """The client is here now. `stands_in`: its registrar does not answer, so you are asked."""

    client_id: str
    name: str
    epoch: int
    claim: int
    stands_in: bool
    owner: str = ""
    over: int = 0
    """The epoch of a holder for another user that has said that it has nothing any more."""
    giver: str = ""
    """If it is set: only if this broker has it still, which wants to give it to me."""
    mirrors: tuple[Address, ...] = ()
    """Of the claimant."""
    slow: Address | None = None
    """The registrar, if it is slow to answer: stand in for it if it does not answer you either."""
    given: int = 0
    """The epoch of what the giver has: only if there is nothing newer elsewhere."""


class Claimed(Message, frozen=True, array_like=True, gc=False):
    """`earlier` had it before `before`, which may have died before it had all."""

    epoch: int
    before: SessionHolder | None
    earlier: SessionHolder | None
    is_foreign: bool = False
    """It is another user's, whose holder is told in `before`; nothing was changed."""
    is_elsewhere: bool = False
    """It is not the giver's any more, but that of `before`; nothing was changed."""
    is_sure: bool = True
    """Whether all that brokers have told of the client id is known to who answers."""


class Client(NamedTuple):
    """A client that a broker has."""

    client_id: str
    epoch: int
    owner: str


class Register(Message, frozen=True, array_like=True, gc=False):
    """These clients are here still."""

    name: str
    clients: tuple[Client, ...]
    stands_in: bool
    mirrors: tuple[Address, ...] = ()


class HeldElsewhere(Message, frozen=True, array_like=True, gc=False):
    """Told by a registrar: another broker has a newer session of a client than you had, as far as I knew."""

    holder: SessionHolder


class Registered(Message, frozen=True, array_like=True, gc=False):
    """`others`: what was known otherwise. `not_mine`: ask another registrar."""

    others: tuple[SessionHolder, ...]
    not_mine: tuple[str, ...]


class BucketDigest(NamedTuple):
    """Of a holder's client ids whose hashes begin alike (`directory_entries`)."""

    bucket: int
    digest: int


class ConfirmEntries(Message, frozen=True, array_like=True, gc=False):
    """Is this what you know of my clients with hashes in [low, high)? Then they are here still."""

    name: str
    address: Address
    mirrors: tuple[Address, ...]
    low: Key
    high: Key
    digests: tuple[BucketDigest, ...]
    stands_in: bool


class EntriesConfirmed(Message, frozen=True, array_like=True, gc=False):
    """All but these buckets."""

    differing: tuple[int, ...]


class AreYouThere(Message, frozen=True, array_like=True, gc=False):
    """To a registrar that is slow to answer somebody."""


class StillThere(Message, frozen=True, array_like=True, gc=False):
    """I am a registrar, and will answer. `name` is my identity: another broker may have been at my address."""

    name: str = ""


class NotMine(Message, frozen=True, array_like=True, gc=False):
    """Another registrar has this entry; probably this one."""

    registrar: Peer | None


class TryAgain(Message, tag="Again", frozen=True, array_like=True, gc=False):
    """The entries of this registrar are on their way to it."""


class Copies(Message, frozen=True, array_like=True, gc=False):
    """Keep these, in case they become yours."""

    entries: tuple[DirectoryEntry, ...]


class CopiesKept(Message, tag="Kept", frozen=True, array_like=True, gc=False):
    """They are kept."""


class AskEntries(Message, frozen=True, array_like=True, gc=False):
    """The entries with hashes in [low, high) are mine now; a page of them, behind the client id `after`."""

    low: Key
    high: Key
    after: str
