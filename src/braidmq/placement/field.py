"""The field of the paper's simulation: a square with servers in a grid, and the members of a topic scattered around a
point of their own (Tanaka et al. 2021, §7)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from braidmq.placement.errors import PlacementError
from braidmq.placement.problem import Floats, HomeServer, Latencies, ManagedTopic, PlacementProblem, pose
from braidmq.placement.social import Topics, clients_of

SCATTER_TRIES_MAX: Final = 1000
"""Draws of a position until it lies in the field; then it is drawn evenly."""

SpoolOf = Literal["followees", "members"]
Centres = Literal["spread", "anywhere"]


@dataclass(frozen=True, slots=True)
class FieldSettings:
    """The constants of TABLE 2, with the paper's letters beside them."""

    scatter_km: float = 5.0
    """σ."""
    spool_each: float = 2.0
    """p: messages in a spool for each followee of its topic."""
    servers: int = 16
    """L."""
    storage: float = 640.0
    """A."""
    compute: float = 3200.0
    """B."""
    cloud_ms: float = 5.0
    """d^C."""
    side_km: float = 25.0
    ms_per_km: float = 0.1
    """γ (Eq. 10)."""
    spool_of: SpoolOf = "followees"
    """What p is multiplied by. The paper says |C_n|; its figures come out with the followees, one fewer."""
    centres: Centres = "spread"
    """Where the points of topics are: evenly spread, one in each square of a grid, as the paper's figures need it, or
    anywhere, each by itself, as its text says; then some servers have too much to compute even if clients are close.
    """


@dataclass(frozen=True, slots=True)
class Field:
    """A problem, and where everybody is, in km."""

    problem: PlacementProblem
    clients_km: Floats
    servers_km: Floats


def scattered(topics: Topics, settings: FieldSettings, chance: np.random.Generator) -> Field:
    """Everybody is placed around the point of the first of their topics."""
    names = clients_of(topics)
    first: dict[str, int] = {}
    for number, members in enumerate(topics):
        for member in members:
            first.setdefault(member, number)
    centres = _centres(len(topics), settings, chance)
    clients_km = _scatter(centres[[first[name] for name in names]], settings, chance)
    servers_km = grid(settings.servers, settings.side_km)
    return located(topics, clients_km, servers_km, settings)


def located(topics: Topics, clients_km: Floats, servers_km: Floats, settings: FieldSettings) -> Field:
    """The problem of clients and servers at known positions, in the order of `clients_of`."""
    names = clients_of(topics)
    less = 1 if settings.spool_of == "followees" else 0
    managed = [
        ManagedTopic(
            f"t{number}", dict.fromkeys(members, 1.0), members, settings.spool_each * max(1, len(members) - less)
        )
        for number, members in enumerate(topics)
    ]
    servers = [HomeServer(f"s{number}", settings.storage, settings.compute) for number in range(len(servers_km))]
    latencies = Latencies(
        settings.ms_per_km * distances_km(clients_km, servers_km),
        settings.ms_per_km * distances_km(servers_km, servers_km),
        np.full(len(servers_km), settings.cloud_ms),
    )
    return Field(pose(servers, names, managed, latencies), clients_km, servers_km)


def grid(servers: int, side_km: float) -> Floats:
    """Servers at equal distances from each other and from the sides: four by four at 5, 10, 15 and 20 km of 25."""
    rows = math.isqrt(max(servers, 0))
    while rows > 1 and servers % rows:
        rows -= 1
    if rows < 1:
        raise PlacementError(f"there cannot be {servers} servers")
    columns = servers // rows
    x, y = np.meshgrid(
        np.arange(1, columns + 1) * side_km / (columns + 1), np.arange(1, rows + 1) * side_km / (rows + 1)
    )
    return np.column_stack([x.ravel(), y.ravel()])


def distances_km(here: Floats, there: Floats) -> Floats:
    return np.asarray(np.hypot(*np.moveaxis(here[:, None] - there[None], 2, 0)), np.float64)


def _centres(topics: int, settings: FieldSettings, chance: np.random.Generator) -> Floats:
    within = chance.uniform(0, 1, (topics, 2))
    if settings.centres == "anywhere":
        return within * settings.side_km
    squares = math.isqrt(topics - 1) + 1
    chosen = chance.permutation(squares**2)[:topics]
    corners = np.column_stack([chosen // squares, chosen % squares])
    return np.asarray((corners + within) * settings.side_km / squares, np.float64)


def _scatter(centres: Floats, settings: FieldSettings, chance: np.random.Generator) -> Floats:
    """A Gaussian around each centre, drawn again where it leaves the field."""
    positions = chance.normal(centres, settings.scatter_km)
    for _ in range(SCATTER_TRIES_MAX):
        outside = np.any((positions < 0) | (positions > settings.side_km), axis=1)
        if not outside.any():
            return positions
        positions[outside] = chance.normal(centres[outside], settings.scatter_km)
    outside = np.any((positions < 0) | (positions > settings.side_km), axis=1)
    positions[outside] = chance.uniform(0, settings.side_km, (int(outside.sum()), 2))
    return positions
