"""The last improvements of a plan, at its true cost: a client, or all publishers of a topic at a server, go elsewhere
if
that lowers Y, and otherwise stay."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from braidmq.placement.home_counts import HomeCounts
from braidmq.placement.priced_search import GAIN_MIN
from braidmq.placement.problem import Ints

PASSES_MAX: Final = 50
"""Times that all clients are looked at; it ends earlier, when none of them gains."""
OPENED_MAX: Final = 2
"""Servers that are tried for one more spool of a topic."""


def polish(counts: HomeCounts, clients: Ints) -> None:
    """Moves single clients, the one that gains most first, until none of these gains by itself."""
    if not clients.size:
        return
    for _ in range(PASSES_MAX):
        best = counts.changes(clients).min(axis=1)
        gaining = np.flatnonzero(best < -GAIN_MIN)
        moved = 0
        for client in clients[gaining[np.argsort(best[gaining])]].tolist():
            moved += _move_if_better(counts, client)
        if not moved:
            return


def _move_if_better(counts: HomeCounts, client: int) -> bool:
    changes = counts.changes(np.array([client]))[0]
    server = int(np.argmin(changes))
    if changes[server] >= -GAIN_MIN:
        return False
    counts.move(client, server)
    return True


def polish_blocks(counts: HomeCounts, topics: Iterable[int]) -> int:
    """Tries for these topics to close each server that they are at, and to open each that has room; returns how often
    that was better."""
    better = 0
    for topic in topics:
        for server in np.flatnonzero(counts.publishers[topic] > 0).tolist():
            better += _close(counts, topic, server)
        for server in _worth_opening(counts, topic).tolist():
            better += _open(counts, topic, server)
    return better


def _close(counts: HomeCounts, topic: int, server: int) -> bool:
    """Lets all publishers of a topic leave a server, each to where it then costs least."""
    clients = _publishers(counts, topic)
    clients = clients[counts.homes[clients] == server]
    if clients.size < 2 or np.any(counts.problem.fixed[clients] >= 0):  # one alone is moved as a client
        return False
    total = 0.0
    moved: list[int] = []
    for client in clients.tolist():
        changes = counts.changes(np.array([client]))[0]
        changes[server] = np.inf
        target = int(np.argmin(changes))
        total += float(changes[target])
        counts.move(client, target)
        moved.append(client)
    if total < -GAIN_MIN:
        return True
    for client in moved:
        counts.move(client, server)
    return False


def _worth_opening(counts: HomeCounts, topic: int) -> Ints:
    """The servers with room for one more spool that most of the ways to its publishers would be shorter from."""
    problem = counts.problem
    has_room = counts.storage + problem.stored[topic] <= problem.storage
    closed = np.flatnonzero((counts.publishers[topic] == 0) & has_room)
    clients = _publishers(counts, topic)
    distances = problem.latencies.client_ms[clients]
    at_home = distances[np.arange(clients.size), counts.homes[clients]][:, None]
    shorter = np.maximum(at_home - distances[:, closed], 0.0).sum(axis=0)
    return np.asarray(closed[np.argsort(-shorter)[:OPENED_MAX]], np.int64)


def _open(counts: HomeCounts, topic: int, server: int) -> bool:
    """Lets the members that are nearer to a server come to it, the one that gains most first; the best number of them
    stays."""
    clients = _publishers(counts, topic)
    clients = clients[counts.problem.fixed[clients] < 0]
    if not clients.size:
        return False
    changes = counts.changes(clients)[:, server]
    total, best, best_count = 0.0, -GAIN_MIN, 0
    moved: list[tuple[int, int]] = []
    for client in clients[np.argsort(changes)].tolist():
        if counts.homes[client] == server:
            continue
        change = float(counts.changes(np.array([client]))[0, server])
        if moved and change >= 0:
            break
        moved.append((client, int(counts.homes[client])))
        counts.move(client, server)
        total += change
        if total < best:
            best, best_count = total, len(moved)
    for client, home in reversed(moved[best_count:]):
        counts.move(client, home)
    return best_count > 0


def _publishers(counts: HomeCounts, topic: int) -> Ints:
    rows = counts.problem.rows_of_topic(topic)
    members = counts.problem.members
    return np.asarray(members.client[rows][members.publishes[rows]], np.int64)
