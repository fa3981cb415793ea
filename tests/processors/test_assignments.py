"""Changes of hands between edge and Spark: nothing is lost, nothing comes twice, and the spool goes along."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from braidmq.processing.assignment_store import OFFSETS_RESERVED, AssignmentStore, Left, SavedSpool
from braidmq.processing.assignments import HELD_MAX, RETURN_S, MoveError, TopicAssignment, TopicAssignments
from braidmq.processing.work_queue import WINDOW_MESSAGES_MAX, Item, WorkQueue
from braidmq.processors import Message, Notification, Spool, SpoolState, processor, spool_step
from braidmq.processors.frames import decode_message, encode_message
from braidmq.processors.placement import Capacity, Turn, ranges_of

SPOOL = 3
KEY = ("digest", "t")


@processor(topic="t", spool=SPOOL, output="out")
def digest(spool: Spool, message: Message) -> Notification:
    return Notification([one.offset for one in spool])


def item(offset: int, topic: str = "t", size: int = 0) -> Item:
    return Item(topic, encode_message(Message(topic, b"x" * size, offset=offset)), offset, 1, 0)


class Edge:
    """A broker's side of one topic, and a Spark that reads the log: both with the code that runs, in memory."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.line = WorkQueue(SPOOL)
        self.places = TopicAssignments(AssignmentStore(folder), Capacity(1e9, 1e9))
        self.outputs: list[tuple[int, Any]] = []
        self.log: list[Message] = []
        self.next_offset = 0
        self.edge_spool = Spool(SPOOL)
        self.spark_spool: Spool | None = None
        self.spark_at = 0

    @property
    def spot(self) -> TopicAssignment:
        found = self.places.get(KEY)
        assert found is not None
        return found

    def publish(self, step: int) -> None:
        self.next_offset += step
        one = item(self.next_offset)
        self.log.append(decode_message(one.raw))
        spot = self.places.get(KEY)
        if spot is None or spot.last < 0:
            spot = self.places.find(KEY, self.line, one.offset, len(one.raw), True, 0.0)
        spot.last = one.offset
        if spot.place == "edge":
            self.line.put(one)
        elif spot.returns_at >= 0:
            self.places.hold(spot, one)

    def work(self, count: int) -> None:
        """The worker of the edge does some of what waits."""
        self.line.batch()
        for done in self.line.done(min(count, self.line.flying)):
            self._step(self.edge_spool, decode_message(done.raw))

    def _step(self, spool: Spool, message: Message) -> None:
        self.outputs.append((message.offset, spool_step(digest, spool, message)))

    def spark(self, count: int) -> None:
        """A Spark query looks at the turns, processes what is its own, and gives back what is asked for."""
        spot = self.places.get(KEY)
        if spot is None or spot.place != "spark":
            return
        first, end = ranges_of(self.places.placements.turns(KEY), "spark")[-1]
        assert end is None
        if self.spark_spool is None:
            self.spark_spool = Spool(SPOOL, self.places.placements.handed(KEY))
            self.spark_at = first
        until = spot.returns_at if spot.returns_at >= 0 else self.next_offset + 1
        mine = [one for one in self.log if self.spark_at <= one.offset < until]
        for one in mine[:count]:
            self._step(self.spark_spool, one)
            self.spark_at = one.offset + 1
        if spot.returns_at >= 0 and len(mine) <= count:
            self._return(spot, until)

    def _return(self, spot: TopicAssignment, until: int) -> None:
        assert self.spark_spool is not None
        state = SpoolState.decode(self.spark_spool.state.encode())
        last, messages, held = self.places.take_back(spot, until, state)
        self.edge_spool = Spool(SPOOL, SpoolState(last, tuple(decode_message(raw) for raw in messages)))
        self.line.spools.clear()
        for raw in messages:
            self.line.keep(Item("t", raw, decode_message(raw).offset, 1, 0))
        for one in held:
            self.line.put(one)
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
    edge = Edge(tmp_path_factory.mktemp("placements"))
    edge.publish(1)
    for action, number in steps:
        spot = edge.spot
        if action == "publish":
            edge.publish(number)
        elif action == "work":
            edge.work(number)
        elif action == "spark":
            edge.spark(number)
        elif action == "delegate" and spot.place == "edge":
            edge.places.delegate(spot, edge.line, edge.next_offset + 1)
        elif action == "recall":
            with suppress(MoveError):
                edge.places.ask_back(spot, edge.line, edge.next_offset + 1, 0.0)
        elif action == "give up":
            edge.places.give_up_return(spot)
    for _ in range(3):
        edge.work(1000)
        edge.spark(1000)
    found = sorted(edge.outputs, key=lambda output: output[0])
    assert [offset for offset, _ in found] == [one.offset for one in edge.log]
    alone = Spool(SPOOL)
    assert found == [(one.offset, spool_step(digest, alone, one)) for one in edge.log]
    again = TopicAssignments(
        AssignmentStore(edge.folder), Capacity(1e9, 1e9)
    )  # a broker that comes back knows whose turn it is
    assert again.placements.turns(KEY) == edge.places.placements.turns(KEY)
    restored = again.get(KEY)
    assert (restored is not None) == (edge.spot.place == "spark")


def test_who_is_asked_back_wrongly_goes_on() -> None:
    edge = Edge(None)
    edge.publish(1)
    edge.work(1)
    edge.places.delegate(edge.spot, edge.line, edge.next_offset + 1)
    for first, words in ((2, "not at all"), (9, "not at all")):
        with pytest.raises(MoveError, match=words):
            edge.places.take_back(edge.spot, first, SpoolState(1, ()))
    edge.publish(1)
    edge.places.ask_back(edge.spot, edge.line, edge.next_offset + 1, 0.0)
    with pytest.raises(MoveError, match="from offset 3 on, not from offset 2 on"):
        edge.places.take_back(edge.spot, 2, SpoolState(1, ()))
    with pytest.raises(MoveError, match="it is to end before 3"):
        edge.places.take_back(edge.spot, 3, SpoolState(3, ()))
    edge.places.take_back(edge.spot, 3, SpoolState(2, ()))
    with pytest.raises(MoveError, match="the edge's turn already"):
        edge.places.take_back(edge.spot, 3, SpoolState(2, ()))


def test_a_topic_is_not_asked_back_while_messages_of_before_wait() -> None:
    edge = Edge(None)
    edge.publish(1)
    edge.places.delegate(edge.spot, edge.line, edge.next_offset + 1)
    with pytest.raises(MoveError, match="still wait here"):
        edge.places.ask_back(edge.spot, edge.line, edge.next_offset + 1, 0.0)
    edge.work(1)
    edge.places.ask_back(edge.spot, edge.line, edge.next_offset + 1, 0.0)


def test_a_return_that_takes_too_long_is_given_up() -> None:
    edge = Edge(None)
    edge.publish(1)
    edge.work(1)
    edge.places.delegate(edge.spot, edge.line, edge.next_offset + 1)
    edge.places.ask_back(edge.spot, edge.line, edge.next_offset + 1, 100.0)
    for number in range(HELD_MAX):
        assert edge.places.hold(edge.spot, item(number + 2))
    edge.places.sweep_returns(100.0 + RETURN_S)
    assert edge.spot.returns_at >= 0
    assert not edge.places.hold(edge.spot, item(HELD_MAX + 2))
    assert (edge.spot.returns_at, edge.spot.held, edge.spot.place) == (-1, [], "spark")
    edge.places.ask_back(edge.spot, edge.line, edge.next_offset + 1, 200.0)
    edge.places.sweep_returns(201.0 + RETURN_S)
    assert edge.spot.returns_at < 0


def test_what_is_not_logged_cannot_go_to_spark() -> None:
    places = TopicAssignments(AssignmentStore(None), Capacity(1e9, 1e9))
    line = WorkQueue(SPOOL)
    spot = places.find(KEY, line, 0, 10, False, 0.0)
    with pytest.raises(MoveError, match="is not logged"):
        places.delegate(spot, line, 1)


def test_topics_beyond_the_capacity_are_delegated_and_come_back_when_there_is_room() -> None:
    """Σ u_n > A_l: three topics of 30 bytes a message and three messages a spool fit into 300 bytes."""
    places = TopicAssignments(AssignmentStore(None), Capacity(300, 1000))
    line = WorkQueue(SPOOL)
    spots = [places.find(("p", f"t/{number}"), line, 5, 30, True, 0.0) for number in range(5)]
    assert [spot.place for spot in spots] == ["edge", "edge", "edge", "spark", "spark"]
    assert places.placements.turns(("p", "t/4")) == (Turn(5, "spark"),)
    assert places.share == pytest.approx(300 / 450)
    unlogged = places.find(("p", "other"), line, 0, 30, False, 0.0)
    assert unlogged.name == "no room"
    assert places.recallable(RETURN_S + 1) == []
    places.forget(spots[0])
    places.forget(spots[1])
    assert places.recallable(RETURN_S + 1) == [spots[3]]  # two of three would be more than the share for returns
    assert places.find(("p", "other"), line, 1, 30, False, 0.0).place == "edge"


def test_many_publishers_are_too_much_to_compute() -> None:
    """v_l > B_l: the topic that came last goes, and only if it is logged."""
    places = TopicAssignments(AssignmentStore(None), Capacity(1e9, 30))
    line = WorkQueue(SPOOL)
    first, second = (places.find(("p", name), line, 0, 10, True, 0.0) for name in ("a", "b"))
    for number in range(9):
        places.note_publisher(second, f"client{number}", 0.0)
    assert places.use.compute == 30
    assert places.surplus() == []
    places.note_publisher(first, "client0", 0.0)
    places.note_publisher(first, "client1", 0.0)
    assert places.surplus() == [second]
    places.sweep_publishers(10_000.0)
    assert places.use.compute == 6


# The line


@given(st.lists(st.integers(1, 700), max_size=6), st.data())
@settings(deadline=None)
def test_a_line_keeps_order_over_lost_workers(sizes: list[int], data: st.DataObject) -> None:
    line = WorkQueue(SPOOL)
    done: list[int] = []
    number = 0
    for size in sizes:
        for _ in range(size):
            line.put(item(number))
            number += 1
        line.batch()
        assert line.flying <= WINDOW_MESSAGES_MAX
        done += [one.offset for one in line.done(data.draw(st.integers(0, line.flying)))]
        if data.draw(st.booleans()):
            line.ground()
    while len(line):
        line.batch()
        done += [one.offset for one in line.done(line.flying)]
    assert done == list(range(number))
    assert line.bytes == 0
    if number:
        assert [decode_message(raw).offset for raw in line.spools["t"].messages] == done[-SPOOL:]


def test_the_message_that_ends_workers_is_found() -> None:
    line = WorkQueue(SPOOL)
    for number in range(5):
        line.put(item(number))
    assert len(line.batch()) == 5
    assert line.ground() is None  # it could be any of them
    for number in range(2):
        assert [one.offset for one in line.batch()] == [number]
        line.done(1)
    assert [one.offset for one in line.batch()] == [2]
    suspect = line.ground()
    assert suspect is not None
    assert suspect.offset == 2
    assert line.skip() is suspect
    assert [one.offset for one in line.batch()] == [3]
    line.done(1)
    line.put(item(5))
    line.put(item(6))
    assert [one.offset for one in line.batch()] == [4]
    line.done(1)
    assert len(line.batch()) == 2  # all that were suspected are done
    assert [decode_message(raw).offset for raw in line.spools["t"].messages] == [2, 3, 4]


def test_large_messages_go_alone() -> None:
    line = WorkQueue(SPOOL)
    for number in range(3):
        line.put(item(number, size=900_000))
    assert [len(line.batch()), line.flying] == [1, 1]
    line.done(1)
    assert len(line.batch()) == 1


# What is written down


def test_turns_survive_a_line_that_was_cut_short(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    placements = AssignmentStore(tmp_path)
    placements.begin(("p", "a"), Turn(0, "edge"))
    placements.begin(("p", "a"), Turn(7, "spark"))
    placements.begin(("p", "ü/☃"), Turn(3, "spark"))
    path = tmp_path / "placements.jsonl"
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        count = whole[:cut].count(b"\n")
        turns = AssignmentStore(tmp_path).all()
        assert sum(map(len, turns.values())) in (count, count + 1)
    assert not caplog.records
    path.write_bytes(b"nonsense\n" + whole)
    assert AssignmentStore(tmp_path).turns(("p", "a")) == (Turn(0, "edge"), Turn(7, "spark"))
    assert "line 1 is left out" in caplog.text


def test_offsets_are_never_used_twice(tmp_path: Path) -> None:
    placements = AssignmentStore(tmp_path)
    used = [placements.take_offsets(1) for _ in range(5)]
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
    left = {"p": Left([SavedSpool("t", False, 3, (item(3).raw,), 1.5)], [(item(4), False)])}
    AssignmentStore(tmp_path).leave(left)
    assert AssignmentStore(tmp_path).take_left() == left
    assert AssignmentStore(tmp_path).take_left() == {}
    (tmp_path / "left").write_bytes(b"\xc1")
    assert AssignmentStore(tmp_path).take_left() == {}
    assert "begin with empty spools" in caplog.text


def test_without_a_folder_nothing_is_written() -> None:
    placements = AssignmentStore(None)
    placements.begin(KEY, Turn(0, "spark"))
    placements.hand_over(KEY, SpoolState(0, (Message("t", b""),)))
    placements.leave({})
    placements.close()
    assert placements.handed(KEY) is None
