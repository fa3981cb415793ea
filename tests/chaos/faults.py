"""The plan of a run: which fault begins when, and how long it lasts. A seed gives the same plan each time."""

from __future__ import annotations

import random
from dataclasses import dataclass

KINDS = ("kill", "cut", "stall", "mute", "isolate", "nap", "freeze", "drain", "destroy")
"""A broker is killed; a pair's link breaks; a pair's link stops; one way of it stops; all links of a broker break; a
subscriber goes offline; a broker stops and goes on later; one is drained, ends and is started again; one is killed, and
comes back with nothing."""

OF_BROKERS = ("kill", "isolate", "freeze", "drain", "destroy")
"""Those after which a broker is out of reach for the others."""

ONE_WAY = ("mute",)

SHORTEST_S, LONGEST_S = 0.2, 8.0


@dataclass(frozen=True)
class Fault:
    at_s: float
    lasts_s: float
    kind: str
    targets: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.at_s:.1f} s: {self.kind} {', '.join(map(str, self.targets))} for {self.lasts_s:.1f} s"


def out_max(brokers: int) -> int:
    """So many brokers may be out of reach at a time."""
    return max(1, brokers // 3)


def plan(
    chance: random.Random, seconds: float, every_s: float, brokers: int, subscribers: int, kinds: tuple[str, ...]
) -> list[Fault]:
    """Faults at random times, one every so often. At most a third of the brokers is out of reach at a time."""
    found: list[Fault] = []
    at_s = 0.0
    while True:
        at_s += chance.uniform(0.5, 1.5) * every_s
        if at_s >= seconds:
            return found
        lasts_s = min(chance.uniform(SHORTEST_S, LONGEST_S), seconds - at_s)
        kind = chance.choice(kinds)
        targets = _targets(chance, kind, brokers, subscribers)
        under_way = [one for one in found if one.at_s + one.lasts_s > at_s]
        out = [one for one in under_way if one.kind in OF_BROKERS]
        is_too_much = kind in OF_BROKERS and len(out) >= out_max(brokers)
        if not is_too_much and all(one.kind != kind or one.targets != targets for one in under_way):
            found.append(Fault(at_s, lasts_s, kind, targets))


def _targets(chance: random.Random, kind: str, brokers: int, subscribers: int) -> tuple[int, ...]:
    if kind == "nap":
        return (chance.randrange(subscribers),)
    if kind in OF_BROKERS:
        return (chance.randrange(brokers),)
    targets = chance.sample(range(brokers), 2)
    return tuple(targets if kind in ONE_WAY else sorted(targets))
