"""Brokers with journals in virtual time, and what befalls them: crashes, destruction, and cuts between any two."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from braidmq.braid.mirrors.settings import CopySettings
from braidmq.broker.journal_store import JournalStore
from braidmq.host import Address
from braidmq.sim.engine import Simulator
from braidmq.sim.network import Loss, Network, Reordering, Uniform
from tests.braid.journeys.freezing import FreezingSimulator
from tests.braid.sites import Site, Sites
from tests.braid.slow_paths import SlowPaths

LEAST_S, MOST_S = 0.001, 0.02
"""How long a message between brokers takes."""

ROUND_TRIP_S = 2 * MOST_S


class Cuts(Network):
    """Between some hosts nothing gets through, in one direction or both, until that is taken back."""

    def __init__(self, under: Network) -> None:
        self.now: set[tuple[Address, Address]] = set()
        self._under = under

    def delays(self, chance: Random, source: Address, to: Address, now: float) -> tuple[float, ...]:
        if self.now and (source, to) in self.now:
            return ()
        return self._under.delays(chance, source, to, now)


class Home(NamedTuple):
    """The broker where a client's session is."""

    number: int
    identity: str


class FaultySites(Sites):
    def __init__(
        self, folder: Path, count: int, seed: int, unreliable: bool, copies: int = 2, method: str = ""
    ) -> None:
        """`unreliable` if messages between brokers are lost and overtake each other, now and then."""
        self.folder = folder
        self.copying = CopySettings(copies=copies)
        self.stores: dict[int, JournalStore] = {}
        self.down: dict[int, None] = {}
        """Sites that crashed and are not back."""
        self.destroyed: set[str] = set()
        """The identities of brokers that are gone for good."""
        self.mirrors: dict[str, tuple[Address, ...]] = {}
        """By identity: the brokers that have all that a broker has, as it was when it was last looked."""
        self.unsafe_s: dict[int, list[float]] = {}
        """By number: when a broker was seen to have fewer copies than are configured."""
        self.broken_at = 0.0
        """When something was last cut, or ended."""
        self.trace: list[str] = []
        self.complaints: list[str] = []
        """What was wrong while it happened."""
        self.count = count
        under: Network = Uniform(LEAST_S, MOST_S)
        if unreliable:
            under = Loss(0.005, Reordering(0.02, under))
        self.paths = SlowPaths(under)
        self.cuts = Cuts(self.paths)
        super().__init__(count, seed, self.cuts, method)

    def new_simulator(self, seed: int, network: Network) -> Simulator:
        self._freezing = FreezingSimulator(seed, network)
        return self._freezing

    def introducers_of(self, number: int) -> list[Address]:
        return [one for one in self.all if one != number]

    def add(self, number: int, **options: Any) -> Site:
        self.stores[number] = options["store"] = JournalStore(self.folder / f"site{number}")
        options.setdefault("copying", self.copying)
        return super().add(number, **options)

    def note(self, text: str) -> None:
        self.trace.append(f"{self.sim.now:.6f} {text}")

    # What befalls them

    def crash(self, number: int) -> None:
        """A broker ends without a word; what it has written stays."""
        self.look()
        self._freezing.freeze(number, 0.0)
        site = self[number]
        site.crash()
        site.braid.mirrors.close()
        self.stores.pop(number).close()
        self.down[number] = None
        self._break(f"site {number} crashes")

    def destroy(self, number: int) -> None:
        """A broker ends, and its disk is gone."""
        self.destroyed.add(self[number].braid.identity)
        self.crash(number)
        shutil.rmtree(self.folder / f"site{number}")
        self._break(f"site {number} is destroyed")

    def start(self, number: int) -> None:
        """One that ended starts again, with what is on its disk."""
        del self.down[number]
        self.add(number)
        self.note(f"site {number} starts")

    def freeze(self, number: int, seconds: float) -> None:
        """A broker stands still for a while."""
        self._freezing.freeze(number, seconds)
        self._break(f"site {number} stands still for {seconds:.3f} s")

    def thaws_at(self, number: int) -> float:
        """When a broker goes on; 0 if it does not stand still."""
        return self._freezing.thaws_at(number)

    def cut(self, pairs: set[tuple[Address, Address]]) -> None:
        self.cuts.now |= pairs
        self._break(f"cut {sorted(pairs)}")

    def mend(self, pairs: set[tuple[Address, Address]]) -> None:
        self.cuts.now -= pairs
        self.note(f"mended {sorted(pairs)}")

    def _break(self, text: str) -> None:
        self.broken_at = self.sim.now
        self.note(text)

    # What an outsider can see

    def hears(self, one: int, other: int) -> bool:
        """Whether two brokers that are up hear each other, both ways."""
        cut = self.cuts.now
        return one == other or ((one, other) not in cut and (other, one) not in cut)

    def reaches(self, one: int, other: int) -> bool:
        """Whether one that is up can ask another, directly or by a third one."""
        if other not in self.all or not self.runs(other):
            return False
        others = [by for by in self.all if self.runs(by)]
        return self.hears(one, other) or any(self.hears(one, by) and self.hears(by, other) for by in others)

    def look(self) -> None:
        for number in range(self.count):
            if not self.has_copies(number):
                self.unsafe_s.setdefault(number, []).append(self.sim.now)
        for site in self:
            own = site.braid.mirrors.own
            if own is not None:
                self.mirrors[site.braid.identity] = own.mirrors

    def is_reached_at(self, number: int, home: Home | None) -> bool:
        """Whether a broker can ask the one where a session was last."""
        if home is None:
            return True
        site = self.all.get(home.number)
        return site is not None and site.braid.identity == home.identity and self.reaches(number, home.number)

    def is_known_at(self, number: int, home: Home | None) -> bool:
        """Whether a broker can ask the one where a session was last, or one that has all that that one has."""
        if home is None or self.is_reached_at(number, home):
            return True
        return any(self.reaches(number, int(one)) for one in self.mirrors.get(home.identity, ()))

    def has_copies(self, number: int) -> bool:
        """Whether a broker is up, and says that all its copies are there."""
        own = self[number].braid.mirrors.own if number in self.all else None
        return own is not None and own.lack is None

    @property
    def is_whole(self) -> bool:
        """All are up, in the braid, and hear each other, and all copies are there."""
        is_up = not self.down and not self.cuts.now
        is_up = is_up and all(site.braid.presence.is_in and self.runs(site.number) for site in self)
        return is_up and all(self.has_copies(number) for number in self.all)
