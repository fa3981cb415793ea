"""Spools that several brokers have: whatever the order in which messages come, the last ones, in their own order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from braidmq.processing.order_clock import AHEAD_MAX_S, STEP_S, OrderClock
from braidmq.processing.work_queue import QueuedMessage, SpoolCopy, WorkQueue
from braidmq.processors import Message, Spool
from braidmq.processors.processor import order_of
from braidmq.processors.worker_messages import decode_message, encode_message

copied = st.builds(
    lambda at, origin, offset: Message("t", b"", received_at=float(at), origin=origin, offset=offset),
    st.integers(0, 6),
    st.sampled_from(["a", "b", "c"]),
    st.integers(0, 4),
)


@given(st.integers(1, 8), st.lists(copied, max_size=40))
def test_a_spool_is_what_a_plain_sort_leaves(size: int, messages: list[Message]) -> None:
    """With duplicates, in any order, at the broker and in its worker."""
    expected = sorted({order_of(one): one for one in messages}.values(), key=order_of)[-size:]
    spool, kept = Spool(size), SpoolCopy()
    for one in messages:
        spool.insert(one)
        kept.insert(encode_message(one), size)
    assert list(spool) == expected
    assert [decode_message(raw) for raw in kept.messages] == expected
    assert kept.bytes == sum(map(len, kept.messages))


@given(st.integers(1, 5), st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.booleans()), max_size=60))
def test_homes_that_are_quiet_have_the_same(size: int, steps: list[tuple[int, int, bool]]) -> None:
    """Three brokers whose clocks differ by seconds; copies are late, each sender's in its order."""
    clocks = [OrderClock() for _ in range(3)]
    spools = [Spool(size) for _ in range(3)]
    on_the_way: list[list[Message]] = [[] for _ in range(9)]
    for time, (home, other, is_publication) in enumerate(steps):
        if is_publication:
            stamp = clocks[home].stamp(time + 3.0 * home)
            message = Message("t", b"", received_at=stamp, origin="abc"[home], offset=time)
            assert spools[home].put(message)
            assert spools[home][-1] == max(spools[home], key=order_of) == message, "the function sees it last"
            for one in range(3):
                if one != home:
                    on_the_way[3 * home + one].append(message)
        elif other < 3 and on_the_way[3 * home + other]:
            _arrive(on_the_way[3 * home + other].pop(0), clocks[other], spools[other])
    for way, messages in enumerate(on_the_way):
        for message in messages:
            _arrive(message, clocks[way % 3], spools[way % 3])
    assert list(spools[0]) == list(spools[1]) == list(spools[2])
    assert list(spools[0]) == sorted(spools[0], key=order_of)


def _arrive(message: Message, clock: OrderClock, spool: Spool) -> None:
    clock.follow(message.received_at, message.received_at)
    spool.insert(message)


def test_a_clock_that_is_far_ahead_is_not_followed() -> None:
    clock = OrderClock()
    clock.follow(1_000.0 + AHEAD_MAX_S, 1_000.0)
    assert clock.stamp(1_000.0) == 1_000.0 + AHEAD_MAX_S + STEP_S
    clock = OrderClock()
    clock.follow(1_000.0 + AHEAD_MAX_S + 1.0, 1_000.0)
    assert clock.stamp(1_000.0) == 1_000.0


def test_a_clock_that_is_set_back_changes_no_order() -> None:
    clock = OrderClock()
    assert [clock.stamp(now) for now in (5.0, 3.0, 4.0, 6.0)] == [5.0, 5.0, 5.0, 6.0]


def test_copies_in_a_queue_are_in_the_state_that_is_handed_over() -> None:
    queue = WorkQueue(3)
    own = [Message("t", b"", received_at=at, origin="a", offset=int(at)) for at in (1.0, 3.0)]
    other = Message("t", b"", received_at=2.0, origin="b", offset=99)
    for message in own:
        queue.put(QueuedMessage("t", encode_message(message), message.offset, 1, 0))
    queue.put(QueuedMessage("t", encode_message(other), 99, 1, 0, is_copy=True))
    for _ in range(2):
        last, messages = queue.state_of("t")
        assert last == 3, "the number of the last message that came here"
        assert [decode_message(raw) for raw in messages] == [own[0], other, own[1]]
        queue.next_batch()
        queue.done(queue.in_flight)
