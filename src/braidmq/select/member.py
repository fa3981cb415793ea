"""A member of a group: the components of it at one broker, and who has reserved them.

What is reserved here is decided here, whoever asks: so no slot is given twice, though there be two delegates for a
while and each message come twice. A reservation is a lease. It begins short, and becomes as long as was asked for when
its holder renews it: one whose holder never heard of it is soon over. A holder counts its lease from when it asked,
and the member from when it was asked, so the holder knows of the end first. A broker that has come back without
knowing what it had given gives nothing until the longest lease that it can have given is over (`resting_until`).

Each reservation has a fencing number, and each change of the member a version; both begin with the incarnation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum

import msgspec

from braidmq.host import Address, Message
from braidmq.keys import Key
from braidmq.overlay.aggregates import Aggregate
from braidmq.overlay.peers import Peer
from braidmq.select.group import ComponentGroup, steps_between
from braidmq.select.request import SLOTS, SelectionRequest, score_of

FIRST_LEASE_S = 20.0
"""How long a reservation holds that its holder has not renewed yet."""

COMPONENTS_MAX = 1_000
"""Components of one group at one broker."""

Version = tuple[int, int]
"""The incarnation of a member, and a number that grows with each change."""


class Component(msgspec.Struct):
    """One that can be reserved, as often at a time as it has slots."""

    name: str
    slots: int = 1
    attributes: dict[str, float] = msgspec.field(default_factory=dict)
    taken: int = 0

    @property
    def free(self) -> int:
        return max(0, self.slots - self.taken)


class Report(Message, frozen=True, array_like=True, tag="MemberReport", gc=False):
    """What a member says of itself: how much is free, and the best of its attributes."""

    peer: Peer
    free: int
    version: Version
    attributes: dict[str, float] = msgspec.field(default_factory=dict)
    ends_in_s: float | None = None
    """When the first of its leases runs out, unless it is renewed; None if there is none."""


class Reservation(Message, frozen=True, array_like=True, gc=False):
    """What the holder gets."""

    request: str
    member: Peer
    component: str
    fence: Version
    lease_s: float
    is_copied: bool = True
    """Whether it would outlive the member's broker."""


class Hold(msgspec.Struct):
    """What a member knows of a reservation; `notify` is the delegate to tell when it is over."""

    request: SelectionRequest
    component: Component
    fence: Version
    until: float
    notify: Address | None
    is_copied: bool = True
    """Whether other brokers have it that would act for this one."""


class End(Enum):
    """How a reservation came to its end."""

    RELEASED = "released"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"
    """Somebody else has released it."""
    GONE = "gone"
    """The component is not there any more."""


class Member:
    """The components of a group at this broker."""

    def __init__(self, group: ComponentGroup, key: Key, incarnation: int, resting_until: float = 0.0) -> None:
        self.group = group
        self.key = key
        self.components: dict[str, Component] = {}
        self.resting_until = resting_until
        self.version: Version = (incarnation, 0)
        self.on_change: Callable[[Key], None] = lambda _key: None
        self.on_taken: Callable[[Hold], bool] = lambda _hold: True
        """Called with what is about to be reserved; whether it may be."""
        self.on_over: Callable[[Hold, End], None] = lambda _hold, _end: None
        self.held: dict[str, Hold] = {}
        """What is reserved, by the ids of the requests."""

    def add(self, component: Component) -> None:
        if len(self.components) >= COMPONENTS_MAX:
            raise ValueError(f"{COMPONENTS_MAX:,} components of {self.group.topic} are the most at one broker")
        self.components[component.name] = component
        self._changed()

    def remove(self, name: str) -> list[str]:
        """A component is gone, and what was reserved of it; the ids of these requests."""
        component = self.components.pop(name, None)
        gone = [hold for hold in self.held.values() if hold.component is component]
        for hold in gone:
            del self.held[hold.request.id]
            self.on_over(hold, End.GONE)
        self._changed()
        return [hold.request.id for hold in gone]

    def set_slots(self, name: str, slots: int) -> None:
        """A component can be reserved so often at a time from now on; what is reserved stays."""
        self.components[name].slots = slots
        self._changed()

    def rise(self, incarnation: int) -> None:
        """Fencing numbers from now on are above those of any earlier incarnation, of other members too."""
        self.version = (max(self.version[0], incarnation), self.version[1])

    def restore(self, request: SelectionRequest, name: str, fence: Version, now: float) -> None:
        """Reserves again what an earlier process had; its lease may have been renewed as late as just now."""
        component = self.components.get(name)
        if component is None:
            component = self.components[name] = Component(name, slots=0)
        component.taken += 1
        self.held[request.id] = Hold(request, component, fence, now + request.lease_s, None)
        self._changed()

    def report_load(self, name: str, attributes: Mapping[str, float]) -> None:
        """A component says how it is."""
        self.components[name].attributes |= attributes
        self._changed()

    def rested(self) -> None:
        """The longest lease that an earlier incarnation can have given is over."""
        self.resting_until = 0.0
        self._changed()

    def _changed(self) -> None:
        self.version = (self.version[0], self.version[1] + 1)
        self.on_change(self.key)

    def free(self, now: float) -> int:
        if now < self.resting_until:
            return 0
        return sum(component.free for component in self.components.values())

    def value(self, now: float) -> Aggregate:
        """What it adds to the aggregates: free components, and the ends of their attributes."""
        group = self.group
        value: Aggregate = {group.label: self.free(now)}
        for component in self.components.values():
            if component.free:
                for name, number in component.attributes.items():
                    least, most = group.bound(name, "min"), group.bound(name, "max")
                    value[least] = min(number, value.get(least, number))
                    value[most] = max(number, value.get(most, number))
        return value

    def report(self, me: Peer, now: float) -> Report:
        """Of several components with free slots, the attributes of the one with the most."""
        best = max(self.components.values(), key=lambda one: one.free, default=None)
        attributes = {} if best is None else best.attributes
        first = self.first_end
        ends_in_s = None if first is None else max(0.0, first - now)
        return Report(me, self.free(now), self.version, dict(attributes), ends_in_s)

    def fits(self, request: SelectionRequest, now: float) -> Component | None:
        """The component that is best for a request; None if none that meets it is free."""
        if now < self.resting_until:
            return None
        steps = steps_between(request.cluster, self.group.cluster)
        best: Component | None = None
        best_score = 0.0
        for component in self.components.values():
            told = {**component.attributes, SLOTS: float(component.free)}
            if component.free and all(need.holds(told) for need in request.needs):
                score = score_of(request, told, steps)
                if best is None or score < best_score:
                    best, best_score = component, score
        return best

    def take(
        self, request: SelectionRequest, me: Peer, now: float, notify: Address | None = None
    ) -> Reservation | None:
        """Reserves, or says again what it has reserved for this request; None if it cannot."""
        hold = self.held.get(request.id)
        if hold is None:
            component = self.fits(request, now)
            if component is None:
                return None
            component.taken += 1
            self._changed()
            until = now + min(FIRST_LEASE_S, request.lease_s)
            hold = Hold(request, component, self.version, until, notify)
            if not self.on_taken(hold):
                component.taken -= 1
                return None
            self.held[request.id] = hold
        lease_s = min(FIRST_LEASE_S, request.lease_s)
        return Reservation(request.id, me, hold.component.name, hold.fence, lease_s, hold.is_copied)

    def renew(self, request: str, fence: Version, now: float) -> float | None:
        """Holds for as long as was asked for, from now; None if the reservation is over."""
        hold = self.held.get(request)
        if hold is None or hold.fence != fence or hold.until <= now:
            return None
        hold.until = now + hold.request.lease_s
        return hold.request.lease_s

    def release(self, request: str, fence: Version | None = None, end: End = End.RELEASED) -> Address | None:
        """Gives it back; the delegate that is to be told, if there was something to give back."""
        hold = self.held.get(request)
        if hold is None or (fence is not None and hold.fence != fence):
            return None
        del self.held[request]
        hold.component.taken -= 1
        self._changed()
        self.on_over(hold, end)
        return hold.notify

    def holds(self, request: str) -> Version | None:
        """The fencing number of what is reserved for a request."""
        hold = self.held.get(request)
        return None if hold is None else hold.fence

    def expire(self, now: float) -> list[Address]:
        """Ends the leases that have run out; the delegates that are to be told."""
        over = [request for request, hold in self.held.items() if hold.until <= now]
        told = [self.release(request, end=End.EXPIRED) for request in over]
        return list(dict.fromkeys(address for address in told if address is not None))

    @property
    def first_end(self) -> float | None:
        """When the next lease runs out."""
        return min((hold.until for hold in self.held.values()), default=None)
