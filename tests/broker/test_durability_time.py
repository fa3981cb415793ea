"""What the time does over a crash: messages and sessions go on expiring, and a delayed will comes when it is due."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import pytest

from tests.conformance.wire import V5, Will, props
from tests.raw import Client, crash, opened, payloads, persistent, subscriber

if TYPE_CHECKING:
    from tests.conftest import StartBroker


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
    watcher.drop()
    began_at = time.monotonic()
    crash(broker)
    for _ in range(15):  # it dies more often than every 3 s
        time.sleep(1.0)
        crash(broker)
        with Client(broker, "watcher", **persistent(V5)) as watcher:
            if watcher.so_far():
                break
    else:
        pytest.fail("a session of 3 s never ended")
    assert time.monotonic() - began_at > 2.5


def test_retained_messages_keep_their_properties_and_their_time(start_broker: StartBroker) -> None:
    broker = start_broker()
    sent = {"content_type": "text/plain", "user": [("k", "v"), ("k", "w")], "correlation_data": b"\0\1"}
    with opened(broker, "writer") as writer:
        begun_at = time.time()
        writer.publish("r/long", b"x", 1, retain=True, properties=props(**sent, message_expiry=500))
        writer.publish("r/short", b"x", 1, retain=True, properties=props(message_expiry=1))
        published_at = time.time()
    broker.kill9()
    time.sleep(max(0.0, published_at + 1.2 - time.time()))
    broker.start()
    reader = Client(broker, "reader")
    reader.subscribe("r/#")
    (message,) = reader.so_far()
    assert message.topic == "r/long"
    waited_s = time.time() - begun_at
    assert math.floor(499 - waited_s) <= message.properties.pop("message_expiry") <= 499
    assert message.properties == sent


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
