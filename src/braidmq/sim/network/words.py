"""The faults of a run in the words of a command line.

Faults.parse("loss=0.02,dup=0.02,reorder=0.05,partition=30-60").over(Constant(0.01))
"""

from __future__ import annotations

import math
from functools import partial
from typing import Final
from zlib import crc32

import msgspec

from braidmq.host import Address
from braidmq.sim.clocks import ClockError, Drift, Jumps, sum_of
from braidmq.sim.network.delays import Network
from braidmq.sim.network.faults import (
    CLOGGED_S,
    REORDERING_EXTRA_S,
    Clog,
    CutPairs,
    Duplication,
    Loss,
    OneWayPartition,
    Partition,
    Reordering,
    Slow,
    probability_of,
)

JUMP_EVERY_S = 40.0
"""How often the clocks jump that do, each at its own time."""

JUMP_S = 30.0
DRIFT_RATE = 0.1
"""How far clocks jump, and the part of the time by which they are wrong, where nothing else is said."""

CUT_SHARE = 0.1
"""The share of pairs that are cut, where nothing else is said."""

Span = tuple[float, float]


class FaultsError(ValueError):
    """A text that names no faults; it says what is wrong and what is possible."""


def position_of(address: Address, among: str = "") -> float:
    """A number in [0, 1) for an address, the same in every process: which side of a partition, slow or not."""
    return crc32(f"braid/{among}{address}".encode()) / 2**32


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """The faults of a run, as a person asks for them."""

    loss: float = 0.0
    dup: float = 0.0
    reorder: float = 0.0
    reorder_extra_s: float = REORDERING_EXTRA_S
    clog: float = 0.0
    clogged_s: float = CLOGGED_S
    slow: float = 0.0
    """The share of hosts that are slow."""
    slow_factor: float = 10.0
    partitions: tuple[Span, ...] = ()
    """(from, until) in seconds; each parts the hosts in two halves."""
    one_way: tuple[Span, ...] = ()
    """The same, but one of the halves still hears the other."""
    cuts: tuple[tuple[Span, float], ...] = ()
    """When, and which share of the pairs of hosts do not hear each other meanwhile; others hear both."""
    jump: float = 0.0
    """The share of hosts whose clocks jump ahead."""
    jump_s: float = JUMP_S
    drift: float = 0.0
    """The share of hosts whose clocks run too fast or too slow."""
    drift_rate: float = DRIFT_RATE

    @property
    def ends_at(self) -> float:
        """When the last partition or cut has healed."""
        spans = (*self.partitions, *self.one_way, *(span for span, _ in self.cuts))
        return max((until_s for _, until_s in spans), default=0.0)

    @classmethod
    def parse(cls, text: str) -> Faults:
        """Reads `loss=0.02,dup=0.02,reorder=0.05:0.2,slow=0.1:10,partition=30-60`, each in any order, none if empty.

        `FORMS` has all of them. After a colon stands how much; partitions and cuts may come more than once.
        """
        faults = cls()
        seen: set[str] = set()
        for word in filter(None, (part.strip() for part in text.split(","))):
            name, _, value = word.partition("=")
            if name not in FORMS:
                raise FaultsError(f"faults: {word!r} is none; there are {', '.join(FORMS.values())}")
            if name in seen and name not in SPANS and name != "cut":
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
            network = Slow(lambda address: position_of(address) < self.slow, self.slow_factor, network)
        if self.reorder:
            network = Reordering(self.reorder, network, self.reorder_extra_s)
        if self.clog:
            network = Clog(self.clog, network, self.clogged_s)
        if self.loss:
            network = Loss(self.loss, network)
        if self.dup:
            network = Duplication(self.dup, network)
        for from_s, until_s in self.partitions:
            network = Partition(lambda address: position_of(address) < 0.5, from_s, until_s, network)
        for from_s, until_s in self.one_way:
            network = OneWayPartition(lambda address: position_of(address) < 0.5, from_s, until_s, network)
        for (from_s, until_s), share in self.cuts:
            network = CutPairs(partial(_is_cut, share), from_s, until_s, network)
        return network

    def clock_error_of(self, address: Address) -> ClockError | None:
        """What is wrong with the clock of a host, None if nothing is."""
        jumps = position_of(address, "jump/")
        drifts = position_of(address, "drift/")
        errors: list[ClockError] = []
        if jumps < self.jump:  # where it stands among those says when, and which way
            errors.append(Jumps((0.1 + 0.9 * jumps / self.jump) * JUMP_EVERY_S, JUMP_EVERY_S, self.jump_s))
        if drifts < self.drift:
            errors.append(Drift(self.drift_rate if drifts < self.drift / 2 else -self.drift_rate))
        return sum_of(errors) if errors else None

    def _read(self, name: str, value: str) -> dict[str, object]:
        """The fields that one word of the text sets."""
        first, colon, second = value.partition(":")
        if name == "cut":
            share = probability_of(_number(second)) if colon else CUT_SHARE
            return {"cuts": (*self.cuts, (_span(first), share))}
        if name in SPANS:
            return {SPANS[name]: (*getattr(self, SPANS[name]), _span(value))}
        fields: dict[str, object] = {name: probability_of(_number(first))}
        if colon:
            more = AMOUNTS.get(name)
            if more is None:
                raise ValueError("there is nothing to say after a colon")
            amount = fields[more] = _number(second)
            if not amount:
                raise ValueError("what stands after the colon must be more than 0")
            if name == "drift" and amount >= 1:
                raise ValueError(f"a clock that is slow by {amount:g} of the time stands still: less than 1")
        return fields


FORMS: Final = {
    "loss": "loss=PROBABILITY",
    "dup": "dup=PROBABILITY",
    "reorder": "reorder=PROBABILITY[:SECONDS]",
    "clog": "clog=PROBABILITY[:SECONDS]",
    "slow": "slow=SHARE[:FACTOR]",
    "partition": "partition=FROM-UNTIL",
    "oneway": "oneway=FROM-UNTIL",
    "cut": "cut=FROM-UNTIL[:SHARE]",
    "jump": "jump=SHARE[:SECONDS]",
    "drift": "drift=SHARE[:RATE]",
}
"""What a fault looks like in a text."""

SPANS: Final = {"partition": "partitions", "oneway": "one_way"}
"""Those that are spans of time, and their fields."""

AMOUNTS: Final = {
    "reorder": "reorder_extra_s",
    "clog": "clogged_s",
    "slow": "slow_factor",
    "jump": "jump_s",
    "drift": "drift_rate",
}
"""The fields of what may stand after a colon."""


def _is_cut(share: float, source: Address, to: Address) -> bool:
    """Whether two hosts are one of the pairs that are cut: this share of all pairs."""
    low, high = sorted((str(source), str(to)))
    return low != high and position_of(f"{low}/{high}", "pair/") < share


def _span(text: str) -> Span:
    from_s, dash, until_s = text.partition("-")
    if not dash:
        raise ValueError("it needs a beginning and an end")
    span = (_number(from_s), _number(until_s))
    if not 0 <= span[0] < span[1]:
        raise ValueError("it must end after it begins")
    return span


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is no number" if text else "a number is missing") from None
    if not 0 <= number < math.inf:
        raise ValueError(f"{text} must be 0 or more")
    return number
