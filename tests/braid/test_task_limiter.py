"""Procedures beside each other: a few at a time in their order, or all until it is enough."""

from __future__ import annotations

from functools import partial

from braidmq.braid.task_limiter import TaskLimiter
from braidmq.host import run_all
from braidmq.sim.engine import Simulator
from braidmq.sim.network import Constant


def test_a_few_run_at_a_time_in_their_order() -> None:
    sim = Simulator(1, Constant(0.01))
    host = sim.host(0)
    limiter = TaskLimiter(host, workers_max=2)
    began: list[tuple[int, float]] = []

    async def procedure(number: int) -> None:
        began.append((number, sim.now))
        await host.sleep(1.0)

    for number in range(5):
        limiter.submit(partial(procedure, number))
    sim.run(10.0)
    assert began == [(0, 0.0), (1, 0.0), (2, 1.0), (3, 1.0), (4, 2.0)]


def finished_at(durations_s: list[float], enough: int) -> float:
    """When `run_all` returns, of procedures that take so long, if so many are enough."""
    sim = Simulator(1, Constant(0.01))
    host = sim.host(0)
    through: list[float] = []
    returned: list[float] = []

    async def procedure(seconds: float) -> None:
        await host.sleep(seconds)
        through.append(seconds)

    async def run() -> None:
        await run_all(host, [procedure(one) for one in durations_s], lambda: len(through) >= enough)
        returned.append(sim.now)

    host.spawn(run())
    sim.run(100.0)
    assert sorted(through) == sorted(durations_s), "those that are left go on"
    return returned[0]


def test_all_are_waited_for() -> None:
    assert finished_at([3.0, 1.0, 2.0], enough=4) == 3.0


def test_nothing_more_is_waited_for_than_is_enough() -> None:
    assert finished_at([3.0, 1.0, 2.0], enough=2) == 2.0


def test_nothing_is_waited_for_if_there_is_nothing_to_do() -> None:
    assert finished_at([], enough=1) == 0.0
