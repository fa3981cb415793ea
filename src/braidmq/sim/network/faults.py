"""What may befall a message: faults stand around a model of delays, or around other faults.

Loss(0.02, Duplication(0.02, Uniform(0.01, 0.05)))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from random import Random

from braidmq.bounded import BoundedDict
from braidmq.host import Address
from braidmq.sim.network.delays import Network, delay_of

REORDERING_EXTRA_S = 0.2
"""How much later a reordered message comes at most, where nothing else is said."""

CLOGGED_S = 2.0
"""How long a path is clogged at most, where nothing else is said: longer than most calls wait."""

QUEUE_GAP_S = 1e-6
"""The time between two messages that leave a clogged path: so little, but enough to keep their order."""

CLOGGED_PATHS_MAX = 100_000
"""Paths that are clogged at a time; of more, the one that has been for longest is free again."""


class Loss(Network):
    """Each message is lost with this probability."""

    def __init__(self, probability: float, under: Network) -> None:
        self._probability = probability_of(probability)
        self._under = under

    def delays(self, chance: Random, source: Address, to: Address, now: float) -> tuple[float, ...]:
        return () if chance.random() < self._probability else self._under.delays(chance, source, to, now)


class Duplication(Network):
    """Each message is sent twice with this probability; each copy has its own fate."""

    def __init__(self, probability: float, under: Network) -> None:
        self._probability = probability_of(probability)
        self._under = under

    def delays(self, chance: Random, source: Address, to: Address, now: float) -> tuple[float, ...]:
        delays = self._under.delays(chance, source, to, now)
        if chance.random() < self._probability:
            return delays + self._under.delays(chance, source, to, now)
        return delays


class Reordering(Network):
    """With this probability a message takes up to `extra_s` longer, so that later ones overtake it."""

    def __init__(self, probability: float, under: Network, extra_s: float = REORDERING_EXTRA_S) -> None:
        self._probability = probability_of(probability)
        self._extra_s = delay_of(extra_s)
        self._under = under

    def delays(self, chance: Random, source: Address, to: Address, now: float) -> tuple[float, ...]:
        delays = self._under.delays(chance, source, to, now)
        if chance.random() < self._probability:
            return tuple(delay_s + self._extra_s * chance.random() for delay_s in delays)
        return delays


class Partition(Network):
    """From one time until another, only those in the same group hear each other; then it heals.

    Groups are lists of addresses (all that stand in none form one more), or a function that names an address's group.
    """

    def __init__(
        self,
        groups: Sequence[Collection[Address]] | Callable[[Address], object],
        from_s: float,
        until_s: float,
        under: Network,
    ) -> None:
        if not from_s < until_s:
            raise ValueError(f"a partition from {from_s} to {until_s} s: it must end after it begins")
        self._group_of: Callable[[Address], object]
        if callable(groups):
            self._group_of = groups
        else:
            self._group_of = {address: i for i, group in enumerate(groups) for address in group}.get
        self._from_s = from_s
        self._until_s = until_s
        self._under = under

    def delays(self, chance: Random, source: Address, to: Address, now: float) -> tuple[float, ...]:
        if self._from_s <= now < self._until_s and self._group_of(source) != self._group_of(to):
            return ()
        return self._under.delays(chance, source, to, now)


class OneWayPartition(Network):
    """From one time until another some hosts are heard by each other alone, though they hear all; then it heals.

    A request to one of them is not answered; what it asks for happens. `mute` are their addresses, or a function that
    knows them.
    """

    def __init__(
        self, mute: Collection[Address] | Callable[[Address], bool], from_s: float, until_s: float, under: Network
    ) -> None:
        if not from_s < until_s:
            raise ValueError(f"a one-way partition from {from_s} to {until_s} s: it must end after it begins")
        self._is_mute: Callable[[Address], bool] = mute if callable(mute) else frozenset(mute).__contains__
        self._from_s = from_s
        self._until_s = until_s
        self._under = under

    def delays(self, chance: Random, source: Address, to: Address, now: float) -> tuple[float, ...]:
        if self._from_s <= now < self._until_s and self._is_mute(source) and not self._is_mute(to):
            return ()
        return self._under.delays(chance, source, to, now)


class CutPairs(Network):
    """From one time until another, some pairs of hosts do not hear each other, though others hear both; then it heals.

    That is how sites behind firewalls often are. `is_cut` is asked about (sender, receiver), so a cut may be one-way.
    """

    def __init__(
        self, is_cut: Callable[[Address, Address], bool], from_s: float, until_s: float, under: Network
    ) -> None:
        if not from_s < until_s:
            raise ValueError(f"a cut from {from_s} to {until_s} s: it must end after it begins")
        self._is_cut = is_cut
        self._from_s = from_s
        self._until_s = until_s
        self._under = under

    def delays(self, chance: Random, source: Address, to: Address, now: float) -> tuple[float, ...]:
        if self._from_s <= now < self._until_s and self._is_cut(source, to):
            return ()
        return self._under.delays(chance, source, to, now)


class Clog(Network):
    """With this probability a message clogs its path, for up to `clogged_s`: nothing on it arrives before that is over.

    A path is from one host to another; the way back is another path. What waits arrives then, one message right behind
    the other in the order in which they were sent, as from a queue that was full; what follows does not overtake it.
    """

    def __init__(self, probability: float, under: Network, clogged_s: float = CLOGGED_S) -> None:
        self._probability = probability_of(probability)
        self._clogged_s = delay_of(clogged_s)
        self._under = under
        self._arrives_at: BoundedDict[tuple[Address, Address], float] = BoundedDict(CLOGGED_PATHS_MAX)
        """When the last message of a path that is or was clogged arrives: the next one does not arrive before."""

    def delays(self, chance: Random, source: Address, to: Address, now: float) -> tuple[float, ...]:
        delays = self._under.delays(chance, source, to, now)
        path = (source, to)
        arrives_at = self._arrives_at.pop(path, 0.0)
        if arrives_at <= now:
            if not chance.random() < self._probability:
                return delays
            arrives_at = now + self._clogged_s * chance.random()
        queued = []
        for delay_s in delays:
            arrives_at = max(arrives_at + QUEUE_GAP_S, now + delay_s)
            queued.append(arrives_at - now)
        self._arrives_at[path] = arrives_at
        return tuple(queued)


class Slow(Network):
    """Messages from and to some hosts take longer by a factor. `hosts` are addresses, or a function that knows them."""

    def __init__(self, hosts: Collection[Address] | Callable[[Address], bool], factor: float, under: Network) -> None:
        if not 0 < factor < math.inf:
            raise ValueError(f"slow by a factor of {factor}: it must be more than 0")
        self._is_slow: Callable[[Address], bool] = hosts if callable(hosts) else frozenset(hosts).__contains__
        self._factor = factor
        self._under = under

    def delays(self, chance: Random, source: Address, to: Address, now: float) -> tuple[float, ...]:
        delays = self._under.delays(chance, source, to, now)
        if self._is_slow(source) or self._is_slow(to):
            return tuple(delay_s * self._factor for delay_s in delays)
        return delays


def probability_of(probability: float) -> float:
    """The probability, if it is one; else a ValueError."""
    if not 0 <= probability <= 1:
        raise ValueError(f"{probability:g} is no probability from 0 to 1")
    return probability
