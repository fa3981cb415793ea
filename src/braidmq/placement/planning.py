"""From a problem to a plan: a method makes the homes, the model says what they lead to, a bound how good that is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from braidmq.placement.bound import lower_bound
from braidmq.placement.errors import PlacementError
from braidmq.placement.model import Performance, evaluate
from braidmq.placement.plan import ClientMove, HomePlan, PlanFigures, ServerFigures
from braidmq.placement.priced_search import Prices
from braidmq.placement.problem import Bools, Ints, PlacementProblem
from braidmq.placement.progress import Progress
from braidmq.placement.refined import refine
from braidmq.placement.reloc import RelocSettings, reloc
from braidmq.placement.simple import nearest_homes, one_server_a_topic, random_homes


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a method has made."""

    homes: Ints
    prices: Prices | None = None
    """At which it was made, if it was made at prices."""
    counted: Bools | None = None
    """The rows of members that the method takes for a load, if not all that publish."""


PlanMethod = Callable[[PlacementProblem, RelocSettings, np.random.Generator, Progress | None], Assignment]


def _refined(
    problem: PlacementProblem, _settings: RelocSettings, chance: np.random.Generator, progress: Progress | None
) -> Assignment:
    found = refine(problem, chance, progress=progress)
    return Assignment(found.homes, found.prices)


def _reloc(
    problem: PlacementProblem, settings: RelocSettings, chance: np.random.Generator, _progress: Progress | None
) -> Assignment:
    found = reloc(problem, settings, chance)
    return Assignment(found.homes, counted=found.counted)


PLAN_METHODS: Final[dict[str, tuple[str, PlanMethod]]] = {
    "refined": ("prices, blocks of topics, and the true cost at last", _refined),
    "reloc": ("RELOC: locality, relations, cooperation", _reloc),
    "nearest": ("NS: the nearest server", lambda problem, *_: Assignment(nearest_homes(problem))),
    "topic": (
        "OTOS: one server a topic",
        lambda problem, _settings, chance, _progress: Assignment(one_server_a_topic(problem, chance)),
    ),
    "random": (
        "RA: any server",
        lambda problem, _settings, chance, _progress: Assignment(random_homes(problem, chance)),
    ),
}
"""By name: what it is, and how it is done."""


def assign(
    method: str,
    problem: PlacementProblem,
    chance: np.random.Generator,
    settings: RelocSettings | None = None,
    progress: Progress | None = None,
) -> Assignment:
    if method not in PLAN_METHODS:
        raise PlacementError(f"there is no method {method}: there are {', '.join(PLAN_METHODS)}")
    return PLAN_METHODS[method][1](problem, settings or RelocSettings(), chance, progress)


def make_plan(
    problem: PlacementProblem,
    homes: Ints,
    method: str,
    *,
    now: Ints | None = None,
    prices: Prices | None = None,
    has_bound: bool = True,
    progress: Progress | None = None,
) -> HomePlan:
    """The plan that these homes are, beside what is now and beside the bound, unless that is not wanted."""
    planned = evaluate(problem, homes)
    bound = None
    if has_bound:
        bound = lower_bound(problem, homes, prices, known_ms=planned.delay_ms, progress=progress).delay_ms
    moves: list[ClientMove] = []
    if now is not None:
        moves = [
            ClientMove(problem.clients[client], problem.servers[now[client]], problem.servers[homes[client]])
            for client in np.flatnonzero(homes != now).tolist()
        ]
    return HomePlan(
        braid=problem.digest,
        method=method,
        homes=problem.named(homes),
        moves=tuple(moves),
        planned=figures(problem, homes, planned),
        now=None if now is None else figures(problem, now, evaluate(problem, now)),
        bound_ms=bound,
    )


def figures(problem: PlacementProblem, homes: Ints, found: Performance) -> PlanFigures:
    clients = np.bincount(homes, minlength=len(problem.servers))
    servers = tuple(
        ServerFigures(
            problem.servers[at],
            int(clients[at]),
            float(found.storage[at]),
            float(problem.storage[at]),
            float(found.compute[at]),
            float(problem.compute[at]),
            float(found.local_share[at]),
        )
        for at in range(len(problem.servers))
    )
    return PlanFigures(found.delay_ms, found.distance_ms, found.resource_ms, servers)
