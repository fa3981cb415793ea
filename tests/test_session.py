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

from braidmq.broker.backlog import FEED
from braidmq.broker.limits import Limits
from braidmq.broker.session import Session
from braidmq.broker.sqlite_store import SqliteStore
from braidmq.mqtt.packets import V5

from .conformance import wire
from .conformance.pair import V3, Peer, Received, Type, World, persistent
from .conformance.wire import props

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
        return {"store": SqliteStore(Path(self.folder.name))} if self.folder else {}

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
        assert isinstance(store, SqliteStore)
        store._changes.clear()
        store.close()
        self.world.options.update(self._store())
        self.world.after.clear()
        self.world.broker = self.world._start()

    # What always holds

    @invariant()
    def the_books_are_right(self) -> None:
        session = self.session
        metrics = self.world.broker.metrics
        waiting = list(session.backlog._items) if session.backlog else []
        assert metrics.queued_messages == len(waiting)
        assert FEED not in waiting
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
        if not isinstance(store, SqliteStore) or store.dirty:
            return
        session = self.session
        waiting = [one for one in (session.backlog._items if session.backlog else ()) if not one.packet_id and one.qos]
        rows = store._db.execute(
            "SELECT id, packet_id, released FROM delivery WHERE session = ? ORDER BY id", (session.row,)
        ).fetchall()
        wanted = [(one.row, one.packet_id, 0) for one in (*session.inflight.values(), *waiting)]
        wanted += [(one.row, one.packet_id, 1) for one in session.released.values()]
        assert rows == sorted(wanted)
        messages = {one.message.row for one in (*session.inflight.values(), *waiting)}
        assert {row for (row,) in store._db.execute("SELECT id FROM message")} == messages

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
        if isinstance(broker.store, SqliteStore):
            assert not broker.store.dirty
            for table in ("session", "subscription", "message", "delivery", "received", "will"):
                assert broker.store._db.execute(f"SELECT * FROM {table}").fetchall() == [], table


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
TestSessions.settings = examples(60)
TestStoredSessions = StoredSessions.TestCase
TestStoredSessions.settings = examples(50)
TestFullQueues = FullQueues.TestCase
TestFullQueues.settings = examples(40)
TestFullQueuesOfTheOldest = FullQueuesOfTheOldest.TestCase
TestFullQueuesOfTheOldest.settings = examples(20)
TestStoredFullQueues = StoredFullQueues.TestCase
TestStoredFullQueues.settings = examples(25)
