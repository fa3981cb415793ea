"""Reassignment of hands between edge and Spark: nothing is lost, nothing comes twice, and the spool goes along."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from braidmq.processing.assignment_store import OFFSETS_RESERVED, AssignmentStore, SavedSpool, SavedWork
from braidmq.processing.assignments import HELD_MAX, RETURN_S, MoveError, TopicAssignment, TopicAssignments
from braidmq.processing.work_queue import WINDOW_MESSAGES_MAX, QueuedMessage, WorkQueue
from braidmq.processors import Message, Notification, Spool, SpoolState, processor, spool_step
from braidmq.processors.placement import Capacity, Interval, ranges_of
from braidmq.processors.worker_messages import decode_message, encode_message

SPOOL = 3
KEY = ("digest", "t")


@processor(topic="t", spool=SPOOL, output="out")
def digest(spool: Spool, message: Message) -> Notification:
    return Notification([one.offset for one in spool])


def item(offset: int, topic: str = "t", size: int = 0) -> QueuedMessage:
    return QueuedMessage(topic, encode_message(Message(topic, b"x" * size, offset=offset)), offset, 1, 0)


class Edge:
    """A broker's side of one topic, and a Spark that reads the log: both with the code that runs, in memory."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.queue = WorkQueue(SPOOL)
        self.assignments = TopicAssignments(AssignmentStore(folder), Capacity(1e9, 1e9))
        self.outputs: list[tuple[int, Any]] = []
        self.log: list[Message] = []
        self.next_offset = 0
        self.edge_spool = Spool(SPOOL)
        self.spark_spool: Spool | None = None
        self.spark_at = 0

    @property
    def assignment(self) -> TopicAssignment:
        found = self.assignments.get(KEY)
        assert found is not None
        return found

    def publish(self, step: int) -> None:
        self.next_offset += step
        one = item(self.next_offset)
        self.log.append(decode_message(one.raw))
        assignment = self.assignments.get(KEY)
        if assignment is None or assignment.last < 0:
            assignment = self.assignments.find(KEY, self.queue, one.offset, len(one.raw), True, 0.0)
        assignment.last = one.offset
        if assignment.location == "edge":
            self.queue.put(one)
        elif assignment.returns_at >= 0:
            self.assignments.hold(assignment, one)

    def work(self, count: int) -> None:
        """The worker of the edge does some of what waits."""
        self.queue.next_batch()
        for done in self.queue.done(min(count, self.queue.in_flight)):
            self._step(self.edge_spool, decode_message(done.raw))

    def _step(self, spool: Spool, message: Message) -> None:
        self.outputs.append((message.offset, spool_step(digest, spool, message)))

    def spark(self, count: int) -> None:
        """A Spark query looks at the intervals, processes what is its own, and gives back what is asked for."""
        assignment = self.assignments.get(KEY)
        if assignment is None or assignment.location != "spark":
            return
        first, end = ranges_of(self.assignments.store.intervals(KEY), "spark")[-1]
        assert end is None
        if self.spark_spool is None:
            self.spark_spool = Spool(SPOOL, self.assignments.store.handed(KEY))
            self.spark_at = first
        until = assignment.returns_at if assignment.returns_at >= 0 else self.next_offset + 1
        mine = [one for one in self.log if self.spark_at <= one.offset < until]
        for one in mine[:count]:
            self._step(self.spark_spool, one)
            self.spark_at = one.offset + 1
        if assignment.returns_at >= 0 and len(mine) <= count:
            self._return(assignment, until)

    def _return(self, assignment: TopicAssignment, until: int) -> None:
        assert self.spark_spool is not None
        state = SpoolState.decode(self.spark_spool.state.encode())
        last, messages, held = self.assignments.take_back(assignment, until, state)
        self.edge_spool = Spool(SPOOL, SpoolState(last, tuple(decode_message(raw) for raw in messages)))
        self.queue.spools.clear()
        for raw in messages:
            self.queue.keep(QueuedMessage("t", raw, decode_message(raw).offset, 1, 0))
        for one in held:
            self.queue.put(one)
        self.spark_spool = None


actions = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 3)),
        st.tuples(st.just("work"), st.integers(0, 4)),
        st.tuples(st.just("spark"), st.integers(0, 4)),
        st.tuples(st.sampled_from(["delegate", "recall", "give up"]), st.just(0)),
    ),
    max_size=60,
)


@given(actions)
@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_whoever_has_it_the_results_are_those_of_one_place(tmp_path_factory: Any, steps: list[tuple[str, int]]) -> None:
    edge = Edge(tmp_path_factory.mktemp("store"))
    edge.publish(1)
    for action, number in steps:
        assignment = edge.assignment
        if action == "publish":
            edge.publish(number)
        elif action == "work":
            edge.work(number)
        elif action == "spark":
            edge.spark(number)
        elif action == "delegate" and assignment.location == "edge":
            edge.assignments.delegate(assignment, edge.queue, edge.next_offset + 1)
        elif action == "recall":
            with suppress(MoveError):
                edge.assignments.ask_back(assignment, edge.queue, edge.next_offset + 1, 0.0)
        elif action == "give up":
            edge.assignments.give_up_return(assignment)
    for _ in range(3):
        edge.work(1000)
        edge.spark(1000)
    found = sorted(edge.outputs, key=lambda output: output[0])
    assert [offset for offset, _ in found] == [one.offset for one in edge.log]
    alone = Spool(SPOOL)
    assert found == [(one.offset, spool_step(digest, alone, one)) for one in edge.log]
    again = TopicAssignments(
        AssignmentStore(edge.folder), Capacity(1e9, 1e9)
    )  # a broker that comes back knows whose interval it is
    assert again.store.intervals(KEY) == edge.assignments.store.intervals(KEY)
    restored = again.get(KEY)
    assert (restored is not None) == (edge.assignment.location == "spark")


def test_who_is_asked_back_wrongly_goes_on() -> None:
    edge = Edge(None)
    edge.publish(1)
    edge.work(1)
    edge.assignments.delegate(edge.assignment, edge.queue, edge.next_offset + 1)
    for first, words in ((2, "not at all"), (9, "not at all")):
        with pytest.raises(MoveError, match=words):
            edge.assignments.take_back(edge.assignment, first, SpoolState(1, ()))
    edge.publish(1)
    edge.assignments.ask_back(edge.assignment, edge.queue, edge.next_offset + 1, 0.0)
    with pytest.raises(MoveError, match="from offset 3 on, not from offset 2 on"):
        edge.assignments.take_back(edge.assignment, 2, SpoolState(1, ()))
    with pytest.raises(MoveError, match="it is to end before 3"):
        edge.assignments.take_back(edge.assignment, 3, SpoolState(3, ()))
    edge.assignments.take_back(edge.assignment, 3, SpoolState(2, ()))
    with pytest.raises(MoveError, match="the edge's turn already"):
        edge.assignments.take_back(edge.assignment, 3, SpoolState(2, ()))


def test_a_topic_is_not_asked_back_while_messages_of_before_wait() -> None:
    edge = Edge(None)
    edge.publish(1)
    edge.assignments.delegate(edge.assignment, edge.queue, edge.next_offset + 1)
    with pytest.raises(MoveError, match="still wait here"):
        edge.assignments.ask_back(edge.assignment, edge.queue, edge.next_offset + 1, 0.0)
    edge.work(1)
    edge.assignments.ask_back(edge.assignment, edge.queue, edge.next_offset + 1, 0.0)


def test_a_return_that_takes_too_long_is_given_up() -> None:
    edge = Edge(None)
    edge.publish(1)
    edge.work(1)
    edge.assignments.delegate(edge.assignment, edge.queue, edge.next_offset + 1)
    edge.assignments.ask_back(edge.assignment, edge.queue, edge.next_offset + 1, 100.0)
    for number in range(HELD_MAX):
        assert edge.assignments.hold(edge.assignment, item(number + 2))
    edge.assignments.sweep_returns(100.0 + RETURN_S)
    assert edge.assignment.returns_at >= 0
    assert not edge.assignments.hold(edge.assignment, item(HELD_MAX + 2))
    assert (edge.assignment.returns_at, edge.assignment.held, edge.assignment.location) == (-1, [], "spark")
    edge.assignments.ask_back(edge.assignment, edge.queue, edge.next_offset + 1, 200.0)
    edge.assignments.sweep_returns(201.0 + RETURN_S)
    assert edge.assignment.returns_at < 0


def test_what_is_not_logged_cannot_go_to_spark() -> None:
    assignments = TopicAssignments(AssignmentStore(None), Capacity(1e9, 1e9))
    queue = WorkQueue(SPOOL)
    assignment = assignments.find(KEY, queue, 0, 10, False, 0.0)
    with pytest.raises(MoveError, match="is not logged"):
        assignments.delegate(assignment, queue, 1)


def test_topics_beyond_the_capacity_are_delegated_and_come_back_when_there_is_room() -> None:
    """Σ u_n > A_l: three topics of 30 bytes a message and three messages a spool fit into 300 bytes."""
    assignments = TopicAssignments(AssignmentStore(None), Capacity(300, 1000))
    queue = WorkQueue(SPOOL)
    found = [assignments.find(("p", f"t/{number}"), queue, 5, 30, True, 0.0) for number in range(5)]
    assert [one.location for one in found] == ["edge", "edge", "edge", "spark", "spark"]
    assert assignments.store.intervals(("p", "t/4")) == (Interval(5, "spark"),)
    assert assignments.share == pytest.approx(300 / 450)
    unlogged = assignments.find(("p", "other"), queue, 0, 30, False, 0.0)
    assert unlogged.name == "no room"
    assert assignments.recallable(RETURN_S + 1) == []
    assignments.forget(found[0])
    assignments.forget(found[1])
    assert assignments.recallable(RETURN_S + 1) == [found[3]]  # two of three would be more than the share for returns
    assert assignments.find(("p", "other"), queue, 1, 30, False, 0.0).location == "edge"


def test_many_publishers_are_too_much_to_compute() -> None:
    """v_l > B_l: the topic that came last goes, and only if it is logged."""
    assignments = TopicAssignments(AssignmentStore(None), Capacity(1e9, 30))
    queue = WorkQueue(SPOOL)
    first, second = (assignments.find(("p", name), queue, 0, 10, True, 0.0) for name in ("a", "b"))
    for number in range(9):
        assignments.note_publisher(second, f"client{number}", 0.0)
    assert assignments.load.compute == 30
    assert assignments.surplus() == []
    assignments.note_publisher(first, "client0", 0.0)
    assignments.note_publisher(first, "client1", 0.0)
    assert assignments.surplus() == [second]
    assignments.sweep_publishers(10_000.0, lambda _client: True)
    assert assignments.load.compute == 6


# The queue


@given(st.lists(st.integers(1, 700), max_size=6), st.data())
@settings(deadline=None)
def test_a_line_keeps_order_over_lost_workers(sizes: list[int], data: st.DataObject) -> None:
    queue = WorkQueue(SPOOL)
    done: list[int] = []
    number = 0
    for size in sizes:
        for _ in range(size):
            queue.put(item(number))
            number += 1
        queue.next_batch()
        assert queue.in_flight <= WINDOW_MESSAGES_MAX
        done += [one.offset for one in queue.done(data.draw(st.integers(0, queue.in_flight)))]
        if data.draw(st.booleans()):
            queue.requeue_in_flight()
    while len(queue):
        queue.next_batch()
        done += [one.offset for one in queue.done(queue.in_flight)]
    assert done == list(range(number))
    assert queue.bytes == 0
    if number:
        assert [decode_message(raw).offset for raw in queue.spools["t"].messages] == done[-SPOOL:]


def test_the_message_that_ends_workers_is_found() -> None:
    queue = WorkQueue(SPOOL)
    for number in range(5):
        queue.put(item(number))
    assert len(queue.next_batch()) == 5
    assert queue.requeue_in_flight() is None  # it could be any of them
    for number in range(2):
        assert [one.offset for one in queue.next_batch()] == [number]
        queue.done(1)
    assert [one.offset for one in queue.next_batch()] == [2]
    suspect = queue.requeue_in_flight()
    assert suspect is not None
    assert suspect.offset == 2
    assert queue.give_up_first() is suspect
    assert [one.offset for one in queue.next_batch()] == [3]
    queue.done(1)
    queue.put(item(5))
    queue.put(item(6))
    assert [one.offset for one in queue.next_batch()] == [4]
    queue.done(1)
    assert len(queue.next_batch()) == 2  # all that were suspected are done
    assert [decode_message(raw).offset for raw in queue.spools["t"].messages] == [2, 3, 4]


def test_large_messages_go_alone() -> None:
    queue = WorkQueue(SPOOL)
    for number in range(3):
        queue.put(item(number, size=900_000))
    assert [len(queue.next_batch()), queue.in_flight] == [1, 1]
    queue.done(1)
    assert len(queue.next_batch()) == 1


# What is written down


def test_turns_survive_a_line_that_was_cut_short(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = AssignmentStore(tmp_path)
    store.begin(("p", "a"), Interval(0, "edge"))
    store.begin(("p", "a"), Interval(7, "spark"))
    store.begin(("p", "ü/☃"), Interval(3, "spark"))
    path = tmp_path / "placements.jsonl"
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        count = whole[:cut].count(b"\n")
        intervals = AssignmentStore(tmp_path).all()
        assert sum(map(len, intervals.values())) in (count, count + 1)
    assert not caplog.records
    path.write_bytes(b"nonsense\n" + whole)
    assert AssignmentStore(tmp_path).intervals(("p", "a")) == (Interval(0, "edge"), Interval(7, "spark"))
    assert "line 1 is left out" in caplog.text


def test_offsets_are_never_used_twice(tmp_path: Path) -> None:
    store = AssignmentStore(tmp_path)
    used = [store.take_offsets(1) for _ in range(5)]
    assert used == [0, 1, 2, 3, 4]
    after_crash = AssignmentStore(tmp_path)  # the other one was never closed
    assert after_crash.take_offsets(2) > OFFSETS_RESERVED
    following = after_crash.take_offsets(1)
    after_crash.close()
    assert AssignmentStore(tmp_path).take_offsets(1) == following + 1
    (tmp_path / "offsets").write_text("many")
    with pytest.raises(OSError, match="holds no number"):
        AssignmentStore(tmp_path)


def test_what_a_clean_end_left_is_taken_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    left = {"p": SavedWork([SavedSpool("t", False, 3, (item(3).raw,), 1.5)], [(item(4), False)])}
    AssignmentStore(tmp_path).save(left)
    assert AssignmentStore(tmp_path).take_saved() == left
    assert AssignmentStore(tmp_path).take_saved() == {}
    (tmp_path / "left").write_bytes(b"\xc1")
    assert AssignmentStore(tmp_path).take_saved() == {}
    assert "begin with empty spools" in caplog.text


def test_without_a_folder_nothing_is_written() -> None:
    store = AssignmentStore(None)
    store.begin(KEY, Interval(0, "spark"))
    store.hand_over(KEY, SpoolState(0, (Message("t", b""),)))
    store.save({})
    store.close()
    assert store.handed(KEY) is None
