"""The fast path is only fast: with it and without it, every client is sent the same bytes.

Random histories are played twice, once as the broker is and once with the fast path declining everything, so that each
publication goes through the codec and `publishing`. What each client was sent and what was counted must be equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from braidmq.broker import receiving
from braidmq.broker.flow import KEPT_UP_S, STALL_S
from braidmq.broker.limits import Limits
from braidmq.security.identity import FreeClientIds, Identity
from tests.conformance import wire
from tests.conformance.pair import V3, V5, Link, Peer, Rules, Type, World, persistent
from tests.conformance.wire import props

TOPICS = ("a", "a/b", "secret/x", "é/b", "$x")
FILTERS = ("a", "a/b", "a/+", "#", "+/b", "secret/x", "$share/g/a", "$share/g/#", "$x")
SIZES = (0, 1, 5, 124, 300, 2100)


@contextmanager
def one_packet_after_the_other() -> Iterator[None]:
    """Without the bound of packets a tick, which counts those of the slow path and so changes whose turn it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(receiving, "PACKETS_MAX", 1_000_000)
        yield


@contextmanager
def without_fast_path() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(receiving, "forward_run", lambda *_arguments: 0)
        patch.setattr(receiving, "forward_and_acknowledge", lambda *_arguments: 0)
        patch.setattr(receiving, "PLAIN_ACKS", frozenset())
        patch.setattr(receiving, "send_repeat", lambda *_arguments: False)
        patch.setattr(receiving, "on_lone_puback", lambda *_arguments: False)
        yield


# What may happen


@dataclass(frozen=True)
class Setup:
    """How a client connects."""

    version: int
    kept: bool
    properties: bytes


@dataclass(frozen=True)
class Publish:
    client: int
    topic: str
    size: int
    qos: int
    count: int
    retain: bool = False
    dup: bool = False
    properties: bytes = b""
    long_length: bool = False
    """With a remaining length in more bytes than it needs."""
    again: bool = False
    """Under the packet id of the one before."""
    tail: bytes = b""
    """What stands behind it in the same read."""


@dataclass(frozen=True)
class Subscribe:
    client: int
    topic_filter: str
    options: int
    identifier: int


@dataclass(frozen=True)
class Unsubscribe:
    client: int
    topic_filter: str


@dataclass(frozen=True)
class Act:
    client: int
    what: str


@dataclass(frozen=True)
class Read:
    """Several publications that arrive in pieces, cut at these places (in thousandths of their length)."""

    publications: tuple[Publish, ...]
    cuts: tuple[int, ...]
    settle: bool


BROKEN = (
    b"\x30\x03\0\x01#",
    b"\x30\x03\0\x05a",
    b"\x30\x01a",
    b"\x30\x02\0\x01a",
    b"\x32\x05\0\x01a\0\0",
    b"\x32\x03\0\x01a",
    b"\x34\x06\0\x01a\0\0\0",
    b"\x36\x06\0\x01a\0\1\0",
    b"\x38\x04\0\x01a\0",
    b"\x30\x04\0\x01a\xff",
    b"\x30\x02\0\0",
)
"""Publications that are none; some only by a byte too few."""

LIMITS = (
    Limits(),
    Limits(),
    Limits(queue_qos0=True),
    Limits(message_expiry_max_s=20),
    Limits(receive_max=3),
    Limits(qos_max=1, route_cache_max=1),
    Limits(queue_messages_max=2, inflight_max=2),
    Limits(topic_alias_max=0, retain=False),
)

Scenario = tuple[Limits, list[Setup], list[Subscribe], list[object]]


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    """First what the scenario is about, then a history of it: else the interesting would hardly ever come together."""
    topics = st.sampled_from(draw(st.sampled_from([TOPICS[:1], TOPICS[:1], TOPICS[:3], TOPICS])))
    filters = st.sampled_from(draw(st.sampled_from([("a",), ("a", "#"), ("a", "$share/g/a"), FILTERS])))
    sizes = st.sampled_from(draw(st.sampled_from([(5,), (1, 300), SIZES])))
    levels = st.sampled_from(draw(st.sampled_from([(0,), (1,), (2,), (0, 1), (0, 1, 2)])))
    versions = st.sampled_from(draw(st.sampled_from([(V3,), (V5,), (V3, V5)])))
    odd = draw(st.booleans())
    connects = st.just(b"")
    options, identifiers = st.sampled_from([0, 1, 2]), st.just(0)
    publications = st.builds(Publish, clients, topics, sizes, levels, st.integers(1, 4), again=st.booleans())
    if odd:
        connects = st.sampled_from(
            [b"", b"", props(receive_maximum=1), props(topic_alias_maximum=2), props(maximum_packet_size=128)]
        )
        options, identifiers = st.sampled_from([0, 1, 2, 4, 5, 8, 9, 10]), st.integers(0, 2)
        properties = st.sampled_from([b"", props(content_type="x"), props(message_expiry=5), props(topic_alias=1)])
        publications = st.one_of(
            publications,
            st.builds(
                Publish,
                *(clients, topics, sizes, levels, st.integers(1, 3), st.booleans(), st.booleans()),
                *(properties, st.booleans(), st.booleans(), st.sampled_from((b"",) * 9 + BROKEN)),
            ),
        )
    reads = st.builds(
        Read,
        st.lists(publications, min_size=1, max_size=4).map(tuple),
        st.lists(st.integers(0, 1000), max_size=3).map(lambda cuts: tuple(sorted(cuts))),
        st.booleans(),
    )
    readings = st.builds(lambda one: Read((replace(one, count=1),), (), True), publications)
    subscribes = st.builds(Subscribe, clients, filters, options, identifiers)
    unsubscribes = st.builds(Unsubscribe, clients, filters)
    kept = st.booleans() if draw(st.booleans()) else st.just(False)
    setups = st.builds(Setup, versions, kept, connects)
    steps = st.one_of(reads, reads, reads, readings, readings, readings, subscribes, unsubscribes, acts)
    return (
        draw(st.sampled_from(LIMITS)),
        draw(st.lists(setups, min_size=4, max_size=4)),
        draw(st.lists(subscribes, min_size=1, max_size=5)),
        draw(st.lists(steps, min_size=3, max_size=30)),
    )


clients = st.integers(0, 3)
acts = st.builds(
    Act, clients, st.sampled_from(["acknowledge", "pause", "resume", "reconnect", "drop", "wait", "settle", "rules"])
)


# A history, played


@dataclass
class Client:
    setup: Setup
    peer: Peer
    streams: list[bytearray] = field(default_factory=list)
    packet_id: int = 0


class OneMayAll(Rules):
    """Nobody may publish to what is secret, but the last client."""

    def may_publish(self, identity: Identity, client_id: str, topic: str) -> bool:
        return client_id == "c3" or super().may_publish(identity, client_id, topic)

    def may_subscribe(self, identity: Identity, client_id: str, topic_filter: str) -> bool:
        return True


class Recorder(Link):
    """A link that keeps all that was ever written to it."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.all = bytearray()

    def write(self, data: bytes) -> None:
        if not self.closed:
            self.all += data
        super().write(data)


class Play:
    def __init__(self, limits: Limits, setups: list[Setup], subscriptions: list[Subscribe]) -> None:
        self.world = World(limits=limits, access=OneMayAll())
        self.clients: list[Client] = []
        for number, setup in enumerate(setups):
            self.clients.append(Client(setup, self._connected(number, setup)))
            self.clients[-1].streams.append(self._stream(number))
        for one in subscriptions:
            self.on_subscribe(one)

    def _connected(self, number: int, setup: Setup) -> Peer:
        peer = self.world.peer(setup.version)
        link = Recorder(self.world)
        link.on_lost = peer.link.on_lost
        peer.link = link
        peer.connection.link = peer.connection.flow.link = link
        options = persistent(setup.version) if setup.kept else {"properties": b""}
        if setup.version == V5:
            options["properties"] += setup.properties
        peer.connection.receive(wire.connect(f"c{number}", version=setup.version, **options))
        self.world.settle()
        return peer

    def _stream(self, number: int) -> bytearray:
        link = self.clients[number].peer.link
        assert isinstance(link, Recorder)
        return link.all

    def receive(self, client: Client, data: bytes) -> None:
        if data and not client.peer.link.closed:
            client.peer.connection.receive(data)

    def step(self, step: object) -> None:
        handler: Callable[[Any], None] = getattr(self, f"on_{type(step).__name__.lower()}")
        handler(step)

    def encoded(self, one: Publish, client: Client) -> bytes:
        version = client.setup.version
        out = []
        for number in range(one.count):
            if one.qos and not (one.again and client.packet_id):
                client.packet_id = client.packet_id % 65535 + 1
            raw = wire.publish(
                one.topic,
                bytes((65 + number,)) * one.size,
                version=version,
                qos=one.qos,
                packet_id=client.packet_id if one.qos else None,
                retain=one.retain,
                dup=one.dup and one.qos > 0,
                properties=one.properties if version == V5 else b"",
            )
            if one.long_length and version == V3:
                body_at = next(place for place in range(1, 5) if raw[place] < 0x80) + 1
                raw = raw[: body_at - 1] + bytes((raw[body_at - 1] | 0x80, 0)) + raw[body_at:]
            out.append(raw)
        return b"".join(out) + one.tail

    def on_read(self, read: Read) -> None:
        pieces: dict[int, bytes] = {}
        for one in read.publications:
            pieces[one.client] = pieces.get(one.client, b"") + self.encoded(one, self.clients[one.client])
        for number, data in pieces.items():
            places = [len(data) * cut // 1000 for cut in read.cuts]
            for start, stop in zip([0, *places], [*places, len(data)], strict=True):
                self.receive(self.clients[number], data[start:stop])
        if read.settle:
            self.world.settle()

    def on_subscribe(self, one: Subscribe) -> None:
        client = self.clients[one.client]
        options, properties = one.options, b""
        if client.setup.version == V3:
            options &= 3
        else:
            if one.topic_filter.startswith("$share/"):
                options &= ~4
            properties = props(subscription_id=one.identifier) if one.identifier else b""
        version = client.setup.version
        self.receive(client, wire.subscribe(7, (one.topic_filter, options), version=version, properties=properties))
        self.world.settle()

    def on_unsubscribe(self, one: Unsubscribe) -> None:
        client = self.clients[one.client]
        self.receive(client, wire.unsubscribe(8, one.topic_filter, version=client.setup.version))

    def on_act(self, act: Act) -> None:
        client = self.clients[act.client]
        connection = client.peer.connection
        if act.what == "acknowledge":
            self.receive(client, self._acknowledgements(client))
        elif act.what == "pause":
            connection.pause_writing()
        elif act.what == "resume":
            connection.resume_writing()
        elif act.what == "reconnect":
            client.peer = self._connected(act.client, client.setup)
            client.streams.append(self._stream(act.client))
        elif act.what == "drop":
            client.peer.drop()
        elif act.what == "wait":
            self.world.advance(3)
        elif act.what == "rules":
            broker = self.world.broker
            broker.reconfigure(broker.limits, None, {}, OneMayAll(), FreeClientIds())
        else:
            self.world.settle()

    def _acknowledgements(self, client: Client) -> bytes:
        """Answers to all that has come since the last time."""
        packets, client.peer.link.stream = wire.split(client.peer.link.stream)
        out = []
        for raw in packets:
            got = wire.decode(raw, client.setup.version)
            answer = {Type.PUBREL: Type.PUBCOMP, Type.PUBREC: Type.PUBREL}.get(got.type)
            if got.type is Type.PUBLISH and got.qos:
                answer = Type.PUBACK if got.qos == 1 else Type.PUBREC
            if answer is not None and got.packet_id is not None and got.reason < 0x80:
                out.append(wire.ack(answer, got.packet_id))
        return b"".join(out)

    def outcome(self) -> dict[str, Any]:
        self.world.settle()
        broker = self.world.broker
        return {
            "streams": [[bytes(stream) for stream in client.streams] for client in self.clients],
            "open": [not client.peer.link.closed for client in self.clients],
            "metrics": msgspec.structs.asdict(broker.metrics),
            "queues": {name: len(session.backlog or ()) for name, session in broker.sessions.items()},
            "retained": sorted(one.topic for one in broker.retained.match("#", broker.now())),
        }


def played(scenario: Scenario) -> Any:
    limits, setups, subscriptions, history = scenario
    play = Play(limits, setups, subscriptions)
    for step in history:
        play.step(step)
    return play.outcome()


RUNS: Scenario = (
    Limits(),
    [Setup(V3, False, b""), Setup(V5, False, b""), Setup(V3, False, b""), Setup(V5, True, b"")],
    [Subscribe(2, "a", 0, 0), Subscribe(3, "a", 1, 0)],
    [
        *(Read((Publish(number, "a", size, 0, 3),), (), True) for size in SIZES for number in (0, 1)),
        *(Read((Publish(number, "a", 5, 0, 1),), (), True) for number in (0, 0, 0, 1, 1, 1)),
        *(Read((Publish(number, "a", 5, qos, 2),), (500,), True) for number in (0, 1) for qos in (1, 2)),
    ],
)
"""Runs of one topic to both versions, in one read and then one by one."""

READINGS: Scenario = (
    Limits(),
    [Setup(V5, False, b""), Setup(V5, False, b""), Setup(V5, True, b""), Setup(V3, False, b"")],
    [Subscribe(1, "a", 0, 0)],
    [
        step
        for change in (
            Subscribe(2, "a", 0, 0),
            Subscribe(2, "a", 0, 1),
            Subscribe(1, "a", 4, 0),
            Unsubscribe(2, "a"),
            Subscribe(2, "#", 1, 0),
            Act(1, "drop"),
            Subscribe(0, "a", 0, 0),
            Act(2, "reconnect"),
            Act(2, "pause"),
            Act(2, "resume"),
            Subscribe(3, "+", 0, 0),
            Unsubscribe(3, "+"),
            Unsubscribe(2, "#"),
        )
        for step in (*(Read((Publish(0, "a", 5, 0, 1),), (), True),) * 4, change)
    ],
)
"""One reading at a time, while those who listen come, go, and change their minds."""


def plain_qos_1(version: int) -> Scenario:
    """QoS 1 to clean clients of one version, from publishers of both, over the window and acknowledged behind it."""
    publications = [Read((Publish(number, "a", 5, 1, 2),), (), True) for number in (0, 1)]
    return (
        Limits(inflight_max=3),
        [Setup(V3, False, b""), Setup(V5, False, b""), Setup(version, False, b""), Setup(version, False, b"")],
        [Subscribe(2, "a", 1, 0), Subscribe(3, "a", 2, 0)],
        [*publications, *publications, Act(2, "acknowledge"), Act(3, "acknowledge"), *publications * 2, Act(2, "wait")],
    )


def kept_runs(version: int, qos: int) -> Scenario:
    """Runs to sessions that stay, alone and beside one that does not, over their windows; they leave and come back."""
    some = [Read((Publish(number, "a", 5, qos, 4),), (), True) for number in (0, 1)]
    return (
        Limits(inflight_max=6),
        [Setup(V3, False, b""), Setup(V5, True, b""), Setup(version, True, b""), Setup(version, False, b"")],
        [Subscribe(2, "a", 1, 0), Subscribe(2, "a", 2, 0)],
        [
            *some,
            Act(2, "acknowledge"),
            *some,
            Act(2, "reconnect"),
            *some,
            Act(2, "acknowledge"),
            Subscribe(3, "a", 1, 0),
            *some,
            Act(3, "acknowledge"),
            Act(2, "drop"),
            *some,
            Act(2, "reconnect"),
            Subscribe(1, "a", 1, 0),
            *some,
            Act(2, "pause"),
            *some,
            Act(2, "resume"),
            Act(2, "acknowledge"),
            Act(1, "acknowledge"),
        ],
    )


def ends_of_runs(version: int) -> Scenario:
    """Behind a run stands something that begins like one more of it."""
    plain = Publish(0, "a", 5, 0, 2)
    behind = [
        *(replace(plain, tail=tail) for tail in BROKEN),
        *(replace(plain, size=size, long_length=True) for size in (5, 200)),
        *(replace(plain, size=size) for size in (200, 20_000)),
        *(replace(plain, tail=wire.publish("a", b"x", version=version)[:cut]) for cut in range(1, 7)),
    ]
    return (
        Limits(),
        [Setup(version, False, b""), Setup(version, False, b""), Setup(V3, False, b""), Setup(V5, False, b"")],
        [Subscribe(1, "a", 0, 0), Subscribe(2, "a", 0, 0), Subscribe(3, "a", 0, 1)],
        [
            step
            for odd in behind
            for step in (Act(0, "reconnect"), Read((plain,), (), True), Read((plain, odd, plain), (), True))
        ],
    )


@given(scenarios())
@example(RUNS)
@example(READINGS)
@example(plain_qos_1(V3))
@example(plain_qos_1(V5))
@example(kept_runs(V3, 1))
@example(kept_runs(V3, 2))
@example(kept_runs(V5, 1))
@example(kept_runs(V5, 2))
@example(ends_of_runs(V3))
@example(ends_of_runs(V5))
@settings(max_examples=400, deadline=None, print_blob=True)
def test_every_client_is_sent_the_same_with_and_without_it(scenario: Scenario) -> None:
    with one_packet_after_the_other():
        fast = played(scenario)
        with without_fast_path():
            slow = played(scenario)
    assert fast == slow


# That it is taken where it should be


TAKING = ("forward_run", "forward_and_acknowledge", "send_repeat", "on_lone_puback")


class Counted:
    """How many packets each part of the fast path took."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.taken = dict.fromkeys(TAKING, 0)
        for name in self.taken:
            patch.setattr(receiving, name, self._counting(name, getattr(receiving, name)))

    def _counting(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*arguments: Any) -> Any:
            result = function(*arguments)
            self.taken[name] += bool(result)
            return result

        return counting


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


@pytest.mark.parametrize("version", [V3, V5])
def test_all_plain_publications_take_it_the_first_one_too(counted: Counted, version: int) -> None:
    world = World()
    subscriber = world.client("s", V5)
    subscriber.subscribe("t", 2)
    publisher = world.client("p", version)
    publisher.publish("t", b"0")
    assert counted.taken["forward_run"] == 1
    publisher.send(b"".join(wire.publish("t", b"%d" % number, version=version) for number in range(1, 6)))
    assert counted.taken["forward_run"] == 2, "a run of five is one piece"
    for qos in (1, 2):
        publisher.publish("t", b"%d" % (5 + qos), qos)
    assert counted.taken["forward_and_acknowledge"] == 2
    assert [one.payload for one in subscriber.take()] == [b"%d" % number for number in range(8)]


@pytest.mark.parametrize("version", [V3, V5])
def test_a_client_that_sends_one_at_a_time_takes_the_shortest_way(counted: Counted, version: int) -> None:
    world = World()
    subscriber = world.client("s", version)
    subscriber.subscribe("t")
    publisher = world.client("p", version)
    for number in range(10):
        publisher.publish("t", b"%d" % number)
    assert counted.taken == {"forward_run": 1, "forward_and_acknowledge": 0, "send_repeat": 9, "on_lone_puback": 0}
    subscriber.expect_payloads(*(b"%d" % number for number in range(10)))
    metrics = world.broker.metrics
    assert (metrics.messages_received, metrics.messages_sent) == (10, 10)


@pytest.mark.parametrize("version", [V3, V5])
def test_one_at_a_time_is_acknowledged_on_the_shortest_way_too(counted: Counted, version: int) -> None:
    world = World()
    subscriber = world.client("s", version)
    subscriber.subscribe("t", 1)
    publisher = world.client("p", version)
    for number in range(1, 11):
        publisher.send(wire.publish("t", b"%02d" % number, version=version, qos=1, packet_id=number))
        got = subscriber.take()
        assert [one.payload for one in got] == [b"%02d" % number]
        assert [(one.type, one.packet_id) for one in publisher.take()] == [(Type.PUBACK, number)]
        subscriber.send(b"\x40\x02" + (got[0].packet_id or 0).to_bytes(2))
    assert counted.taken == {
        "forward_run": 0,
        "forward_and_acknowledge": 1,
        "send_repeat": 9,
        "on_lone_puback": 10,
    }
    metrics = world.broker.metrics
    assert (metrics.messages_received, metrics.messages_sent) == (10, 10)
    session = world.broker.sessions["s"]
    assert session.free == session.window


@pytest.mark.parametrize("version", [V3, V5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_is_forbidden_stays_forbidden(counted: Counted, version: int, qos: int) -> None:
    """The first publication asks the rules; those that follow may not slip past them."""
    world = World(access=Rules())
    subscriber = world.client("s", V5)
    subscriber.subscribe("#", 2)
    publisher = world.client("p", version)
    for number in range(4):
        publisher.publish("secret/x", b"%d" % number, qos)
        subscriber.expect_nothing()
    assert not any(counted.taken.values())
    for number in range(4):
        publisher.publish("open", b"%d" % number, qos)
        subscriber.expect_publish("open", b"%d" % number)
    assert sum(counted.taken.values()) == 3


class NoPublishing(Rules):
    def may_publish(self, *_asked: object) -> bool:
        return False


@pytest.mark.parametrize("version", [V3, V5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_new_rules_hold_for_the_next_publication(version: int, qos: int) -> None:
    world = World(access=Rules())
    subscriber = world.client("s", version)
    subscriber.subscribe("t", 0)
    publisher = world.client("p", version)
    for _ in range(3):
        publisher.publish("t", b"1", qos)
    subscriber.expect_payloads(b"1", b"1", b"1")
    world.broker.reconfigure(world.broker.limits, None, {}, NoPublishing(), FreeClientIds())
    publisher.publish("t", b"1", qos)
    subscriber.expect_nothing()
    world.broker.reconfigure(world.broker.limits, None, {}, Rules(), FreeClientIds())
    publisher.publish("t", b"1", qos)
    subscriber.expect_payloads(b"1")


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_new_bound_of_the_expiry_holds_for_the_next_publication(qos: int) -> None:
    world = World()
    subscriber = world.client("s")
    subscriber.subscribe("t", 0)
    publisher = world.client("p")
    for _ in range(3):
        publisher.publish("t", b"1", qos)
    world.broker.reconfigure(Limits(message_expiry_max_s=30), None, {}, Rules(), FreeClientIds())
    publisher.publish("t", b"1", qos)
    assert [one.properties for one in subscriber.take()] == [{}, {}, {}, {"message_expiry": 30}]


@pytest.mark.parametrize("version", [V3, V5])
def test_a_slow_reader_gets_no_qos_0_and_later_all_that_is_new(version: int) -> None:
    world = World()
    slow, quick = (world.client(name, version) for name in ("slow", "quick"))
    for peer in (slow, quick):
        peer.subscribe("t")
    publisher = world.client("p", version)
    slow.connection.pause_writing()
    world.advance(2 * STALL_S)
    for number in range(4):
        publisher.publish("t", b"%d" % number)
    assert world.broker.metrics.messages_dropped == 4
    slow.connection.resume_writing()
    publisher.publish("t", b"4")
    quick.expect_payloads(b"0", b"1", b"2", b"3", b"4")
    slow.expect_payloads(b"4")
    assert (world.broker.metrics.messages_sent, world.broker.metrics.messages_dropped) == (6, 4)


@pytest.mark.parametrize("version", [V3, V5])
@pytest.mark.parametrize("receiver_version", [V3, V5])
def test_a_reader_that_falls_behind_holds_up_its_publisher_for_a_moment(version: int, receiver_version: int) -> None:
    """What a burst overruns is not lost: the publisher is read no further until the reader has caught up."""
    world = World()
    slow = world.client("slow", receiver_version)
    slow.subscribe("t")
    publisher = world.client("p", version)
    publisher.publish("t", b"0")
    slow.connection.pause_writing()
    publisher.publish("t", b"1")
    assert publisher.link.paused
    slow.connection.resume_writing()
    assert not publisher.link.paused
    publisher.publish("t", b"2")
    slow.expect_payloads(b"0", b"1", b"2")
    assert world.broker.metrics.messages_dropped == 0


@pytest.mark.parametrize("how", ["its time is over", "it leaves"])
def test_a_reader_that_stays_behind_does_not_hold_up_its_publisher_for_long(how: str) -> None:
    world = World()
    slow = world.client("slow", V3)
    slow.subscribe("t")
    others = [world.client(name, V3) for name in ("p", "q")]
    slow.connection.pause_writing()
    for publisher in others:
        publisher.publish("t", b"x")
    assert all(publisher.link.paused for publisher in others)
    if how == "it leaves":
        slow.connection.lost(None)
    else:
        world.advance(STALL_S)
    assert not any(publisher.link.paused for publisher in others)
    for publisher in others:
        publisher.publish("t", b"y")
    assert not any(publisher.link.paused for publisher in others)


def test_a_reader_that_reads_now_and_then_holds_up_nobody_again() -> None:
    """Once it was too slow, not before it has kept up for a while."""
    world = World()
    slow, publisher = world.client("slow", V3), world.client("p", V3)
    slow.subscribe("t")
    slow.connection.pause_writing()
    world.advance(STALL_S)
    for _ in range(20):
        world.advance(KEPT_UP_S / 10)
        slow.connection.resume_writing()
        world.advance(KEPT_UP_S - 1.0)
        slow.connection.pause_writing()
        publisher.publish("t", b"x")
        assert not publisher.link.paused
    slow.connection.resume_writing()
    world.advance(KEPT_UP_S)
    slow.connection.pause_writing()
    publisher.publish("t", b"y")
    assert publisher.link.paused
