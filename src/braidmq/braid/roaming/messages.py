"""What brokers say to each other to move a session: from the first request to what was still on its way."""

from __future__ import annotations

from enum import IntEnum

import msgspec

from braidmq.braid.roaming.directory_messages import SessionHolder
from braidmq.braid.roaming.marks import Row
from braidmq.braid.roaming.moved import Absence, MovedDelivery
from braidmq.braid.transfer.predecessors import ByTopic
from braidmq.broker.subscription import Subscribed
from braidmq.host import Address, Message


class GiveUpAnswer(IntEnum):
    NOTHING = 0
    """There is no session, or it has ended now."""
    GIVEN = 1
    BUSY = 2
    """It is just arriving here: ask again."""
    NEWER = 3
    """The client has come here since."""
    ELSEWHERE = 4
    UNKNOWN = 5
    """There is no session, and the client was never here since this broker has started; or only one that is older than
    what is wanted."""
    FOREIGN = 6
    """It is another user's, and is kept for that one."""
    THERE = 7
    """I have a copy of what the broker has, but that is there, and is to be asked itself: by me, if need be."""


class GiveUp(Message, frozen=True, array_like=True, gc=False):
    """The client has come to me, under this epoch. `clean`: it wants nothing of its session."""

    move: int
    client_id: str
    name: str
    epoch: int
    clean: bool
    cluster: str = ""
    """Where I am: what must stay in a cluster that I am not in does not move to me."""
    user: str = ""
    """The user that the client is."""
    is_pushed: bool = False
    """The client has not come: you have asked me to take its session."""
    of: str = ""
    """The broker that has the session and does not answer, if you are asked since you have a copy of what it has."""
    at_least: int = 0
    """The epoch of the session that I look for: one that is older is not wanted."""
    asked: str = ""
    """Which broker I take you for, if I know that: another one may be at your address by now."""


class SessionSubscriptions(Message, tag="Subscriptions", frozen=True, array_like=True, gc=False):
    """From a number on; `following` is the number behind the last one, 0 if that was all."""

    items: tuple[tuple[str, Subscribed], ...]
    following: int


class GivenUp(Message, frozen=True, array_like=True, gc=False):
    answer: GiveUpAnswer
    expiry_s: int = 0
    holder: SessionHolder | None = None
    begun: int = 0
    """The epoch in which the session was begun that is given."""
    subscriptions: SessionSubscriptions | None = None
    """The first of those of the session that is given."""


class AskForeignSession(Message, tag="AskKept", frozen=True, array_like=True, gc=False):
    """A client of this user has come to me. Do you keep a session of another user under its client id?"""

    client_id: str
    user: str


class HasForeignSession(Message, tag="IsKept", frozen=True, array_like=True, gc=False):
    is_kept: bool


class AskSession(Message, frozen=True, array_like=True, gc=False):
    """A client has come to me. Have you its session, or a copy of it?"""

    client_id: str


class HeldCopyOf(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A copy of what another broker has; `epoch` is that of the client's session in it, 0 if it has none."""

    owner: str
    term: int
    """Of two copies of what one broker has, the one with the higher term counts."""
    epoch: int
    is_heard: bool
    """Whether that broker is there: then it is to be asked itself."""


class FoundSession(Message, frozen=True, array_like=True, gc=False):
    """What I have of it. `epoch` is that of the session that is here, or coming here; 0 if there is none."""

    name: str
    epoch: int
    copies: tuple[HeldCopyOf, ...] = ()
    gone_to: SessionHolder | None = None
    """The broker that I have given it to, if that is not long ago."""


class AskReached(Message, frozen=True, array_like=True, gc=False):
    """The broker here does not answer me. Does it answer you?"""

    address: Address


class TellReached(Message, frozen=True, array_like=True, gc=False):
    """It does, directly. `name` is its identity."""

    address: Address
    name: str


class FetchSubscriptions(Message, frozen=True, array_like=True, gc=False):
    move: int
    client_id: str
    since: int


class FetchState(Message, frozen=True, array_like=True, gc=False):
    move: int
    client_id: str
    since: int


class SessionState(Message, tag="State", frozen=True, array_like=True, gc=False):
    """Deliveries from a number on, and with the first of them the rest. `horizon`: see `marks`. `absence` of a client
    that is away. `published`: what the client has published last on its topics."""

    items: tuple[MovedDelivery, ...]
    following: int
    received: tuple[int, ...]
    horizon: tuple[Row, ...]
    absence: Absence | None = None
    published: ByTopic = ()
    instances: bytes = b""
    """What the client is an instance of, and what is reserved of it (`selection.hold_rows`)."""


class NoSuchMove(Message, frozen=True, array_like=True, gc=False):
    """I know nothing of this: begin anew."""


class SessionStored(Message, tag="Done", frozen=True, array_like=True, gc=False):
    """I have it in my store."""

    move: int
    client_id: str


class SessionDeleted(Message, tag="Deleted", frozen=True, array_like=True, gc=False):
    """It is no longer here."""


class SessionTail(Message, tag="Tail", frozen=True, array_like=True, gc=False):
    """Publications for a session that has moved to you."""

    client_id: str
    items: tuple[MovedDelivery, ...]


class TailStored(Message, tag="Taken", frozen=True, array_like=True, gc=False):
    """They are in my store, or were."""


class TailWaits(Message, frozen=True, array_like=True, gc=False):
    """They are in my store, and not yet in its copies: ask again soon."""


class Offer(Message, frozen=True, array_like=True, gc=False):
    """I have a session of this client, which is with you."""

    client_id: str
    name: str
    owner: str = ""
    epoch: int = 0
    """Of that session, as far as it is known."""


class OfferAnswer(IntEnum):
    NOT_WANTED = 0
    """Delete it: its client has had it here, or has ended it."""
    WANTED = 1
    """It will be fetched, now or later."""
    UNKNOWN = 2
    """I know nothing of this client: it is yours."""


class Offered(Message, frozen=True, array_like=True, gc=False):
    answer: OfferAnswer
    holder: SessionHolder | None = None
    """The broker that the client has gone to from here: it is to be asked."""


class AskRoom(Message, frozen=True, array_like=True, gc=False):
    """I am about to be drained. Would you take sessions and clients of mine?"""


class HasRoom(Message, frozen=True, array_like=True, gc=False):
    has_room: bool


class TakeSession(Message, frozen=True, array_like=True, gc=False):
    """Take this session, whose client is away: fetch it from me."""

    client_id: str
    name: str
    owner: str | None
    epoch: int = 0
    """Of the session, as far as it is known: if there is a newer one anywhere, it is not to be taken."""


class TakeAnswer(IntEnum):
    TAKING = 0
    """It is being fetched."""
    BUSY = 1
    """Its client is here, or just coming."""
    NO_ROOM = 2
    """I take none: there is no room, or I am about to go myself."""


class TakingSession(Message, frozen=True, array_like=True, gc=False):
    answer: TakeAnswer


class NotTaken(Message, frozen=True, array_like=True, gc=False):
    """The session that I was to take has not come: it is yours still, unless its client has come to another broker."""

    client_id: str
