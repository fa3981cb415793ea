"""The optimum, proved: a mixed-integer linear program, solved by HiGHS. For small problems.

Who is at home where, x_{m,l}, decides everything. A topic is at a server, y_{n,l}, if one of its publishers is. What
two members of a topic have between them is a flow from the home of the one to that of the other. θ is not linear: each
server is at one of several levels, which are found as they are needed. A level allows a load, and costs what the
smallest overload of that level would cost. So the program's optimum is a lower bound, and what it decides is a plan.
As long as the plan costs more than that, the levels that it is at are divided at the θ that it has there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from braidmq.placement.errors import PlacementError
from braidmq.placement.home_counts import HomeCounts
from braidmq.placement.model import local_shares
from braidmq.placement.problem import Floats, Ints, PlacementProblem

VARIABLES_MAX: Final = 50_000
DIVISIONS_MAX: Final = 40
FIRST_LEVELS: Final = (0.9, 0.8, 0.65, 0.5, 0.35)
"""θ at which levels begin before it is known which are needed."""
APART: Final = 1e-3
"""Of the smallest spool: loads that differ by less are the same."""
CLOSE: Final = 1e-6
"""A plan that is this close to the bound, relatively, is the optimum."""


@dataclass(frozen=True, slots=True)
class Optimum:
    homes: Ints
    delay_ms: float
    bound_ms: float
    """What is proved: nothing is below. Equal to the delay, but for rounding, unless the time was up."""


def optimum(problem: PlacementProblem, *, seconds_max: float = 60.0) -> Optimum:
    """A PlacementError if the problem is too large, or if the cloud is so near that delegating would be a gain."""
    farthest = problem.latencies.server_ms.max(axis=1)
    if np.any(2 * problem.latencies.cloud_ms < farthest):
        raise PlacementError("the way to the cloud and back is shorter than one between servers: that is not covered")
    program = _Program(problem)
    levels = [[1.0, _first_overload(problem, server), *FIRST_LEVELS] for server in range(len(problem.servers))]
    best: Optimum | None = None
    for _ in range(DIVISIONS_MAX):
        homes, bound = program.solve(levels, seconds_max)
        counts = HomeCounts(problem, homes)
        cost = counts.cost / problem.rate_total
        if best is None or cost < best.delay_ms:
            best = Optimum(homes, cost, bound / problem.rate_total)
        best = Optimum(best.homes, best.delay_ms, min(max(best.bound_ms, bound / problem.rate_total), best.delay_ms))
        if best.delay_ms <= best.bound_ms * (1 + CLOSE) or not _divide(
            levels, local_shares(problem, counts.storage, counts.compute)
        ):
            break
    assert best is not None
    return best


def _first_overload(problem: PlacementProblem, server: int) -> float:
    """A θ below 1 that is larger than any that a server can have: spools differ by more."""
    smallest = min(problem.stored.min() / problem.storage[server], problem.spool.min() / problem.compute[server])
    return float(1 / (1 + min(smallest, 1.0) * 1e-3))


def _divide(levels: list[list[float]], shares: Floats) -> bool:
    divided = False
    for own, share in zip(levels, shares.tolist(), strict=True):
        if all(abs(share - level) > 1e-9 for level in own):
            own.append(share)
            own.sort(reverse=True)
            divided = True
    return divided


class _Program:
    """All that does not depend on the levels: variables x, y, pair flows z, and e for what an overload costs."""

    def __init__(self, problem: PlacementProblem) -> None:
        self._problem = problem
        rows = problem.members
        self._servers = len(problem.servers)
        self._pairs = self._find_pairs()
        clients, topics, width = len(problem.clients), len(problem.topics), self._servers
        self._y = clients * width
        self._z = self._y + topics * width
        self._e = self._z + len(self._pairs) * width * width
        self._w = self._e + width
        if self._w > VARIABLES_MAX:
            raise PlacementError(
                f"too large for an exact optimum: {self._w:,} variables, at most {VARIABLES_MAX:,}; "
                "a lower bound can be had instead"
            )
        self._entries: list[tuple[int, int, float]] = []
        self._low: list[float] = []
        self._high: list[float] = []
        for client in range(clients):
            self._row([(client * width + server, 1.0) for server in range(width)], 1.0, 1.0)
        for row in np.flatnonzero(rows.publishes).tolist():
            for server in range(width):
                x = int(rows.client[row]) * width + server
                self._row([(x, 1.0), (self._y + int(rows.topic[row]) * width + server, -1.0)], -np.inf, 0.0)
        self._flows()
        self._fixed = len(self._low), len(self._entries)

    def _find_pairs(self) -> list[tuple[int, int, float, float]]:
        """(client, client, what the second hears of the first, and the other way round)."""
        rows = self._problem.members
        heard: dict[tuple[int, int], list[float]] = {}
        for topic in range(len(self._problem.topics)):
            mine = self._problem.rows_of_topic(topic)
            for first in range(mine.start, mine.stop):
                for second in range(first + 1, mine.stop):
                    there = float(rows.share[first] * rows.subscribes[second])
                    back = float(rows.share[second] * rows.subscribes[first])
                    if there or back:
                        pair = heard.setdefault((int(rows.client[first]), int(rows.client[second])), [0.0, 0.0])
                        pair[0] += there
                        pair[1] += back
        return [(first, second, there, back) for (first, second), (there, back) in heard.items()]

    def _row(self, entries: list[tuple[int, float]], low: float, high: float) -> None:
        self._entries += [(len(self._low), column, value) for column, value in entries]
        self._low.append(low)
        self._high.append(high)

    def _flow(self, pair: int, here: int, there: int) -> int:
        return self._z + (pair * self._servers + here) * self._servers + there

    def _flows(self) -> None:
        width = range(self._servers)
        for pair, (first, second, _, _) in enumerate(self._pairs):
            for server in width:
                out = [(self._flow(pair, server, there), 1.0) for there in width]
                self._row([*out, (first * self._servers + server, -1.0)], 0.0, 0.0)
                into = [(self._flow(pair, here, server), 1.0) for here in width]
                self._row([*into, (second * self._servers + server, -1.0)], 0.0, 0.0)

    def solve(self, levels: list[list[float]], seconds_max: float) -> tuple[Ints, float]:
        """(homes, a lower bound of I · Y)."""
        rows_fixed, entries_fixed = self._fixed
        del self._low[rows_fixed:], self._high[rows_fixed:], self._entries[entries_fixed:]
        count = self._w + sum(map(len, levels))
        at = self._w
        for server, own in enumerate(levels):
            self._levels(server, own, at)
            at += len(own)
        objective, integral, upper = self._objective(count)
        row, column, value = zip(*self._entries, strict=True)
        matrix = csr_array((value, (row, column)), shape=(len(self._low), count))
        found: Any = milp(
            objective,
            integrality=integral,
            bounds=Bounds(np.zeros(count), upper),
            constraints=LinearConstraint(matrix, self._low, self._high),
            options={"time_limit": seconds_max, "mip_rel_gap": CLOSE / 10},
        )
        if found.x is None:
            raise PlacementError(f"no optimum was found within {seconds_max:g} s")
        chosen = found.x[: self._y].reshape(-1, self._servers)
        return np.asarray(np.argmax(chosen, axis=1), np.int64), float(found.mip_dual_bound)

    def _levels(self, server: int, own: list[float], at: int) -> None:
        """One level is chosen. It allows what the next one begins with, and costs what it begins with itself."""
        problem = self._problem
        rows = problem.members
        self._row([(at + number, 1.0) for number in range(len(own))], 1.0, 1.0)
        ends = [own[0], *[own[number + 1] if number + 1 < len(own) else 0.0 for number in range(1, len(own))]]
        topics, width = len(problem.topics), self._servers
        storage = [(self._y + topic * width + server, float(problem.stored[topic])) for topic in range(topics)]
        loads = np.zeros(len(problem.clients))
        np.add.at(loads, rows.client[rows.publishes], problem.spool[rows.topic[rows.publishes]])
        compute = [(client * width + server, float(load)) for client, load in enumerate(loads) if load]
        for used, capacity, most, tiny in (
            (storage, float(problem.storage[server]), float(problem.stored.sum()), APART * float(problem.stored.min())),
            (compute, float(problem.compute[server]), float(loads.sum()), APART * float(problem.spool.min())),
        ):
            limits = [capacity, *[min(capacity / end - tiny, most) if end else most for end in ends[1:]]]
            self._row([*used, *[(at + number, -limit) for number, limit in enumerate(limits)]], -np.inf, 1e-9)
        cloud = 2 * float(problem.latencies.cloud_ms[server])
        rates = np.bincount(rows.client, rows.rate, len(problem.clients))
        dearer = [(client * width + server, cloud * float(rate)) for client, rate in enumerate(rates) if rate]
        dearer += [(column, -value) for column, value in self._between(server)]
        for number, level in enumerate(own[1:], 1):
            most = (1 - level) * cloud * problem.rate_total
            row = [(column, (1 - level) * value) for column, value in dearer]
            self._row([*row, (at + number, most), (self._e + server, -1.0)], -np.inf, most)

    def _between(self, server: int) -> list[tuple[int, float]]:
        """T_l, by the flows."""
        delays = self._problem.latencies.server_ms
        found = []
        for pair, (_, _, there, back) in enumerate(self._pairs):
            for other in range(self._servers):
                if there and other != server:
                    found.append((self._flow(pair, server, other), there * float(delays[server, other])))
                if back and other != server:
                    found.append((self._flow(pair, other, server), back * float(delays[server, other])))
        return found

    def _objective(self, count: int) -> tuple[Floats, Ints, Floats]:
        objective = np.zeros(count)
        problem = self._problem
        objective[: self._y] = (problem.distance_weight[:, None] * problem.latencies.client_ms).ravel()
        for server in range(self._servers):
            for column, value in self._between(server):
                objective[column] += value
        objective[self._e : self._w] = 1.0
        integral = np.zeros(count, np.int64)
        integral[: self._z] = 1
        integral[self._w :] = 1
        upper = np.ones(count)
        stays = np.flatnonzero(problem.fixed >= 0)
        allowed = np.ones((len(problem.clients), self._servers))
        allowed[stays] = 0.0
        allowed[stays, problem.fixed[stays]] = 1.0
        upper[: self._y] = allowed.ravel()
        upper[self._e : self._w] = np.inf
        return objective, integral, upper
