"""The broker as a whole, in memory: who has a session, what runs out, what a failing store means, what is freed."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from braidmq.broker.connection_state import ConnectionState
from braidmq.broker.journal_store import JournalStore
from braidmq.broker.limits import Limits
from braidmq.broker.session import Session
from braidmq.broker.tick import STORE_RETRY_S
from braidmq.mqtt.reasons import Reason
from braidmq.security.identity import Credentials, Identity, Refusal, Verdict
from braidmq.server.metrics.sys_topics import SysTopics
from tests import store_rows
from tests.conformance import wire
from tests.conformance.pair import V3, V5, Peer, Rules, Type, Will, World, persistent
from tests.conformance.wire import props
from tests.store_rows import rows

TAKEN_OVER = 0x8E
NOT_AUTHORIZED = 0x87


@pytest.fixture
def world() -> World:
    return World()


def publish(peer: Peer, topic: str, payload: bytes, qos: int) -> None:
    """With the hand-shake to its end, where the publisher's own copy may come in between."""
    if qos == 0:
        peer.publish(topic, payload)
        return
    packet_id = peer.new_id()
    peer.send(wire.publish(topic, payload, version=peer.version, qos=qos, packet_id=packet_id))
    peer.pick(Type.PUBACK if qos == 1 else Type.PUBREC, packet_id)
    if qos == 2:
        peer.send(wire.ack(Type.PUBREL, packet_id))
        peer.pick(Type.PUBCOMP, packet_id)


# Take-over


@pytest.mark.parametrize("old", [V3, V5])
@pytest.mark.parametrize("new", [V3, V5])
def test_the_second_connection_has_the_session_and_the_first_is_told(world: World, old: int, new: int) -> None:
    first = world.client("c", old, **persistent(old))
    first.subscribe("t", 1)
    second = world.client("c", new, **persistent(new))
    first.expect_closed(TAKEN_OVER)
    assert second.connack is not None
    assert second.connack.session_present
    world.client("p").publish("t", b"x", 1)
    second.expect_payloads(b"x")
    assert (world.broker.metrics.connections, world.broker.metrics.sessions) == (2, 2)


def test_a_hundred_take_overs_leave_one_of_everything(world: World) -> None:
    peers = [world.client("c", V5, **persistent(V5)) for _ in range(100)]
    assert [peer.link.closed for peer in peers] == [True] * 99 + [False]
    broker = world.broker
    assert len(broker.sessions) == len(broker.connections) == 1
    assert (broker.metrics.sessions, broker.metrics.connections, broker.metrics.connects) == (1, 1, 100)
    session = broker.sessions["c"]
    assert session.connection is peers[-1].connection
    assert session.expiry_timer is None


def test_what_the_first_sends_after_it_was_taken_over_is_nobodys(world: World) -> None:
    first = world.client("c")
    watcher = world.client("w")
    watcher.subscribe("#")
    world.client("c")
    first.connection.receive(wire.publish("t", b"late") + wire.publish("t", b"later", qos=1, packet_id=1))
    world.settle()
    watcher.expect_nothing()


def test_a_clean_take_over_publishes_the_will_and_ends_the_old_session(world: World) -> None:
    watcher = world.client("w")
    watcher.subscribe("will")
    will = Will(properties=props(will_delay=1000))
    world.client("c", clean=False, will=will, properties=props(session_expiry=5000)).subscribe("t", 1)
    world.client("c", clean=True)
    watcher.expect_payloads(b"gone")
    assert world.broker.sessions["c"].subscriptions == {}


def test_a_take_over_in_time_calls_a_delayed_will_off(world: World) -> None:
    watcher = world.client("w")
    watcher.subscribe("will")
    will = Will(properties=props(will_delay=10))
    options: dict[str, Any] = {"clean": False, "properties": props(session_expiry=5000)}
    world.client("c", will=will, **options)
    second = world.client("c", will=will, **options)
    world.advance(100)
    watcher.expect_nothing()
    second.drop()
    world.advance(9)
    third = world.client("c", **options)
    world.advance(100)
    watcher.expect_nothing()
    third.drop()
    world.advance(100)
    watcher.expect_nothing()


# What runs out


def test_credentials_run_out_and_the_client_has_to_go() -> None:
    class Passes:
        def authenticate(self, credentials: Credentials) -> Verdict:
            return Identity("ann", ends_at)

    world = World(authenticator=Passes())
    ends_at = world.broker.now() + 60
    client = world.client("c", V5, **persistent(V5), will=Will())
    old = world.client("o", V3)
    left = world.client("l")
    left.disconnect()
    watcher_identity = Identity()
    watcher = world.client("w")
    watcher.connection.identify(watcher_identity)
    watcher.subscribe("will")
    world.advance(59)
    client.expect_open()
    world.advance(1)
    client.expect_closed(NOT_AUTHORIZED)
    old.expect_closed()
    watcher.expect_payloads(b"gone")
    assert "c" in world.broker.sessions, "its session is kept for when it has new ones"


def test_new_credentials_take_the_place_of_the_old_ones(world: World) -> None:
    client = world.client("c")
    now = world.broker.now()
    client.connection.identify(Identity("ann", now + 10))
    client.connection.identify(Identity("ann", now + 100))
    world.advance(50)
    client.expect_open()
    client.connection.identify(Identity("ann"))
    world.advance(1000)
    client.expect_open()


def test_what_the_new_identity_may_not_is_forbidden_from_then_on() -> None:
    class OnlyAnn(Rules):
        def may_publish(self, identity: Identity, client_id: str, topic: str) -> bool:
            return identity.user == "ann"

        def unrestricted(self, identity: Identity, client_id: str) -> bool:
            return identity.user == "ann"

    world = World(access=OnlyAnn())
    watcher = world.client("w")
    watcher.subscribe("t")
    client = world.client("c")
    client.publish("t", b"1")
    watcher.expect_nothing()
    client.connection.identify(Identity("ann"))
    for _ in range(3):
        client.publish("t", b"2")
    watcher.expect_payloads(b"2", b"2", b"2")
    client.connection.identify(Identity("bob"))
    client.publish("t", b"2")
    watcher.expect_nothing()


@pytest.mark.parametrize("stored", [False, True], ids=["memory", "stored"])
def test_sessions_end_when_their_time_is_over(stored: bool, tmp_path: Path) -> None:
    world = World(**({"store": JournalStore(tmp_path)} if stored else {}))
    for name, seconds in (("short", 10), ("long", 1000), ("ever", 0xFFFFFFFF)):
        client = world.client(name, clean=False, properties=props(session_expiry=seconds))
        client.subscribe("t", 1)
        client.drop()
    world.client("p").publish("t", b"x", 1)
    for wait, left in ((9, {"short", "long", "ever"}), (1, {"long", "ever"}), (989, {"long", "ever"}), (1, {"ever"})):
        world.advance(wait)
        assert set(world.broker.sessions) - {"p"} == left
    assert world.broker.metrics.queued_messages == world.broker.metrics.subscriptions == 1
    store = world.broker.store
    if isinstance(store, JournalStore):
        assert [value[0] for value in rows(store, "session").values()] == ["ever"]
        assert len(rows(store, "delivery")) == 1
        store.close()


def test_the_time_of_a_session_starts_again_with_each_leave(world: World) -> None:
    options: dict[str, Any] = {"clean": False, "properties": props(session_expiry=10)}
    for _ in range(5):
        client = world.client("c", **options)
        world.advance(100)
        client.drop()
        world.advance(9)
    assert client.connack is not None
    assert client.connack.session_present
    world.advance(1)
    assert world.broker.sessions == {}


def test_the_bound_of_sessions_counts_those_away_and_lets_those_known_back_in() -> None:
    world = World(limits=Limits(sessions_max=2))
    for name in ("a", "b"):
        world.client(name, **persistent(V5)).drop()
    refused = world.peer(V5)
    refused.connect("c", reason=0x97)
    assert refused.link.closed
    old = world.peer(V3)
    old.connect("c", reason=3)
    world.client("a", **persistent(V5)).send(wire.disconnect(0, props(session_expiry=0)))
    world.client("c")


# Authenticators that take their time


class Slow:
    """Its verdicts come when the test says so."""

    def __init__(self) -> None:
        self.asked: list[asyncio.Future[Verdict]] = []

    def authenticate(self, credentials: Credentials) -> Awaitable[Verdict]:
        self.asked.append(asyncio.get_running_loop().create_future())
        return self.asked[-1]


class Waiting:
    """A world whose authenticator is slow."""

    def __init__(self) -> None:
        self.slow = Slow()
        self.tasks: set[asyncio.Task[None]] = set()
        self.world = World(authenticator=self.slow, spawn=self._spawn)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def answer(self, verdict: Verdict | Exception, number: int = -1) -> None:
        if isinstance(verdict, Exception):
            self.slow.asked[number].set_exception(verdict)
        else:
            self.slow.asked[number].set_result(verdict)
        for _ in range(5):
            await asyncio.sleep(0)
            self.world.settle()


@pytest.mark.parametrize("version", [V3, V5])
async def test_what_stands_behind_the_connect_waits_for_the_verdict(version: int) -> None:
    waiting = Waiting()
    peer = waiting.world.peer(version)
    peer.send(
        wire.connect("c", version=version),
        wire.subscribe(1, ("t", 1), version=version),
        wire.publish("t", b"1", version=version),
        wire.publish("t", b"2", version=version, qos=1, packet_id=2),
        wire.PINGREQ,
        wire.publish("t", b"3", version=version)[:-1],
    )
    assert peer.link.paused
    assert peer.connection.state is ConnectionState.AUTHENTICATING
    peer.expect_nothing()
    assert waiting.world.broker.sessions == {}
    await waiting.answer(Identity("ann"))
    assert not peer.link.paused
    assert peer.connection.identity.user == "ann"
    peer.expect(Type.CONNACK, reason=0)
    peer.expect(Type.SUBACK, packet_id=1)
    got = peer.take()
    assert [one.payload for one in got if one.type is Type.PUBLISH] == [b"1", b"2"]
    assert [one.type for one in got if one.type is not Type.PUBLISH] == [Type.PUBACK, Type.PINGRESP]
    peer.send(b"3")
    peer.expect_publish("t", b"3")


async def test_what_comes_while_the_verdict_is_awaited_is_kept_in_order() -> None:
    """A transport may still hand over what it had read when it was told to pause."""
    waiting = Waiting()
    peer = waiting.world.peer(V5)
    for raw in (wire.connect("c"), wire.subscribe(1, ("t", 0)), wire.publish("t", b"1"), wire.publish("t", b"2")):
        peer.connection.receive(raw)
    await waiting.answer(Identity("ann"))
    peer.expect(Type.CONNACK, reason=0)
    peer.expect(Type.SUBACK, packet_id=1)
    peer.expect_payloads(b"1", b"2")


@pytest.mark.parametrize(
    ("verdict", "reason", "return_code"),
    [
        (Refusal(Reason.BAD_USER_NAME_OR_PASSWORD, "no"), 0x86, 4),
        (Refusal(), 0x87, 5),
        (None, 0x87, 5),
        (RuntimeError("broken"), 0x80, 3),
    ],
)
async def test_a_refusal_that_comes_later(verdict: Verdict | Exception, reason: int, return_code: int) -> None:
    waiting = Waiting()
    new, old = waiting.world.peer(V5), waiting.world.peer(V3)
    new.send(wire.connect("c"), wire.publish("t", b"1"))
    old.send(wire.connect("d", version=V3), wire.publish("t", b"1", version=V3))
    await waiting.answer(verdict, 0)
    await waiting.answer(verdict, 1)
    new.expect(Type.CONNACK, reason=reason)
    old.expect(Type.CONNACK, reason=return_code)
    for peer in (new, old):
        peer.expect_nothing()
        assert peer.link.closed
    metrics = waiting.world.broker.metrics
    assert (metrics.auth_failures, metrics.connect_refused, metrics.messages_received) == (2, 2, 0)
    assert waiting.world.broker.sessions == {}


@pytest.mark.parametrize("version", [V3, V5])
def test_a_plug_in_that_breaks_at_once_refuses(version: int) -> None:
    class Broken:
        def authenticate(self, credentials: Credentials) -> Verdict:
            raise RuntimeError("broken")

    world = World(authenticator=Broken())
    peer = world.peer(version)
    peer.connect("c", reason=0x80 if version == V5 else 3)
    assert peer.link.closed


async def test_a_verdict_on_a_client_that_has_left_is_nothing() -> None:
    waiting = Waiting()
    peer = waiting.world.peer(V5)
    peer.send(wire.connect("c"))
    peer.drop()
    await waiting.answer(Identity())
    assert waiting.world.broker.sessions == {}
    assert waiting.world.broker.metrics.connections == 0
    slow = waiting.world.peer(V5)
    slow.send(wire.connect("c"))
    waiting.world.advance(waiting.world.broker.limits.connect_timeout_s)
    assert slow.link.closed
    await waiting.answer(Identity())
    assert waiting.world.broker.sessions == {}


async def test_of_two_that_wait_the_later_verdict_takes_over() -> None:
    waiting = Waiting()
    first, second = waiting.world.peer(V5), waiting.world.peer(V5)
    first.send(wire.connect("c"))
    second.send(wire.connect("c"))
    await waiting.answer(Identity("one"), 1)
    second.expect(Type.CONNACK, reason=0)
    await waiting.answer(Identity("one"), 0)
    first.expect(Type.CONNACK, reason=0)
    second.expect_closed(TAKEN_OVER)


# A store that cannot be written


@pytest.fixture
def full(tmp_path: Path) -> World:
    """A broker whose disk is full: the first kept session that wants more finds out."""
    return World(store=JournalStore(tmp_path))


def fill_disk(world: World) -> None:
    store = world.broker.store
    assert isinstance(store, JournalStore)
    store_rows.fill_disk(store)


def empty_disk(world: World) -> None:
    store = world.broker.store
    assert isinstance(store, JournalStore)
    store_rows.empty_disk(store)


def degrade(world: World) -> Peer:
    """A QoS 1 publication for a kept session that needs a new page; its publisher is told nothing."""
    subscriber = world.client("kept", **persistent(V5))
    subscriber.subscribe("t", 2)
    subscriber.drop()
    publisher = world.client("publisher")
    fill_disk(world)
    publisher.send(wire.publish("t", bytes(20_000), qos=1, packet_id=1))
    assert publisher.link.closed
    publisher.expect_nothing()
    assert world.broker.degraded
    return publisher


def test_nothing_is_acknowledged_that_is_not_kept(full: World) -> None:
    """The publisher is cut off without its PUBACK, and sends it again; then it is not lost."""
    degrade(full)
    empty_disk(full)
    full.advance(STORE_RETRY_S)
    assert not full.broker.degraded
    publisher = full.client("publisher")
    assert publisher.publish("t", b"again", 1, dup=True) == 0
    back = full.client("kept", **persistent(V5))
    back.expect_payloads(bytes(20_000), b"again")


@pytest.mark.parametrize("version", [V3, V5])
def test_while_it_is_degraded_what_needs_no_store_goes_on(full: World, version: int) -> None:
    before = full.client("before", version)
    before.subscribe("live")
    degrade(full)
    client = full.client("clean", version)
    client.subscribe("live")
    client.publish("live", b"1")
    client.expect_payloads(b"1")
    before.expect_payloads(b"1")
    client.disconnect() if version == V5 else client.drop()
    full.client("clean", version).expect_open()


def test_while_it_is_degraded_qos_1_and_2_are_refused_in_words(full: World) -> None:
    degrade(full)
    client = full.client("clean")
    for qos in (1, 2):
        assert client.publish("t", b"x", qos) == 0x97
    client.expect_open()
    kept = full.peer(V5)
    kept.connect("new", reason=0x88, **persistent(V5))
    old = full.peer(V3)
    old.connect("new", reason=3, **persistent(V3))


def test_a_release_waits_for_the_store(full: World) -> None:
    """Else the client would forget the packet id while the broker, after a crash, still knew the message under it."""
    subscriber = full.client("s", **persistent(V5))
    subscriber.subscribe("t", 2)
    full.client("p").publish("t", b"x", 2)
    got = subscriber.expect_publish("t", b"x")
    fill_disk(full)
    assert got.packet_id is not None
    subscriber.send(wire.ack(Type.PUBREC, got.packet_id))
    subscriber.expect_nothing()
    assert subscriber.link.closed
    empty_disk(full)
    full.advance(STORE_RETRY_S)
    back = full.client("s", **persistent(V5))
    back.expect(Type.PUBREL, packet_id=got.packet_id)


def test_a_store_that_stays_broken_costs_a_bounded_amount_of_memory(full: World) -> None:
    degrade(full)
    store = full.broker.store
    assert isinstance(store, JournalStore)
    publisher = full.client("clean")
    sizes = []
    for number in range(30):
        client = full.client(f"c{number}", will=Will(retain=True))
        client.drop()
        publisher.publish(f"r/{number}", bytes(100), retain=True)
        full.advance(1)
        sizes.append(len(store._changes))
    assert sizes[-1] <= sizes[0] + 5


def test_it_is_tried_again_and_says_so_once(full: World, caplog: pytest.LogCaptureFixture) -> None:
    degrade(full)
    for _ in range(10):
        full.advance(STORE_RETRY_S)
    assert full.broker.degraded
    assert full.broker.metrics.store_failures >= 10
    empty_disk(full)
    full.advance(STORE_RETRY_S)
    assert not full.broker.degraded
    commits = full.broker.metrics.store_commits
    full.advance(10 * STORE_RETRY_S)
    assert full.broker.metrics.store_commits == commits, "and no longer"
    said = [record.getMessage() for record in caplog.records if record.levelname in ("CRITICAL", "WARNING")]
    assert len([text for text in said if "disk is full" in text]) == 1
    assert len([text for text in said if text == "the store can be written again"]) == 1


def test_a_clean_client_costs_the_store_nothing(tmp_path: Path) -> None:
    store = JournalStore(tmp_path)
    world = World(store=store)
    commits = world.broker.metrics.store_commits
    for version in (V3, V5):
        client = world.client("c", version)
        client.subscribe("t", 2)
        for qos in (0, 1, 2):
            publish(client, "u", b"x", qos)
            publish(client, "t", b"x", qos)
            for one in client.take():
                client.acknowledge(one)
        client.drop()
    assert world.broker.metrics.store_commits == commits
    assert not store.dirty
    store.close()


# What is freed


def watched(peer: Peer) -> list[weakref.ref[Any]]:
    """The connection has no weak references (it has slots), so its parts stand for it."""
    link = peer.connection.link
    return [weakref.ref(link)]


def gone(references: list[weakref.ref[Any]]) -> bool:
    gc.collect()
    return all(reference() is None for reference in references)


def leave_politely(peer: Peer) -> None:
    peer.send(wire.disconnect())


def leave_with_an_error(peer: Peer) -> None:
    peer.send(b"\x00\x00")


def leave_by_a_lost_socket(peer: Peer) -> None:
    peer.drop()


def leave_by_take_over(peer: Peer) -> None:
    Peer(peer.world, V5).connect("c", **persistent(V5))


def leave_by_silence(peer: Peer) -> None:
    peer.world.advance(100)


@pytest.mark.parametrize(
    "leave",
    [leave_politely, leave_with_an_error, leave_by_a_lost_socket, leave_by_take_over, leave_by_silence],
)
@pytest.mark.parametrize("stays", [False, True], ids=["clean", "kept"])
def test_a_closed_connection_is_freed(world: World, leave: Callable[[Peer], None], stays: bool) -> None:
    """Whatever it did, and however it left: no table, cache or timer holds it for long."""
    publisher = world.client("p", V5)
    peer = world.client("c", V5, keep_alive=10, will=Will(), **(persistent(V5) if stays else {}))
    peer.subscribe("t", 1)
    peer.subscribe("wild/#")
    peer.subscribe("$share/g/t", 1)
    for _ in range(3):
        publisher.publish("t", b"1")
        publisher.publish("t", b"2", 1)
        publisher.publish("wild/1", b"3")
        publish(peer, "t", b"4", 0)
        publish(peer, "t", b"5", 2)
    publisher.publish("t", b"6")
    publisher.publish("t", b"7")
    publisher.publish("t", b"8")
    references = watched(peer)
    leave(peer)
    assert peer.link.closed
    world.settle()
    del peer
    assert gone(references)


@pytest.mark.parametrize("sent", [b"", b"\x10", wire.connect("c")[:-1], b"\x30\x00", wire.connect("")[:5]])
def test_a_connection_that_never_was_one_is_freed(world: World, sent: bytes) -> None:
    peer = world.peer(V5)
    references = watched(peer)
    peer.connection.receive(sent)
    world.advance(world.broker.limits.connect_timeout_s)
    assert peer.link.closed
    del peer
    assert gone(references)
    assert (world.broker.metrics.connections, len(world.broker.connections)) == (0, 0)


def sessions_in_memory(world: World) -> list[str]:
    """Sessions have no weak references either, but the collector knows them all."""
    found = [one for one in gc.get_objects() if isinstance(one, Session)]
    return [one.client_id for one in found if one.broker is world.broker]


def test_an_ended_session_is_freed(world: World) -> None:
    client = world.client("c", clean=False, will=Will(), properties=props(session_expiry=10))
    client.subscribe("#", 2)
    publish(client, "t", b"1", 2)
    timers = len(world.broker.timers._heap)
    assert len(sessions_in_memory(world)) == 1
    client.drop()
    world.advance(10)
    del client
    gc.collect()
    assert sessions_in_memory(world) == []
    assert len(world.broker.timers._heap) <= timers + 2


def test_a_thousand_clients_come_and_go_and_nothing_grows(world: World) -> None:
    def come_and_go(number: int) -> None:
        client = world.client(f"c{number}", V3 if number % 2 else V5, keep_alive=60)
        client.subscribe(f"t/{number % 7}", number % 3)
        publish(client, f"t/{number % 7}", b"x", number % 3)
        client.drop()

    for number in range(100):
        come_and_go(number)
    gc.collect()
    before = len(gc.get_objects())
    for number in range(1000):
        come_and_go(number)
    gc.collect()
    assert len(gc.get_objects()) < before + 500
    broker = world.broker
    assert broker.sessions == {}
    assert not broker.connections
    assert len(broker.router._tree) == 0
    assert len(broker.timers._heap) < 2000


# Apart


def test_two_brokers_in_one_process_share_nothing(tmp_path: Path) -> None:
    first, second = (World(store=JournalStore(tmp_path / name)) for name in ("first", "second"))
    for world in (first, second):
        SysTopics(world.broker).set_interval(10)
    one = first.client("c", **persistent(V5))
    other = second.client("c", **persistent(V5))
    assert other.connack is not None
    assert not other.connack.session_present
    one.subscribe("#", 2)
    other.subscribe("t", 1)
    first.client("p").publish("t", b"first", 1, retain=True)
    one.expect_payloads(b"first")
    other.expect_nothing()
    second.client("p").publish("t", b"second", 1)
    other.expect_payloads(b"second")
    one.expect_nothing()
    assert first.broker.metrics.messages_received == second.broker.metrics.messages_received == 1
    assert (len(first.broker.retained), len(second.broker.retained)) == (
        len(second.broker.retained) + 1,
        len(second.broker.retained),
    )
    first.broker.shut_down()
    other.expect_open()
    assert second.broker.metrics.connections == 2
    first.broker.store.close()
    second.broker.store.close()


def test_a_shut_down_tells_everyone_and_keeps_what_must_be_kept(tmp_path: Path) -> None:
    store = JournalStore(tmp_path)
    world = World(store=store)
    kept = world.client("kept", **persistent(V5))
    kept.subscribe("#", 1)
    clean = world.client("clean", V3, will=Will(qos=1))
    unknown = world.peer(V5)
    world.broker.shut_down()
    world.settle()
    last = kept.take()[-1]
    assert (last.type, last.reason) == (Type.DISCONNECT, 0x8B), "whether or not the will of the other came before it"
    assert kept.link.closed
    clean.expect_closed()
    assert unknown.link.closed
    assert not store.dirty
    store.close()
    after = World(store=JournalStore(tmp_path))
    back = after.client("kept", **persistent(V5))
    back.expect_payloads(b"gone")
    assert set(after.broker.sessions) == {"kept"}
    after.broker.store.close()


# Ticks


def test_one_commit_and_one_write_a_tick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever came in during a tick is committed once, and each client is written to once."""
    store = JournalStore(tmp_path)
    world = World(store=store)
    kept = world.client("kept", **persistent(V5))
    kept.subscribe("t", 1)
    publisher = world.client("p")
    writes: list[bytes] = []
    monkeypatch.setattr(kept.connection.link, "write", writes.append)
    commits = world.broker.metrics.store_commits
    for number in range(1, 21):
        publisher.connection.receive(wire.publish("t", b"%d" % number, qos=1, packet_id=number))
    assert writes == []
    publisher.expect_nothing()
    world.broker.flush()
    assert world.broker.metrics.store_commits == commits + 1
    assert len(writes) == 1
    assert [one.packet_id for one in publisher.take()] == list(range(1, 21))
    store.close()


def test_a_flush_is_asked_for_once_a_tick_and_only_where_there_is_something_to_do() -> None:
    asked: list[int] = []
    world = World(wants_flush=lambda: asked.append(1))
    client = world.client("c")
    client.subscribe("t")
    other = world.client("o")
    asked.clear()
    client.connection.receive(wire.publish("nobody", bytes(5000)))
    assert asked == [], "nothing came of it"
    for _ in range(5):
        other.connection.receive(wire.publish("t", bytes(3000)))
    assert asked == [1]
    world.broker.flush()
    assert len(client.take()) == 5
    assert len(asked) == 1
    other.connection.receive(wire.publish("t", b"small"))
    assert len(asked) == 1, "a little traffic is answered at once"
    assert len(client.take()) == 1
