"""What was acknowledged survives `kill -9`: every test kills a real broker and asks the next one on the same store."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import pytest

from tests import raw
from tests.conformance import wire
from tests.raw import V3, V5, Client, Received, Type, Will, opened, persistent, props

if TYPE_CHECKING:
    from tests.conftest import Broker, StartBroker

both_versions = pytest.mark.parametrize("version", [V3, V5], ids=["3.1.1", "5.0"])


def crash(broker: Broker) -> None:
    broker.kill9()
    broker.start()


def subscriber(broker: Broker, client_id: str, *filters: str, version: int = V5, expiry_s: int = 3600) -> Client:
    """A client whose session stays, with its subscriptions."""
    client = Client(broker, client_id, version, **persistent(version, expiry_s))
    for topic_filter in filters:
        assert client.subscribe(topic_filter) == 2
    return client


def payloads(messages: list[Received]) -> list[bytes]:
    return [message.payload for message in messages]


# Queues


@both_versions
def test_acknowledged_messages_wait_for_an_offline_session(start_broker: StartBroker, version: int) -> None:
    broker = start_broker()
    subscriber(broker, "reader", "t/#", version=version).drop()
    with opened(broker, "writer", version) as writer:
        for qos in (1, 2):
            writer.publish_many(f"t/{qos}", [b"%d" % number for number in range(600)], qos)
    crash(broker)

    reader = Client(broker, "reader", version, **persistent(version))
    assert reader.present
    got = reader.messages(1200)
    assert [(one.topic, one.qos) for one in got] == [("t/1", 1)] * 600 + [("t/2", 2)] * 600
    assert payloads(got) == [b"%d" % number for number in range(600)] * 2
    assert reader.so_far() == []
    crash(broker)  # nor does any of it come back
    reader = Client(broker, "reader", version, **persistent(version))
    assert reader.present
    assert reader.so_far() == []


def test_a_queued_message_keeps_all_that_it_had(start_broker: StartBroker) -> None:
    broker = start_broker()
    away = subscriber(broker, "reader")
    assert away.subscribe("größe/+", 2 | 8, identifier=5) == 2  # 8: Retain As Published
    assert away.subscribe("größe/#", 1, identifier=268_435_455) == 1
    away.drop()
    payload = bytes(range(256)) * 2048
    sent = {
        "payload_format": 0,
        "content_type": "application/x-test",
        "response_topic": "answers/here",
        "correlation_data": b"\x00\xff\x01",
        "user": [("b", "1"), ("a", "2"), ("b", "1")],
    }
    with opened(broker, "writer") as writer:
        published_at = time.time()
        properties = props(**sent, message_expiry=1000)
        assert writer.publish("größe/1", payload, 2, retain=True, properties=properties) == 0
    crash(broker)

    reader = Client(broker, "reader", **persistent(V5))
    message = reader.next_message()
    assert (message.topic, message.qos, message.retain, message.dup) == ("größe/1", 2, True, False)
    assert message.payload == payload
    assert sorted(message.properties.pop("subscription_id")) == [5, 268_435_455]
    expiry_s = message.properties.pop("message_expiry")
    assert abs(expiry_s - (1000 - (time.time() - published_at))) <= 1.5
    assert message.properties == sent
    assert reader.so_far() == []


def test_a_queued_message_that_ran_out_while_the_broker_was_down(start_broker: StartBroker) -> None:
    broker = start_broker()
    subscriber(broker, "reader", "t").drop()
    with opened(broker, "writer") as writer:
        writer.publish("t", b"brief", 1, properties=props(message_expiry=1))
        writer.publish("t", b"lasting", 1, properties=props(message_expiry=100))
        over_at = time.time() + 1.1
    broker.kill9()
    time.sleep(max(0.0, over_at - time.time()))
    broker.start()
    reader = Client(broker, "reader", **persistent(V5))
    assert payloads(reader.messages(1)) == [b"lasting"]
    assert reader.so_far() == []


@both_versions
def test_messages_in_flight_are_sent_again_as_they_were(start_broker: StartBroker, version: int) -> None:
    broker = start_broker()
    reader = subscriber(broker, "reader", "t", version=version)
    writer = Client(broker, "writer", version)
    writer.publish_many("t", [b"%d" % number for number in range(20)], 1)
    writer.publish_many("t", [b"%d" % number for number in range(20, 40)], 2)
    first = reader.messages(40, acknowledge=False)
    for message in (first[3], first[0]):
        reader.acknowledge(message)
    reader.so_far()  # the broker has both acknowledgements
    crash(broker)

    unacknowledged = {message.packet_id: message for message in first[1:3] + first[4:]}
    reader = Client(broker, "reader", version, **persistent(version))
    assert reader.present
    with opened(broker, "writer", version) as writer:
        writer.publish("t", b"new", 1)
    again = reader.messages(39, acknowledge=False)
    assert payloads(again) == [*payloads(list(unacknowledged.values())), b"new"]
    for message in again[:-1]:
        assert message.packet_id is not None
        before = unacknowledged[message.packet_id]
        assert message.dup
        assert (message.payload, message.qos) == (before.payload, before.qos)
    assert not again[-1].dup
    assert again[-1].packet_id not in unacknowledged
    for message in again:
        reader.acknowledge(message)
    assert reader.so_far() == []


def test_a_smaller_window_after_the_crash_is_kept(start_broker: StartBroker) -> None:
    broker = start_broker()
    reader = subscriber(broker, "reader", "t")
    with opened(broker, "writer") as writer:
        writer.publish_many("t", [b"%d" % number for number in range(10)], 1)
    reader.messages(10, acknowledge=False)
    crash(broker)
    narrow = props(session_expiry=3600, receive_maximum=2)
    reader = Client(broker, "reader", clean=False, properties=narrow)
    got: list[Received] = []
    while len(got) < 10:
        window = reader.so_far()
        assert 1 <= len(window) <= 2
        got += window
        for message in window:
            reader.acknowledge(message)
    assert payloads(got) == [b"%d" % number for number in range(10)]


# Exchanges of QoS 2 that the crash cut in half


@both_versions
def test_half_done_qos_2_towards_a_client(start_broker: StartBroker, version: int) -> None:
    broker = start_broker()
    reader = subscriber(broker, "reader", "t", version=version)
    with opened(broker, "writer", version) as writer:
        writer.publish_many("t", [b"untouched", b"received", b"released", b"hurried", b"done"], 2)
    untouched, received, released, hurried, done = reader.messages(5, acknowledge=False)
    assert hurried.packet_id
    reader.acknowledge(done)
    for message in (received, released):
        assert message.packet_id
        reader.send(wire.ack(Type.PUBREC, message.packet_id))
        reader.find(Type.PUBREL, message.packet_id)
    reader.so_far()
    reader.send(wire.ack(Type.PUBREC, hurried.packet_id))  # the broker dies with it in hand, or just before
    crash(broker)

    reader = Client(broker, "reader", version, **persistent(version))
    assert reader.present
    again = {packet.packet_id: packet for packet in reader.so_far()}
    assert list(again) == list(dict.fromkeys(again))
    assert set(again) == {untouched.packet_id, received.packet_id, released.packet_id, hurried.packet_id}
    assert again[received.packet_id].type is again[released.packet_id].type is Type.PUBREL
    assert again[untouched.packet_id].type is Type.PUBLISH
    assert again[untouched.packet_id].dup
    assert again[untouched.packet_id].payload == b"untouched"
    for packet_id, packet in again.items():
        assert packet_id is not None
        if packet.type is Type.PUBLISH:
            assert packet.dup
            reader.acknowledge(packet)
        else:
            reader.send(wire.ack(Type.PUBCOMP, packet_id))
    assert reader.so_far() == []
    crash(broker)
    reader = Client(broker, "reader", version, **persistent(version))
    assert reader.so_far() == []


@both_versions
def test_half_done_qos_2_from_a_client(start_broker: StartBroker, version: int) -> None:
    """A second copy after the crash is not a second message, for as long as the packet id is in use."""
    broker = start_broker()
    subscriber(broker, "reader", "t", version=version).drop()
    writer = Client(broker, "writer", version, **persistent(version))
    for packet_id, payload in ((7, b"seven"), (8, b"eight"), (9, b"nine")):
        writer.send(writer.packet("t", payload, 2, packet_id))
        writer.find(Type.PUBREC, packet_id)
    writer.send(wire.ack(Type.PUBREL, 9))
    writer.find(Type.PUBCOMP, 9)
    crash(broker)

    writer = Client(broker, "writer", version, **persistent(version))
    assert writer.present
    writer.send(writer.packet("t", b"seven", 2, 7, dup=True))
    assert writer.find(Type.PUBREC, 7).reason < 0x80
    for packet_id in (7, 8):
        writer.send(wire.ack(Type.PUBREL, packet_id))
        assert writer.find(Type.PUBCOMP, packet_id).reason == 0
    crash(broker)

    writer = Client(broker, "writer", version, **persistent(version))
    writer.send(wire.ack(Type.PUBREL, 7))
    assert writer.find(Type.PUBCOMP, 7).reason == (0x92 if version == V5 else 0)
    writer.send(writer.packet("t", b"seven again", 2, 7))  # the id is free: a new message
    writer.find(Type.PUBREC, 7)
    reader = Client(broker, "reader", version, **persistent(version))
    assert payloads(reader.messages(4)) == [b"seven", b"eight", b"nine", b"seven again"]
    assert reader.so_far() == []


# Subscriptions and sessions


def test_subscriptions_keep_their_options(start_broker: StartBroker) -> None:
    broker = start_broker()
    reader = subscriber(broker, "reader")
    assert reader.subscribe("id", 0, identifier=1) == 0
    assert reader.subscribe("id", 2, identifier=42) == 2  # replaced
    assert reader.subscribe("own/#", 1 | 4) == 1  # 4: No Local
    assert reader.subscribe("kept/+", 0 | 8) == 0  # 8: Retain As Published
    assert reader.subscribe("$share/group/work/#", 1, identifier=3) == 1
    assert reader.subscribe("gone", 1) == 1
    reader.unsubscribe("gone")
    crash(broker)

    reader = Client(broker, "reader", **persistent(V5))
    assert reader.present
    with opened(broker, "writer") as writer:
        writer.publish("gone", b"", 1)
        writer.publish("id", b"1", 2)
        writer.publish("kept/1", b"2", 1, retain=True)
        writer.publish("work/1", b"3", 2)
    assert reader.publish("own/1", b"not for me", 1) == 0x10
    got = reader.messages(3)
    assert [(one.topic, one.qos, one.retain, one.properties) for one in got] == [
        ("id", 2, False, {"subscription_id": [42]}),
        ("kept/1", 0, True, {}),
        ("work/1", 1, False, {"subscription_id": [3]}),
    ]
    assert reader.so_far() == []


@both_versions
def test_what_had_ended_stays_ended(start_broker: StartBroker, version: int) -> None:
    broker = start_broker()
    for client_id in ("restarted", "left"):
        subscriber(broker, client_id, "t", version=version).drop()
    with opened(broker, "writer", version) as writer:
        writer.publish("t", b"old", 1)
    with opened(broker, "restarted", version):
        pass  # a clean session takes the place of the old one
    if version == V5:
        left = Client(broker, "left", clean=False, properties=props(session_expiry=3600))
        left.send(wire.disconnect(0, props(session_expiry=0)))
        left.expect_end()
    crash(broker)
    for client_id in ("restarted", "left") if version == V5 else ("restarted",):
        client = Client(broker, client_id, version, **persistent(version))
        assert not client.present
        assert client.so_far() == []
        with opened(broker, "writer", version) as writer:
            writer.publish("t", b"new", 1)
        assert client.so_far() == []


def test_session_expiry_goes_on_counting(start_broker: StartBroker) -> None:
    """Two sessions of 2 s: one left before the crash, so its time ends while the broker is down."""
    broker = start_broker()
    subscriber(broker, "short", "t", expiry_s=2).disconnect()
    left_at = time.monotonic()
    subscriber(broker, "long", "t", expiry_s=600).disconnect()
    broker.kill9()
    time.sleep(max(0.0, left_at + 2.1 - time.monotonic()))
    broker.start()
    with Client(broker, "short", clean=False) as client:
        assert not client.present
    with Client(broker, "long", clean=False) as client:
        assert client.present


def test_session_expiry_is_counted_over_several_crashes(start_broker: StartBroker) -> None:
    """A client that was connected at the first crash is gone from then on, however often the broker dies after it."""
    broker = start_broker()
    watcher = subscriber(broker, "watcher", "ended")
    will = Will("ended", b"x", 1, properties=props(will_delay=1000))  # published when the session ends
    lost = Client(broker, "lost", clean=False, will=will, properties=props(session_expiry=3))
    assert lost.accepted
    crash(broker)
    began_at = time.monotonic()
    time.sleep(1.5)
    crash(broker)
    watcher = Client(broker, "watcher", **persistent(V5))
    assert watcher.next_message().topic == "ended"
    took_s = time.monotonic() - began_at
    assert 2.5 < took_s < 4.2, f"a session of 3 s ended {took_s:.1f} s after its client was lost"


# Shared subscriptions


def test_a_shared_queue_is_given_out_once(start_broker: StartBroker) -> None:
    broker = start_broker()
    for name in ("a", "b"):
        subscriber(broker, name, "$share/g/work").drop()
    with opened(broker, "writer") as writer:
        raw.wait_until(lambda: writer.publish("probe", b"", 1) == 0x10, "nobody else is connected")
        writer.publish_many("work", [b"%d" % number for number in range(50)], 1)
        writer.publish_many("work", [b"%d" % number for number in range(50, 100)], 2)
    crash(broker)
    members = [Client(broker, name, **persistent(V5)) for name in ("a", "b")]
    assert all(member.present for member in members)
    got = []
    for member in members:
        for message in member.so_far():
            assert not message.dup
            member.acknowledge(message)
            got.append(int(message.payload))
    assert sorted(got) == list(range(100))
    assert all(member.so_far() == [] for member in members)


def test_what_a_member_had_in_hand_is_not_lost(start_broker: StartBroker) -> None:
    """Both members were connected and had acknowledged some; after the crash only one comes back."""
    broker = start_broker()
    members = {name: subscriber(broker, name, "$share/g/work") for name in ("a", "b")}
    with opened(broker, "writer") as writer:
        writer.publish_many("work", [b"%d" % number for number in range(40)], 1)
    taken = {name: client.messages(20, acknowledge=False) for name, client in members.items()}
    for name, client in members.items():
        for message in taken[name][:5]:
            client.acknowledge(message)
        client.so_far()
    crash(broker)
    for name in ("a", "b"):
        client = Client(broker, name, **persistent(V5))
        assert payloads(client.messages(15)) == payloads(taken[name][5:])
        assert client.so_far() == []


# Retained messages


@both_versions
def test_retained_messages(start_broker: StartBroker, version: int) -> None:
    broker = start_broker()
    with opened(broker, "writer", version) as writer:
        for qos in (0, 1, 2):
            writer.publish(f"r/kept/{qos}", b"%d" % qos, qos, retain=True)
            writer.publish(f"r/replaced/{qos}", b"old", 2, retain=True)
            writer.publish(f"r/replaced/{qos}", b"new", qos, retain=True)
            writer.publish(f"r/deleted/{qos}", b"x", 1, retain=True)
            writer.publish(f"r/deleted/{qos}", b"", qos, retain=True)
        writer.publish("r/last", b"x", 1, retain=True)
    crash(broker)
    reader = Client(broker, "reader", version)
    reader.subscribe("r/#", 2)
    got = reader.so_far()
    assert all(one.retain for one in got)
    assert {(one.topic, one.payload, one.qos) for one in got} == {
        *((f"r/kept/{qos}", b"%d" % qos, qos) for qos in (0, 1, 2)),
        *((f"r/replaced/{qos}", b"new", qos) for qos in (0, 1, 2)),
        ("r/last", b"x", 1),
    }
    assert len(got) == 7


def test_retained_messages_keep_their_properties_and_their_time(start_broker: StartBroker) -> None:
    broker = start_broker()
    sent = {"content_type": "text/plain", "user": [("k", "v"), ("k", "w")], "correlation_data": b"\0\1"}
    with opened(broker, "writer") as writer:
        published_at = time.time()
        writer.publish("r/long", b"x", 1, retain=True, properties=props(**sent, message_expiry=500))
        writer.publish("r/short", b"x", 1, retain=True, properties=props(message_expiry=1))
    broker.kill9()
    time.sleep(max(0.0, published_at + 1.2 - time.time()))
    broker.start()
    reader = Client(broker, "reader")
    reader.subscribe("r/#")
    (message,) = reader.so_far()
    assert message.topic == "r/long"
    waited_s = time.time() - published_at
    assert message.properties.pop("message_expiry") in range(math.floor(499 - waited_s), math.ceil(501 - waited_s))
    assert message.properties == sent


# Wills


@both_versions
def test_wills_of_clients_that_the_crash_cut_off(start_broker: StartBroker, version: int) -> None:
    broker = start_broker()
    subscriber(broker, "watcher", "will/#", version=version).drop()
    Client(broker, "left", version, will=Will("will/left", b"4", 1)).disconnect()
    Client(broker, "changed", version, will=Will("will/old", b"5", 1), **persistent(version)).disconnect()
    connected = [
        Client(broker, "clean", version, will=Will("will/clean", b"1", 1)),
        Client(broker, "kept", version, will=Will("will/kept", b"2", 2), **persistent(version)),
        Client(broker, "retained", version, will=Will("will/retained", b"3", 1, retain=True)),
        Client(broker, "changed", version, will=Will("will/changed", b"6", 1), **persistent(version)),
    ]
    assert all(client.so_far() == [] for client in connected)
    crash(broker)

    watcher = Client(broker, "watcher", version, **persistent(version))
    got = {(one.topic, one.payload, one.qos) for one in watcher.messages(4)}
    wanted = {("will/clean", b"1", 1), ("will/kept", b"2", 2), ("will/retained", b"3", 1), ("will/changed", b"6", 1)}
    assert got == wanted
    assert watcher.so_far() == []
    with opened(broker, "late", version) as late:
        late.subscribe("will/#")
        assert [(one.topic, one.retain) for one in late.so_far()] == [("will/retained", True)]
    crash(broker)  # each of them once
    watcher = Client(broker, "watcher", version, **persistent(version))
    assert watcher.so_far() == []


def test_a_delayed_will_waits_through_the_crash(start_broker: StartBroker) -> None:
    broker = start_broker()
    subscriber(broker, "watcher", "will/#").drop()

    def doomed(name: str, delay_s: int) -> Client:
        will = Will(f"will/{name}", b"gone", 1, properties=props(will_delay=delay_s, user=("of", name)))
        return Client(broker, name, will=will, **persistent(V5))

    dropped = doomed("dropped", 1)
    others = [doomed("cut-off", 2), doomed("back-in-time", 60), doomed("later", 600)]
    dropped.drop()  # its time runs from here, that of the others from the crash
    dropped_at = time.monotonic()
    assert all(client.so_far() == [] for client in others)
    broker.kill9()
    killed_at = time.monotonic()
    broker.start()
    back = Client(broker, "back-in-time", **persistent(V5))
    assert back.present
    watcher = Client(broker, "watcher", **persistent(V5))
    first = watcher.next_message()
    assert time.monotonic() - dropped_at > 0.9
    second = watcher.next_message()
    assert time.monotonic() - killed_at > 1.9
    assert (first.topic, second.topic) == ("will/dropped", "will/cut-off")
    assert first.properties == {"user": [("of", "dropped")]}
    assert watcher.so_far() == []
    back.drop()  # this time without a will
    crash(broker)
    watcher = Client(broker, "watcher", **persistent(V5))
    assert watcher.so_far() == []
