"""What was acknowledged survives `kill -9`: real brokers are killed, and the next one on the same store is asked.

Most of these tests are scenarios: generators in which each `yield` is a crash, `kill -9` and a new start. All of them
run side by side on one broker, with client ids and topics of their own, so that a crash serves them all. What the time
does meanwhile is in `test_durability_time`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.conformance import wire
from tests.conformance.wire import V3, V5, Received, Type, Will, props
from tests.raw import Client, crash, opened, payloads, persistent, subscriber

if TYPE_CHECKING:
    from tests.conftest import Broker, StartBroker

Scenario = Callable[["Broker", str, int], Iterator[None]]
"""Called with the broker, a name that prefixes its client ids and topics, and the version of its clients."""

SCENARIOS: dict[str, tuple[Scenario, int]] = {}


def scenario(*versions: int) -> Callable[[Scenario], Scenario]:
    """Has the generator run once for each version."""

    def register(function: Scenario) -> Scenario:
        for version in versions:
            SCENARIOS[f"{function.__name__}-{ {V3: '3.1.1', V5: '5.0'}[version] }"] = function, version
        return function

    return register


def test_after_a_crash(start_broker: StartBroker, subtests: pytest.Subtests) -> None:
    """Runs all scenarios from crash to crash, and reports on each."""
    broker = start_broker()
    under_way = {name: function(broker, name, version) for name, (function, version) in SCENARIOS.items()}
    while under_way:
        for name, steps in list(under_way.items()):
            with subtests.test(name):
                going_on = False
                try:
                    going_on = next(steps, "over") is None
                finally:
                    if not going_on:
                        del under_way[name]
        if under_way:
            crash(broker)
    assert "Traceback" not in broker.log, broker.log


def numbered(*numbers: int) -> list[bytes]:
    return [b"%d" % number for number in range(*numbers)]


# Queues


@scenario(V3, V5)
def acknowledged_messages_wait_for_an_offline_session(broker: Broker, name: str, version: int) -> Iterator[None]:
    subscriber(broker, name, f"{name}/#", version=version).drop()
    with opened(broker, f"{name}-writer", version) as writer:
        for qos in (1, 2):
            writer.publish_many(f"{name}/{qos}", numbered(600), qos)
    yield
    reader = Client(broker, name, version, **persistent(version))
    assert reader.present
    got = reader.messages(1200)
    assert [(one.topic, one.qos) for one in got] == [(f"{name}/1", 1)] * 600 + [(f"{name}/2", 2)] * 600
    assert payloads(got) == numbered(600) * 2
    assert reader.so_far() == []
    yield  # nor does any of it come back
    reader = Client(broker, name, version, **persistent(version))
    assert reader.present
    assert reader.so_far() == []


@scenario(V5)
def a_queued_message_keeps_all_that_it_had(broker: Broker, name: str, version: int) -> Iterator[None]:
    away = subscriber(broker, name)
    assert away.subscribe(f"{name}/größe/+", 2 | 8, identifier=5) == 2  # 8: Retain As Published
    assert away.subscribe(f"{name}/größe/#", 1, identifier=268_435_455) == 1
    away.drop()
    payload = bytes(range(256)) * 2048
    sent = {
        "payload_format": 0,
        "content_type": "application/x-test",
        "response_topic": "answers/here",
        "correlation_data": b"\x00\xff\x01",
        "user": [("b", "1"), ("a", "2"), ("b", "1")],
    }
    with opened(broker, f"{name}-writer") as writer:
        published_at = time.time()
        properties = props(**sent, message_expiry=1000)
        assert writer.publish(f"{name}/größe/1", payload, 2, retain=True, properties=properties) == 0
    yield
    reader = Client(broker, name, **persistent(V5))
    message = reader.next_message()
    assert (message.topic, message.qos, message.retain, message.dup) == (f"{name}/größe/1", 2, True, False)
    assert message.payload == payload
    assert sorted(message.properties.pop("subscription_id")) == [5, 268_435_455]
    expiry_s = message.properties.pop("message_expiry")
    assert 1000 - (time.time() - published_at) - 1.5 <= expiry_s <= 1000
    assert message.properties == sent
    assert reader.so_far() == []


@scenario(V3, V5)
def messages_in_flight_are_sent_again_as_they_were(broker: Broker, name: str, version: int) -> Iterator[None]:
    reader = subscriber(broker, name, name, version=version)
    writer = Client(broker, f"{name}-writer", version)
    writer.publish_many(name, numbered(20), 1)
    writer.publish_many(name, numbered(20, 40), 2)
    first = reader.messages(40, acknowledge=False)
    for message in (first[3], first[0]):
        reader.acknowledge(message)
    reader.so_far()  # the broker has both acknowledgements
    yield
    unacknowledged = {message.packet_id: message for message in first[1:3] + first[4:]}
    reader = Client(broker, name, version, **persistent(version))
    assert reader.present
    with opened(broker, f"{name}-writer", version) as writer:
        writer.publish(name, b"new", 1)
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


@scenario(V5)
def a_smaller_window_after_the_crash_is_kept(broker: Broker, name: str, version: int) -> Iterator[None]:
    reader = subscriber(broker, name, name)
    with opened(broker, f"{name}-writer") as writer:
        writer.publish_many(name, numbered(10), 1)
    reader.messages(10, acknowledge=False)
    yield
    narrow = props(session_expiry=3600, receive_maximum=2)
    reader = Client(broker, name, clean=False, properties=narrow)
    got: list[Received] = []
    while len(got) < 10:
        window = reader.so_far()
        assert 1 <= len(window) <= 2
        got += window
        for message in window:
            reader.acknowledge(message)
    assert payloads(got) == numbered(10)


# Exchanges of QoS 2 that the crash cut in half


@scenario(V3, V5)
def half_done_qos_2_towards_a_client(broker: Broker, name: str, version: int) -> Iterator[None]:
    reader = subscriber(broker, name, name, version=version)
    with opened(broker, f"{name}-writer", version) as writer:
        writer.publish_many(name, [b"untouched", b"received", b"released", b"hurried", b"done"], 2)
    untouched, received, released, hurried, done = reader.messages(5, acknowledge=False)
    assert hurried.packet_id
    reader.acknowledge(done)
    for message in (received, released):
        assert message.packet_id
        reader.send(wire.ack(Type.PUBREC, message.packet_id))
        reader.find(Type.PUBREL, message.packet_id)
    reader.so_far()
    reader.send(wire.ack(Type.PUBREC, hurried.packet_id))  # the broker dies with it in hand, or just before
    yield
    reader = Client(broker, name, version, **persistent(version))
    assert reader.present
    packets = reader.so_far()
    again = {packet.packet_id: packet for packet in packets}
    assert len(again) == len(packets)
    assert set(again) == {untouched.packet_id, received.packet_id, released.packet_id, hurried.packet_id}
    assert again[received.packet_id].type is again[released.packet_id].type is Type.PUBREL
    assert again[untouched.packet_id].payload == b"untouched"
    for packet_id, packet in again.items():
        assert packet_id is not None
        if packet.type is Type.PUBLISH:
            assert packet.dup
            reader.acknowledge(packet)
        else:
            reader.send(wire.ack(Type.PUBCOMP, packet_id))
    assert reader.so_far() == []
    yield
    reader = Client(broker, name, version, **persistent(version))
    assert reader.so_far() == []


@scenario(V3, V5)
def half_done_qos_2_from_a_client(broker: Broker, name: str, version: int) -> Iterator[None]:
    """A second copy after the crash is not a second message, for as long as the packet id is in use."""
    subscriber(broker, name, name, version=version).drop()
    writer = Client(broker, f"{name}-writer", version, **persistent(version))
    for packet_id, payload in ((7, b"seven"), (8, b"eight"), (9, b"nine")):
        writer.send(writer.packet(name, payload, 2, packet_id))
        writer.find(Type.PUBREC, packet_id)
    writer.send(wire.ack(Type.PUBREL, 9))
    writer.find(Type.PUBCOMP, 9)
    yield
    writer = Client(broker, f"{name}-writer", version, **persistent(version))
    assert writer.present
    writer.send(writer.packet(name, b"seven", 2, 7, dup=True))
    assert writer.find(Type.PUBREC, 7).reason < 0x80
    for packet_id in (7, 8):
        writer.send(wire.ack(Type.PUBREL, packet_id))
        assert writer.find(Type.PUBCOMP, packet_id).reason == 0
    yield
    writer = Client(broker, f"{name}-writer", version, **persistent(version))
    writer.send(wire.ack(Type.PUBREL, 7))
    assert writer.find(Type.PUBCOMP, 7).reason == (0x92 if version == V5 else 0)
    writer.send(writer.packet(name, b"seven again", 2, 7))  # the id is free: a new message
    writer.find(Type.PUBREC, 7)
    reader = Client(broker, name, version, **persistent(version))
    assert payloads(reader.messages(4)) == [b"seven", b"eight", b"nine", b"seven again"]
    assert reader.so_far() == []


# Subscriptions and sessions


@scenario(V5)
def subscriptions_keep_their_options(broker: Broker, name: str, version: int) -> Iterator[None]:
    reader = subscriber(broker, name)
    assert reader.subscribe(f"{name}/id", 0, identifier=1) == 0
    assert reader.subscribe(f"{name}/id", 2, identifier=42) == 2  # replaced
    assert reader.subscribe(f"{name}/own/#", 1 | 4) == 1  # 4: No Local
    assert reader.subscribe(f"{name}/kept/+", 0 | 8) == 0  # 8: Retain As Published
    assert reader.subscribe(f"$share/group/{name}/work/#", 1, identifier=3) == 1
    assert reader.subscribe(f"{name}/gone", 1) == 1
    reader.unsubscribe(f"{name}/gone")
    yield
    reader = Client(broker, name, **persistent(V5))
    assert reader.present
    with opened(broker, f"{name}-writer") as writer:
        writer.publish(f"{name}/gone", b"", 1)
        writer.publish(f"{name}/id", b"1", 2)
        writer.publish(f"{name}/kept/1", b"2", 1, retain=True)
        writer.publish(f"{name}/work/1", b"3", 2)
    assert reader.publish(f"{name}/own/1", b"not for me", 1) == 0x10
    got = reader.messages(3)
    assert [(one.topic, one.qos, one.retain, one.properties) for one in got] == [
        (f"{name}/id", 2, False, {"subscription_id": [42]}),
        (f"{name}/kept/1", 0, True, {}),
        (f"{name}/work/1", 1, False, {"subscription_id": [3]}),
    ]
    assert reader.so_far() == []


@scenario(V3, V5)
def what_had_ended_stays_ended(broker: Broker, name: str, version: int) -> Iterator[None]:
    for client_id in (f"{name}-restarted", f"{name}-left"):
        subscriber(broker, client_id, name, version=version).drop()
    with opened(broker, f"{name}-writer", version) as writer:
        writer.publish(name, b"old", 1)
    Client(broker, f"{name}-restarted", version).disconnect()  # a clean session takes the place of the old one
    ended = [f"{name}-restarted"]
    if version == V5:
        left = Client(broker, f"{name}-left", **persistent(V5))
        left.send(wire.disconnect(0, props(session_expiry=0)))
        left.expect_end()
        ended.append(f"{name}-left")
    yield
    for client_id in ended:
        client = Client(broker, client_id, version, **persistent(version))
        assert not client.present
        with opened(broker, f"{name}-writer", version) as writer:
            writer.publish(name, b"new", 1)
        assert client.so_far() == []


# Shared subscriptions


@scenario(V5)
def a_shared_queue_is_given_out_once(broker: Broker, name: str, version: int) -> Iterator[None]:
    for member in ("a", "b"):
        subscriber(broker, f"{name}-{member}", f"$share/g/{name}").disconnect()
    with opened(broker, f"{name}-writer") as writer:
        writer.publish_many(name, numbered(50), 1)
        writer.publish_many(name, numbered(50, 100), 2)
    yield
    clients = [Client(broker, f"{name}-{member}", **persistent(V5)) for member in ("a", "b")]
    assert all(client.present for client in clients)
    got = []
    for client in clients:
        for message in client.so_far():
            assert not message.dup
            client.acknowledge(message)
            got.append(int(message.payload))
    assert sorted(got) == list(range(100))
    assert all(client.so_far() == [] for client in clients)


@scenario(V5)
def what_a_member_had_in_hand_is_not_lost(broker: Broker, name: str, version: int) -> Iterator[None]:
    """Both members were connected and had acknowledged some; after the crash the rest is for whoever comes first."""
    members = {member: subscriber(broker, f"{name}-{member}", f"$share/g/{name}") for member in ("a", "b")}
    with opened(broker, f"{name}-writer") as writer:
        writer.publish_many(name, numbered(40), 1)
    taken = {member: client.messages(20, acknowledge=False) for member, client in members.items()}
    for member, client in members.items():
        for message in taken[member][:5]:
            client.acknowledge(message)
        client.so_far()
    yield
    left = [payload for member in members for payload in payloads(taken[member][5:])]
    back = [Client(broker, f"{name}-{member}", **persistent(V5)) for member in members]
    assert sorted(payloads(back[0].messages(30))) == sorted(left)
    assert [client.so_far() for client in back] == [[], []]


# Retained messages and wills


@scenario(V3, V5)
def retained_messages(broker: Broker, name: str, version: int) -> Iterator[None]:
    with opened(broker, f"{name}-writer", version) as writer:
        for qos in (0, 1, 2):
            writer.publish(f"{name}/kept/{qos}", b"%d" % qos, qos, retain=True)
            writer.publish(f"{name}/replaced/{qos}", b"old", 2, retain=True)
            writer.publish(f"{name}/replaced/{qos}", b"new", qos, retain=True)
            writer.publish(f"{name}/deleted/{qos}", b"x", 1, retain=True)
            writer.publish(f"{name}/deleted/{qos}", b"", qos, retain=True)
        writer.publish(f"{name}/last", b"x", 1, retain=True)
    yield
    reader = Client(broker, name, version)
    reader.subscribe(f"{name}/#", 2)
    got = reader.so_far()
    assert all(one.retain for one in got)
    assert {(one.topic, one.payload, one.qos) for one in got} == {
        *((f"{name}/kept/{qos}", b"%d" % qos, qos) for qos in (0, 1, 2)),
        *((f"{name}/replaced/{qos}", b"new", qos) for qos in (0, 1, 2)),
        (f"{name}/last", b"x", 1),
    }
    assert len(got) == 7


@scenario(V3, V5)
def wills_of_clients_that_the_crash_cut_off(broker: Broker, name: str, version: int) -> Iterator[None]:
    def doomed(which: str, payload: bytes, qos: int, retain: bool = False, kept: bool = False) -> Client:
        will = Will(f"{name}/{which}", payload, qos, retain)
        return Client(broker, f"{name}-{which}", version, will=will, **(persistent(version) if kept else {}))

    subscriber(broker, name, f"{name}/#", version=version).drop()
    doomed("left", b"0", 1).disconnect()
    doomed("changed", b"1", 1, kept=True).disconnect()
    connected = [
        doomed("changed", b"2", 1, kept=True),
        doomed("clean", b"3", 1),
        doomed("kept", b"4", 2, kept=True),
        doomed("retained", b"5", 1, retain=True),
    ]
    assert all(client.so_far() == [] for client in connected)
    yield
    watcher = Client(broker, name, version, **persistent(version))
    got = {(one.topic, one.payload, one.qos) for one in watcher.messages(4)}
    wanted = {("changed", b"2", 1), ("clean", b"3", 1), ("kept", b"4", 2), ("retained", b"5", 1)}
    assert got == {(f"{name}/{which}", payload, qos) for which, payload, qos in wanted}
    assert watcher.so_far() == []
    with opened(broker, f"{name}-late", version) as late:
        late.subscribe(f"{name}/#")
        assert [(one.topic, one.retain) for one in late.so_far()] == [(f"{name}/retained", True)]
    yield  # each of them once
    watcher = Client(broker, name, version, **persistent(version))
    assert watcher.so_far() == []
