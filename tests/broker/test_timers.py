"""Deadlines on a heap: in order, once, and not when cancelled."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.broker.timers import Timers


class Bell:
    """Notes what rang."""

    def __init__(self) -> None:
        self.rung: list[int] = []

    def number(self, number: int) -> Callable[[], None]:
        return lambda: self.rung.append(number)


@given(
    deadlines=st.lists(st.tuples(st.integers(0, 20), st.booleans()), max_size=40),
    times=st.lists(st.integers(0, 25), min_size=1, max_size=6).map(sorted),
)
@settings(max_examples=200, deadline=None, print_blob=True)
def test_what_is_due_fires_once_and_in_order(deadlines: list[tuple[int, bool]], times: list[int]) -> None:
    timers = Timers()
    bell = Bell()
    made = [timers.at(when, bell.number(number)) for number, (when, _) in enumerate(deadlines)]
    for timer, (_, cancelled) in zip(made, deadlines, strict=True):
        if cancelled:
            timer.cancel()
    waiting = sorted((when, number) for number, (when, cancelled) in enumerate(deadlines) if not cancelled)
    for now in times:
        assert timers.next_at == (waiting[0][0] if waiting else None)
        due = [(when, number) for when, number in waiting if when <= now]
        waiting = [(when, number) for when, number in waiting if when > now]
        bell.rung.clear()
        timers.run(now)
        assert bell.rung == [number for _, number in due]
    assert timers.next_at == (waiting[0][0] if waiting else None)


def test_equal_deadlines_fire_in_the_order_they_were_set() -> None:
    timers = Timers()
    bell = Bell()
    for number in range(100):
        timers.at(7.0, bell.number(number))
    timers.run(7.0)
    assert bell.rung == list(range(100))


def test_a_timer_may_cancel_another_that_is_due_in_the_same_run() -> None:
    timers = Timers()
    bell = Bell()
    later = timers.at(2, bell.number(2))
    timers.at(1, later.cancel)
    timers.run(5)
    assert bell.rung == []
    assert timers.next_at is None


def test_what_an_action_sets_for_now_waits_for_the_next_run() -> None:
    """So that an action that sets itself again cannot keep the loop for ever."""
    timers = Timers()
    rung: list[float] = []

    def again() -> None:
        rung.append(1)
        timers.at(0, again)

    timers.at(0, again)
    for times in range(1, 4):
        timers.run(10)
        assert len(rung) == times
    assert timers.next_at == 0


def test_a_failing_action_does_not_take_the_others_with_it() -> None:
    timers = Timers()
    bell = Bell()
    timers.at(1, bell.number(1))
    timers.at(2, lambda: [].pop())
    timers.at(3, bell.number(3))
    with pytest.raises(IndexError):
        timers.run(10)
    timers.run(10)
    assert bell.rung == [1, 3]


def test_the_world_is_told_only_when_the_next_deadline_comes_nearer() -> None:
    timers = Timers()
    told: list[float | None] = []
    timers.earlier = lambda: told.append(timers.next_at)
    for when in (10, 20, 5, 7, 5, 1):
        timers.at(when, lambda: None)
    assert told == [10, 5, 1]


def test_cancelled_timers_are_swept_before_they_are_due() -> None:
    """A client that reconnects all day leaves its old deadlines behind: they must not pile up."""
    timers = Timers()
    bell = Bell()
    kept = [timers.at(1_000_000 + number, bell.number(number)) for number in range(10)]
    for number in range(20 * Timers.SWEEP_MIN):
        timers.at(500_000 + number, bell.number(-1)).cancel()
        assert len(timers._heap) <= Timers.SWEEP_MIN + len(kept) + 1
    timers.run(2_000_000)
    assert bell.rung == list(range(10))


def test_many_that_are_wanted_are_not_swept_again_and_again() -> None:
    timers = Timers()
    bell = Bell()
    count = 5 * Timers.SWEEP_MIN
    heaps: list[object] = []
    for number in range(count):
        timers.at(count - number, bell.number(count - number))
        if not heaps or heaps[-1] is not timers._heap:
            heaps.append(timers._heap)
    assert len(heaps) <= 4, "each sweep looks at all of them: twice as many before the next"
    timers.run(count)
    assert bell.rung == list(range(1, count + 1))


def test_a_cancelled_timer_holds_nothing() -> None:
    class Connection:
        def due(self) -> None: ...

    timers = Timers()
    connection = Connection()
    alive = weakref.ref(connection)
    timer = timers.at(100, connection.due)
    timer.cancel()
    del connection
    gc.collect()
    assert alive() is None


def test_cancelling_twice_or_after_it_fired_is_nothing() -> None:
    timers = Timers()
    bell = Bell()
    timer = timers.at(1, bell.number(1))
    timers.run(1)
    timer.cancel()
    timer.cancel()
    timers.run(2)
    assert bell.rung == [1]
