"""What histories and cursors promise at their edges: names, streams that end and begin again, order over a crash."""

from __future__ import annotations

from pathlib import Path

import pytest

from braidmq.braid.catch_up.cursors import Cursors
from braidmq.braid.catch_up.history import History
from braidmq.braid.catch_up.reconcile import Missed, Reconciler
from braidmq.braid.catch_up.wanted_sets import TellWanted
from braidmq.braid.interest.client_filters import ClientFilters
from braidmq.braid.transfer.batch import BatchItem, PublicationBatch
from braidmq.braid.transfer.outbound import AFTER_START_S, IDLE_S
from braidmq.broker.journal_store import JournalStore
from braidmq.broker.store import MemoryStore
from braidmq.host import Message
from braidmq.sim.engine import Simulator
from braidmq.sim.network import Constant, Faults, Partition
from tests.conformance.pair import persistent
from tests.conformance.wire import V5

from .sites import Sites, payloads
from .test_catch_up import publish, start, texts


def test_a_topic_that_was_forgotten_comes_through_again() -> None:
    sites = Sites(3)
    subscriber = sites.client(2, "ada")
    subscriber.subscribe("tide", 1)
    publisher = sites.client(0)
    publish(publisher, range(5), 1)
    publisher.publish("tide", b"5", 0)
    sites.run(3 * IDLE_S)
    assert "tide" not in sites[0].braid.transfer.outbound
    publish(publisher, range(6, 9), 1)
    publisher.publish("tide", b"9", 0)
    assert payloads(subscriber) == texts(range(10))


def test_a_site_that_was_away_gets_what_came_on_a_forgotten_topic(tmp_path: Path) -> None:
    sites = Sites(3)
    store = start(sites, 7, tmp_path)
    sites.client(7, "ada", **persistent(V5)).subscribe("tide", 1)
    publisher = sites.client(1)
    publish(publisher, range(1), 1)
    sites.run(3 * IDLE_S)
    store.close()
    sites[7].crash()
    sites.run(300)
    publish(publisher, range(1, 2), 1)
    sites.run(10)  # it is known now that nobody can be reached
    publish(publisher, range(2, 3), 1)
    store = start(sites, 7, tmp_path)
    sites.run(60)
    assert payloads(sites.client(7, "ada", **persistent(V5))) == texts(range(3))
    store.close()


def test_a_site_that_was_away_gets_what_came_on_new_topics_of_its_filter(tmp_path: Path) -> None:
    sites = Sites(3)
    store = start(sites, 7, tmp_path)
    sites.client(7, "ada", **persistent(V5)).subscribe("tide/#", 1)
    publisher = sites.client(1)
    publisher.publish("tide/old", b"0", 1)
    sites.run(AFTER_START_S)
    store.close()
    sites[7].crash()
    sites.run(300)
    assert not sites[1].braid.transfer.outbound.for_publication("tide/old").is_open, "nobody is there who wants it"
    publisher.publish("tide/new", b"1", 1)
    sites.run(10)  # it is known now that nobody can be reached
    publisher.publish("tide/new", b"2", 1)
    store = start(sites, 7, tmp_path)
    sites.run(60)
    assert payloads(sites.client(7, "ada", **persistent(V5))) == texts(range(3))
    store.close()


def test_what_only_clients_here_want_is_kept_at_first_and_then_no_more() -> None:
    """Once it is known what other brokers want."""
    sites = Sites(2)
    subscriber, publisher = sites.client(1, "ada"), sites.client(1)
    subscriber.subscribe("tide", 1)

    def kept(numbers: range) -> int:
        before = sites[1].braid.catch_up.history.head
        publish(publisher, numbers, 1)
        assert payloads(subscriber) == texts(numbers)
        return sites[1].braid.catch_up.history.head - before

    assert kept(range(5)) == 5
    sites.run(AFTER_START_S)
    assert kept(range(5, 10)) == 0
    sites.client(0, "eve").subscribe("tide", 1)
    assert kept(range(10, 15)) == 5


def test_a_site_that_crashes_at_once_keeps_its_name(tmp_path: Path) -> None:
    """Else its history would come a second time, under another name."""
    sites = Sites(2)
    store = JournalStore(tmp_path / "site7")
    sites.add(7, store=store)
    sites.run(0.5)
    name = sites[7].braid.identity
    store.close()
    sites[7].crash()
    store = start(sites, 7, tmp_path)
    assert sites[7].braid.identity == name
    store.close()


@pytest.mark.parametrize("count", [30, 1500])
def test_what_was_missed_comes_before_what_is_new(tmp_path: Path, count: int) -> None:
    """The publisher goes on while the subscriber's site comes back."""
    sites = Sites(3)
    store = start(sites, 7, tmp_path)
    sites.client(7, "ada", **persistent(V5)).subscribe("tide", 1)
    publisher = sites.client(1)
    publish(publisher, range(3), 1)
    store.close()
    sites[7].crash()
    sites.run(60)
    sites.settle_s = 0.001
    publish(publisher, range(3, count), 1)
    store = JournalStore(tmp_path / "site7")
    sites.add(7, store=store)
    sites.settle_s = 0.05
    publish(publisher, range(count, count + 200), 1)
    sites.run(60)
    sites.settle_s = 1.0
    subscriber = sites.client(7, "ada", **persistent(V5))
    got: list[bytes] = []
    while some := payloads(subscriber):  # a window at a time
        got += some
    assert got == texts(range(count + 200))
    store.close()


def test_order_holds_over_a_crash_of_the_publisher_s_site(tmp_path: Path) -> None:
    """What was acknowledged before the crash, and had not left, comes before what is published afterwards."""
    sites = Sites(3)
    store = start(sites, 7, tmp_path)
    subscriber = sites.client(2, "ada")
    subscriber.subscribe("tide", 1)
    publisher = sites.client(7)
    publish(publisher, range(5), 1)
    whole = sites.sim.network
    sites.sim.network = Faults.parse("loss=1").over(whole)
    publish(publisher, range(5, 10), 1)
    store.close()
    sites[7].crash()
    sites.sim.network = whole
    sites.run(30)
    store = start(sites, 7, tmp_path)
    publisher = sites.client(7, "another")
    publish(publisher, range(10, 15), 1)
    sites.run(60)
    assert payloads(subscriber) == texts(range(15))
    store.close()


def test_a_long_absence_is_made_good_page_by_page(tmp_path: Path) -> None:
    sites = Sites(3)
    store = start(sites, 7, tmp_path)
    sites.client(7, "ada", **persistent(V5)).subscribe("tide", 1)
    publisher = sites.client(1)
    publish(publisher, range(1), 1)
    store.close()
    sites[7].crash()
    sites.run(60)
    bodies = [b"%d" % number + bytes(100_000) for number in range(20)]
    for body in bodies:
        publisher.publish("tide", body, 1)
    store = JournalStore(tmp_path / "site7")
    sites.add(7, store=store)
    publisher.publish("tide", b"last", 1)
    sites.run(60)
    subscriber = sites.client(7, "ada", **persistent(V5))
    assert payloads(subscriber) == [b"0", *bodies, b"last"]
    store.close()


def test_a_filter_that_comes_while_an_answer_is_under_way_misses_nothing() -> None:
    """The answer says that this was all, but it was to a question that did not name the filter yet."""
    sim = Simulator(1, Constant(1.0))
    here, there = sim.host(0), sim.host(1)
    history = History(MemoryStore(), ())
    Reconciler(
        there, "there", history, Cursors(MemoryStore(), ()), ClientFilters(), there.now, _ignore, _ignore, _never
    )
    cursors, interest = Cursors(MemoryStore(), ()), ClientFilters()
    interest.add("ebb", 0.0)
    cursor = cursors.of("there", 1, 0.0)
    got: list[str] = []

    def take(batch: PublicationBatch) -> None:
        if cursors.mark_handled("there", cursor, batch.items[0].offset):
            got.append(batch.topic)

    asking = Reconciler(here, "here", history, cursors, interest, here.now, take, _ignore, _never)

    def publish(topic: str) -> None:
        history.append(topic, 1, 1, BatchItem(b"", 1, False, "", b"", None), sim.now)
        history.written()

    publish("ebb")
    asking.ask_soon("there", cursor)
    sim.run(2.5)  # it is asked to tell the filters, and does
    interest.add("flood", sim.now)
    publish("flood")
    sim.run(20)
    assert got == ["ebb", "flood"]


def test_another_history_at_the_same_address_is_not_taken_for_the_old_one() -> None:
    """A broker that has lost its store counts anew."""
    sim = Simulator(1, Constant(0.1))
    here, there = sim.host(0), sim.host(1)
    history = History(MemoryStore(), ())
    Reconciler(
        there, "there#2", history, Cursors(MemoryStore(), ()), ClientFilters(), there.now, _ignore, _ignore, _never
    )
    cursors, interest = Cursors(MemoryStore(), ()), ClientFilters()
    interest.add("ebb", 0.0)
    got: list[PublicationBatch] = []
    asking = Reconciler(here, "here", history, cursors, interest, here.now, got.append, _ignore, _never)
    history.append("ebb", 1, 1, BatchItem(b"", 1, False, "", b"", None), 0.0)
    history.written()
    asking.ask_soon("there#1", cursors.of("there#1", 1, 0.0))
    sim.run(5)
    assert not got
    asking.ask_soon("there#2", cursors.of("there#2", 1, 0.0))
    sim.run(10)
    assert [one.origin for one in got] == ["there#2"]


class Catching:
    """A broker that wants many filters, and one with a history."""

    def __init__(self, count: int) -> None:
        self.sim = Simulator(1, Constant(0.01))
        here, there = self.sim.host(0), self.sim.host(1)
        self.history = History(MemoryStore(), ())
        Reconciler(
            there,
            "there",
            self.history,
            Cursors(MemoryStore(), ()),
            ClientFilters(),
            self.now,
            _ignore,
            _ignore,
            _never,
        )
        self.cursors, self.filters = Cursors(MemoryStore(), ()), ClientFilters()
        for number in range(count):
            self.filters.add(f"cmd/{number}/+", 0.0)
        self.cursor = self.cursors.of("there", 1, 0.0)
        self.got: list[str] = []
        self.asking = Reconciler(
            here, "here", self.history, self.cursors, self.filters, self.now, self.take, _ignore, _never
        )
        self.sent: list[Message] = []
        self.sim.on_message = lambda _sender, _to, message, _hops: self.sent.append(message)

    def now(self) -> float:
        return 1000.0 + self.sim.now

    def take(self, batch: PublicationBatch) -> None:
        if self.cursors.mark_handled("there", self.cursor, batch.items[0].offset):
            self.got.append(batch.topic)

    def publish(self, *topics: str) -> None:
        for topic in topics:
            self.history.append(topic, 1, 1, BatchItem(b"", 1, False, "", b"", None), self.now())
        self.history.written()

    def ask(self, seconds: float = 5.0) -> list[Message]:
        """What is sent for it."""
        self.sent.clear()
        self.asking.ask_soon("there", self.cursor)
        self.sim.run(self.sim.now + seconds)
        return list(self.sent)


def test_of_many_filters_hashes_are_told_once_and_then_what_has_changed() -> None:
    catching = Catching(10_000)
    catching.publish("cmd/7/go", "cmd/7/go/on", "cmd/10000/go", "log")
    told = [one for one in catching.ask() if isinstance(one, TellWanted)]
    assert len(told) == 3, "some thousand at a time"
    assert sum(len(one.added) for one in told) == 8 * 10_000
    assert catching.got == ["cmd/7/go"]
    assert catching.cursor.floor == 4
    catching.publish("cmd/8/go", "log")
    assert not any(isinstance(one, TellWanted) for one in catching.ask())
    catching.filters.discard("cmd/8/+")
    catching.filters.add("log", catching.now())
    catching.publish("cmd/8/go", "cmd/9/go", "log")
    (change,) = [one for one in catching.ask() if isinstance(one, TellWanted)]
    assert (len(change.added), len(change.removed)) == (8, 8)
    assert catching.got == ["cmd/7/go", "cmd/8/go", "cmd/9/go", "log"]
    assert catching.cursor.floor == 9


def test_a_broker_that_has_forgotten_what_is_wanted_is_told_all() -> None:
    catching = Catching(2_000)
    catching.publish("cmd/7/go")
    catching.ask()
    catching.sim.hosts[1].restart()
    Reconciler(
        catching.sim.hosts[1],
        "there",
        catching.history,
        Cursors(MemoryStore(), ()),
        ClientFilters(),
        catching.now,
        _ignore,
        _ignore,
        _never,
    )
    catching.filters.add("log", catching.now())
    catching.publish("cmd/8/go", "log")
    (told,) = [one for one in catching.ask() if isinstance(one, TellWanted)]
    assert told.base == b""
    assert catching.got == ["cmd/7/go", "cmd/8/go", "log"]


def test_a_long_history_is_looked_through_a_part_at_a_time() -> None:
    catching = Catching(10)
    catching.publish(*[f"log/{number}" for number in range(10_000)], "cmd/3/go")
    answers = [one for one in catching.ask(30) if isinstance(one, Missed)]
    assert [one.floor for one in answers] == [4000, 8000, 10_001]
    assert catching.got == ["cmd/3/go"]
    assert catching.cursor.floor == 10_001


def test_the_floor_rises_though_filters_come_all_the_time() -> None:
    catching = Catching(2_000)
    for number in range(500):
        catching.publish(f"cmd/{number}/go", "log")
        catching.filters.add(f"new/{number}", catching.now())
        if number % 10 == 0:
            catching.asking.ask_soon("there", catching.cursor)
        catching.sim.run(catching.sim.now + 0.005)
    rounds = len([one for one in catching.sent if isinstance(one, TellWanted)])
    assert rounds < 20
    assert catching.cursor.floor > 300
    catching.ask(30)
    assert catching.got == [f"cmd/{number}/go" for number in range(500)]
    assert catching.cursor.floor == 1000


def _ignore(*_: object) -> None:
    """Nothing is held back here."""


def _never(_origin: str) -> bool:
    return False


def test_nothing_is_told_before_it_is_written(tmp_path: Path) -> None:
    """An offset that was told and then lost in a crash would be used for something else."""
    sites = Sites(2)
    sites.client(1).subscribe("tide", 1)
    publish(sites.client(0), range(3), 1)
    history: History = sites[0].braid.catch_up.history
    item = history.missed(0, 0.0, (), lambda _: True, 1 << 20)[0][0].item
    assert item is not None
    history.append("tide", 1, 4, item, 0.0)
    assert [one.offset for one in history.missed(0, 0.0, (), lambda _: True, 1 << 20)[0]] == [1, 2, 3]
    history.written()
    assert history.missed(0, 0.0, (), lambda _: True, 1 << 20)[1] == 4


def test_a_site_that_came_back_alone_becomes_one_with_the_others(tmp_path: Path) -> None:
    """It was restarted while it was cut off, and began a braid of its own."""
    sites = Sites(4)
    store = start(sites, 7, tmp_path)
    sites.client(7, "ada", **persistent(V5)).subscribe("tide", 1)
    publisher = sites.client(1)
    publish(publisher, range(3), 1)
    whole = sites.sim.network
    store.close()
    sites[7].crash()
    now = sites.sim.now
    sites.sim.network = Partition([[7]], now, now + 60, whole)
    store = start(sites, 7, tmp_path)
    sites.run(20)
    assert sites[7].braid.presence.is_in
    sites.run(30)
    publish(publisher, range(3, 6), 1)
    sites.run(120)
    publish(publisher, range(6, 9), 1)
    sites.run(60)
    assert payloads(sites.client(7, "ada", **persistent(V5))) == texts(range(9))
    store.close()
