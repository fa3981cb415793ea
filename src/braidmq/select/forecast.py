"""A forecast of shortage: when will nothing be free, if it goes on as it went lately?"""

from __future__ import annotations

from collections import deque
from typing import Final

SAMPLES_MAX: Final = 64
SAMPLES_MIN: Final = 4
WINDOW_S: Final = 600.0
"""How far back is looked."""

HALF_S: Final = 60.0
"""What is older by so much counts for half."""

HORIZON_S: Final = 600.0
"""How far ahead a shortage is told."""


class Forecast:
    """The trend of how many are free: a straight line through the samples of a window."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque(maxlen=SAMPLES_MAX)

    def note(self, now: float, free: int) -> None:
        self._samples.append((now, free))

    def shift(self, change: int) -> None:
        """So many more are there from now on, or fewer: what was free before is taken as if it had been so then."""
        self._samples = deque([(at, free + change) for at, free in self._samples], SAMPLES_MAX)

    def shortage_in_s(self, now: float) -> float | None:
        """In how many seconds nothing is free, if it goes down from what is free now as the line does; None if that is
        not within the horizon, or too little is known."""
        samples = [(at - now, free, 0.5 ** ((now - at) / HALF_S)) for at, free in self._samples if at >= now - WINDOW_S]
        if len(samples) < SAMPLES_MIN:
            return None
        total = sum(weight for *_, weight in samples)
        mean_at = sum(at * weight for at, _, weight in samples) / total
        mean_free = sum(free * weight for _, free, weight in samples) / total
        spread = sum(weight * (at - mean_at) ** 2 for at, _, weight in samples)
        if not spread:
            return None
        slope = sum(weight * (at - mean_at) * (free - mean_free) for at, free, weight in samples) / spread
        last_at, last_free, _ = samples[-1]
        if slope >= 0:
            return None
        in_s = max(0.0, last_at - last_free / slope)
        return in_s if in_s <= HORIZON_S else None
