"""Who of a shared subscription gets a message, and what happens to it when that one does not take it.

What a client sees of it stands in conformance/test_shared.py; here are the choice itself and its bounds.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.broker.limits import Limits
from braidmq.broker.share_delivery import QUEUE_KEPT_S
from braidmq.broker.shares import ShareGroup
from tests.conformance import wire
from tests.conformance.pair import V3, V5, Peer, Type, World, persistent
from tests.conformance.wire import props

SHARED = "$share/g/t"


def members_of(world: World, count: int, version: int = V5, **options: object) -> list[Peer]:
    peers = [world.client(f"m{number}", version, **options) for number in range(count)]
    for peer in peers:
        assert peer.subscribe(SHARED, 2) == 2
    return peers


def payloads(peer: Peer) -> list[bytes]:
    return [one.payload for one in peer.take() if one.type is Type.PUBLISH]


def group_of(world: World) -> ShareGroup:
    group = world.broker.router.group(SHARED)
    assert group is not None
    return group


def ready(world: World) -> str | None:
    session = group_of(world).choose_ready()
    return None if session is None else session.client_id


def busy_one(world: World) -> str | None:
    session = group_of(world).choose_busy(1)
    return None if session is None else session.client_id


def test_members_take_turns_whoever_leaves() -> None:
    world = World()
    members = members_of(world, 4)
    assert [ready(world) for _ in range(8)] == ["m0", "m1", "m2", "m3"] * 2
    assert ready(world) == "m0"
    members[3].drop()
    members[1].unsubscribe(SHARED)
    picked = Counter(ready(world) for _ in range(10))
    assert picked == {"m0": 5, "m2": 5}


def test_a_group_that_nobody_is_left_in_chooses_nobody() -> None:
    world = World()
    (member,) = members_of(world, 1)
    group = group_of(world)
    member.unsubscribe(SHARED)
    assert group.choose_ready() is None
    assert world.broker.router.group(SHARED) is None


def test_the_free_before_the_busy_the_connected_before_those_away() -> None:
    world = World()
    away, busy, slow, free = (
        world.client(name, **persistent(V5) if name == "away" else {"properties": props(receive_maximum=1)})
        for name in ("away", "busy", "slow", "free")
    )
    for peer in (away, busy, slow, free):
        peer.subscribe(SHARED, 1)
    away.drop()
    publisher = world.client("p")
    for number in range(3):
        publisher.publish("t", b"%d" % number, 1)
    for peer in (busy, slow):
        assert len(payloads(peer)) == 1
    slow.connection.pause_writing()
    first = free.take()
    free.acknowledge(first[0])
    assert ready(world) == "free"
    free.drop()
    assert ready(world) is None
    assert busy_one(world) in ("busy", "slow")
    busy.drop()
    slow.drop()
    assert busy_one(world) is None


def test_what_no_member_can_take_waits_for_the_first_that_can() -> None:
    """It is bound late: not to who was there when it came, but to who is free."""
    world = World()
    slow, quick = members_of(world, 2, properties=props(receive_maximum=1))
    publisher = world.client("p")
    for number in range(10):
        assert publisher.publish("t", b"%d" % number, 1) == 0
    assert payloads(slow) == [b"0"]
    done = []
    while got := quick.take():
        for one in got:
            done.append(one.payload)
            quick.acknowledge(one)
    assert done == [b"%d" % number for number in range(1, 10)]
    assert world.broker.metrics.queued_messages == 0


def test_the_queue_of_a_group_is_bounded() -> None:
    world = World(limits=Limits(queue_messages_max=2, inflight_max=1))
    (member,) = members_of(world, 1)
    publisher = world.client("p")
    for number in range(5):
        publisher.publish("t", b"%d" % number, 1)
    assert world.broker.metrics.queued_messages == 2
    assert world.broker.metrics.messages_dropped == 2
    got = []
    while received := member.take():
        for one in received:
            got.append(one.payload)
            member.acknowledge(one)
    assert got == [b"0", b"3", b"4"]


@pytest.mark.parametrize("comes_back", [True, False])
def test_what_waits_outlives_the_last_member_for_a_while(comes_back: bool) -> None:
    """A worker that ends with its connection is restarted: it goes on where it was."""
    world = World()
    worker = world.client("m", properties=props(receive_maximum=1))
    worker.subscribe(SHARED, 1)
    publisher = world.client("p")
    for number in range(3):
        publisher.publish("t", b"%d" % number, 1)
    assert payloads(worker) == [b"0"]
    worker.drop()
    assert publisher.publish("t", b"late", 1) == 0x10
    world.advance(QUEUE_KEPT_S - 1 if comes_back else QUEUE_KEPT_S + 1)
    worker = world.client("m")
    worker.subscribe(SHARED, 1)
    assert payloads(worker) == ([b"0", b"1", b"2"] if comes_back else [])
    assert world.broker.metrics.queued_messages == 0 or comes_back


def test_client_ids_of_queues_are_not_for_clients() -> None:
    world = World()
    world.peer().connect(SHARED, reason=0x85)


@pytest.mark.parametrize("version", [V3, V5])
def test_one_client_in_the_group_and_beside_it_that_takes_nothing(version: int) -> None:
    """It is cut off while a message is handed out, and with it the only member of the group goes."""
    world = World(limits=Limits(queue_messages_max=1, inflight_max=1))
    slow = world.client("slow", version)
    slow.subscribe("t", 1)
    slow.subscribe(SHARED, 1)
    publisher = world.client("p", version)
    for number in range(8):
        publisher.publish("t", b"%d" % number, 1)
    assert slow.link.closed
    world.advance(QUEUE_KEPT_S + 1)
    assert world.broker.metrics.queued_messages == 0
    assert world.broker.metrics.subscriptions == 0
    publisher.expect_open()


@pytest.mark.parametrize("kept", [False, True], ids=["clean", "kept"])
def test_a_full_group_of_many_loses_no_member_to_the_others_messages(kept: bool) -> None:
    """However many members are full, one message more ends neither all of them nor the stack."""
    world = World(limits=Limits(queue_messages_max=2, inflight_max=1))
    members = members_of(world, 150, V3, clean=not kept)
    publisher = world.client("p", V3)
    for number in range(150 * 3 + 5):
        publisher.publish("t", b"%d" % number, 1)
    publisher.expect_open()
    assert sum(peer.link.closed for peer in members) <= 5
    queue = group_of(world).queue
    assert queue is not None
    assert world.broker.metrics.queued_messages == len(queue)
    got = [payload for peer in members for payload in payloads(peer)]
    assert len(got) == len(set(got)) >= 145


@pytest.mark.parametrize("bound", ["messages", "bytes"])
def test_a_message_that_one_has_no_room_for_goes_to_another(bound: str) -> None:
    limits = Limits(queue_bytes_max=600) if bound == "bytes" else Limits(queue_messages_max=2)
    world = World(limits=limits)
    first, second = members_of(world, 2, V5, properties=props(receive_maximum=1))
    publisher = world.client("p")
    sizes = [1, 1, 500, 1, 1, 500] if bound == "bytes" else [1, 1, 1, 1, 1, 1]
    for number, size in enumerate(sizes):
        publisher.publish("t", b"%d" % number * size, 1)
    got: list[bytes] = []
    for _ in sizes:
        for peer in (first, second):
            for one in peer.take():
                got.append(one.payload[:1])
                peer.acknowledge(one)
    assert sorted(got) == [b"%d" % number for number in range(len(sizes))]
    assert world.broker.metrics.messages_dropped == 0


def test_what_has_expired_is_not_handed_on() -> None:
    world = World()
    first = world.client("a", properties=props(receive_maximum=1))
    first.subscribe(SHARED, 1)
    publisher = world.client("p")
    publisher.publish("t", b"kept", 1)
    publisher.publish("t", b"short", 1, properties=props(message_expiry=5))
    publisher.publish("t", b"long", 1, properties=props(message_expiry=500))
    world.advance(10)
    second = world.client("b")
    second.subscribe(SHARED, 1)
    first.drop()
    assert sorted(payloads(second)) == [b"kept", b"long"]


@given(st.data())
@settings(max_examples=40, deadline=None, print_blob=True)
def test_each_message_reaches_one_member_whoever_comes_and_goes(data: st.DataObject) -> None:
    """QoS 1: nothing is lost while someone is there in the end, and nothing comes twice but what was under way."""
    world = World(limits=Limits(inflight_max=3))
    names = ["a", "b", "c"]
    connected: dict[str, Peer] = {}
    publisher = world.client("p")
    delivered: Counter[bytes] = Counter()
    under_way: set[bytes] = set()
    sent = 0

    def join(name: str) -> None:
        peer = connected[name] = world.client(name, **persistent(V5))
        if not peer.connack or not peer.connack.session_present:
            peer.subscribe(SHARED, 1)

    def read(name: str, acknowledge: bool) -> None:
        for one in connected[name].take():
            if one.type is Type.PUBLISH:
                delivered[one.payload] += 1
                if acknowledge:
                    connected[name].acknowledge(one)
                else:
                    under_way.add(one.payload)

    join("a")
    for _ in range(data.draw(st.integers(5, 25))):
        action = data.draw(st.sampled_from(["publish", "publish", "join", "leave", "read", "see"]))
        name = data.draw(st.sampled_from(names))
        if action == "publish":
            publisher.publish("t", b"%d" % sent, 1)
            sent += 1
        elif action == "join" and name not in connected:
            join(name)
        elif name in connected and action == "leave" and len(connected) > 1:
            peer = connected.pop(name)
            under_way.update(payloads(peer))
            peer.drop()
        elif name in connected and action in ("read", "see"):
            read(name, action == "read")
    for name in names:
        if name in connected:
            connected.pop(name).drop()
        join(name)
    for _ in range(sent + 1):
        for name in names:
            read(name, acknowledge=True)
    assert set(delivered) == {b"%d" % number for number in range(sent)}
    for payload, times in delivered.items():
        assert times == 1 or payload in under_way
    assert world.broker.metrics.queued_messages == 0


def test_a_publication_to_an_old_group_takes_the_slow_members_qos() -> None:
    world = World()
    (member,) = members_of(world, 1)
    member.send(wire.subscribe(9, (SHARED, 0)))
    member.expect(Type.SUBACK, reasons=[0])
    world.client("p").publish("t", b"x", 2)
    assert member.expect_publish("t", b"x").qos == 0
