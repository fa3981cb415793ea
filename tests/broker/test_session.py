"""Sessions against a model: nothing acknowledged is lost, nothing of QoS 2 comes twice, whatever breaks in between.

One publisher and one subscriber, both with sessions that are kept, live through random histories: slow readers, lost
connections, acknowledgements in any order, take-overs, and (with a store) brokers that die in the middle of a tick. The
model is the two clients' own bookkeeping, as the specification asks it of a client.
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from braidmq.broker.backlog import BULK
from braidmq.broker.journal_store import JournalStore
from braidmq.broker.limits import Limits
from braidmq.broker.session import Session
from braidmq.broker.store_changes import RELEASED
from braidmq.mqtt.packets import V5
from tests.conformance import wire
from tests.conformance.pair import V3, Peer, Received, Type, World, persistent
from tests.conformance.wire import props
from tests.store_rows import counts, rows

KEPT_S = 100_000
QUOTA_EXCEEDED = 0x97


class Sender:
    """A publisher that keeps what is not acknowledged and sends it again, as §4.4 asks."""

    IDS = range(1, 9)

    def __init__(self) -> None:
        self.peer: Peer | None = None
        self.count = 0
        self.under_way: dict[int, tuple[int, bytes, bool]] = {}
        """By packet id: QoS, payload, and whether its PUBREC has come."""
        self.acknowledged: list[tuple[int, bytes]] = []
        self.sent_again = False

    def connect(self, world: World) -> None:
        self.sent_again = self.sent_again or bool(self.under_way)
        self.peer = world.client("p", clean=False, properties=props(session_expiry=KEPT_S))
        for packet_id, (qos, payload, received) in list(self.under_way.items()):
            if received:
                self.peer.send(wire.ack(Type.PUBREL, packet_id))
            else:
                self.peer.send(wire.publish("t", payload, qos=qos, packet_id=packet_id, dup=True))
        self.read()

    def publish(self, qos: int, size: int) -> bytes:
        """The packet to send; it is under way from now on."""
        self.count += 1
        payload = b"%d." % self.count + bytes(size)
        if qos == 0:
            return wire.publish("t", payload)
        packet_id = next(one for one in self.IDS if one not in self.under_way)
        self.under_way[packet_id] = (qos, payload, False)
        return wire.publish("t", payload, qos=qos, packet_id=packet_id)

    def release(self) -> None:
        """The second half of QoS 2, for all that have come to it."""
        assert self.peer is not None
        for packet_id, (_, _, received) in list(self.under_way.items()):
            if received:
                self.peer.send(wire.ack(Type.PUBREL, packet_id))

    @property
    def has_room(self) -> bool:
        return len(self.under_way) < len(self.IDS)

    def read(self) -> None:
        while self.peer is not None and (got := self.peer.take()):
            for one in got:
                self._on(one)

    def _on(self, one: Received) -> None:
        assert self.peer is not None
        assert one.packet_id is not None
        assert one.reason in (0, 0x10, 0x92), one
        qos, payload, received = self.under_way.get(one.packet_id, (2, b"", True))
        if one.type is Type.PUBACK:
            assert qos == 1
            self.acknowledged.append((1, payload))
            del self.under_way[one.packet_id]
        elif one.type is Type.PUBREC:
            if not received:
                self.acknowledged.append((2, payload))
            self.under_way[one.packet_id] = (2, payload, True)
        else:
            assert one.type is Type.PUBCOMP
            self.under_way.pop(one.packet_id, None)


class Receiver:
    """A subscriber that knows which packet ids it has open, over all its connections."""

    def __init__(self) -> None:
        self.peer: Peer | None = None
        self.open: dict[int, tuple[int, bytes]] = {}
        """Publications that are not acknowledged (QoS 1), or not released (QoS 2)."""
        self.answered: set[int] = set()
        """Those of QoS 2 whose PUBREC was sent: a PUBREL is to come."""
        self.released: set[int] = set()
        """Those whose PUBCOMP is to be sent."""
        self.fresh: set[int] = set()
        """Packet ids that came on the connection that is."""
        self.got: tuple[list[bytes], list[bytes], list[bytes]] = ([], [], [])
        """What the application was given, by QoS."""
        self.slow_reader = False

    def connect(self, world: World, receive_maximum: int) -> None:
        self.peer = world.client(
            "s", clean=False, properties=props(session_expiry=KEPT_S, receive_maximum=receive_maximum)
        )
        self.fresh.clear()
        self.read()

    def read(self) -> None:
        peer = self.peer
        if peer is None:
            return
        for one in peer.take():
            if one.type is Type.PUBLISH:
                self._on_publish(one)
            elif one.type is Type.PUBREL:
                assert one.packet_id is not None
                self.open.pop(one.packet_id, None)
                self.answered.discard(one.packet_id)
                self.released.add(one.packet_id)
            else:
                assert one.type in (Type.SUBACK, Type.DISCONNECT), one
                self.slow_reader = self.slow_reader or one.reason == QUOTA_EXCEEDED
        if peer.link.closed:
            self.peer = None

    def _on_publish(self, one: Received) -> None:
        if not one.packet_id:
            self.got[0].append(one.payload)
            return
        known = self.open.get(one.packet_id)
        assert one.packet_id not in self.released, f"packet id {one.packet_id} is used before its PUBCOMP"
        if not one.dup:
            assert known is None, f"packet id {one.packet_id} is used for something else while it is open"
        elif known is not None:
            assert known == (one.qos, one.payload), "another message under the same packet id"
        self.fresh.add(one.packet_id)
        self.answered.discard(one.packet_id)
        if one.qos == 1 or known is None:
            self.got[one.qos].append(one.payload)
        self.open[one.packet_id] = (one.qos, one.payload)

    def answer(self, packet_id: int, refuse: bool = False) -> None:
        """The next step of the hand-shake of this packet."""
        assert self.peer is not None
        if packet_id in self.released:
            self.released.discard(packet_id)
            self.peer.send(wire.ack(Type.PUBCOMP, packet_id))
        elif self.open[packet_id][0] == 1:
            del self.open[packet_id]
            self.peer.send(wire.ack(Type.PUBACK, packet_id))
        elif refuse:
            del self.open[packet_id]
            self.answered.discard(packet_id)
            self.peer.send(wire.ack(Type.PUBREC, packet_id, 0x80))
        else:
            self.answered.add(packet_id)
            self.peer.send(wire.ack(Type.PUBREC, packet_id))
        self.read()


class Sessions(RuleBasedStateMachine):
    """With large queues: all that was acknowledged arrives."""

    limits = Limits(inflight_max=6, outbound_bytes_max=65_536)
    stored = False

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory() if self.stored else None
        self.world = World(limits=self.limits, **self._store())
        self.sender, self.receiver = Sender(), Receiver()
        self.receiver.connect(self.world, 3)
        assert self.receiver.peer is not None
        assert self.receiver.peer.subscribe("t", 2) == 2
        self.sender.connect(self.world)

    def _store(self) -> dict[str, Any]:
        return {"store": JournalStore(Path(self.folder.name))} if self.folder else {}

    @property
    def session(self) -> Session:
        return self.world.broker.sessions["s"]

    def look(self) -> None:
        self.world.settle()
        self.receiver.read()
        self.sender.read()
        self.receiver.read()

    # The publisher

    @precondition(lambda self: self.sender.peer and self.sender.has_room)
    @rule(qos=st.integers(0, 2), size=st.integers(0, 60))
    def publish(self, qos: int, size: int) -> None:
        assert self.sender.peer is not None
        self.sender.peer.send(self.sender.publish(qos, size))
        self.look()

    @precondition(lambda self: self.sender.peer and self.sender.has_room)
    @rule(qos=st.integers(1, 2), size=st.integers(0, 60))
    def publish_without_a_flush(self, qos: int, size: int) -> None:
        """It arrives, and what follows may be the end of the broker."""
        peer = self.sender.peer
        assert peer is not None
        peer._inbox += self.sender.publish(qos, size)
        peer._pump()

    @precondition(lambda self: self.sender.peer)
    @rule()
    def release(self) -> None:
        self.sender.release()
        self.look()

    @rule(lost=st.booleans())
    def publisher_comes_back(self, lost: bool) -> None:
        """The answers that were on their way to it may be lost."""
        self.world.settle()
        if not lost:
            self.sender.read()
        self.sender.connect(self.world)
        self.look()

    @precondition(lambda self: self.sender.peer and self.sender.has_room)
    @rule(qos=st.integers(1, 2))
    def publish_and_never_hear_of_it(self, qos: int) -> None:
        self.publish_without_a_flush(qos, 1)
        self.publisher_comes_back(lost=True)

    # The subscriber

    @rule(receive_maximum=st.integers(1, 8))
    def subscriber_connects(self, receive_maximum: int) -> None:
        """Or takes its own session over."""
        self.receiver.connect(self.world, receive_maximum)
        self.look()

    @rule(data=st.data())
    def subscriber_comes_back_and_acknowledges_what_it_had(self, data: Any) -> None:
        """Before it is sent again: the window is one, so the others wait for it."""
        self.receiver.connect(self.world, 1)
        had = sorted(self.receiver.open.keys() - self.receiver.fresh - self.receiver.answered)
        for packet_id in data.draw(st.permutations(had)):
            if packet_id in self.receiver.open and self.receiver.peer is not None:
                self.receiver.answer(packet_id)
        self.look()

    @precondition(lambda self: self.receiver.peer)
    @rule(politely=st.booleans(), lost=st.booleans())
    def subscriber_leaves(self, politely: bool, lost: bool) -> None:
        """What was on its way to it may be lost."""
        peer = self.receiver.peer
        assert peer is not None
        if not lost:
            self.receiver.read()
        self.receiver.peer = None
        if politely:
            peer.send(wire.disconnect())
        else:
            peer.drop()
        self.world.settle()

    @precondition(lambda self: self.receiver.peer and (self.receiver.open or self.receiver.released))
    @rule(data=st.data(), refuse=st.booleans(), early=st.booleans())
    def acknowledge_one(self, data: Any, refuse: bool, early: bool) -> None:
        """In any order; early is an acknowledgement of what came before this connection and not yet again."""
        receiver = self.receiver
        self.look()
        if receiver.peer is None:
            return
        waiting = (receiver.open.keys() - receiver.answered) | receiver.released
        ids = sorted(one for one in waiting if early or one in receiver.fresh or one in receiver.released)
        if ids:
            receiver.answer(data.draw(st.sampled_from(ids)), refuse)
        self.look()

    @precondition(lambda self: self.receiver.peer)
    @rule()
    def acknowledge_all(self) -> None:
        self.look()
        self._acknowledge_all()

    def _acknowledge_all(self) -> None:
        receiver = self.receiver
        for _ in range(10_000):
            ids = [*(one for one in receiver.open if one in receiver.fresh - receiver.answered), *receiver.released]
            if not ids or receiver.peer is None:
                return
            receiver.answer(ids[0])
            self.look()
        raise AssertionError("it never ends")

    @precondition(lambda self: self.receiver.peer)
    @rule(writable=st.booleans())
    def the_socket_fills_or_empties(self, writable: bool) -> None:
        assert self.receiver.peer is not None
        connection = self.receiver.peer.connection
        if writable:
            connection.resume_writing()
        elif connection.writable:
            connection.pause_writing()
        self.look()

    # The world

    @rule(seconds=st.integers(1, 100))
    def wait(self, seconds: int) -> None:
        self.world.advance(seconds)
        self.look()

    @precondition(lambda self: self.stored)
    @rule(flushed=st.booleans(), lost=st.booleans())
    def the_broker_dies(self, flushed: bool, lost: bool) -> None:
        """Without a word: what was not committed is gone, and so are the connections and what was on them."""
        if flushed:
            self.world.settle()
        if not lost:
            self.receiver.read()
            self.sender.read()
        self.receiver.peer = self.sender.peer = None
        store = self.world.broker.store
        assert isinstance(store, JournalStore)
        store._changes.clear()
        store.close()
        self.world.options.update(self._store())
        self.world.after.clear()
        self.world.broker = self.world._start()

    @precondition(lambda self: self.stored and self.sender.peer and self.sender.has_room)
    @rule(qos=st.integers(1, 2), flushed=st.booleans())
    def the_broker_dies_before_its_answer_is_heard(self, qos: int, flushed: bool) -> None:
        self.publish_without_a_flush(qos, 1)
        self.the_broker_dies(flushed, lost=True)
        self.publisher_comes_back(lost=True)

    # What always holds

    @invariant()
    def the_books_are_right(self) -> None:
        session = self.session
        metrics = self.world.broker.metrics
        waiting = list(session.backlog._items) if session.backlog else []
        assert metrics.queued_messages == len(waiting)
        assert BULK not in waiting
        if session.backlog is not None:
            assert waiting, "an empty backlog is none"
            assert session.backlog.bytes == sum(one.message.size for one in waiting)
            assert session.backlog.qos0_count == sum(not one.qos for one in waiting)
        assert not session.inflight.keys() & session.released.keys()
        if session.connection is not None:
            taken = sum(one.under_way for one in (*session.inflight.values(), *session.released.values()))
            assert session.free == session.window - taken
        new = [one for one in waiting if not one.packet_id]
        assert len(new) <= self.limits.queue_messages_max
        assert len(new) <= 1 or sum(one.message.size for one in new) <= self.limits.queue_bytes_max
        assert metrics.sessions == len(self.world.broker.sessions) == 2
        assert metrics.subscriptions == 1

    @invariant()
    def the_store_has_what_the_session_has(self) -> None:
        store = self.world.broker.store
        if not isinstance(store, JournalStore) or store.dirty:
            return
        session = self.session
        waiting = [one for one in (session.backlog._items if session.backlog else ()) if not one.packet_id and one.qos]
        in_flight = rows(store, "in_flight")
        own = [row for row, value in rows(store, "delivery").items() if value[0] == session.row]
        wanted = [(one.row, one.packet_id) for one in (*session.inflight.values(), *waiting)]
        wanted += [(one.row, one.packet_id | RELEASED) for one in session.released.values()]
        assert [(row, in_flight.get(row, 0)) for row in own] == sorted(wanted)
        messages = {one.message.row for one in (*session.inflight.values(), *waiting)}
        assert rows(store, "message").keys() == messages

    @invariant()
    def nothing_comes_twice_or_out_of_order(self) -> None:
        got0, got1, got2 = self.receiver.got
        assert len(got0) == len(set(got0))
        assert len(got2) == len(set(got2)), "QoS 2 came twice"
        self.check_order(got0, list(dict.fromkeys(got1)), got2)

    def check_order(self, *by_qos: list[bytes]) -> None:
        for got in by_qos:
            assert got == sorted(got, key=number_of)

    # The end

    def teardown(self) -> None:
        try:
            self.drain()
            self.check_end()
        finally:
            if self.folder is not None:
                store = self.world.broker.store
                store.close()
                self.folder.cleanup()

    def drain(self) -> None:
        """Both come back and stay until nothing is left."""
        self.sender.connect(self.world)
        for _ in range(3):
            self.look()
            self.sender.release()
            self.look()
            self.receiver.connect(self.world, 100)
            self._acknowledge_all()
        self.look()
        self.the_books_are_right()
        self.nothing_comes_twice_or_out_of_order()

    def check_end(self) -> None:
        assert not self.sender.under_way
        assert not self.receiver.open
        for qos in (1, 2):
            wanted = {payload for level, payload in self.sender.acknowledged if level == qos}
            assert set(self.receiver.got[qos]) >= wanted, "acknowledged, and lost"
        self.check_nothing_is_left()

    def check_nothing_is_left(self) -> None:
        session = self.session
        assert (session.inflight, session.released, session.backlog) == ({}, {}, None)
        for name in ("s", "p"):
            peer = self.world.peer(V5)
            peer.connect(name, clean=True)
            peer.disconnect()
        broker = self.world.broker
        assert broker.sessions == {}
        assert (broker.metrics.sessions, broker.metrics.subscriptions, broker.metrics.queued_messages) == (0, 0, 0)
        assert len(broker.router._tree) == 0
        if isinstance(broker.store, JournalStore):
            assert not broker.store.dirty
            assert counts(broker.store) == {}


def number_of(payload: bytes) -> int:
    return int(payload.split(b".")[0])


class StoredSessions(Sessions):
    """With a store, and a broker that may die at any moment."""

    stored = True


class FullQueues(Sessions):
    """With small queues: the oldest are lost, within the bounds, and each loss is counted."""

    limits = Limits(inflight_max=4, queue_messages_max=4, queue_bytes_max=150)

    def check_order(self, *by_qos: list[bytes]) -> None:
        """What was sent again stands twice in the queue, and the first of the two may be what it loses."""
        got0, got1, got2 = by_qos
        super().check_order(got0, [] if self.sender.sent_again else got1, got2)

    def check_end(self) -> None:
        assert not self.sender.under_way
        lost = [payload for qos, payload in self.sender.acknowledged if payload not in self.receiver.got[qos]]
        assert len(lost) <= self.world.broker.metrics.messages_dropped
        self.check_nothing_is_left()


class FullQueuesOfTheOldest(FullQueues):
    limits = Limits(inflight_max=4, queue_messages_max=4, queue_bytes_max=150, queue_full="drop_newest")


class StoredFullQueues(FullQueues):
    stored = True

    def check_end(self) -> None:
        """What was dropped before a crash is no longer counted behind it."""
        assert not self.sender.under_way
        self.check_nothing_is_left()


def examples(count: int) -> settings:
    return settings(max_examples=count, stateful_step_count=40, deadline=None, print_blob=True)


TestSessions = Sessions.TestCase
TestSessions.settings = examples(100)
TestStoredSessions = StoredSessions.TestCase
TestStoredSessions.settings = examples(100)
TestFullQueues = FullQueues.TestCase
TestFullQueues.settings = examples(60)
TestFullQueuesOfTheOldest = FullQueuesOfTheOldest.TestCase
TestFullQueuesOfTheOldest.settings = examples(40)
TestStoredFullQueues = StoredFullQueues.TestCase
TestStoredFullQueues.settings = examples(40)


# By hand


def waiting_for(world: World, client_id: str) -> list[bytes]:
    backlog = world.broker.sessions[client_id].backlog
    return [one.message.payload for one in backlog._items] if backlog else []


def kept(world: World, receive_maximum: int = 65_535, client_id: str = "s") -> Peer:
    return world.client(
        client_id, clean=False, properties=props(session_expiry=KEPT_S, receive_maximum=receive_maximum)
    )


def publish_all(world: World, payloads: list[bytes], qos: int = 1) -> None:
    publisher = world.client("p")
    for payload in payloads:
        publisher.publish("t", payload, qos)


@pytest.mark.parametrize(("policy", "left"), [("drop_oldest", [b"3", b"4", b"5"]), ("drop_newest", [b"1", b"2", b"3"])])
@pytest.mark.parametrize("stored", [False, True], ids=["memory", "stored"])
def test_a_full_offline_queue(policy: Any, left: list[bytes], stored: bool, tmp_path: Path) -> None:
    limits = Limits(queue_messages_max=3, queue_full=policy)
    world = World(limits=limits, **({"store": JournalStore(tmp_path)} if stored else {}))
    subscriber = kept(world)
    subscriber.subscribe("t", 1)
    subscriber.drop()
    publish_all(world, [b"1", b"2", b"3", b"4", b"5"])
    assert waiting_for(world, "s") == left
    assert world.broker.metrics.messages_dropped == 2
    if stored:
        world.broker.store.close()
        world = World(limits=limits, store=JournalStore(tmp_path))
    kept(world).expect_payloads(*left)


def test_the_bytes_of_an_offline_queue_are_bounded() -> None:
    world = World(limits=Limits(queue_bytes_max=1000))
    subscriber = kept(world)
    subscriber.subscribe("t", 1)
    subscriber.drop()
    publish_all(world, [b"a" * 400, b"b" * 400, b"c" * 400])
    assert waiting_for(world, "s") == [b"b" * 400, b"c" * 400]
    publish_all(world, [b"d" * 5000])
    assert waiting_for(world, "s") == [b"d" * 5000], "one that is larger than the bound is kept alone"
    publish_all(world, [b"e"])
    assert waiting_for(world, "s") == [b"e"]
    assert world.broker.metrics.messages_dropped == 4


@pytest.mark.parametrize("stays", [False, True], ids=["clean", "kept"])
def test_a_reader_that_takes_nothing_is_cut_off_at_the_bound(stays: bool) -> None:
    world = World(limits=Limits(queue_messages_max=3, inflight_max=2))
    subscriber = kept(world) if stays else world.client("s")
    subscriber.subscribe("t", 1)
    publish_all(world, [b"%d" % number for number in range(5)])
    assert not subscriber.link.closed
    publish_all(world, [b"5"])
    assert [one.payload for one in subscriber.take()[:2]] == [b"0", b"1"]
    assert subscriber.link.closed
    assert world.broker.metrics.slow_readers == 1
    assert world.broker.metrics.queued_messages == (3 if stays else 0)
    if stays:
        back = kept(world, 100)
        assert [one.payload for one in back.take()] == [b"0", b"1"]
        assert waiting_for(world, "s") == [b"3", b"4", b"5"], "now it is away, and the oldest leave"


def test_what_is_sent_again_takes_no_room_in_the_queue() -> None:
    """It was under way before, and had left the queue: a client that comes back is not cut off for it."""
    world = World(limits=Limits(queue_messages_max=4, queue_bytes_max=400, inflight_max=4))
    subscriber = kept(world)
    subscriber.subscribe("t", 1)
    publish_all(world, [b"%d" % number + bytes(90) for number in range(4)])
    subscriber.drop()
    publish_all(world, [b"4", b"5"])
    back = kept(world, 1)
    publish_all(world, [b"6", b"7"])
    assert not back.link.closed
    publish_all(world, [b"8"])
    assert back.link.closed
    assert waiting_for(world, "s") == [b"5", b"6", b"7", b"8"]


def test_packet_ids_start_again_behind_the_last_and_pass_over_those_in_use() -> None:
    world = World(limits=Limits(inflight_max=10))
    subscriber = world.client("s")
    subscriber.subscribe("t", 2)
    session = world.broker.sessions["s"]
    publish_all(world, [b"one"], 1)
    publish_all(world, [b"two"], 2)
    first, second = subscriber.take()
    assert (first.packet_id, second.packet_id) == (1, 2)
    subscriber.send(wire.ack(Type.PUBREC, 2))
    subscriber.expect(Type.PUBREL, packet_id=2)
    session._last_id = 65_533
    publish_all(world, [b"3", b"4", b"5", b"6"])
    assert [one.packet_id for one in subscriber.take()] == [65_534, 65_535, 3, 4]
    subscriber.send(wire.ack(Type.PUBACK, 1), wire.ack(Type.PUBCOMP, 2))
    session._last_id = 65_535
    publish_all(world, [b"7", b"8", b"9"])
    assert [one.packet_id for one in subscriber.take()] == [1, 2, 5]


@pytest.mark.parametrize("version", [V3, V5])
def test_what_expires_in_the_queue_is_not_sent_and_frees_its_place(version: int, tmp_path: Path) -> None:
    store = JournalStore(tmp_path)
    world = World(store=store)
    subscriber = world.client("s", version, **persistent(version))
    subscriber.subscribe("t", 1)
    subscriber.drop()
    publisher = world.client("p")
    publisher.publish("t", b"short", 1, properties=props(message_expiry=5))
    publisher.publish("t", b"long", 1, properties=props(message_expiry=50))
    publisher.publish("t", b"ever", 1)
    world.advance(5)
    back = world.client("s", version, **persistent(version))
    got = back.expect_payloads(b"long", b"ever")
    assert got[0].properties == ({"message_expiry": 45} if version == V5 else {})
    for one in got:
        back.acknowledge(one)
    assert rows(store, "message") == {}
    store.close()


def test_qos_0_waits_in_its_place_where_it_is_queued_at_all() -> None:
    world = World(limits=Limits(queue_qos0=True))
    subscriber = kept(world)
    subscriber.subscribe("t", 1)
    subscriber.drop()
    publish_all(world, [b"1", b"2"], 1)
    publish_all(world, [b"a", b"b"], 0)
    back = kept(world, 1)
    publish_all(world, [b"c"], 0)
    publish_all(world, [b"d"], 0)
    got: list[bytes] = []
    while new := back.take():
        for one in new:
            got.append(one.payload)
            back.acknowledge(one)
    assert [one for one in got if one in b"12"] == [b"1", b"2"]
    assert [one for one in got if one in b"abcd"] == [b"a", b"b", b"c", b"d"]
    publish_all(world, [b"e"], 0)
    back.expect_payloads(b"e")


def test_without_queue_qos0_nothing_of_qos_0_waits_for_who_is_away() -> None:
    world = World()
    subscriber = kept(world)
    subscriber.subscribe("t", 1)
    subscriber.drop()
    publish_all(world, [b"a", b"b"], 0)
    assert world.broker.metrics.queued_messages == 0
    kept(world).expect_nothing()


def test_live_messages_wait_behind_the_retained_ones_that_a_subscription_asked_for() -> None:
    """Else the last value that the client hears of a topic would be an old one. After a reconnect, too."""
    world = World()
    publisher = world.client("p")
    for number in range(5):
        publisher.publish(f"r/{number}", b"old", retain=True)
    subscriber = kept(world, 1)
    for _ in range(2):
        subscriber.subscribe("t", 1)
        publisher.publish("t", b"block", 1)
        (block,) = subscriber.expect_payloads(b"block")
        subscriber.subscribe("r/#")
        for number in range(5):
            publisher.publish(f"r/{number}", b"new")
        subscriber.expect_nothing()
        subscriber.acknowledge(block)
        subscriber.expect_payloads(*[b"old"] * 5, *[b"new"] * 5)
        publisher.publish("r/1", b"newer")
        subscriber.expect_payloads(b"newer")
        publisher.publish("t", b"block", 1)
        subscriber.take()
        subscriber.subscribe("r/#")
        publisher.publish("r/1", b"waits")
        subscriber.drop()
        subscriber = kept(world, 1)
        for one in subscriber.take():
            subscriber.acknowledge(one)
        subscriber.take()
        publisher.publish("r/1", b"plain again")
        subscriber.expect_payloads(b"plain again")


def test_much_that_waits_is_sent_over_several_ticks() -> None:
    """What waits for a client is not put into memory all at once."""
    world = World(limits=Limits(outbound_bytes_max=65_536, inflight_max=1000))
    subscriber = kept(world)
    subscriber.subscribe("t", 1)
    subscriber.drop()
    publish_all(world, [b"%03d" % number + bytes(10_000) for number in range(40)])
    peer = world.peer(V5)
    peer.connection.receive(wire.connect("s", clean=False, properties=props(session_expiry=KEPT_S)))
    sizes: list[int] = []
    while not sizes or sizes[-1]:
        world.broker.flush()
        sizes.append(len(peer.link.stream) - sum(sizes))
    assert sum(sizes) > 400_000
    assert max(sizes) < 2 * (65_536 + 10_100)
    peer.expect(Type.CONNACK)
    assert [int(one.payload[:3]) for one in peer.take()] == list(range(40))


@pytest.mark.parametrize("qos", [1, 2])
def test_too_large_for_the_client_is_as_if_it_had_been_sent(qos: int, tmp_path: Path) -> None:
    store = JournalStore(tmp_path)
    world = World(store=store)
    properties = props(session_expiry=KEPT_S, maximum_packet_size=60, receive_maximum=1)
    subscriber = world.client("s", clean=False, properties=properties)
    subscriber.subscribe("t", qos)
    publish_all(world, [bytes(100), b"small", bytes(100), bytes(100), b"last"], qos)
    got: list[bytes] = []
    while new := subscriber.take():
        for one in new:
            got.append(one.payload)
            subscriber.acknowledge(one)
    assert got == [b"small", b"last"]
    session = world.broker.sessions["s"]
    assert (session.inflight, session.released, session.backlog, session.free) == ({}, {}, None, 1)
    assert rows(store, "message") == {}
    store.close()


def test_a_session_that_is_no_longer_kept_leaves_the_store_at_once(tmp_path: Path) -> None:
    """MQTT 5 lets a client come back with a session expiry of 0: from then on it ends with the connection."""
    store = JournalStore(tmp_path)
    world = World(store=store)
    subscriber = kept(world)
    subscriber.subscribe("t", 2)
    subscriber.drop()
    publish_all(world, [b"1", b"2"], 2)
    back = world.client("s", clean=False)
    assert back.connack is not None
    assert back.connack.session_present
    assert rows(store, "session") == {}
    for one in back.expect_payloads(b"1", b"2"):
        back.acknowledge(one)
    publish_all(world, [b"3"], 2)
    back.expect_payloads(b"3")
    back.drop()
    assert counts(store) == {}
    store.close()


def test_the_folder_of_the_store_is_free_again_when_the_broker_is_gone(tmp_path: Path) -> None:
    for number in range(3):
        store = JournalStore(tmp_path)
        world = World(store=store)
        client = kept(world)
        assert client.connack is not None
        assert client.connack.session_present == (number > 0)
        world.broker.shut_down()
        store.close()
    assert os.listdir(tmp_path)
