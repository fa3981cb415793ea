"""What brokers tell each other to find and reserve components."""

from __future__ import annotations

from braidmq.host import Address, Message
from braidmq.keys import Key
from braidmq.overlay.peers import Peer
from braidmq.select.group import ComponentGroup
from braidmq.select.member import Report, Reservation, Version
from braidmq.select.request import SelectionRequest


class TakeAt(Message, frozen=True, array_like=True, gc=False):
    """Goes along the fingers to the node at `goal`, which is to reserve; `to` is the node on the way."""

    to: Key
    goal: Key
    request: SelectionRequest
    hops: int


class Reserved(Message, frozen=True, array_like=True, gc=False):
    """It is reserved, after so many hops."""

    reservation: Reservation
    hops: int


class NotReserved(Message, frozen=True, array_like=True, gc=False):
    """It is not. `is_known`: the tables say that none is free; otherwise the search was given up.

    `expected_in_s` is when the first lease of those that are reserved runs out, as far as is known.
    """

    hops: int
    is_known: bool = False
    expected_in_s: float | None = None


class Renew(Message, frozen=True, array_like=True, gc=False):
    """The holder still uses it."""

    to: Key
    request: str
    fence: Version


class Renewed(Message, frozen=True, array_like=True, gc=False):
    """For so long, from when this was asked for; 0 if it is over."""

    lease_s: float


class Release(Message, frozen=True, array_like=True, gc=False):
    """The holder no longer uses it."""

    to: Key
    request: str
    fence: Version


class Released(Message, frozen=True, array_like=True, gc=False):
    """It is free, or was no longer held."""


class SeekComponent(Message, frozen=True, array_like=True, gc=False):
    """Anycast on its way: the node `to` is to find a component in [low, high), which is a part of the group's keys.

    `level_max` is the highest level of a table that can have a part in the group. `failed` are elements, by node, that
    led to nothing before.
    """

    to: Key
    request: SelectionRequest
    strategy: str
    low: Key
    high: Key
    hops: int
    hops_max: int
    level_max: int
    finishes_here: bool = False
    remembers: bool = False
    failed: tuple[Key, ...] = ()


class InfoReq(Message, frozen=True, array_like=True, gc=False):
    """Which components are free in [low, high)? The answer goes to `parent`, within `wait_s`."""

    to: Key
    query: str
    parent: Address
    request: SelectionRequest
    low: Key
    high: Key
    depth: int
    keep_max: int
    wait_s: float


class InfoRep(Message, frozen=True, array_like=True, gc=False):
    """What was gathered below a node: at most `keep_max` reports, best first, of `count` members that fit."""

    query: str
    low: Key
    reports: tuple[Report, ...]
    count: int
    depth: int
    is_complete: bool


class Window(Message, frozen=True, array_like=True, gc=False):
    """A part of a group's keys, from its owner up to a key, and how many are thought to be free in it."""

    owner: Peer
    until: Key
    count: int


class AskDelegate(Message, frozen=True, array_like=True, gc=False):
    """To the delegate of a group: find and reserve one."""

    request: SelectionRequest


class DelegateAnswer(Message, frozen=True, array_like=True, gc=False):
    """From the delegate: what was reserved for a request, after so many hops; None if nothing is free."""

    request: str
    reservation: Reservation | None
    hops: int
    expected_in_s: float | None = None


class Elsewhere(Message, frozen=True, array_like=True, gc=False):
    """Another node is the group's delegate: it, or a node that is nearer to it, if one is known."""

    request: str
    delegate: Peer | None


class Visit(Message, frozen=True, array_like=True, gc=False):
    """What a member that was asked has said: how it is, and how its tables divide the window that it owned."""

    report: Report
    windows: tuple[Window, ...]


class ClaimSlot(Message, frozen=True, array_like=True, gc=False):
    """From a delegate, straight to a member: reserve, or pass it on to the best that this request knows of."""

    to: Key
    until: Key
    request: SelectionRequest
    delegate: Peer
    epoch: int
    hops: int
    others: tuple[Window, ...]
    visits: tuple[Visit, ...] = ()


class SlotClaimed(Message, frozen=True, array_like=True, gc=False):
    """To the delegate: reserved by the last of those visited, or by none. `epoch` is the highest that it knows of."""

    reservation: Reservation | None
    visits: tuple[Visit, ...]
    others: tuple[Window, ...]
    hops: int
    epoch: int


class Probe(Message, frozen=True, array_like=True, tag="ProbeMember", gc=False):
    """How much is free with you?"""

    to: Key
    delegate: Peer
    epoch: int


class Probed(Message, frozen=True, array_like=True, gc=False):
    report: Report
    epoch: int


class Notice(Message, frozen=True, array_like=True, gc=False):
    """A member of a group has changed: to its delegate."""

    group: ComponentGroup
    report: Report


class LedgerHandOver(Message, frozen=True, array_like=True, gc=False):
    """From a delegate to the one that comes after it: what it knows of the members."""

    group: ComponentGroup
    epoch: int
    reports: tuple[Report, ...]
