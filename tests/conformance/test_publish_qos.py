"""PUBLISH and the three qualities of service (§3.3 to §3.7, §4.3, §4.4, §4.6), both ways."""

from __future__ import annotations

import pytest

from braidmq.broker.limits import Limits
from braidmq.broker.message import Message
from braidmq.broker.store import MemoryStore, StoreError

from . import wire
from .pair import V3, V5, Rules, Type, World, persistent
from .wire import ack, props


@pytest.mark.statement(
    "3.1.1:MQTT-3.8.4-6",
    "3.1.1:MQTT-4.3.1-1",
    "3.1.1:MQTT-2.3.1-5",
    "3.1.1:MQTT-3.3.4-1",
    "5.0:MQTT-3.8.4-8",
    "5.0:MQTT-4.3.1-1",
    "5.0:MQTT-2.2.1-2",
    "5.0:MQTT-3.3.4-1",
    "5.0:MQTT-4.3.2-2",
    "5.0:MQTT-4.3.3-2",
)
@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("publisher_version", [V3, V5])
def test_delivered_qos_is_the_lower_one(
    world: World, version: int, publisher_version: int, published: int, granted: int
) -> None:
    subscriber = world.client("s", version)
    assert subscriber.subscribe("t", granted) == granted
    publisher = world.client("p", publisher_version)
    publisher.publish("t", b"x", published)
    publisher.expect_nothing()
    received = subscriber.expect_publish("t", b"x", qos=min(published, granted), dup=False, retain=False)
    subscriber.acknowledge(received)
    subscriber.expect_open()


@pytest.mark.statement(
    "3.1.1:MQTT-2.3.1-6",
    "3.1.1:MQTT-4.3.2-2",
    "5.0:MQTT-2.2.1-5",
    "5.0:MQTT-4.3.2-4",
    "5.0:MQTT-4.3.3-8",
    "5.0:MQTT-4.3.3-11",
    "5.0:MQTT-3.3.4-1",
)
@pytest.mark.parametrize("packet_id", [1, 255, 256, 65_535])
def test_acknowledgements_repeat_the_packet_id(world: World, version: int, packet_id: int) -> None:
    peer = world.client("p", version)
    peer.send(wire.publish("t", qos=1, packet_id=packet_id, version=version))
    peer.expect(Type.PUBACK, packet_id=packet_id)
    peer.send(wire.publish("t", qos=2, packet_id=packet_id, version=version))
    peer.expect(Type.PUBREC, packet_id=packet_id)
    peer.send(ack(Type.PUBREL, packet_id))
    peer.expect(Type.PUBCOMP, packet_id=packet_id, reason=0)
    peer.expect_open()


@pytest.mark.statement("3.1.1:MQTT-4.3.2-2", "5.0:MQTT-4.3.2-5")
@pytest.mark.parametrize("dup", [False, True])
def test_qos_1_same_id_after_puback_is_a_new_message(world: World, version: int, dup: bool) -> None:
    subscriber = world.client("s", version)
    subscriber.subscribe("t")
    peer = world.client("p", version)
    for payload, again in ((b"1", False), (b"2", dup)):
        peer.send(wire.publish("t", payload, qos=1, packet_id=5, dup=again, version=version))
        peer.expect(Type.PUBACK, packet_id=5)
    subscriber.expect_payloads(b"1", b"2")


@pytest.mark.statement("3.1.1:MQTT-4.3.3-2", "5.0:MQTT-4.3.3-10", "5.0:MQTT-4.3.3-12", "5.0:MQTT-4.3.3-11")
def test_qos_2_is_delivered_once_until_pubrel(world: World, version: int) -> None:
    subscriber = world.client("s", version)
    subscriber.subscribe("t")
    peer = world.client("p", version)
    for dup in (False, True, False, True):
        peer.send(wire.publish("t", b"once", qos=2, packet_id=5, dup=dup, version=version))
        peer.expect(Type.PUBREC, packet_id=5)
    peer.send(ack(Type.PUBREL, 5))
    peer.expect(Type.PUBCOMP, packet_id=5)
    subscriber.expect_payloads(b"once")
    peer.send(wire.publish("t", b"new", qos=2, packet_id=5, version=version))
    peer.expect(Type.PUBREC, packet_id=5)
    peer.send(ack(Type.PUBREL, 5))
    peer.expect(Type.PUBCOMP, packet_id=5)
    subscriber.expect_payloads(b"new")


@pytest.mark.statement("3.1.1:MQTT-4.3.3-2", "3.1.1:MQTT-4.1.0-1", "5.0:MQTT-4.3.3-10", "5.0:MQTT-3.1.2-5")
def test_qos_2_half_done_survives_a_reconnect(world: World, version: int) -> None:
    subscriber = world.client("s", version)
    subscriber.subscribe("t")
    peer = world.client("p", version, **persistent(version))
    peer.send(wire.publish("t", b"once", qos=2, packet_id=5, version=version))
    peer.expect(Type.PUBREC, packet_id=5)
    peer.drop()
    peer = world.client("p", version, **persistent(version))
    peer.send(wire.publish("t", b"once", qos=2, packet_id=5, dup=True, version=version))
    peer.expect(Type.PUBREC, packet_id=5)
    peer.send(ack(Type.PUBREL, 5))
    peer.expect(Type.PUBCOMP, packet_id=5, reason=0)
    subscriber.expect_payloads(b"once")


@pytest.mark.statement("3.1.1:MQTT-4.3.3-2", "5.0:MQTT-4.3.3-11", "5.0:MQTT-3.7.2-1")
def test_pubrel_of_an_unknown_id_is_completed(world: World, version: int) -> None:
    peer = world.client("p", version)
    peer.send(ack(Type.PUBREL, 77))
    peer.expect(Type.PUBCOMP, packet_id=77, reason=0x92 if version == V5 else 0)
    peer.expect_open()


@pytest.mark.statement("5.0:MQTT-3.6.2-1")
def test_pubrec_of_an_unknown_id_is_told(world: World, version: int) -> None:
    peer = world.client("p", version)
    peer.send(ack(Type.PUBREC, 77))
    if version == V5:
        peer.expect(Type.PUBREL, packet_id=77, reason=0x92)
    else:
        assert [one.type for one in peer.take()] in ([], [Type.PUBREL])
    peer.expect_open()


@pytest.mark.parametrize("kind", [Type.PUBACK, Type.PUBCOMP])
def test_stray_acknowledgements_do_no_harm(world: World, version: int, kind: Type) -> None:
    peer = world.client("p", version)
    peer.send(ack(kind, 77))
    peer.expect_open()


@pytest.mark.statement("3.1.1:MQTT-3.3.1-2", "3.1.1:MQTT-3.3.1-3", "5.0:MQTT-3.3.1-2", "5.0:MQTT-3.3.1-3")
@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("published", [1, 2])
def test_dup_is_not_passed_on(world: World, version: int, published: int, granted: int) -> None:
    subscriber = world.client("s", version)
    subscriber.subscribe("t", granted)
    peer = world.client("p", version)
    peer.send(wire.publish("t", b"x", qos=published, packet_id=1, dup=True, version=version))
    subscriber.expect_publish("t", b"x", dup=False)


@pytest.mark.statement("3.1.1:MQTT-3.3.1-2", "5.0:MQTT-3.3.1-2")
def test_dup_at_qos_0_is_never_forwarded(world: World, version: int) -> None:
    subscriber = world.client("s", version)
    subscriber.subscribe("t")
    world.client("p", version).send(wire.publish("t", b"x", dup=True, version=version))
    assert [one.dup for one in subscriber.take()] in ([], [False])


@pytest.mark.statement(
    "3.1.1:MQTT-3.3.1-1",
    "3.1.1:MQTT-4.3.2-1",
    "3.1.1:MQTT-4.4.0-1",
    "3.1.1:MQTT-2.3.1-4",
    "5.0:MQTT-3.3.1-1",
    "5.0:MQTT-4.3.2-3",
    "5.0:MQTT-4.3.3-3",
    "5.0:MQTT-4.4.0-1",
)
@pytest.mark.parametrize("qos", [1, 2])
def test_unacknowledged_publications_go_out_again_in_order(world: World, version: int, qos: int) -> None:
    subscriber = world.client("s", version, **persistent(version))
    subscriber.subscribe("#", qos)
    publisher = world.client("p", version)
    for number in range(10):
        publisher.publish(f"t/{number % 3}", b"%d" % number, qos)
    first = subscriber.take()
    assert [one.dup for one in first] == [False] * 10
    subscriber.acknowledge(first[4])
    subscriber.drop()
    publisher.publish("t/0", b"late", qos)

    subscriber = world.client("s", version, **persistent(version))
    again = subscriber.take()
    kept = first[:4] + first[5:]
    assert [(one.packet_id, one.topic, one.payload) for one in again[:-1]] == [
        (one.packet_id, one.topic, one.payload) for one in kept
    ]
    assert [one.dup for one in again] == [True] * 9 + [False]
    assert again[-1].payload == b"late"
    for one in again:
        subscriber.acknowledge(one)
    subscriber.drop()
    world.client("s", version, **persistent(version)).expect_nothing()


@pytest.mark.statement(
    "3.1.1:MQTT-4.3.3-1",
    "3.1.1:MQTT-4.4.0-1",
    "3.1.1:MQTT-2.3.1-6",
    "5.0:MQTT-4.3.3-4",
    "5.0:MQTT-4.3.3-5",
    "5.0:MQTT-4.3.3-6",
    "5.0:MQTT-4.4.0-1",
)
def test_pubrel_goes_out_again_instead_of_publish(world: World, version: int) -> None:
    subscriber = world.client("s", version, **persistent(version))
    subscriber.subscribe("t", 2)
    publisher = world.client("p", version)
    publisher.publish("t", b"1", 2)
    publisher.publish("t", b"2", 2)
    first, second = subscriber.take()
    assert first.packet_id
    assert second.packet_id
    subscriber.send(ack(Type.PUBREC, first.packet_id))
    subscriber.expect(Type.PUBREL, packet_id=first.packet_id)
    for _ in range(2):
        subscriber.drop()
        subscriber = world.client("s", version, **persistent(version))
        again = {one.type: one for one in subscriber.take()}
        assert again.keys() == {Type.PUBREL, Type.PUBLISH}
        assert again[Type.PUBREL].packet_id == first.packet_id
        assert again[Type.PUBLISH].packet_id == second.packet_id
        assert again[Type.PUBLISH].dup
    subscriber.send(ack(Type.PUBREC, first.packet_id))  # sent again by a client that lost the PUBREL
    subscriber.expect(Type.PUBREL, packet_id=first.packet_id, reason=0)
    subscriber.send(ack(Type.PUBCOMP, first.packet_id))
    subscriber.acknowledge(again[Type.PUBLISH])
    subscriber.drop()
    world.client("s", version, **persistent(version)).expect_nothing()


@pytest.mark.statement("5.0:MQTT-4.4.0-1")
@pytest.mark.parametrize("qos", [1, 2])
def test_nothing_is_sent_again_on_an_open_connection(world: World, version: int, qos: int) -> None:
    subscriber = world.client("s", version)
    subscriber.subscribe("t", qos)
    world.client("p", version).publish("t", b"x", qos)
    subscriber.expect_publish("t", b"x")
    for _ in range(5):
        world.advance(600)
    subscriber.expect_nothing()


@pytest.mark.statement("5.0:MQTT-4.4.0-2", "5.0:MQTT-4.3.3-4")
@pytest.mark.parametrize("reason", [0x80, 0x83, 0x87, 0x97, 0x99])
@pytest.mark.parametrize("qos", [1, 2])
def test_a_refused_delivery_has_ended(world: World, qos: int, reason: int) -> None:
    subscriber = world.client("s", **persistent(V5))
    subscriber.subscribe("t", qos)
    world.client("p").publish("t", b"x", qos)
    subscriber.acknowledge(subscriber.expect_publish("t", b"x"), reason)
    subscriber.expect_open()  # no PUBREL
    subscriber.drop()
    world.client("s", **persistent(V5)).expect_nothing()


@pytest.mark.statement("5.0:MQTT-4.3.3-4")
@pytest.mark.parametrize("reason", [None, 0x00, 0x10])
def test_a_good_pubrec_is_released(world: World, reason: int | None) -> None:
    subscriber = world.client("s")
    subscriber.subscribe("t", 2)
    world.client("p").publish("t", b"x", 2)
    received = subscriber.expect_publish("t", b"x")
    assert received.packet_id
    subscriber.send(ack(Type.PUBREC, received.packet_id, reason))
    subscriber.expect(Type.PUBREL, packet_id=received.packet_id, reason=0)


@pytest.mark.statement(
    "3.1.1:MQTT-2.3.1-4", "3.1.1:MQTT-4.3.2-1", "5.0:MQTT-2.2.1-4", "5.0:MQTT-4.3.2-1", "5.0:MQTT-4.3.3-1"
)
def test_packet_ids_of_the_server_are_free_ones(world: World, version: int) -> None:
    subscriber = world.client("s", version)
    subscriber.subscribe("t", 2)
    publisher = world.client("p", version)
    for number in range(60):
        publisher.publish("t", b"%d" % number, 1 + number % 2)
    held = subscriber.take()  # the peer itself refuses an id that is in use
    assert len({one.packet_id for one in held}) == 60
    for one in held[::2]:
        subscriber.acknowledge(one)
    for number in range(60):
        publisher.publish("t", b"%d" % number, 1)
    ids = {one.packet_id for one in subscriber.take()}
    assert len(ids) == 60
    assert not ids & {one.packet_id for one in held[1::2]}


@pytest.mark.statement("5.0:MQTT-2.2.1-4", "3.1.1:MQTT-2.3.1-4")
def test_packet_ids_wrap_around_what_is_held(world: World) -> None:
    """More publications than there are packet ids, the first of them never acknowledged."""
    subscriber = world.client("s", V3)
    subscriber.subscribe("t", 1)
    publisher = world.client("p", V3)
    publisher.publish("t", b"held", 1)
    held = subscriber.expect_publish("t", b"held")
    raw = wire.publish("t", b"x", qos=1, packet_id=9, version=V3)
    for _ in range(66):
        publisher.send(*[raw] * 1000)
        publisher.link.stream = b""
        got = subscriber.take()
        assert len(got) == 1000
        assert held.packet_id not in {one.packet_id for one in got}
        subscriber.send(*[ack(Type.PUBACK, one.packet_id or 0) for one in got])


@pytest.mark.statement(
    "3.1.1:MQTT-4.6.0-5", "3.1.1:MQTT-4.6.0-6", "5.0:MQTT-4.6.0-5", "5.0:MQTT-4.6.0-6", "3.1.1:MQTT-4.5.0-1"
)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_order_is_kept(world: World, version: int, qos: int) -> None:
    subscribers = [world.client(f"s{one}", version) for one in range(3)]
    for one, topic_filter in zip(subscribers, ("t", "#", "+"), strict=True):
        one.subscribe(topic_filter, qos)
    publisher = world.client("p", version)
    wanted = [b"%d" % number for number in range(100)]
    publisher.send(
        *[
            wire.publish("t", payload, qos=qos, packet_id=number if qos else None, version=version)
            for number, payload in enumerate(wanted, start=1)
        ]
    )
    for one in subscribers:
        assert [received.payload for received in one.take()] == wanted
    answers = publisher.take()
    assert [one.packet_id for one in answers] == (list(range(1, 101)) if qos else [])


@pytest.mark.statement("3.1.1:MQTT-3.3.5-1", "5.0:MQTT-3.3.4-2", "3.1.1:MQTT-3.3.2-3", "5.0:MQTT-3.3.2-3")
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_overlapping_subscriptions_give_one_copy_of_the_highest_qos(
    world: World, version: int, order: tuple[int, ...]
) -> None:
    subscriber = world.client("s", version)
    for topic_filter, qos in zip(("a/b", "a/+", "#"), order, strict=True):
        subscriber.subscribe(topic_filter, qos)
    world.client("p", version).publish("a/b", b"x", 2)
    subscriber.expect_publish("a/b", b"x", qos=2)
    subscriber.expect_nothing()


@pytest.mark.statement("3.1.1:MQTT-4.5.0-1", "5.0:MQTT-4.5.0-1", "3.1.1:MQTT-3.1.2-5")
@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_is_added_to_every_matching_session(world: World, version: int, qos: int) -> None:
    online = world.client("online", version)
    offline = world.client("offline", version, **persistent(version))
    online.subscribe("t/#", qos)
    offline.subscribe("+/x", qos)
    offline.drop()
    world.client("p", version).publish("t/x", b"m", qos)
    online.expect_publish("t/x", b"m", qos=qos)
    back = world.client("offline", version, **persistent(version))
    back.expect_publish("t/x", b"m", qos=qos, dup=False)


@pytest.mark.statement("5.0:MQTT-3.4.2-1", "5.0:MQTT-3.5.2-1")
@pytest.mark.parametrize("qos", [1, 2])
def test_a_publisher_is_told_that_nobody_listens(world: World, qos: int) -> None:
    publisher = world.client("p")
    assert publisher.publish("t", b"x", qos) == 0x10
    subscriber = world.client("s")
    subscriber.subscribe("t")
    assert publisher.publish("t", b"x", qos) == 0
    subscriber.drop()
    assert publisher.publish("t", b"x", qos) == 0x10


@pytest.mark.statement("5.0:MQTT-3.4.2-1", "5.0:MQTT-3.5.2-1", "5.0:MQTT-4.3.3-9", "3.1.1:MQTT-3.3.5-2")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_forbidden_publication(version: int, qos: int) -> None:
    world = World(access=Rules())
    subscriber = world.client("s", version)
    subscriber.subscribe("#")
    peer = world.client("p", version)
    for _ in range(2):
        peer.send(wire.publish("secret/1", b"x", qos=qos, packet_id=4 if qos else None, version=version))
        answers = peer.take()
        if version == V5 and qos:
            assert [(one.type, one.packet_id, one.reason) for one in answers] == [
                (Type.PUBACK if qos == 1 else Type.PUBREC, 4, 0x87)
            ]
        elif not peer.link.closed:
            assert [(one.type, one.packet_id) for one in answers] == {
                0: [],
                1: [(Type.PUBACK, 4)],
                2: [(Type.PUBREC, 4)],
            }[qos]
            if qos == 2:
                peer.send(ack(Type.PUBREL, 4))
                peer.expect(Type.PUBCOMP, packet_id=4)
        else:
            return
    peer.send(wire.publish("open", b"y", version=version, qos=qos, packet_id=4 if qos else None))
    subscriber.expect_payloads(b"y")


@pytest.mark.statement("5.0:MQTT-3.1.2-29", "5.0:MQTT-3.4.2-2", "5.0:MQTT-3.5.2-2")
@pytest.mark.parametrize(
    "wish", [props(request_problem=0), props(request_problem=1, maximum_packet_size=24), props(maximum_packet_size=24)]
)
def test_reason_strings_that_are_not_wanted_or_do_not_fit(wish: bytes) -> None:
    world = World(access=Rules())
    told = world.client("told")
    told.send(wire.publish("secret", b"x", qos=1, packet_id=1))
    assert told.expect(Type.PUBACK, reason=0x87).properties["reason_string"]
    peer = world.client("p", properties=wish)
    for packet in (
        wire.publish("secret", b"x", qos=1, packet_id=1),
        wire.publish("secret", b"x", qos=2, packet_id=2),
        wire.subscribe(3, ("secret", 0)),
        wire.unsubscribe(4, "secret"),
    ):
        peer.send(packet)
        (answer,) = peer.take()  # the peer refuses what is too large
        assert answer.type in (Type.SUBACK, Type.UNSUBACK) or answer.reason == 0x87
        assert not answer.properties


def test_successful_acknowledgements_carry_no_reason_string(world: World) -> None:
    peer = world.client("p")
    other = world.client("s")
    other.subscribe("t", 2)
    peer.send(wire.publish("t", qos=1, packet_id=1), wire.publish("t", qos=2, packet_id=2), ack(Type.PUBREL, 2))
    peer.send(wire.subscribe(3, ("t", 1)), wire.unsubscribe(3, "t"))
    answers = peer.take()
    assert {one.type for one in answers} == {
        Type.PUBACK,
        Type.PUBREC,
        Type.PUBCOMP,
        Type.SUBACK,
        Type.UNSUBACK,
    }
    assert all(one.properties == {} for one in answers)


@pytest.mark.statement("3.1.1:MQTT-3.3.2-1", "5.0:MQTT-3.3.2-1")
@pytest.mark.parametrize("payload", [b"", b"\x00", bytes(range(256)), b"x" * 127, b"x" * 128, b"x" * 20_000])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_payloads_come_as_they_were(world: World, version: int, payload: bytes, qos: int) -> None:
    subscriber = world.client("s", version)
    subscriber.subscribe("t", 2)
    world.client("p", V5 if version == V3 else V3).publish("t", payload, qos)
    subscriber.expect_publish("t", payload, qos=qos)


@pytest.mark.statement("5.0:MQTT-4.13.1-1", "3.1.1:MQTT-4.7.3-1", "5.0:MQTT-4.7.3-1")
def test_empty_topic_name(world: World, version: int) -> None:
    peer = world.client("p", version)
    peer.send(wire.publish("", b"x", version=version))
    peer.expect_closed(0x82)


@pytest.mark.statement("3.1.1:MQTT-2.3.1-4", "5.0:MQTT-2.2.1-4")
@pytest.mark.parametrize("qos", [1, 2])
def test_packet_ids_of_the_two_directions_are_apart(world: World, version: int, qos: int) -> None:
    """A client may use the very id that the server is using towards it."""
    peer = world.client("c", version)
    peer.subscribe("t", qos)
    world.client("p", version).publish("t", b"1", qos)
    received = peer.expect_publish("t", b"1", qos=qos)
    assert received.packet_id
    peer.send(wire.publish("other", b"2", qos=qos, packet_id=received.packet_id, version=version))
    peer.expect(Type.PUBACK if qos == 1 else Type.PUBREC, packet_id=received.packet_id)
    if qos == 2:
        peer.send(ack(Type.PUBREC, received.packet_id), ack(Type.PUBREL, received.packet_id))
        assert {one.type for one in peer.take()} == {Type.PUBREL, Type.PUBCOMP}
        peer.send(ack(Type.PUBCOMP, received.packet_id))
    else:
        peer.send(ack(Type.PUBACK, received.packet_id))
    peer.expect_open()


@pytest.mark.statement("5.0:MQTT-4.3.3-3", "5.0:MQTT-4.3.2-3", "3.1.1:MQTT-4.3.3-1", "3.1.1:MQTT-4.3.2-1")
@pytest.mark.parametrize(("qos", "wrong"), [(1, Type.PUBREC), (1, Type.PUBCOMP), (2, Type.PUBACK), (2, Type.PUBCOMP)])
def test_the_wrong_acknowledgement_ends_nothing(world: World, version: int, qos: int, wrong: Type) -> None:
    subscriber = world.client("s", version, **persistent(version))
    subscriber.subscribe("t", qos)
    world.client("p", version).publish("t", b"x", qos)
    received = subscriber.expect_publish("t", b"x", qos=qos)
    assert received.packet_id
    subscriber.send(ack(wrong, received.packet_id))
    if not subscriber.link.closed:
        subscriber.drop()
    again = world.client("s", version, **persistent(version))
    again.expect_publish("t", b"x", qos=qos, dup=True, packet_id=received.packet_id)


@pytest.mark.statement("3.1.1:MQTT-4.8.0-1", "5.0:MQTT-4.13.1-1", "5.0:MQTT-3.14.2-1")
@pytest.mark.parametrize(("qos", "wrong"), [(1, Type.PUBREC), (1, Type.PUBCOMP), (2, Type.PUBACK), (2, Type.PUBCOMP)])
def test_the_wrong_acknowledgement_closes(world: World, version: int, qos: int, wrong: Type) -> None:
    subscriber = world.client("s", version)
    subscriber.subscribe("t", qos)
    world.client("p", version).publish("t", b"x", qos)
    received = subscriber.expect_publish("t", b"x", qos=qos)
    assert received.packet_id
    subscriber.send(ack(wrong, received.packet_id))
    subscriber.expect_closed(0x82)


@pytest.mark.statement("3.1.1:MQTT-4.8.0-1", "5.0:MQTT-4.13.1-1", "5.0:MQTT-4.3.3-5")
def test_a_puback_for_what_is_released_closes_and_ends_nothing(world: World, version: int) -> None:
    subscriber = world.client("s", version, **persistent(version))
    subscriber.subscribe("t", 2)
    world.client("p", version).publish("t", b"x", 2)
    packet_id = subscriber.expect_publish("t", b"x").packet_id
    assert packet_id
    subscriber.send(ack(Type.PUBREC, packet_id))
    subscriber.expect(Type.PUBREL, packet_id=packet_id)
    subscriber.send(ack(Type.PUBACK, packet_id))
    subscriber.expect_closed(0x82)
    again = world.client("s", version, **persistent(version))
    again.expect(Type.PUBREL, packet_id=packet_id)


@pytest.mark.statement("5.0:MQTT-4.4.0-1", "5.0:MQTT-3.7.2-1", "3.1.1:MQTT-4.4.0-1")
def test_acknowledgements_that_come_again_are_no_error(world: World, version: int) -> None:
    """A client that was cut off does not know which of them have come, and may have forgotten the exchange itself."""
    subscriber = world.client("s", version, **persistent(version))
    subscriber.subscribe("t", 2)
    publisher = world.client("p", version)
    publisher.publish("t", b"1", 2)
    publisher.publish("t", b"2", 1)
    released, once = (one.packet_id for one in subscriber.take())
    assert released
    assert once
    subscriber.send(ack(Type.PUBREC, released))
    subscriber.drop()
    subscriber = world.client("s", version, **persistent(version))
    assert {(one.type, one.packet_id) for one in subscriber.take()} == {(Type.PUBREL, released), (Type.PUBLISH, once)}
    subscriber.send(ack(Type.PUBREC, released))
    subscriber.expect(Type.PUBREL, packet_id=released)
    not_found = 0x92 if version == V5 else None
    for again in (
        ack(Type.PUBCOMP, released, not_found),
        ack(Type.PUBCOMP, released),
        ack(Type.PUBCOMP, released, not_found),
        ack(Type.PUBACK, once),
        ack(Type.PUBACK, once),
        ack(Type.PUBCOMP, 999, not_found),
        ack(Type.PUBCOMP, 999),
        ack(Type.PUBACK, 999),
    ):
        subscriber.send(again)
        subscriber.expect_open()
    if version == V5:  # it answers a PUBREL for an id that was given to another publication since
        publisher.publish("t", b"3", 2)
        fresh = subscriber.expect_publish("t", b"3")
        assert fresh.packet_id
        subscriber.send(ack(Type.PUBCOMP, fresh.packet_id, 0x92))
        subscriber.expect_open()
        subscriber.acknowledge(fresh)
        subscriber.expect_open()


@pytest.mark.statement("5.0:MQTT-4.3.3-11", "5.0:MQTT-3.6.2-1")
@pytest.mark.parametrize("reason", [0x00, 0x92])
def test_pubrel_with_a_reason(world: World, reason: int) -> None:
    peer = world.client("p")
    peer.send(wire.publish("t", qos=2, packet_id=5))
    peer.expect(Type.PUBREC)
    peer.send(ack(Type.PUBREL, 5, reason))
    peer.expect(Type.PUBCOMP, packet_id=5, reason=0)
    peer.expect_open()


@pytest.mark.statement("3.1.1:MQTT-3.3.4-1", "3.1.1:MQTT-4.3.3-2")
def test_3_1_1_knows_no_receive_maximum() -> None:
    """It has no way to be told one: many QoS 2 publications may be half done at once."""
    world = World(limits=Limits(receive_max=3))
    peer = world.client("p", V3)
    for packet_id in range(1, 51):
        peer.send(wire.publish("t", qos=2, packet_id=packet_id, version=V3))
        peer.expect(Type.PUBREC, packet_id=packet_id)
    for packet_id in range(1, 51):
        peer.send(ack(Type.PUBREL, packet_id))
        peer.expect(Type.PUBCOMP, packet_id=packet_id)
    peer.expect_open()


class Disk(MemoryStore):
    """A store that can be told to fail."""

    broken = False

    def save_retained(self, message: Message) -> None:
        self.dirty = True

    def commit(self) -> None:
        if self.broken:
            raise StoreError("the disk is full")
        self.dirty = False


@pytest.mark.statement("3.1.1:MQTT-4.8.0-2")
@pytest.mark.parametrize("qos", [1, 2])
def test_nothing_is_acknowledged_that_could_not_be_kept(version: int, qos: int) -> None:
    """A transient error costs the connection it happened on, and no other."""
    disk = Disk()
    world = World(store=disk)
    other = world.client("o", version)
    peer = world.client("p", version)
    peer.publish("t", b"good", qos, retain=True)
    disk.broken = True
    peer.send(wire.publish("t", b"bad", qos=qos, packet_id=1, retain=True, version=version))
    assert peer.take() == []
    assert peer.link.closed
    other.expect_open()
    disk.broken = False
    world.advance(5)
    world.client("p", version).publish("t", b"good", qos, retain=True)
