"""Shared subscriptions (§4.8.2): one member of the group gets each message."""

from __future__ import annotations

from collections import Counter
from itertools import chain

import pytest

from . import wire
from .pair import V3, V5, Peer, Type, World, persistent
from .wire import ack, props

NO_LOCAL = 4


def _members(world: World, count: int, topic_filter: str = "$share/g/t", qos: int = 2) -> list[Peer]:
    peers = [world.client(f"m{number}", **persistent(V5)) for number in range(count)]
    for peer in peers:
        assert peer.subscribe(topic_filter, qos) == qos
    return peers


def _take_all(peers: list[Peer]) -> list[list[bytes]]:
    return [[one.payload for one in peer.take() if one.type is Type.PUBLISH] for peer in peers]


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.statement("5.0:MQTT-4.8.2-3")
def test_each_message_goes_to_one_member_and_the_load_is_shared(world: World, qos: int) -> None:
    members = _members(world, 3)
    publisher = world.client("p")
    for number in range(30):
        publisher.publish("t", b"%d" % number, qos)
    shares = _take_all(members)
    assert sorted(chain(*shares)) == sorted(b"%d" % number for number in range(30))
    assert all(len(share) >= 5 for share in shares), [len(share) for share in shares]
    for share in shares:
        assert share == sorted(share, key=int)


def test_groups_and_plain_subscriptions_are_apart(world: World) -> None:
    first = world.client("a")
    first.subscribe("$share/g1/t")
    second = world.client("b")
    second.subscribe("$share/g2/t")
    plain = world.client("c")
    plain.subscribe("t")
    both = world.client("d")
    both.subscribe("t")
    both.subscribe("$share/g3/t")
    world.client("p").publish("t", b"x")
    counts = [len(peer.take()) for peer in (first, second, plain, both)]
    assert counts == [1, 1, 1, 2]


def test_the_same_share_name_with_other_filters_is_another_group(world: World) -> None:
    peer = world.client("a")
    peer.subscribe("$share/g/t")
    other = world.client("b")
    other.subscribe("$share/g/+")
    world.client("p").publish("t", b"x")
    peer.expect_publish("t", b"x")
    other.expect_publish("t", b"x")


def test_wildcards_and_dollar_topics_in_shared_filters(world: World) -> None:
    peer = world.client("a")
    peer.subscribe("$share/g/#")
    publisher = world.client("p")
    publisher.publish("a/b/c", b"1")
    peer.expect_publish("a/b/c", b"1")
    publisher.publish("$x/y", b"2")
    peer.expect_nothing()


@pytest.mark.statement("5.0:MQTT-4.8.2-3")
@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("published", [0, 1, 2])
def test_the_granted_qos_is_respected(world: World, published: int, granted: int) -> None:
    (peer,) = _members(world, 1, qos=granted)
    world.client("p").publish("t", b"x", published)
    peer.expect_publish("t", b"x", qos=min(published, granted))


@pytest.mark.statement("5.0:MQTT-4.8.2-1", "5.0:MQTT-4.8.2-2", "5.0:MQTT-4.7.1-1")
@pytest.mark.parametrize(
    "topic_filter",
    [
        "$share/",
        "$share/g",
        "$share/g/",
        "$share//t",
        "$share/+/t",
        "$share/#",
        "$share/g+/t",
        "$share/#/t",
        "$share/g/a#",
    ],
)
def test_filters_that_are_no_shared_subscription(world: World, topic_filter: str) -> None:
    peer = world.client("c")
    peer.send(wire.subscribe(1, (topic_filter, 0)))
    if peer.link.closed:
        peer.expect_closed(0x81, 0x82, 0x8F)
    else:
        peer.expect(Type.SUBACK, reasons=[0x8F])


@pytest.mark.statement("5.0:MQTT-3.8.3-4")
def test_no_local_on_a_shared_subscription(world: World) -> None:
    peer = world.client("c")
    peer.send(wire.subscribe(1, ("$share/g/t", NO_LOCAL)))
    peer.expect_closed(0x82)


def test_subscription_identifiers_of_shared_subscriptions(world: World) -> None:
    peer = world.client("c")
    peer.subscribe("$share/g/t", properties=props(subscription_id=7))
    world.client("p").publish("t", b"x")
    assert peer.expect_publish("t", b"x").properties["subscription_id"] == [7]


def test_subscribing_again_replaces_and_unsubscribing_leaves(world: World) -> None:
    first, second = _members(world, 2, qos=0)
    assert first.subscribe("$share/g/t", 1) == 1
    publisher = world.client("p")
    for number in range(10):
        publisher.publish("t", b"%d" % number, 1)
    assert Counter(one.qos for one in first.take()) == {1: 5}
    assert Counter(one.qos for one in second.take()) == {0: 5}
    assert first.unsubscribe("$share/g/t").reasons == [0]
    assert first.unsubscribe("$share/g/t").reasons == [0x11]
    assert first.unsubscribe("t").reasons == [0x11]
    for number in range(4):
        publisher.publish("t", b"%d" % number)
    assert _take_all([first, second])[1] == [b"0", b"1", b"2", b"3"]


def test_members_that_are_away_are_passed_over(world: World) -> None:
    members = _members(world, 3)
    members[0].drop()
    publisher = world.client("p")
    for number in range(10):
        publisher.publish("t", b"%d" % number, 1)
    assert sum(len(share) for share in _take_all(members[1:])) == 10


def test_with_all_members_away_messages_wait(world: World) -> None:
    for member in _members(world, 2):
        member.drop()
    publisher = world.client("p")
    for number in range(6):
        publisher.publish("t", b"%d" % number, 1)
    back = [world.client(f"m{number}", **persistent(V5)) for number in range(2)]
    assert sorted(chain(*_take_all(back))) == [b"%d" % number for number in range(6)]


def test_unacknowledged_qos_1_goes_to_another_when_a_session_ends(world: World) -> None:
    first, second = _members(world, 2)
    publisher = world.client("p")
    for number in range(6):
        publisher.publish("t", b"%d" % number, 1)
    (mine,) = _take_all([first])
    theirs = second.take()
    for one in theirs:
        second.acknowledge(one)
    first.disconnect(0, props(session_expiry=0))
    assert [one.payload for one in second.take()] == mine


def test_unsubscribing_gives_back_what_was_not_sent(world: World) -> None:
    first = world.client("first", properties=props(receive_maximum=1))
    first.subscribe("$share/g/t", 1)
    publisher = world.client("p")
    for number in range(4):
        publisher.publish("t", b"%d" % number, 1)
    held = first.expect_publish("t", b"0")
    second = world.client("second")
    second.subscribe("$share/g/t", 1)
    first.unsubscribe("$share/g/t")
    first.acknowledge(held)
    first.expect_nothing()
    assert [one.payload for one in second.take()][-3:] == [b"1", b"2", b"3"]


@pytest.mark.statement("5.0:MQTT-4.8.2-4")
@pytest.mark.parametrize("released", [False, True])
def test_qos_2_begun_is_completed_with_its_member(world: World, released: bool) -> None:
    first = world.client("m0", **persistent(V5))
    first.subscribe("$share/g/t", 2)
    world.client("p").publish("t", b"x", 2)
    received = first.expect_publish("t", b"x", qos=2)
    assert received.packet_id
    if released:
        first.send(ack(Type.PUBREC, received.packet_id))
        first.expect(Type.PUBREL)
    second = world.client("m1", **persistent(V5))
    second.subscribe("$share/g/t", 2)
    first.drop()
    world.advance(10)
    second.expect_nothing()
    first = world.client("m0", **persistent(V5))
    (again,) = first.take()
    assert again.packet_id == received.packet_id
    assert again.type is (Type.PUBREL if released else Type.PUBLISH)


@pytest.mark.statement("5.0:MQTT-4.8.2-5")
@pytest.mark.parametrize("released", [False, True])
def test_qos_2_begun_goes_to_no_other_when_the_session_ends(world: World, released: bool) -> None:
    first = world.client("m0", **persistent(V5))
    first.subscribe("$share/g/t", 2)
    world.client("p").publish("t", b"x", 2)
    received = first.expect_publish("t", b"x", qos=2)
    assert received.packet_id
    if released:
        first.send(ack(Type.PUBREC, received.packet_id))
        first.expect(Type.PUBREL)
    second = world.client("m1", **persistent(V5))
    second.subscribe("$share/g/t", 2)
    first.drop()
    world.client("m0", clean=True)
    world.advance(2000)
    second.expect_nothing()


@pytest.mark.statement("5.0:MQTT-4.8.2-6")
@pytest.mark.parametrize("qos", [1, 2])
def test_a_refused_message_goes_to_no_other(world: World, qos: int) -> None:
    members = _members(world, 2)
    world.client("p").publish("t", b"x", qos)
    for peer in members:
        for received in peer.take():
            peer.acknowledge(received, 0x80)
    world.advance(100)
    for peer in members:
        peer.expect_open()
        peer.drop()
    assert _take_all([world.client(f"m{number}", **persistent(V5)) for number in range(2)]) == [[], []]


def test_shared_subscriptions_of_3_1_1(world: World) -> None:
    """MQTT 3.1.1 does not know them; this broker gives them to its clients all the same."""
    peers = [world.client(f"m{number}", V3) for number in range(2)]
    for peer in peers:
        assert peer.subscribe("$share/g/t", 1) == 1
    publisher = world.client("p", V3)
    for number in range(10):
        publisher.publish("t", b"%d" % number, 1)
    assert sorted(chain(*_take_all(peers))) == [b"%d" % number for number in range(10)]


def test_nobody_matches_where_only_shares_do_not(world: World) -> None:
    _members(world, 1)
    publisher = world.client("p")
    assert publisher.publish("t", b"x", 1) == 0
    assert publisher.publish("u", b"x", 1) == 0x10
