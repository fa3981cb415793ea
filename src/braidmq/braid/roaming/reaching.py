"""Whether a broker is there that somebody does not reach: it is asked directly, and so are all others whether they do.

Who acts for a broker that is gone must know that it is: a path that is cut makes a broker silent for those at the other
end alone. So a broker counts as silent only if it answers nobody that can be asked. One that answers others is reached
by them. All of that takes two round trips, and no longer than a look does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from braidmq.bounded import BoundedDict
from braidmq.braid.roaming.messages import AskReached, TellReached
from braidmq.braid.round_trips import LOOK_S, RoundTrips
from braidmq.host import Address, Event, Host, Reply, Service, handles

THERE_S: Final = 0.15
"""How long it counts that a broker has answered, directly or another one …"""

SILENT_S: Final = 1.0
"""… and that it has answered nobody."""

DIRECT_S: Final = 0.1
"""How long a broker has to answer directly, at least, once another one has said that it is there."""

HELD_UP_S: Final = 0.5
"""One that has waited for so much longer than it wanted to was held up."""

ASKED_MAX: Final = 64
"""Brokers that are asked whether they reach one."""

KNOWN_MAX: Final = 1024
"""Brokers of which it is remembered whether they were there."""


class WayThere(NamedTuple):
    """Which broker answers at an address, and by which other one it is reached; None if directly."""

    name: str
    by: Address | None


class _Look:
    """Finds out about one address."""

    def __init__(self, through: Event, news: Event) -> None:
        self.through = through
        self.news = news
        self.direct: WayThere | None = None
        self.by_others: WayThere | None = None


class BrokerReach(Service):
    def __init__(self, host: Host, round_trips: RoundTrips) -> None:
        self._host = host
        self._round_trips = round_trips
        self.others: Callable[[], Iterable[Address]] = tuple
        """The brokers that are known."""
        self.go_round: Callable[[Address, Address], None] = _ignore
        """Has what is for a broker passed on by another one."""
        self.try_directly: Callable[[Address], None] = _ignore
        """Finds out whether the direct way to a broker is there again."""
        self._looks: dict[Address, _Look] = {}
        self._asking: dict[Address, dict[Address, None]] = {}
        """By address of a broker that is asked for others: who wants to know."""
        self._known: BoundedDict[Address, tuple[float, WayThere | None]] = BoundedDict(KNOWN_MAX)
        """By address: until when it is taken for granted who is reached there, and how; None if nobody."""
        host.serve(self)

    # What is known

    def is_known(self, address: Address) -> bool:
        """Whether it need not be found out whether a broker is at an address."""
        return self._host.now() < self._known.get(address, (0.0, None))[0]

    def way_to(self, address: Address) -> WayThere | None:
        """How a broker is reached, as it was known last."""
        return self._known.get(address, (0.0, None))[1]

    def is_there(self, name: str, address: Address) -> bool | None:
        """Whether a broker is where it was; None if that has to be found out."""
        if not self.is_known(address):
            return None
        way = self.way_to(address)
        return way is not None and way.name == name

    def on_heard(self, name: str, address: Address) -> None:
        """A broker speaks: whoever is about to find out learns that it is there."""
        way = WayThere(name, None)
        self._known.renew(address, (self._host.now() + THERE_S, way))
        look = self._looks.get(address)
        if look is not None:
            look.direct = way
            look.news.set()

    def on_answered(self, address: Address) -> None:
        """A broker has answered. If it was taken to be silent, a cut has healed: then others may be back as well."""
        if self.is_known(address) and self.way_to(address) is None:
            for silent in [one for one, (_, way) in self._known.items() if way is None]:
                del self._known[silent]

    def look(self, address: Address) -> Event:
        """Finds out about an address; the end of that."""
        look = self._looks.get(address)
        if look is None:
            look = self._looks[address] = _Look(self._host.event(), self._host.event())
            self._host.spawn(self._look(address, look))
        return look.through

    async def find(self, name: str, address: Address) -> WayThere | None:
        """How a broker is reached; None if it is not there."""
        if not self.is_known(address):
            await self.look(address).wait()
        way = self.way_to(address)
        return way if way is not None and way.name == name else None

    # Finding out

    async def _look(self, address: Address, look: _Look) -> None:
        while not await self._has_looked(address, look):
            pass
        way = look.direct or look.by_others
        if way is not None and way.by is not None:
            self.go_round(address, way.by)
        self._known.renew(address, (self._host.now() + (SILENT_S if way is None else THERE_S), way))
        del self._looks[address]
        look.through.set()

    async def _has_looked(self, address: Address, look: _Look) -> bool:
        """Asks, and waits for answers; False if this broker itself stood still meanwhile, so that nothing is known."""
        began_at = self._host.now()
        wait_s = max(LOOK_S, self._round_trips.patience_s(address), 2 * self._round_trips.slowest_s)
        self.try_directly(address)
        self._host.spawn(self._ask_directly(address, look))
        for other in list(self.others())[:ASKED_MAX]:
            if other not in (address, self._host.address):
                self._host.send(other, AskReached(address))
        while look.direct is None:
            if look.by_others is not None:
                wait_s = max(DIRECT_S, self._round_trips.timeout_s(address))
            left_s = began_at + wait_s - self._host.now()
            if left_s <= 0:
                break
            look.news = self._host.event()
            await look.news.wait(left_s)
        was_held_up = self._host.now() - began_at > wait_s + HELD_UP_S
        return look.direct is not None or look.by_others is not None or not was_held_up

    async def _ask_directly(self, address: Address, look: _Look) -> None:
        name = await self._round_trips.who_is_at(address)
        if name is not None:
            look.direct = WayThere(name, None)
            look.news.set()

    # For others

    @handles(AskReached)
    def on_ask_reached(self, origin: Address, asked: AskReached) -> Reply:
        address = asked.address
        if address in self._host.ways.detours:
            return None
        if address in self._asking:
            self._asking[address][origin] = None
        elif len(self._asking) < KNOWN_MAX:
            self._asking[address] = {origin: None}
            self._host.spawn(self._ask_for_others(address))
        return None

    async def _ask_for_others(self, address: Address) -> None:
        name = await self._round_trips.who_is_at(address)
        asking = self._asking.pop(address)
        if name is not None and address not in self._host.ways.detours:
            for origin in asking:
                self._host.send(origin, TellReached(address, name))

    @handles(TellReached)
    def on_tell_reached(self, origin: Address, told: TellReached) -> Reply:
        look = self._looks.get(told.address)
        if look is not None and look.by_others is None:
            look.by_others = WayThere(told.name, origin)
            look.news.set()
        return None


def _ignore(*_: Address) -> None:
    """There are no detours."""
