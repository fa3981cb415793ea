"""Outbound topics that look up whether they are wanted: what they cost, hold and see, with a method that is told what
to know."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from braidmq.braid.catch_up.history import GENERATIONS_MAX, History
from braidmq.braid.transfer import outbound, outbound_topic, wildcard_topics
from braidmq.braid.transfer.batch import BatchItem
from braidmq.braid.transfer.outbound import AFTER_START_S, IDLE_S
from braidmq.braid.transfer.outbound_topic import OutboundTopic
from braidmq.braid.transfer.wildcard_topics import FINDERS_MAX, RECENT_MAX, WildcardTopics
from braidmq.broker.store import MemoryStore
from braidmq.host import Address, Host
from braidmq.mqtt.packets import V5
from braidmq.mqtt.topics import matches
from braidmq.overlay.ranges import OnOutcome
from braidmq.pubsub.method import WildcardMethod, ignore, no_answer
from braidmq.sim.engine import Simulator
from braidmq.sim.network import Constant

ADVERTISE_S = 1.0


class Told:
    """A method that knows what it was told, and that is under a cover: what comes before the first `/`."""

    def __init__(self, host: Host) -> None:
        self.on_message, self.on_demand, self.on_wants, self.on_question = ignore, ignore, ignore, no_answer
        self.host = host
        self.covers: set[str] = set()
        self.wants: set[str] = set()
        self.silent: set[str] = set()
        self.advertised: list[str] = []
        self.looked_up = self.asked = 0

    def knows(self, topic: str) -> bool:
        self.asked += 1
        return topic.partition("/")[0] in self.covers

    def is_wanted(self, topic: str) -> bool:
        self.looked_up += 1
        return any(matches(one, topic) for one in self.wants)

    def was_wanted(self, topic: str) -> bool:
        return any(matches(one, topic) for one in self.silent)

    async def advertise(self, topic: str) -> None:
        self.advertised.append(topic)
        await self.host.sleep(ADVERTISE_S)
        self.covers.add(topic.partition("/")[0])

    async def subscribe(self, topic: str) -> None: ...
    async def unsubscribe(self, topic: str) -> None: ...
    async def withdraw(self, topic: str) -> None: ...
    async def leave(self) -> None: ...
    def on_reached(self, address: Address) -> None: ...

    def publish(self, topic: str, body: bytes) -> bool:
        return False

    def publish_many(self, publications: Sequence[tuple[str, bytes]]) -> None: ...

    def publish_many_surely(
        self, publications: Sequence[tuple[str, bytes]], timeout_s: float, on_outcome: OnOutcome
    ) -> None: ...

    def publish_within(self, topic: str, body: bytes, cluster: str) -> bool:
        return False

    def publish_surely(
        self, topic: str, body: bytes, timeout_s: float, on_outcome: OnOutcome, cluster: str | None = None
    ) -> bool:
        return False

    def may_be_wanted(self, topic: str, cluster: str) -> bool:
        return self.is_wanted(topic)

    def ask(self, topic: str, body: bytes, timeout_s: float, on_outcome: OnOutcome) -> None: ...


class Bench:
    def __init__(self) -> None:
        self.sim = Simulator(1, Constant(0.01))
        host = self.sim.host(0)
        self.method = Told(host)
        assert isinstance(self.method, WildcardMethod)
        self.history = History(MemoryStore(), ())
        self.topics = WildcardTopics("here", 7, self.method, host, self.history)
        self.topics.advertise = self.method.advertise
        self.flushes = 0
        self.changed: list[str] = []
        self.demand: list[str] = []
        self.routes: list[str] = []
        self.topics.queue.on_touched = self._touched
        self.topics.on_changed = self.changed.append
        self.topics.on_demand = self.demand.append
        self.topics.on_open = self.routes.append

    def _touched(self) -> None:
        self.flushes += 1

    def run(self, seconds: float = 0.0) -> None:
        self.sim.run(self.sim.now + seconds)

    def want(self, topic_filter: str) -> None:
        self.method.wants.add(topic_filter)
        self.topics.on_wants(topic_filter)

    def sent(self) -> dict[str, list[bytes]]:
        """What leaves now, by topic."""
        ready = self.topics.queue.take_ready()
        return {one.topic: [batch.run for batch in one.batches()] for one in ready}

    def sweep(self) -> None:
        self.sim.hosts[0].spawn(self.topics.sweep())
        self.run(0.001)


def send(topic: OutboundTopic, *runs: bytes) -> None:
    for run in runs:
        topic.send_run(V5, run, 1)


# Found out


def test_a_topic_under_a_known_cover_is_settled_and_costs_no_task() -> None:
    bench = Bench()
    bench.method.covers.add("dev")
    unwanted = bench.topics.for_publication("dev/1")
    assert (unwanted.is_settled, unwanted.is_known, unwanted.is_open) == (True, True, False)
    bench.want("dev/+")
    wanted = bench.topics.for_publication("dev/2")
    assert wanted.is_open
    send(wanted, b"now")
    assert bench.sent() == {"dev/2": [b"now"]}
    bench.run(10)
    assert bench.method.advertised == []


def test_what_comes_before_a_topic_is_known_is_held_and_then_leaves_in_its_order() -> None:
    bench = Bench()
    bench.want("dev/1")
    topic = bench.topics.for_publication("dev/1")
    send(topic, b"1", b"2")
    assert topic.is_holding
    assert not bench.topics.queue.has_ready
    bench.run(0.5)
    send(topic, b"3")
    assert bench.sent() == {}
    bench.run(1)
    assert bench.flushes == 1
    send(topic, b"4")
    assert bench.sent() == {"dev/1": [b"1234"]}
    assert topic.number == 4


def test_what_nobody_wants_is_not_sent_once_that_is_known() -> None:
    bench = Bench()
    topic = bench.topics.for_publication("dev/1")
    known: list[bool] = []
    topic.when_known(lambda: known.append(bool(topic.wanted)))
    send(topic, b"held")
    bench.run(2)
    assert known == [False]
    assert not topic.is_open
    send(topic, b"more")
    assert bench.sent() == {"dev/1": [b"held"]}, "the one that was held is given to the method, which knows nobody"


def test_ten_thousand_new_topics_are_found_out_about_by_a_few_workers() -> None:
    bench = Bench()
    count = 10_000
    topics = [bench.topics.for_publication(f"dev/{number}") for number in range(count)]
    for topic in topics:
        send(topic, b"x")
    bench.run(0.5)
    assert len(bench.method.advertised) == FINDERS_MAX
    bench.want("dev/+")
    bench.run(1)
    assert all(topic.is_settled for topic in topics)
    assert len(bench.method.advertised) == FINDERS_MAX, "the others are known with the first"
    assert len(bench.sent()) == count


def test_a_topic_that_waits_is_settled_as_soon_as_it_is_published_and_known() -> None:
    bench = Bench()
    for number in range(FINDERS_MAX):
        bench.topics.for_publication(f"slow{number}/x")
    waiting = bench.topics.for_publication("dev/1")
    bench.run(0.1)
    bench.method.covers.add("dev")
    assert not waiting.is_settled
    assert bench.topics.for_publication("dev/1").is_settled


def test_what_is_held_has_bounds_for_a_topic_and_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbound_topic, "HELD_BYTES_MAX", 10)
    monkeypatch.setattr(outbound_topic, "HELD_BYTES_ALL_MAX", 25)
    bench = Bench()
    bench.want("#")
    one, other, third = (bench.topics.for_publication(f"dev/{number}") for number in range(3))
    send(one, b"123456", b"123456", b"dropped")
    assert bench.topics.dropped == 1
    send(other, b"123456", b"123456")
    send(third, b"123456", b"dropped")
    assert bench.topics.dropped == 2
    item = BatchItem(b"kept", 1, False, "", b"", None)
    third.send_item(item, 0.0)
    assert (third.number, len(bench.history)) == (2, 1), "of QoS 1 it is in the history, for those that ask"
    bench.run(2)
    assert bench.sent() == {"dev/0": [b"123456" * 2], "dev/1": [b"123456" * 2], "dev/2": [b"123456"]}
    send(one, b"12345678901", b"1")
    assert bench.topics.dropped == 2, "a settled topic holds nothing"


async def _wait(bench: Bench, topic: OutboundTopic, waited: list[float]) -> None:
    await bench.topics.until_settled(topic, 5.0)
    waited.append(bench.sim.now)


def test_whoever_waits_for_a_topic_is_told_when_it_is_settled() -> None:
    bench = Bench()
    waited: list[float] = []
    bench.sim.hosts[0].spawn(_wait(bench, bench.topics.for_publication("dev/1"), waited))
    bench.run(2)
    bench.sim.hosts[0].spawn(_wait(bench, bench.topics.for_publication("dev/2"), waited))
    bench.run()
    assert waited == [ADVERTISE_S, 2.0]


# Wants that change


def test_a_change_is_seen_by_the_next_publication_and_touches_no_topic() -> None:
    bench = Bench()
    bench.method.covers.add("dev")
    topics = [bench.topics.for_publication(f"dev/{number}") for number in range(100)]
    assert not any(topic.is_open for topic in topics)
    bench.method.looked_up = 0
    for number in range(50):
        bench.want(f"dev/{number}")
    assert bench.method.looked_up == 0
    assert [topic.is_open for topic in topics] == [number < 50 for number in range(100)]
    assert bench.method.looked_up == 50, "the others are not concerned"
    send(topics[0], b"x")
    assert topics[0].wanted == ("dev/0",)
    assert bench.method.looked_up == 50, "nothing has changed since"
    bench.method.wants.clear()
    bench.topics.on_wants("#")
    assert not topics[0].is_open
    assert bench.changed == [*(f"dev/{number}" for number in range(50)), "#"]


class Path:
    def holds(self, version: int, size: int, now: float) -> bool:
        return True

    def send(self, version: int, run: bytes, now: float) -> bool:
        return True


def test_a_cut_through_does_not_outlive_a_change() -> None:
    bench = Bench()
    bench.method.covers.add("dev")
    bench.want("dev/1")
    topic = bench.topics.for_publication("dev/1")
    assert topic.is_open
    topic.cut_through = path = Path()
    assert topic.cut_through is path
    bench.want("dev/+")
    assert topic.cut_through is None


@pytest.mark.parametrize("changes", [1, RECENT_MAX, RECENT_MAX + 1])
@pytest.mark.parametrize("topic", ["a/b", "a", "$a/b", "ab/c"])
@pytest.mark.parametrize("topic_filter", ["a/b", "a/+", "a/#", "+/b", "#", "$a/#", "$a/b", "a", "ab/#", "+"])
def test_a_short_way_is_given_up_for_changes_that_concern_it_and_only_for_those(
    topic: str, topic_filter: str, changes: int
) -> None:
    bench = Bench()
    bench.method.covers |= {"a", "$a", "ab"}
    outbound_topic = bench.topics.for_publication(topic)
    assert not outbound_topic.is_open
    outbound_topic.cut_through = path = Path()
    bench.want(topic_filter)
    for number in range(changes - 1):
        bench.topics.on_wants(f"elsewhere/{number}/#")
    concerned = topic_filter == "#" or matches(topic_filter, topic)
    assert outbound_topic.is_open == matches(topic_filter, topic)
    assert (outbound_topic.cut_through is path) == (not concerned and changes <= RECENT_MAX)


def test_qos_1_is_kept_after_the_start_and_for_who_has_fallen_silent() -> None:
    bench = Bench()
    bench.method.covers.add("dev")
    topic = bench.topics.for_publication("dev/1")
    assert (topic.is_open, topic.is_kept) == (False, True)
    bench.run(AFTER_START_S)
    assert not topic.is_kept
    bench.method.silent.add("dev/+")
    bench.topics.on_wants("dev/+")
    assert (topic.is_open, topic.is_kept) == (False, True)
    bench.method.silent.clear()
    bench.topics.on_wants("dev/+")
    assert not topic.is_kept


# Topics that come and go


def test_what_is_not_used_goes_and_comes_again_as_another_stream() -> None:
    bench = Bench()
    bench.method.covers.add("dev")
    old, used = bench.topics.for_publication("dev/old"), bench.topics.for_publication("dev/used")
    bench.topics.watch("dev/watched")
    bench.run(IDLE_S)
    bench.topics.for_publication("dev/used")
    bench.run(2)
    bench.sweep()
    assert [one.topic for one in bench.topics] == ["dev/used", "dev/watched"]
    assert bench.routes == ["dev/old"]
    again = bench.topics.for_publication("dev/old")
    assert old.incarnation == used.incarnation == 7 * GENERATIONS_MAX
    assert again.incarnation == 7 * GENERATIONS_MAX + 1


def test_topics_that_stay_are_asked_about_so_that_the_method_goes_on_to_know() -> None:
    bench = Bench()
    bench.method.covers |= {"dev", "lost"}
    kept, lost = bench.topics.for_publication("dev/1"), bench.topics.for_publication("lost/1")
    bench.method.asked = 0
    bench.method.covers.remove("lost")
    bench.sweep()
    assert bench.method.asked >= 2
    assert (kept.is_settled, lost.is_settled) == (True, False)
    bench.run(2)
    assert bench.method.advertised == ["lost/1"]
    assert lost.is_settled


def test_a_sweep_looks_at_a_slice_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbound, "SWEEP_SLICE", 10)
    bench = Bench()
    bench.method.covers.add("dev")
    for number in range(25):
        bench.topics.for_publication(f"dev/{number}")
    bench.run(IDLE_S + 2)
    left: list[int] = []
    drop = bench.topics._drop

    def dropping(topics: list[OutboundTopic]) -> None:
        drop(topics)
        left.append(len(bench.topics))

    monkeypatch.setattr(bench.topics, "_drop", dropping)
    bench.sweep()
    assert left == [15, 5, 0]


def test_when_there_is_no_room_those_go_that_were_not_used_for_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbound, "OUTBOUND_MAX", 20)
    monkeypatch.setattr(outbound, "EVICTED_AT_ONCE", 4)
    monkeypatch.setattr(outbound, "EVICTION_SAMPLE", 10)
    bench = Bench()
    bench.method.covers.add("dev")
    bench.topics.watch("dev/watched")
    for number in range(19):
        bench.topics.for_publication(f"dev/{number}")
        bench.run(outbound_topic.STAMP_S + 0.5)
    bench.topics.for_publication("dev/0")
    bench.run(2)
    bench.topics.for_publication("dev/new")
    gone = {f"dev/{number}" for number in range(19) if f"dev/{number}" not in bench.topics}
    assert gone == {"dev/1", "dev/2", "dev/3", "dev/4"}
    assert "dev/watched" in bench.topics
    for number in range(100):
        bench.topics.for_publication(f"dev/more/{number}")
        assert len(bench.topics) <= 20
    assert "dev/watched" in bench.topics


def test_a_topic_that_goes_while_it_holds_something_says_so_and_lets_nobody_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outbound, "OUTBOUND_MAX", 1)
    bench = Bench()
    topic = bench.topics.for_publication("dev/1")
    send(topic, b"lost")
    told: list[bool] = []
    topic.when_known(lambda: told.append(True))
    bench.topics.for_publication("dev/2")
    assert told == [True]
    assert bench.topics.dropped == 1
    bench.run(2)
    assert bench.sent() == {}


def test_settling_gives_others_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wildcard_topics, "FOUND_AT_ONCE", 5)
    monkeypatch.setattr(wildcard_topics, "FINDERS_MAX", 1)
    bench = Bench()
    topics = [bench.topics.for_publication(f"dev/{number}") for number in range(12)]
    bench.run(ADVERTISE_S + 0.1)
    assert all(topic.is_settled for topic in topics)
    assert bench.method.advertised == ["dev/0"]
