"""What a trial is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from braidmq.sim.trials.figures import Figures

OnProgress = Callable[[str, float], None]
"""Called with what is being done, and which part of it is."""


class TrialError(ValueError):
    """A trial that makes no sense; it says why, and what would."""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters. None is what the method or the pattern takes of itself."""

    method: str
    pattern: str
    nodes: int | None = None
    seed: int = 1
    faults: str | None = None
    network: str = "constant"
    cut: str | None = None
    table_size: int | None = None
    learn_s: float | None = None
    ideal: bool = False
    """Tables are laid out, the best by their order, and not learnt."""
    clusters: int | None = None
    publications: int | None = None
    trace: bool = False
    group: int | None = None
    """From here on of selections: members of the group that is selected from (N_r)."""
    wait: float | None = None
    """Periods of the overlay's updates between two requests (T_w / T)."""
    strategy: str | None = None
    aggregates: str | None = None
    slots: int | None = None
    """Components have 1 to so many."""
    occupancy: float | None = None
    """Which part is reserved while requests are measured; until none is free if not given."""
    requests: int | None = None
    message_bytes: int | None = None
    """The size that traffic is reckoned with (S)."""


class TrialReport(msgspec.Struct, frozen=True):
    """The outcome of a trial: with all parameters as they were used, and what checkers complain about."""

    parameters: dict[str, str | int | float | None]
    figures: Figures
    notes: list[str]
    complaints: list[str]
    complaints_count: int
    picture: str | None
