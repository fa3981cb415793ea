"""The network between simulated hosts: how long a message takes, and what may befall it.

A `Network` answers one question: with which delays do the copies of this message arrive? One delay is the rule, none is
a loss, two are a duplicate. Models give the delays; faults stand around a model, or around other faults:

    Loss(0.02, Duplication(0.02, Uniform(0.01, 0.05)))

Chance is passed in by the simulator, so a run remains a function of its seed. `Faults` is the same in the words of a
command line: `Faults.parse("loss=0.02,dup=0.02,reorder=0.05,partition=30-60").over(Constant(0.01))`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from random import Random
from statistics import NormalDist
from zlib import crc32

import msgspec

from braidmq.host import Address

REORDERING_EXTRA_S = 0.2
"""How much later a reordered message comes at most, where nothing else is said."""


class FaultsError(ValueError):
    """A text that names no faults; it says what is wrong and what is possible."""


class Network:
    """When a message arrives: a delay for each copy that does, none if it is lost."""

    steady: tuple[float, ...] = ()
    """The one delay that `delays` always answers, if it is always the same: then it need not be asked."""

    def delays(self, chance: Random, source: Address, to: Address, now: float) -> tuple[float, ...]:
        raise NotImplementedError


# Models


class Constant(Network):
    """Every message takes the same time."""

    def __init__(self, delay_s: float) -> None:
        self.steady = (_delay(delay_s),)

    def delays(self, chance: Random, source: Address, to: Address, now: float) -> tuple[float, ...]:
        return self.steady


class Uniform(Network):
    """Every message takes a time between two bounds, each as likely as the other."""

    def __init__(self, least_s: float, most_s: float) -> None:
        if not least_s <= most_s:
            raise ValueError(f"delays from {least_s} to {most_s} s: the lower bound comes first")
        self._least_s = _delay(least_s)
        self._span_s = _delay(most_s) - least_s

    def delays(self, chance: Random, source: Address, to: Address, now: float) -> tuple[float, ...]:
        return (self._least_s + self._span_s * chance.random(),)


class Samples(Network):
    """Every message takes one of the given times, drawn by chance: measured delays, played again."""

    def __init__(self, delays_s: Sequence[float]) -> None:
        if not delays_s:
            raise ValueError("no sample of a delay was given")
        self._delays = [(_delay(delay_s),) for delay_s in delays_s]

    def delays(self, chance: Random, source: Address, to: Address, now: float) -> tuple[float, ...]:
        return self._delays[int(chance.random() * len(self._delays))]


def wide_area(median_s: float = 0.04, spread: float = 0.6, count: int = 1000) -> Samples:
    """Samples in the shape of a wide area's delays, log-normal: most near the median, few much longer. Not measured."""
    normal = NormalDist(math.log(median_s), spread)
    return Samples([math.exp(normal.inv_cdf((i + 0.5) / count)) for i in range(count)])


class ByCluster(Network):
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
                self._delays[source, to] = _delay(delay_s)
                if source not in delays_s.get(to, {}):
                    self._delays[to, source] = delay_s

    def delays(self, chance: Random, source: Address, to: Address, now: float) -> tuple[float, ...]:
        clusters = (self._cluster_of(source), self._cluster_of(to))
        delay_s = self._delays.get(clusters)
        if delay_s is None:
            raise ValueError(f"no delay is given from cluster {clusters[0]!r} to {clusters[1]!r}")
        return (delay_s * (1 + self._jitter * chance.random()),) if self._jitter else (delay_s,)


# Faults around a network


class Loss(Network):
    """Each message is lost with this probability."""

    def __init__(self, probability: float, under: Network) -> None:
        self._probability = _probability(probability)
        self._under = under

    def delays(self, chance: Random, source: Address, to: Address, now: float) -> tuple[float, ...]:
        return () if chance.random() < self._probability else self._under.delays(chance, source, to, now)


class Duplication(Network):
    """Each message is sent twice with this probability; each copy has its own fate."""

    def __init__(self, probability: float, under: Network) -> None:
        self._probability = _probability(probability)
        self._under = under

    def delays(self, chance: Random, source: Address, to: Address, now: float) -> tuple[float, ...]:
        delays = self._under.delays(chance, source, to, now)
        if chance.random() < self._probability:
            return delays + self._under.delays(chance, source, to, now)
        return delays


class Reordering(Network):
    """With this probability a message takes up to `extra_s` longer, so that later ones overtake it."""

    def __init__(self, probability: float, under: Network, extra_s: float = REORDERING_EXTRA_S) -> None:
        self._probability = _probability(probability)
        self._extra_s = _delay(extra_s)
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


class Slow(Network):
    """Messages from and to some hosts take longer by a factor. `nodes` are addresses, or a function that knows them."""

    def __init__(self, nodes: Collection[Address] | Callable[[Address], bool], factor: float, under: Network) -> None:
        if not 0 < factor < math.inf:
            raise ValueError(f"slow by a factor of {factor}: it must be more than 0")
        self._is_slow: Callable[[Address], bool] = nodes if callable(nodes) else frozenset(nodes).__contains__
        self._factor = factor
        self._under = under

    def delays(self, chance: Random, source: Address, to: Address, now: float) -> tuple[float, ...]:
        delays = self._under.delays(chance, source, to, now)
        if self._is_slow(source) or self._is_slow(to):
            return tuple(delay_s * self._factor for delay_s in delays)
        return delays


def place(address: Address) -> float:
    """A number in [0, 1) for an address, the same in every process: which side of a partition, slow or not."""
    return crc32(f"braid/{address}".encode()) / 2**32


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """The faults of a run, as a person asks for them."""

    loss: float = 0.0
    dup: float = 0.0
    reorder: float = 0.0
    reorder_extra_s: float = REORDERING_EXTRA_S
    slow: float = 0.0
    """The share of hosts that are slow."""
    slow_factor: float = 10.0
    partitions: tuple[tuple[float, float], ...] = ()
    """(from, until) in seconds; each parts the hosts in two halves."""

    @classmethod
    def parse(cls, text: str) -> Faults:
        """Reads `loss=0.02,dup=0.02,reorder=0.05:0.2,slow=0.1:10,partition=30-60`, each in any order, none if empty.

        After a colon stand the seconds of the extra delay, and the factor. `partition` may come more than once.
        """
        faults = cls()
        seen: set[str] = set()
        for word in filter(None, (part.strip() for part in text.split(","))):
            name, _, value = word.partition("=")
            if name not in FORMS:
                raise FaultsError(f"faults: {word!r} is none; there are {', '.join(FORMS.values())}")
            if name in seen and name != "partition":
                raise FaultsError(f"faults: {name} is given twice")
            seen.add(name)
            try:
                faults = msgspec.structs.replace(faults, **faults._read(name, value))
            except ValueError as error:
                raise FaultsError(f"faults: {word!r}: {error}; write {FORMS[name]}") from None
        return faults

    def over(self, network: Network) -> Network:
        """The network with these faults around it: copies are lost one by one, a partition loses all."""
        if self.slow:
            network = Slow(lambda address: place(address) < self.slow, self.slow_factor, network)
        if self.reorder:
            network = Reordering(self.reorder, network, self.reorder_extra_s)
        if self.loss:
            network = Loss(self.loss, network)
        if self.dup:
            network = Duplication(self.dup, network)
        for from_s, until_s in self.partitions:
            network = Partition(lambda address: place(address) < 0.5, from_s, until_s, network)
        return network

    def _read(self, name: str, value: str) -> dict[str, object]:
        """The fields that one word of the text sets."""
        if name == "partition":
            from_s, dash, until_s = value.partition("-")
            if not dash:
                raise ValueError("it needs a beginning and an end")
            span = (_number(from_s), _number(until_s))
            if not 0 <= span[0] < span[1]:
                raise ValueError("it must end after it begins")
            return {"partitions": (*self.partitions, span)}
        first, colon, second = value.partition(":")
        fields: dict[str, object] = {name: _probability(_number(first))}
        if colon:
            more = {"reorder": "reorder_extra_s", "slow": "slow_factor"}.get(name)
            if more is None:
                raise ValueError("there is nothing to say after a colon")
            fields[more] = _number(second)
            if not fields[more]:
                raise ValueError("what stands after the colon must be more than 0")
        return fields


FORMS = {
    "loss": "loss=PROBABILITY",
    "dup": "dup=PROBABILITY",
    "reorder": "reorder=PROBABILITY[:SECONDS]",
    "slow": "slow=SHARE[:FACTOR]",
    "partition": "partition=FROM-UNTIL",
}
"""What a fault looks like in a text."""


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is no number" if text else "a number is missing") from None
    if not 0 <= number < math.inf:
        raise ValueError(f"{text} must be 0 or more")
    return number


def _probability(probability: float) -> float:
    if not 0 <= probability <= 1:
        raise ValueError(f"{probability:g} is no probability from 0 to 1")
    return probability


def _delay(delay_s: float) -> float:
    if not 0 <= delay_s < math.inf:
        raise ValueError(f"a delay of {delay_s} s: it must be 0 or more")
    return delay_s
