"""The process ends while messages are on their way: killed at any moment, or asked to stop. Nothing is missing then, at
QoS 2 nothing comes twice, and the order is kept."""

from __future__ import annotations

import random
import signal
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.conformance import wire
from tests.conformance.wire import V3, V5, Type, Will
from tests.raw import Client, opened, persistent, wait_until
from tests.streams import WINDOW, Publisher, Subscriber, finish, wait_for_more

if TYPE_CHECKING:
    from tests.conftest import StartBroker

CRASHES = 3


@pytest.mark.parametrize("qos", [1, 2])
def test_streams_go_on_through_crashes(start_broker: StartBroker, qos: int) -> None:
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    chance = random.Random(seed)
    broker = start_broker()
    subscriber = Subscriber(broker, "subscriber", qos)
    subscriber.start()
    assert subscriber.subscribed.wait(20)
    publishers = [Publisher(broker, f"publisher-{number}", qos) for number in range(3)]
    for publisher in publishers:
        publisher.start()
    for _ in range(CRASHES):
        wait_for_more(subscriber, publishers, chance.randint(1, 700))
        time.sleep(chance.random() * 0.005)  # not always right behind a delivery
        broker.kill9()
        broker.start()
    finish(subscriber, publishers)
    for publisher in publishers:
        got = subscriber.got[publisher.topic]
        assert (got if qos == 2 else list(dict.fromkeys(got))) == publisher.numbers  # QoS 1: by their first copies


def has_grown(items: list[bytes], count: int) -> bool:
    return len(items) >= count


def test_every_acknowledged_message_is_delivered_later(start_broker: StartBroker) -> None:
    """Nobody reads while publishers stream and the broker is killed at random moments, again and again."""
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    chance = random.Random(seed)
    broker = start_broker("[limits]\nqueue_messages_max = 1000000\n")
    with Client(broker, "reader", V5, **persistent(V5)) as reader:
        reader.subscribe("stream/#", 1)
    acknowledged: list[bytes] = []

    def stream(topic: str, client_round: int, version: int) -> None:
        sent: dict[int, bytes] = {}
        try:
            with Client(broker, topic, version) as client:
                for number in range(1, 60_000):
                    sent[number] = b"%s %d %d" % (topic.encode(), client_round, number)
                    client.send(client.packet(f"stream/{topic}", sent[number], 1, number))
                    if number > WINDOW:
                        answer = client.expect(Type.PUBACK)
                        assert answer.packet_id is not None
                        acknowledged.append(sent.pop(answer.packet_id))
        except ConnectionError:
            pass  # killed

    for client_round in range(CRASHES):
        enough = len(acknowledged) + chance.randint(1, 2000)
        threads = [
            threading.Thread(target=stream, args=(f"{number}", client_round, (V3, V5)[number % 2]), daemon=True)
            for number in range(4)
        ]
        for thread in threads:
            thread.start()
        wait_until(partial(has_grown, acknowledged, enough), "acknowledgements come")
        broker.kill9()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
        broker.start()

    got = []
    with Client(broker, "reader", V5, **persistent(V5)) as reader:
        assert reader.present
        while batch := reader.so_far():
            got += [message.payload for message in batch]
            reader.send(*(wire.ack(Type.PUBACK, message.packet_id or 0) for message in batch))
    assert len(acknowledged) > 0
    assert set(acknowledged) <= set(got)
    for topic in range(4):
        mine = [one for one in got if one.startswith(b"%d " % topic)]
        assert mine == sorted(mine, key=lambda one: tuple(int(word) for word in one.split())), "out of order"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_clean_end_tells_the_clients_and_keeps_all(start_broker: StartBroker, number: signal.Signals) -> None:
    broker = start_broker()
    reader = Client(broker, "reader", V5, **persistent(V5))
    reader.subscribe("t/#")
    reader.subscribe("will")
    writer = Client(broker, "writer", V3, will=Will("will", b"gone", 1))
    writer.publish_many("t/1", [b"1", b"2"], 2)
    writer.publish("t/kept", b"3", 1, retain=True)
    in_hand = reader.messages(3, acknowledge=False)
    broker.signal(number)
    farewell = reader.expect_end()
    assert farewell is not None
    assert farewell.reason == 0x8B
    assert writer.receive() is None  # 3.1.1 has no words for it
    assert broker.wait() == 0
    assert "Traceback" not in broker.log
    assert not list(broker.data.glob("*-wal")), "the store was not closed"

    broker.start()
    reader = Client(broker, "reader", V5, **persistent(V5))
    assert reader.present
    again = reader.messages(3)
    assert [(one.packet_id, one.payload, one.dup) for one in again] == [
        (one.packet_id, one.payload, True) for one in in_hand
    ]
    assert reader.next_message().topic == "will"  # its client did not take leave
    assert reader.so_far() == []
    with opened(broker, "late", V3) as late:
        late.subscribe("t/#")
        assert late.next_message().payload == b"3"


def test_a_clean_end_in_the_midst_of_a_stream(start_broker: StartBroker) -> None:
    broker = start_broker()
    subscriber = Subscriber(broker, "subscriber", 2)
    subscriber.start()
    assert subscriber.subscribed.wait(20)
    publisher = Publisher(broker, "publisher", 2)
    publisher.start()
    for _ in range(2):
        wait_for_more(subscriber, [publisher], 200)
        assert broker.terminate() == 0
        broker.start()
    finish(subscriber, [publisher])
    assert subscriber.got[publisher.topic] == publisher.numbers
