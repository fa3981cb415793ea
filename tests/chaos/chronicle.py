"""What happened in a run, and when: faults, and how many copies each broker had of its store.

The judge asks it what clients could rely on at a moment; whoever reads a verdict sees which faults there were then.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass

OUT = ("kill", "freeze", "isolate", "down", "destroy")
"""While one of these lasts, other brokers do not reach the broker."""

STARTED = "listens for its peers"

_COPY = re.compile(
    r"(b\d+)#\S* (holds a|has no|ends, and had a) copy of this broker's store.*\((\d+) of (\d+) copies\)"
)


@dataclass
class Happening:
    kind: str
    targets: tuple[int, ...]
    began_at: float
    ended_at: float | None = None

    def overlaps(self, since: float, until: float) -> bool:
        return self.began_at <= until and (self.ended_at is None or self.ended_at >= since)


@dataclass(frozen=True)
class CopyState:
    """From a moment on: who holds copies of a broker's store, and whether these are all that are wanted."""

    at: float
    mirrors: frozenset[int]
    is_complete: bool


def copy_states(log: str) -> list[CopyState]:
    """As a broker's log says it, in JSON lines."""
    found: list[CopyState] = []
    mirrors: frozenset[int] = frozenset()
    for line in log.splitlines():
        if "copy of this broker's store" not in line and STARTED not in line:
            continue
        try:
            told = json.loads(line)
        except ValueError:  # cut off by a kill
            continue
        if STARTED in told["message"]:
            mirrors = frozenset()
            found.append(CopyState(told["time"], mirrors, False))
            continue
        match = _COPY.match(told["message"])
        if match is None:
            continue
        mirror, count, wanted = int(match[1][1:]), int(match[3]), int(match[4])
        if count == 1:
            mirrors = frozenset()
        elif match[2] == "holds a":
            mirrors = mirrors | {mirror} if count > len(mirrors) + 1 else frozenset({mirror})
        else:
            mirrors = mirrors - {mirror}
        found.append(CopyState(told["time"], mirrors, count >= wanted))
    return found


class Chronicle:
    def __init__(self) -> None:
        self.all: list[Happening] = []
        self._copies: dict[int, list[CopyState]] = {}

    # While it happens

    def begin(self, kind: str, targets: Iterable[int]) -> Happening:
        one = Happening(kind, tuple(targets), time.time())
        self.all.append(one)
        return one

    def end(self, one: Happening) -> None:
        one.ended_at = time.time()

    @property
    def under_way(self) -> list[Happening]:
        return [one for one in self.all if one.ended_at is None]

    def learn_copies(self, broker: int, log: str) -> None:
        self._copies[broker] = copy_states(log)

    # Looking back

    def during(self, since: float, until: float, brokers: Iterable[int]) -> list[Happening]:
        """What happened to any of some brokers."""
        wanted = set(brokers)
        return [one for one in self.all if wanted.intersection(one.targets) and one.overlaps(since, until)]

    def is_out(self, broker: int, since: float, until: float) -> bool:
        return any(one.kind in OUT for one in self.during(since, until, [broker]))

    def is_cut_off(self, broker: int, since: float, until: float) -> bool:
        """Whether a broker was up, and reached no other."""
        return any(one.kind == "isolate" for one in self.during(since, until, [broker]))

    def situation(self, broker: int, at: float) -> str:
        """How a broker is, in a word."""
        kinds = [one.kind for one in self.during(at, at, [broker])]
        for kind in ("destroy", "down", "kill", "freeze", "isolate", "drain"):
            if kind in kinds:
                return kind
        return "up, with a path broken" if kinds else "up"

    def copies(self, broker: int, at: float) -> CopyState:
        """What a broker had of copies, as it said last."""
        found = CopyState(0.0, frozenset(), False)
        for one in self._copies.get(broker, []):
            if one.at > at:
                break
            found = one
        return found

    def has_lacked(self, broker: int, since: float, until: float) -> bool:
        """Whether a broker had fewer copies than it wants, at any moment."""
        if not self.copies(broker, since).is_complete:
            return True
        return any(not one.is_complete for one in self._copies.get(broker, []) if since <= one.at <= until)
