"""The faults of a run, drawn from its seed: one at a time, the next when all brokers are in and have their copies; or
several at a time, whatever the state of the brokers is."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from braidmq.host import Address
from tests.braid.journeys.faulty_sites import FaultySites
from tests.braid.sites import Site

PAUSE_S = (0.5, 5.0)
"""From one fault to the next."""

LASTS_S = (0.3, 10.0)
"""How long a cut lasts, or a broker is down."""

DRAIN_S = 10.0
LOOK_S = 0.1

Pairs = set[tuple[Address, Address]]


class Mishaps:
    def __init__(
        self, sites: FaultySites, seed: int, until_s: float, on_gone: Callable[[Site], None], at_once: int = 1
    ) -> None:
        """`on_gone` is told of a broker that has ended. `at_once` faults may last at a time."""
        self._sites = sites
        self._chance = Random(f"{seed}:mishaps")
        self._until_s = until_s
        self._on_gone = on_gone
        self._at_once = at_once
        self._draining: dict[int, None] = {}
        self._cuts: list[Pairs] = []
        self.destroyed = 0
        self._kinds: dict[Callable[[], bool], float] = {
            self._crash: 3.0,
            self._destroy: 4.0,
            self._cut_pair: 2.0,
            self._cut_one_way: 2.0,
            self._isolate: 2.0,
            self._mute: 1.0,
            self._part: 1.0,
            self._drain: 1.0,
        }
        if at_once > 1:
            self._kinds[self._freeze] = 2.0

    def begin(self) -> None:
        self._later(PAUSE_S, self._next)

    def _later(self, span: tuple[float, float], action: Callable[[], None]) -> None:
        self._sites.sim.at(self._sites.sim.now + self._chance.uniform(*span), action)

    def _next(self) -> None:
        if self._sites.sim.now > self._until_s:
            return
        kinds, weights = zip(*self._kinds.items(), strict=True)
        happened = self._has_room and self._chance.choices(kinds, weights)[0]()
        self._later(PAUSE_S if happened else (0.2, 0.2), self._next)

    @property
    def _has_room(self) -> bool:
        """Whether another fault may happen now."""
        frozen = sum(not self._sites.runs(one) for one in self._sites.all)
        lasting = len(self._sites.down) + len(self._draining) + len(self._cuts) + frozen
        return lasting < self._at_once if self._at_once > 1 else self._sites.is_whole and not self._draining

    def end(self) -> None:
        """All that is cut is mended, and all that is down starts."""
        self._until_s = 0.0
        self._cuts.clear()
        self._sites.mend(set(self._sites.cuts.now))
        for number in list(self._sites.down):
            self._sites.start(number)

    # Brokers

    def _up(self) -> list[int]:
        return sorted(one for one in self._sites.all if one not in self._draining)

    @property
    def _spares(self) -> bool:
        """Whether a broker may end: most of them are up."""
        return len(self._sites.down) + len(self._draining) < 2

    def _crash(self) -> bool:
        if not self._spares:
            return False
        self._end(self._chance.choice(self._up()), self._sites.crash)
        return True

    def _destroy(self) -> bool:
        """Only where all copies are there: else more is lost than the rule says."""
        sites = self._sites
        if not sites.is_whole or self._draining:
            return False
        self.destroyed += 1
        self._end(self._chance.choice(self._up()), sites.destroy)
        return True

    def _freeze(self) -> bool:
        self._sites.freeze(self._chance.choice(self._up()), self._chance.uniform(*LASTS_S))
        return True

    def _end(self, number: int, how: Callable[[int], None]) -> None:
        site = self._sites[number]
        how(number)
        self._on_gone(site)
        self._later(LASTS_S, lambda: self._start(number))

    def _start(self, number: int) -> None:
        if number in self._sites.down:
            self._sites.start(number)

    # Cuts

    def _cut(self, pairs: Pairs) -> bool:
        self._sites.cut(pairs)
        self._cuts.append(pairs)
        self._later(LASTS_S, lambda: self._mend(pairs))
        return True

    def _mend(self, pairs: Pairs) -> None:
        """Those of them that nothing else cuts."""
        if pairs in self._cuts:
            self._cuts.remove(pairs)
            self._sites.mend(pairs - set().union(*self._cuts))

    def _two(self) -> tuple[int, int]:
        one, other = self._chance.sample(range(self._sites.count), 2)
        return one, other

    def _cut_pair(self) -> bool:
        one, other = self._two()
        return self._cut({(one, other), (other, one)})

    def _cut_one_way(self) -> bool:
        return self._cut({self._two()})

    def _isolate(self) -> bool:
        one, _ = self._two()
        others = [other for other in range(self._sites.count) if other != one]
        return self._cut({(one, other) for other in others} | {(other, one) for other in others})

    def _mute(self) -> bool:
        """One hears the others, and is not heard."""
        one, _ = self._two()
        return self._cut({(one, other) for other in range(self._sites.count) if other != one})

    def _part(self) -> bool:
        few = set(self._two())
        rest = set(range(self._sites.count)) - few
        return self._cut({(a, b) for a in few for b in rest} | {(b, a) for a in few for b in rest})

    # Going in good order

    def _drain(self) -> bool:
        if not self._spares:
            return False
        number = self._chance.choice(self._up())
        site = self._sites[number]
        self._draining[number] = None
        self._sites.note(f"site {number} is drained")
        site.braid.drain.start(DRAIN_S)
        self._sites.sim.at(self._sites.sim.now + LOOK_S, lambda: self._await_drain(site))
        return True

    def _await_drain(self, site: Site) -> None:
        sites = self._sites
        if not site.host.alive:
            self._draining.pop(site.number, None)
        elif site.braid.drain.outcome is None:
            sites.sim.at(sites.sim.now + LOOK_S, lambda: self._await_drain(site))
        else:
            site.host.spawn(self._leave(site))

    async def _leave(self, site: Site) -> None:
        """As a server does when its drain is over."""
        sites, number = self._sites, site.number
        site.broker.shut_down()
        await site.braid.mirrors.finish()
        await site.braid.leave()
        sites.sim.at(sites.sim.now, lambda: self._left(site, number))

    def _left(self, site: Site, number: int) -> None:
        sites = self._sites
        self._draining.pop(number, None)
        if not site.host.alive:
            return
        heard = [one for one in sites if one.number != number and sites.hears(number, one.number)]
        for other in heard:
            other.braid.on_parted(number)  # as its farewell tells
        self._end(number, sites.crash)
