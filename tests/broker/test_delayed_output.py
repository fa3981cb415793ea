"""What waits for copies of the store: what leaves when, and in which order."""

from __future__ import annotations

import pytest

from braidmq.broker import tick as ticks
from braidmq.broker.delayed_output import DelayedOutput
from braidmq.broker.store import MemoryStore
from tests.conformance import wire
from tests.conformance.pair import V3, V5, Peer, Type, World, persistent


class Wire:
    """A transport that notes what happens to it."""

    def __init__(self) -> None:
        self.log: list[bytes | str] = []

    def write(self, data: bytes) -> None:
        self.log.append(data)

    def close(self) -> None:
        self.log.append("closed")

    def abort(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class Copying:
    """Copies of a store that has one more position with each commit, which come as far as they are told."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.position = self.given_up = 0
        world.broker.tick.copies = self

    @property
    def end(self) -> int:
        return self._world.broker.metrics.store_commits

    @property
    def is_behind(self) -> bool:
        return self.position < self.end

    def make_sure(self) -> bool:
        return False

    def give_up(self, why: str) -> None:
        self.given_up += 1
        self.copy()

    def copy(self, position: int | None = None) -> None:
        self.position = self.end if position is None else position
        self._world.broker.tick.on_copied(self.position)
        self._world.settle()


class CommittingStore(MemoryStore):
    """Keeps nothing, but has to be asked to commit."""

    def __init__(self) -> None:
        super().__init__()
        self.dirty = False

    def commit(self) -> None:
        self.dirty = False

    def __getattribute__(self, name: str) -> object:
        if name.startswith(("save_", "drop_", "release_")):
            self.dirty = True
        return super().__getattribute__(name)


@pytest.fixture
def world() -> World:
    return World(store=CommittingStore())


@pytest.fixture
def copies(world: World) -> Copying:
    return Copying(world)


# The output itself


def test_steps_are_written_in_their_order_and_only_as_far_as_the_copies_are() -> None:
    delayed, one, other = DelayedOutput(lambda: 0.0), Wire(), Wire()
    assert not delayed.add("one", one, b"free", None)
    first = delayed.step(10)
    assert delayed.add("one", one, b"a", first)
    assert delayed.add("one", one, b"b", None), "behind what waits already"
    assert not delayed.add("other", other, b"free", None)
    second = delayed.step(20)
    assert second is not first
    assert delayed.add("one", one, b"c", second)
    assert delayed.add("other", other, b"d", first)
    assert delayed.size == 4
    assert delayed.release(9) == 0
    assert delayed.release(10) == 3
    assert (one.log, other.log) == ([b"ab"], [b"d"])
    assert delayed.release(25) == 1
    assert one.log == [b"ab", b"c"]
    assert (delayed.size, delayed.waits, bool(delayed)) == (0, 2, False)


def test_a_connection_is_closed_behind_what_it_is_sent() -> None:
    delayed, one, other = DelayedOutput(lambda: 0.0), Wire(), Wire()
    delayed.add("one", one, b"a", delayed.step(1))
    assert delayed.close("one", one)
    assert not delayed.close("other", other)
    delayed.release(1)
    assert one.log == [b"a", "closed"]


def test_a_step_that_holds_everything_does() -> None:
    delayed, one = DelayedOutput(lambda: 0.0), Wire()
    delayed.hold_all(delayed.step(1))
    done: list[str] = []
    assert delayed.barrier is not None
    delayed.barrier.actions.append(lambda: done.append("sent"))
    assert delayed.add("one", one, b"a", None)
    assert delayed.close("two", one)
    delayed.release(1)
    assert (one.log, done) == ([b"a", "closed"], ["sent"])
    assert not delayed.add("one", one, b"b", None)


def test_one_that_is_gone_is_sent_nothing() -> None:
    delayed, one = DelayedOutput(lambda: 0.0), Wire()
    delayed.add("one", one, b"a", delayed.step(1))
    delayed.add("one", one, b"b", delayed.step(2))
    delayed.close("one", one)
    delayed.forget("one")
    delayed.release(5)
    assert (one.log, delayed.size) == ([], 0)


# In a broker


def durable(world: World, client_id: str, copies: Copying, version: int = V5) -> Peer:
    """A client whose session is in the copies; its CONNACK has not waited for them."""
    peer = world.peer(version)
    peer.send(wire.connect(client_id, version=version, **persistent(version)))
    peer.expect(Type.CONNACK)
    copies.copy()
    return peer


def test_a_connack_waits_for_the_copy_of_a_will(world: World, copies: Copying) -> None:
    peer = world.peer(V5)
    peer.send(wire.connect("d", version=V5, will=wire.Will(), **persistent(V5)))
    peer.expect_nothing()
    copies.copy()
    peer.expect(Type.CONNACK)


def test_what_follows_a_connack_waits(world: World, copies: Copying) -> None:
    peer = durable(world, "d", copies)
    peer.send(wire.subscribe(1, ("a", 1), version=V5))
    copies.copy()
    peer.expect(Type.SUBACK)
    peer.drop()
    world.client("publisher").send(wire.publish("a", b"x", version=V5, qos=1, packet_id=7))
    again = world.peer(V5)
    again.send(wire.connect("d", version=V5, **persistent(V5)))
    assert again.expect(Type.CONNACK).session_present
    again.expect_nothing()
    copies.copy()
    again.expect(Type.PUBLISH)


def test_suback_and_unsuback_of_a_durable_session_wait(world: World, copies: Copying) -> None:
    peer = durable(world, "d", copies)
    for packet, answer in (
        (wire.subscribe(1, ("a", 1), version=V5), Type.SUBACK),
        (wire.unsubscribe(2, "a", version=V5), Type.UNSUBACK),
    ):
        peer.send(packet)
        peer.expect_nothing()
        copies.copy()
        peer.expect(answer)


def test_what_need_not_wait_does_not_and_stays_in_order(world: World, copies: Copying) -> None:
    reader, other = durable(world, "reader", copies), world.client("other")
    reader.send(wire.subscribe(1, ("a", 1), version=V5))
    copies.copy()
    reader.expect(Type.SUBACK)
    other.subscribe("a", 1)
    publisher = world.client("publisher")
    publisher.send(wire.publish("a", b"x", version=V5, qos=1, packet_id=7))
    publisher.send(wire.PINGREQ)
    publisher.expect_nothing()  # the PINGRESP stays behind the PUBACK
    reader.expect_nothing()  # it must not have a packet id that the copies do not know
    other.expect_publish("a", b"x", qos=1)
    world.client("third").expect_open()
    copies.copy()
    publisher.expect(Type.PUBACK, packet_id=7)
    publisher.expect(Type.PINGRESP)
    reader.expect_publish("a", b"x", qos=1)


def test_qos_2_of_a_durable_publisher_holds_everything_until_its_packet_id_is_copied(
    world: World, copies: Copying
) -> None:
    publisher, reader = durable(world, "publisher", copies), world.client("reader")
    reader.subscribe("a", 2)
    publisher.send(wire.publish("a", b"once", version=V5, qos=2, packet_id=7))
    reader.send(wire.PINGREQ)
    for peer in (publisher, reader):
        peer.expect_nothing()
    assert world.broker.tick.is_delaying
    copies.copy()
    publisher.expect(Type.PUBREC, packet_id=7)
    reader.expect_publish("a", b"once", qos=2)
    reader.expect(Type.PINGRESP)
    publisher.send(wire.ack(Type.PUBREL, 7))
    publisher.expect_nothing()
    reader.expect_open()
    copies.copy()
    publisher.expect(Type.PUBCOMP, packet_id=7)
    assert not world.broker.tick.is_delaying


def test_plain_qos_0_does_not_overtake(world: World, copies: Copying) -> None:
    """A device's readings take the shortest way there is; not past what waits."""
    reader, device = durable(world, "reader", copies), world.client("device")
    reader.send(wire.subscribe(1, ("a", 0), version=V5))
    copies.copy()
    reader.expect(Type.SUBACK)
    for _ in range(3):
        device.publish("a", b"reading")
    reader.expect_payloads(*[b"reading"] * 3)
    reader.send(wire.subscribe(2, ("b", 0), version=V5))
    device.publish("a", b"reading")
    reader.expect_nothing()
    copies.copy()
    reader.expect(Type.SUBACK)
    reader.expect_payloads(b"reading")


def test_a_connection_ends_behind_what_waits(world: World, copies: Copying) -> None:
    peer = durable(world, "d", copies)
    peer.send(wire.subscribe(1, ("a", 1), version=V5), wire.disconnect())
    assert not peer.link.closed
    copies.copy()
    peer.expect(Type.SUBACK)
    assert peer.link.closed


def test_a_second_copy_is_not_acknowledged_before_the_first_is_copied(world: World, copies: Copying) -> None:
    publisher = durable(world, "p", copies)
    publisher.send(wire.publish("a", b"x", version=V5, qos=2, packet_id=7))
    publisher.drop()
    again = world.peer()
    again.send(wire.connect("p", version=V5, **persistent(V5)))
    again.expect(Type.CONNACK, session_present=True)
    again.send(wire.publish("a", b"x", version=V5, qos=2, packet_id=7, dup=True))
    again.expect_nothing()
    copies.copy()
    again.expect(Type.PUBREC, packet_id=7)


def test_too_much_that_waits_gives_the_copies_up(
    world: World, copies: Copying, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ticks, "HELD_BYTES_MAX", 3)
    peer = durable_now(world)
    peer.send(wire.subscribe(1, ("a", 1), version=V5))
    peer.expect(Type.SUBACK)
    assert copies.given_up


def durable_now(world: World) -> Peer:
    peer = world.peer()
    peer.send(wire.connect("d", version=V5, **persistent(V5)))
    peer.expect(Type.CONNACK)
    return peer


@pytest.mark.parametrize("version", [V3, V5])
def test_with_too_few_copies_what_must_be_kept_is_refused(world: World, version: int) -> None:
    publisher = world.client("p", version)
    world.broker.tick.require_copies("1 of 2 copies, and braid.copies_required is 2")
    refused = world.peer(version)
    refused.send(wire.connect("d", version=version, **persistent(version)))
    if version == V5:
        refused.expect(Type.CONNACK, reason=0x88)
        assert publisher.publish("a", b"x", qos=1) == 0x97
        assert publisher.publish("a", b"x", qos=2) == 0x97
    else:
        refused.expect(Type.CONNACK, reason=3)
        publisher.send(wire.publish("a", b"x", version=V3, qos=1, packet_id=1))
        publisher.expect_closed()
    world.client("clean", version).publish("a", b"x")
    world.broker.tick.require_copies("")
    assert world.client("e", version).publish("a", b"x", qos=1) in (0, 0x10)


def test_a_store_that_is_whole_again_does_not_hide_that_copies_lack(world: World) -> None:
    tick = world.broker.tick
    tick.require_copies("1 of 2")
    tick.degraded, tick.refusal = True, "the store"
    assert tick.commit()
    assert tick.refusal == "1 of 2"


def test_what_is_to_be_done_behind_the_copies_is(world: World, copies: Copying) -> None:
    done: list[int] = []
    world.broker.tick.when_copied(lambda: done.append(1))
    world.broker.store.save_cursor("x", b"")
    world.settle()
    world.broker.tick.when_copied(lambda: done.append(2))
    assert done == [1]
    copies.copy()
    assert done == [1, 2]
