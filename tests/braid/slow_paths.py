"""A network in which some paths take longer than others."""

from __future__ import annotations

from random import Random

from braidmq.host import Address
from braidmq.sim.network import Network


class SlowPaths(Network):
    """Some paths take longer, in one direction."""

    def __init__(self, under: Network) -> None:
        self._under = under
        self.slower_s: dict[tuple[Address, Address], float] = {}

    def delays(self, chance: Random, source: Address, to: Address, now: float) -> tuple[float, ...]:
        more_s = self.slower_s.get((source, to), 0.0)
        return tuple([one + more_s for one in self._under.delays(chance, source, to, now)])
