"""Retained messages within their bounds, and thrown away when they have expired."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from braidmq.broker.broker import RETAINED_SWEEP_S
from braidmq.broker.limits import Limits
from braidmq.broker.message import Message
from braidmq.broker.retained import Retained
from braidmq.mqtt.topics import matches
from braidmq.mqtt.wire import string
from tests.conformance.pair import V3, Will, World
from tests.conformance.wire import props

QUOTA_EXCEEDED = 0x97


def message(topic: str, payload: bytes = b"x", expires_at: float | None = None) -> Message:
    return Message(topic, string(topic), payload, 0, True, expires_at=expires_at)


topics = st.sampled_from(["a", "a/b", "a/c", "b", "$x", "a/b/c", "/"])
filters = st.sampled_from(["#", "a", "a/#", "+", "+/b", "a/+", "$x", "/", "a/b/c"])


class RetainedModel(RuleBasedStateMachine):
    """A bounded dict from topics to messages."""

    def __init__(self) -> None:
        super().__init__()
        self.limits = Limits(retained_messages_max=4, retained_bytes_max=40)
        self.retained = Retained(self.limits)
        self.kept: dict[str, Message] = {}
        self.now = 0.0

    @rule(topic=topics, size=st.integers(1, 30), expires_in_s=st.none() | st.integers(0, 5))
    def keep(self, topic: str, size: int, expires_in_s: int | None) -> None:
        new = message(topic, bytes(size), None if expires_in_s is None else self.now + expires_in_s)
        others = [one for key, one in self.kept.items() if key != topic]
        fits = len(others) < 4 and sum(one.size for one in others) + new.size <= 40
        assert self.retained.fits(new) == fits
        if fits:
            self.retained.keep(new)
            self.kept[topic] = new

    @rule(topic=topics)
    def discard(self, topic: str) -> None:
        assert self.retained.discard(topic) == (self.kept.pop(topic, None) is not None)

    @rule(seconds=st.integers(1, 3))
    def wait(self, seconds: int) -> None:
        self.now += seconds
        old = {topic for topic, one in self.kept.items() if one.expires_at is not None and one.expires_at <= self.now}
        assert set(self.retained.expired(self.now)) == old

    @rule(topic_filter=filters)
    def match(self, topic_filter: str) -> None:
        wanted = [
            one
            for topic, one in self.kept.items()
            if matches(topic_filter, topic) and (one.expires_at is None or one.expires_at > self.now)
        ]
        found = list(self.retained.match(topic_filter, self.now))
        assert sorted(id(one) for one in found) == sorted(id(one) for one in wanted)

    @invariant()
    def counted(self) -> None:
        assert len(self.retained) == len(self.kept) <= 4
        assert self.retained.bytes == sum(one.size for one in self.kept.values()) <= 40


TestRetainedModel = RetainedModel.TestCase
TestRetainedModel.settings = settings(max_examples=40, stateful_step_count=30, deadline=None, print_blob=True)


def test_the_answer_may_be_read_while_the_messages_change() -> None:
    retained = Retained(Limits())
    for number in range(5):
        retained.keep(message(f"t/{number}"))
    for one in retained.match("t/#", 0.0):
        retained.discard(one.topic)
        retained.keep(message(f"u/{one.topic}"))
    assert len(retained) == 5


def test_too_many_are_refused_and_those_that_are_there_may_be_replaced() -> None:
    world = World(limits=Limits(retained_messages_max=2))
    client = world.client()
    assert client.publish("a", b"1", 1, retain=True) == 0x10
    assert client.publish("b", b"1", 1, retain=True) == 0x10
    assert client.publish("c", b"1", 1, retain=True) == QUOTA_EXCEEDED
    assert client.publish("c", b"", 1, retain=True) == 0x10
    assert client.publish("a", b"2", 1, retain=True) == 0x10
    assert client.publish("a", b"", 1, retain=True) == 0x10
    assert client.publish("c", b"1", 1, retain=True) == 0x10
    assert world.broker.metrics.publish_refused == 1
    assert world.broker.metrics.retained_messages == 2
    client.subscribe("#")
    assert sorted((one.topic, one.payload) for one in client.take()) == [("b", b"1"), ("c", b"1")]


def test_too_many_bytes_are_refused() -> None:
    world = World(limits=Limits(retained_bytes_max=100))
    client = world.client()
    assert client.publish("a", bytes(60), 1, retain=True) == 0x10
    assert client.publish("b", bytes(60), 1, retain=True) == QUOTA_EXCEEDED
    assert client.publish("a", bytes(90), 1, retain=True) == 0x10
    assert client.publish("a", bytes(1), 1, retain=True) == 0x10
    assert client.publish("b", bytes(60), 1, retain=True) == 0x10


def test_a_will_that_does_not_fit_is_not_kept() -> None:
    world = World(limits=Limits(retained_messages_max=1))
    world.client("p", V3).publish("a", b"1", retain=True)
    world.client("w", V3, will=Will("w", b"gone", retain=True)).drop()
    reader = world.client("r")
    reader.subscribe("#")
    reader.expect_payloads(b"1")


def test_expired_ones_are_not_sent_and_leave_within_a_sweep() -> None:
    world = World()
    client = world.client()
    client.publish("short", b"1", retain=True, properties=props(message_expiry=10))
    client.publish("long", b"2", retain=True, properties=props(message_expiry=1000))
    client.publish("ever", b"3", retain=True)
    world.advance(10)
    client.subscribe("#")
    assert {one.topic: one.properties.get("message_expiry") for one in client.take()} == {"long": 990, "ever": None}
    assert world.broker.metrics.retained_messages == 3
    world.advance(RETAINED_SWEEP_S)
    assert world.broker.metrics.retained_messages == len(world.broker.retained) == 2
    for _ in range(20):
        world.advance(RETAINED_SWEEP_S)
    assert world.broker.metrics.retained_messages == 1
    assert world.broker.retained.bytes == len(b"\0\x04ever") + 1


def test_more_retained_messages_than_a_queue_holds_all_arrive() -> None:
    """A new subscriber is not a slow reader: it gets them as fast as it acknowledges them."""
    world = World(limits=Limits(inflight_max=5, queue_messages_max=10))
    publisher = world.client("p")
    for number in range(60):
        publisher.publish(f"r/{number}", b"%d" % number, 1, retain=True)
    client = world.client("s")
    assert client.subscribe("r/#", 1) == 1
    got: list[bytes] = []
    while new := client.take():
        for one in new:
            got.append(one.payload)
            client.acknowledge(one)
    assert not client.link.closed
    assert sorted(got, key=int) == [b"%d" % number for number in range(60)]
    assert world.broker.metrics.queued_messages == 0
