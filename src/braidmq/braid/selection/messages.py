"""What brokers tell each other of reservations that clients have, by the ids of their requests."""

from __future__ import annotations

from braidmq.braid.transfer.batch import Predecessor
from braidmq.host import Address, Message
from braidmq.select.member import Version


class RenewHold(Message, frozen=True, array_like=True, gc=False):
    """To the broker of a reserved component: its holder, a client of the asker, still uses it."""

    request: str
    holder: str


class ReleaseHold(Message, frozen=True, array_like=True, gc=False):
    """To the broker of a reserved component: its holder no longer uses it."""

    request: str
    holder: str


class HoldState(Message, frozen=True, array_like=True, gc=False):
    """For how long it is reserved from when this was asked; 0 if it is not, or no longer. `problem` says why not."""

    lease_s: float
    problem: str = ""
    moved_to: Address | None = None
    """Ask there: the component has gone there with its client."""
    is_copied: bool = True
    """Whether other brokers have it, too, that would act for this one."""


class FindHold(Message, frozen=True, array_like=True, gc=False):
    """Is what this request has reserved with you?"""

    request: str


class HoldFound(Message, frozen=True, array_like=True, gc=False):
    is_here: bool


class AskState(Message, frozen=True, array_like=True, gc=False):
    """To the broker of a reserved component: the holder goes on with another one. What does it know of the stream?
    `published` is what the holder has published to it last, by broker."""

    request: str
    holder: str
    published: tuple[Predecessor, ...] = ()


class StreamState(Message, frozen=True, array_like=True, gc=False):
    """What an instance knows of a stream; it is not known yet what that is, unless `is_known`."""

    is_known: bool
    state: bytes = b""


class GiveState(Message, frozen=True, array_like=True, gc=False):
    """To the broker of a component that goes on with a stream: what the one before it knew."""

    request: str
    holder: str
    state: bytes


class HoldEnded(Message, frozen=True, array_like=True, gc=False):
    """To the broker that has asked for a reservation: it is over, and the client has not ended it itself."""

    request: str
    holder: str
    how: str


class AskComponents(Message, frozen=True, array_like=True, gc=False):
    """Which instances have you, of a component or of all, and what is reserved of them?"""

    component: str


class ToldInstance(Message, frozen=True, array_like=True, gc=False):
    component: str
    instance: str
    slots: int
    taken: int
    attributes: dict[str, float]


class ToldHold(Message, frozen=True, array_like=True, gc=False):
    """A reservation, and how long it holds from now on."""

    component: str
    instance: str
    request: str
    holder: str
    fence: Version
    left_s: float
    known_at: str = ""
    """The broker whose name is in its id, if that is another one."""


class TellComponents(Message, frozen=True, array_like=True, gc=False):
    broker: str
    cluster: str
    instances: tuple[ToldInstance, ...]
    holds: tuple[ToldHold, ...]


class TellRoom(Message, frozen=True, array_like=True, gc=False):
    """To the delegate of a component: so many slots are there with me, and so many of them are free."""

    component: str
    free: int
    slots: int


class RoomNoted(Message, frozen=True, array_like=True, gc=False):
    is_delegate: bool


class AskMemberCount(Message, frozen=True, array_like=True, gc=False):
    """How many members of a group have you that are connected?"""

    full_filter: str


class MemberCount(Message, frozen=True, array_like=True, gc=False):
    count: int
