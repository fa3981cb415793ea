"""How long a message takes: a `Network` answers with which delays the copies of a message arrive.

One delay is the rule, none is a loss, two are a duplicate. Chance is passed in by the simulator, so a run remains a
function of its seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from random import Random
from statistics import NormalDist

from braidmq.host import Address


class Network:
    """When a message arrives: a delay for each copy that does, none if it is lost."""

    steady: tuple[float, ...] = ()
    """The one delay that `delays` always answers, if it is always the same: then it need not be asked."""

    def delays(self, chance: Random, source: Address, to: Address, now: float) -> tuple[float, ...]:
        raise NotImplementedError


class Constant(Network):
    """Every message takes the same time."""

    def __init__(self, delay_s: float) -> None:
        self.steady = (delay_of(delay_s),)

    def delays(self, chance: Random, source: Address, to: Address, now: float) -> tuple[float, ...]:
        return self.steady


class Uniform(Network):
    """Every message takes a time between two bounds, each as likely as the other."""

    def __init__(self, least_s: float, most_s: float) -> None:
        if not least_s <= most_s:
            raise ValueError(f"delays from {least_s} to {most_s} s: the lower bound comes first")
        self._least_s = delay_of(least_s)
        self._span_s = delay_of(most_s) - least_s

    def delays(self, chance: Random, source: Address, to: Address, now: float) -> tuple[float, ...]:
        return (self._least_s + self._span_s * chance.random(),)


class SampledDelays(Network):
    """Every message takes one of the given times, drawn by chance: measured delays, played again."""

    def __init__(self, delays_s: Sequence[float]) -> None:
        if not delays_s:
            raise ValueError("no sample of a delay was given")
        self._delays = [(delay_of(delay_s),) for delay_s in delays_s]

    def delays(self, chance: Random, source: Address, to: Address, now: float) -> tuple[float, ...]:
        return self._delays[int(chance.random() * len(self._delays))]


def wide_area(median_s: float = 0.04, spread: float = 0.6, count: int = 1000) -> SampledDelays:
    """Samples in the shape of a wide area's delays, log-normal: most near the median, few much longer. Not measured."""
    normal = NormalDist(math.log(median_s), spread)
    return SampledDelays([math.exp(normal.inv_cdf((i + 0.5) / count)) for i in range(count)])


class ClusterDelays(Network):
    """The delay depends on the clusters of both ends, plus up to `jitter` (a share of it) by chance.

    `delays_s["a"]["b"]` serves for b to a as well, unless that is given itself.
    """

    def __init__(
        self, delays_s: Mapping[str, Mapping[str, float]], cluster_of: Callable[[Address], str], jitter: float = 0.0
    ) -> None:
        if not jitter >= 0:
            raise ValueError(f"jitter {jitter}: a share of the delay, 0 or more")
        self._cluster_of = cluster_of
        self._jitter = jitter
        self._delays: dict[tuple[str, str], float] = {}
        for source, row in delays_s.items():
            for to, delay_s in row.items():
                self._delays[source, to] = delay_of(delay_s)
                if source not in delays_s.get(to, {}):
                    self._delays[to, source] = delay_s

    def delays(self, chance: Random, source: Address, to: Address, now: float) -> tuple[float, ...]:
        clusters = (self._cluster_of(source), self._cluster_of(to))
        delay_s = self._delays.get(clusters)
        if delay_s is None:
            raise ValueError(f"no delay is given from cluster {clusters[0]!r} to {clusters[1]!r}")
        return (delay_s * (1 + self._jitter * chance.random()),) if self._jitter else (delay_s,)


def delay_of(delay_s: float) -> float:
    """The delay, if it is one; else a ValueError."""
    if not 0 <= delay_s < math.inf:
        raise ValueError(f"a delay of {delay_s} s: it must be 0 or more")
    return delay_s
