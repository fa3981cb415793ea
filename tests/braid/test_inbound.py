"""Streams of other brokers: in order, whatever has overtaken, was lost, or comes from the origin's history."""

from __future__ import annotations

import msgspec
import pytest

from braidmq.braid.catch_up.history import GENERATIONS_MAX
from braidmq.braid.transfer import inbound
from braidmq.braid.transfer.batch import BatchItem, Predecessor, PublicationBatch
from braidmq.braid.transfer.inbound import FETCH_S, HELD_MAX, REORDER_S, InboundStreams
from braidmq.mqtt.packets import V5
from braidmq.sim.engine import Simulator
from braidmq.sim.network import Constant


class Bench:
    """InboundStreams whose deliveries, and origins that were asked for, are noted."""

    def __init__(self, floor: int = 0) -> None:
        self.sim = Simulator(1, Constant(0.01))
        self.got: list[tuple[int, int]] = []
        """Incarnation and number, once each."""
        self.asked: list[str] = []
        self.inbound = InboundStreams(self.sim.host(0))
        self.inbound.deliver = self._deliver
        self.inbound.on_gap = self.asked.append
        self.inbound.is_next = lambda _origin, offset: offset == floor + 1

    def _deliver(self, batch: PublicationBatch) -> None:
        for number in range(batch.first, batch.first + batch.count):
            name = (batch.incarnation // GENERATIONS_MAX, number)
            if not batch.items or name not in self.got:
                self.got.append(name)

    def receive(self, *numbers: int, incarnation: int = 1, qos: int = 1, before: int = 0) -> None:
        """Live, as one batch each. `before`: how many offsets were used before the incarnation's first."""
        for number in numbers:
            self.inbound.receive(_batch(number, incarnation, qos, before))
        self.sim.run(self.sim.now)

    def fetch(self, *numbers: int, incarnation: int = 1, before: int = 0) -> None:
        for number in numbers:
            self.inbound.receive_fetched(_batch(number, incarnation, 1, before))

    @property
    def numbers(self) -> list[int]:
        return [number for _, number in self.got]


def _batch(number: int, incarnation: int, qos: int, before: int) -> PublicationBatch:
    item = BatchItem(b"", qos, False, "", b"", None, offset=number + before if qos else 0)
    return PublicationBatch("there", incarnation * GENERATIONS_MAX, "tide", number, 1, V5, b"", (item,))


def test_a_first_publication_with_nothing_before_it_does_not_wait() -> None:
    bench = Bench()
    bench.receive(1, 2, 3)
    assert bench.numbers == [1, 2, 3]
    assert bench.asked == []


def test_a_stream_that_is_met_in_its_middle_begins_with_what_was_missed() -> None:
    bench = Bench()
    bench.receive(59, 60)
    assert bench.numbers == []
    assert bench.asked
    bench.fetch(*range(15, 60))
    bench.inbound.on_fetched("there", 60)
    assert bench.numbers == list(range(15, 61))
    assert not bench.inbound.is_holding("there")


def test_what_is_not_in_the_history_is_not_waited_for() -> None:
    bench = Bench()
    bench.receive(5, 7)
    bench.inbound.on_fetched("there", 6)
    assert bench.numbers == [5]
    bench.inbound.on_fetched("there", 7)
    assert bench.numbers == [5, 7]


def test_a_new_life_waits_for_the_rest_of_the_old_one() -> None:
    bench = Bench()
    bench.receive(1, 2)
    bench.receive(1, 2, incarnation=2, before=4)
    assert bench.got == [(1, 1), (1, 2)]
    bench.fetch(3, 4)
    bench.inbound.on_fetched("there", 6)
    assert bench.got == [(1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2)]
    bench.receive(3, incarnation=2, before=4)
    assert bench.got[-1] == (2, 3)


def test_a_gap_is_filled_by_what_is_fetched_or_by_what_comes_late() -> None:
    bench = Bench()
    bench.receive(1, 3, 4)
    assert bench.asked == ["there", "there"]
    bench.fetch(2)
    assert bench.numbers == [1, 2, 3, 4]
    bench.receive(6)
    bench.receive(5)
    assert bench.numbers == [1, 2, 3, 4, 5, 6]
    bench.receive(2, 5)
    assert bench.numbers == [1, 2, 3, 4, 5, 6]


def test_an_origin_that_cannot_be_asked_is_waited_for_so_long_and_no_longer() -> None:
    bench = Bench()
    bench.receive(1, 3)
    bench.sim.run(FETCH_S - 0.1)
    assert bench.numbers == [1]
    bench.sim.run(FETCH_S + 0.1)
    assert bench.numbers == [1, 3]
    bench.receive(2)
    assert bench.numbers == [1, 3, 2], "late is better than never"


def test_qos_0_waits_for_a_moment_and_is_never_taken_late() -> None:
    bench = Bench()
    bench.receive(1, 3, qos=0)
    assert bench.numbers == [1]
    bench.sim.run(REORDER_S + 0.01)
    assert bench.numbers == [1, 3]
    bench.receive(2, qos=0)
    assert bench.numbers == [1, 3]
    assert bench.asked == []


def test_what_is_held_is_bounded() -> None:
    bench = Bench()
    bench.receive(1, *range(3, HELD_MAX + 4))
    assert bench.numbers == [1, *range(3, HELD_MAX + 4)]


def test_what_comes_late_of_an_earlier_incarnation_is_known_again() -> None:
    bench = Bench()
    bench.receive(1, 2, qos=0)
    bench.receive(1, incarnation=2, qos=0)
    bench.receive(2, qos=0)
    assert bench.inbound.duplicates == 1
    bench.receive(3, qos=0)
    bench.receive(2, incarnation=2, qos=0)
    bench.receive(1, incarnation=2, qos=0)
    assert bench.got == [(1, 1), (1, 2), (2, 1), (1, 3), (2, 2)]
    assert bench.inbound.duplicates == 2


def test_a_stream_that_a_cut_through_counts_on_goes_on_the_long_way() -> None:
    bench = Bench()
    bench.receive(1, qos=0)
    stream = bench.inbound.at_rest(_batch(1, 1, 0, 0))
    assert stream is not None
    stream.last += 2
    bench.receive(3, 4, 6, qos=0)
    assert bench.numbers == [1, 4]
    assert bench.inbound.at_rest(_batch(4, 1, 0, 0)) is None, "it waits for what the last has overtaken"
    bench.sim.run(bench.sim.now + REORDER_S)
    assert bench.inbound.at_rest(_batch(6, 1, 0, 0)) is stream
    assert bench.numbers == [1, 4, 6]


def test_streams_that_are_not_at_rest_have_a_bound_and_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbound, "OPEN_MAX", 4)
    bench = Bench()
    pinned = []
    for number in range(1, 11):
        batch = _batch(1, number, 0, 0)
        bench.inbound.receive(batch)
        pinned.append(bench.inbound.at_rest(batch))
    assert [one is not None and not one.is_new for one in pinned] == 6 * [False] + 4 * [True]
    for number in range(1, 11):
        bench.inbound.receive(_batch(2, number, 0, 0))
    assert sorted(bench.got) == [(number, which) for number in range(1, 11) for which in (1, 2)]
    assert bench.inbound.duplicates == 0


class Following(Bench):
    """The first publications of a stream whose publisher published elsewhere before."""

    def __init__(self) -> None:
        super().__init__()
        self.handled: set[tuple[str, int]] = set()
        self.missing: list[Predecessor] = []
        self.inbound.predecessors.is_handled = lambda origin, offset: (origin, offset) in self.handled
        self.inbound.predecessors.on_missing = self.missing.append

    def follow(self, number: int, offset: int, origin: str = "elsewhere", fetched: bool = False) -> None:
        batch = msgspec.structs.replace(_batch(number, 1, 1, 0), follows=Predecessor(origin, offset, 9))
        if fetched:
            self.inbound.receive_fetched(batch)
        else:
            self.inbound.receive(batch)
        self.sim.run(self.sim.now)

    def handle(self, origin: str, offset: int) -> None:
        self.handled.add((origin, offset))
        self.inbound.predecessors.look(origin)


def test_what_follows_one_of_another_broker_waits_for_it() -> None:
    bench = Following()
    bench.receive(1)
    bench.follow(2, 7)
    bench.receive(3)
    assert bench.numbers == [1]
    assert bench.missing == [Predecessor("elsewhere", 7, 9)]
    assert bench.asked == [], "nothing is missing of this origin"
    bench.handle("elsewhere", 6)
    assert bench.numbers == [1]
    bench.handle("elsewhere", 7)
    assert bench.numbers == [1, 2, 3]
    assert not bench.inbound.is_holding("there")
    assert not bench.inbound.predecessors.is_awaited("elsewhere")


def test_what_it_follows_is_here_already() -> None:
    bench = Following()
    bench.handled.add(("elsewhere", 7))
    bench.follow(1, 7)
    bench.receive(2)
    assert bench.numbers == [1, 2]


def test_it_waits_so_long_and_no_longer() -> None:
    bench = Following()
    bench.follow(1, 7)
    bench.sim.run(FETCH_S - 0.1)
    assert bench.numbers == []
    bench.sim.run(FETCH_S + 0.1)
    assert bench.numbers == [1]


def test_what_it_follows_is_in_no_history_any_more_or_not_wanted() -> None:
    bench = Following()
    bench.follow(1, 7)
    bench.inbound.on_fetched("elsewhere", 6)
    assert bench.numbers == []
    bench.inbound.on_fetched("elsewhere", 7)
    assert bench.numbers == [1]


def test_one_that_was_fetched_waits_too() -> None:
    bench = Following()
    bench.receive(5)
    bench.follow(3, 7, fetched=True)
    bench.fetch(4)
    bench.inbound.on_fetched("there", 5)
    assert bench.numbers == []
    bench.handle("elsewhere", 7)
    assert bench.numbers == [3, 4, 5]


def test_what_it_follows_waits_itself() -> None:
    """A publisher that has roamed twice: the history of its second broker has come, and is held back."""
    bench = Following()
    bench.follow(1, 7)
    second = PublicationBatch("third", GENERATIONS_MAX, "tide", 1, 1, V5, b"", (_batch(1, 1, 1, 0).items[0],))
    bench.inbound.receive(msgspec.structs.replace(second, follows=Predecessor("there", 1, 9)))
    bench.inbound.on_fetched("there", 1)
    assert bench.got == []
    bench.handle("elsewhere", 7)
    assert bench.got == [(1, 1)]
    bench.handle("there", 1)
    assert not bench.inbound.is_holding("third")
