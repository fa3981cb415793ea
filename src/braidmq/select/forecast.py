"""A forecast of shortage: when will nothing be free, if it goes on as it went lately?"""

from __future__ import annotations

from collections import deque
from typing import Final

SAMPLES_MAX: Final = 64
SAMPLES_MIN: Final = 4
WINDOW_S: Final = 600.0
"""How far back is looked."""

HORIZON_S: Final = 600.0
"""How far ahead a shortage is told."""


class Forecast:
    """The trend of how many are free: a straight line through the samples of a window."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque(maxlen=SAMPLES_MAX)

    def note(self, now: float, free: int) -> None:
        self._samples.append((now, free))

    def shortage_in_s(self, now: float) -> float | None:
        """In how many seconds the line reaches 0; None if it does not within the horizon, or too little is known."""
        samples = [(at - now, free) for at, free in self._samples if at >= now - WINDOW_S]
        if len(samples) < SAMPLES_MIN:
            return None
        mean_at = sum(at for at, _ in samples) / len(samples)
        mean_free = sum(free for _, free in samples) / len(samples)
        spread = sum((at - mean_at) ** 2 for at, _ in samples)
        if not spread:
            return None
        slope = sum((at - mean_at) * (free - mean_free) for at, free in samples) / spread
        if slope >= 0:
            return None
        in_s = max(0.0, mean_at - mean_free / slope)
        return in_s if in_s <= HORIZON_S else None
