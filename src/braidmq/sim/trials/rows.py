"""A trial as one row of a table: its parameters, what was measured, and what was wrong.

A row is made in one way wherever the trial is played, so the same trial gives the same row; only the figures of the
machine (`figures.OF_THE_MACHINE`) differ.
"""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Any, Final, get_args, get_type_hints

import msgspec
from msgspec.structs import asdict

import braidmq
from braidmq.sim.engine import SimulationError
from braidmq.sim.network import FaultsError
from braidmq.sim.trials.figures import FaultFigures, Figures, FleetFigures, SelectionFigures
from braidmq.sim.trials.patterns import PatternError
from braidmq.sim.trials.trial import Trial, TrialError, play

PARAMETERS: Final[dict[str, type]] = {
    name: next(kind for kind in (get_args(hint) if isinstance(hint, UnionType) else (hint,)) if kind is not NoneType)
    for name, hint in get_type_hints(Trial).items()
    if name not in ("trace", "ideal")  # whether tables are ideal is in `learn_s`
}
FIGURES: Final[dict[str, type]] = {
    name: kind for name, kind in get_type_hints(Figures).items() if name not in ("rough", "fleet", "selection")
}
ROUGH: Final[dict[str, type]] = {f"rough_{name}": kind for name, kind in get_type_hints(FaultFigures).items()}
FLEET: Final[dict[str, type]] = {f"fleet_{name}": kind for name, kind in get_type_hints(FleetFigures).items()}
SELECTION: Final[dict[str, type]] = {
    f"select_{name}": kind for name, kind in get_type_hints(SelectionFigures).items() if kind in (int, float)
}

COLUMNS: Final[dict[str, type]] = {
    "trial": str,
    "version": str,
    **PARAMETERS,
    **FIGURES,
    **ROUGH,
    **FLEET,
    **SELECTION,
    "complaints": int,
    "first_complaint": str,
    "error": str,
}
"""All columns, and what is in them: str, int or float, or nothing."""

Row = dict[str, Any]


def name_of(trial: Trial) -> str:
    """What tells a trial from all others: all that was said about it."""
    return msgspec.json.encode(trial, order="sorted").decode()


def trial_of(name: str) -> Trial:
    return msgspec.json.decode(name, type=Trial)


def row_of(trial: Trial) -> Row:
    """Plays a trial. One that cannot be played, or fails, has its `error` in the row and no figures."""
    row: Row = dict.fromkeys(COLUMNS)
    row |= {"trial": name_of(trial), "version": braidmq.__version__, "complaints": 0}
    row |= {name: getattr(trial, name) for name in PARAMETERS}
    try:
        report = play(trial)
    except (TrialError, PatternError, FaultsError, SimulationError) as error:
        return row | {"error": str(error)}
    figures = asdict(report.figures)
    rough, fleet, selection = (figures.pop(name) for name in ("rough", "fleet", "selection"))
    row |= {name: value for name, value in report.parameters.items() if name in PARAMETERS} | figures
    if rough is not None:
        row |= {f"rough_{name}": value for name, value in asdict(rough).items()}
    if fleet is not None:
        row |= {f"fleet_{name}": value for name, value in asdict(fleet).items()}
    if selection is not None:
        found = {f"select_{name}": value for name, value in asdict(selection).items()}
        row |= {name: found[name] for name in SELECTION}
    row["complaints"] = report.complaints_count
    row["first_complaint"] = report.complaints[0] if report.complaints else None
    return row
