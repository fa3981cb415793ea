"""Publishers and subscribers that go on, whatever happens to the broker, as the protocol tells them to.

They come back to their sessions and send again what was not acknowledged. If the broker does its part, then nothing is
missing in the end, and at QoS 2 nothing has come twice.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from contextlib import suppress
from typing import TYPE_CHECKING

from tests.conformance import wire
from tests.conformance.wire import V5, Received, Type
from tests.raw import Client, persistent, wait_until

if TYPE_CHECKING:
    from tests.conftest import Broker

WINDOW = 32
"""Publications that a publisher has under way."""

RETRY_S = 0.05
"""How long a client waits before it tries again what did not work."""


class Peer(threading.Thread):
    """A client with a session of its own that comes back after each crash, in a thread."""

    def __init__(self, broker: Broker, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.broker = broker
        self.finished = threading.Event()
        self.wrong: BaseException | None = None
        self._known = False

    def run(self) -> None:
        try:
            while not self.finished.is_set():
                with suppress(ConnectionError):  # the broker is down, or goes down
                    self._visit()
                time.sleep(RETRY_S)
        except BaseException as wrong:
            self.wrong = wrong

    def _visit(self) -> None:
        with Client(self.broker, self.name, **persistent(V5)) as client:
            if not client.accepted:
                assert client.connack.reason == 0x88, f"{client.connack}"  # the broker could not keep a session
                return
            assert client.present == self._known, "the session was lost, or came from nowhere"
            self._known = True
            self.talk(client)

    def talk(self, client: Client) -> None:
        """Returns when the connection has ended, or all is done."""
        raise NotImplementedError

    def check(self) -> None:
        if self.wrong is not None:
            raise self.wrong


class Publisher(Peer):
    """Publishes 0, 1, 2, … to a topic of its own until it is told to stop, and then finishes what is under way."""

    def __init__(self, broker: Broker, name: str, qos: int) -> None:
        super().__init__(broker, name)
        self.qos = qos
        self.stop = threading.Event()
        self.count = 0
        self.under_way: dict[int, bytes | None] = {}
        """By packet id: the payload, or None once it has come to the PUBREL."""
        self.refused: deque[bytes] = deque()
        """What the broker could not take; it is published anew."""
        self._last_id = 0

    @property
    def topic(self) -> str:
        return f"stream/{self.name}"

    @property
    def numbers(self) -> list[int]:
        """What was published, in order."""
        return list(range(self.count))

    def talk(self, client: Client) -> None:
        for packet_id, payload in self.under_way.items():
            client.send(self.packet(client, packet_id, payload, dup=True))
        while True:
            while len(self.under_way) < WINDOW and (payload := self.next_payload()) is not None:
                self._last_id = self._last_id % 65_535 + 1
                self.under_way[self._last_id] = payload
                client.send(self.packet(client, self._last_id, payload))
            if not self.under_way:
                self.finished.set()
                return
            packet = client.receive()
            if packet is None or packet.type is Type.DISCONNECT:
                return
            self.on_packet(client, packet)

    def next_payload(self) -> bytes | None:
        if self.refused:
            return self.refused.popleft()
        if self.stop.is_set():
            return None
        self.count += 1
        return b"%d" % (self.count - 1)

    def packet(self, client: Client, packet_id: int, payload: bytes | None, dup: bool = False) -> bytes:
        if payload is None:
            return wire.ack(Type.PUBREL, packet_id)
        return client.packet(self.topic, payload, self.qos, packet_id, dup=dup)

    def on_packet(self, client: Client, packet: Received) -> None:
        assert packet.packet_id is not None
        if packet.reason == 0x97:  # refused: the broker could not keep it
            payload = self.under_way.pop(packet.packet_id)
            assert payload is not None
            self.refused.append(payload)
            time.sleep(RETRY_S)
            return
        assert packet.reason in (0, 0x92), packet  # 0x92: the PUBREL of an exchange that the broker had finished
        if packet.type is Type.PUBREC:
            self.under_way[packet.packet_id] = None
            client.send(wire.ack(Type.PUBREL, packet.packet_id))
        else:
            assert packet.type is (Type.PUBACK if self.qos == 1 else Type.PUBCOMP)
            del self.under_way[packet.packet_id]


class Subscriber(Peer):
    """Takes every publication, and does not take one of QoS 2 for new that it has an open exchange for."""

    def __init__(self, broker: Broker, name: str, qos: int) -> None:
        super().__init__(broker, name)
        self.qos = qos
        self.subscribed = threading.Event()
        self.open_ids: set[int] = set()
        self.got: defaultdict[str, list[int]] = defaultdict(list)
        self.count = 0

    def talk(self, client: Client) -> None:
        if not self.subscribed.is_set():
            assert client.subscribe("stream/#", self.qos) == self.qos
            self.subscribed.set()
        while (packet := client.receive(timeout_s=60)) is not None and packet.type is not Type.DISCONNECT:
            assert packet.packet_id is not None
            if packet.type is Type.PUBREL:
                self.open_ids.discard(packet.packet_id)
                client.send(wire.ack(Type.PUBCOMP, packet.packet_id))
                continue
            assert packet.type is Type.PUBLISH
            if packet.packet_id in self.open_ids:
                assert packet.dup
            else:
                self.got[packet.topic].append(int(packet.payload))
                self.count += 1
            if self.qos == 2:
                self.open_ids.add(packet.packet_id)
            client.send(wire.ack(Type.PUBACK if self.qos == 1 else Type.PUBREC, packet.packet_id))


def wait_for_more(subscriber: Subscriber, publishers: list[Publisher], count: int) -> None:
    wanted = subscriber.count + count

    def is_there() -> bool:
        for peer in (subscriber, *publishers):
            peer.check()
        return subscriber.count >= wanted

    wait_until(is_there, "messages flow")


def finish(subscriber: Subscriber, publishers: list[Publisher]) -> None:
    """The publishers bring to an end what they have begun, and the subscriber gets all of it."""
    for publisher in publishers:
        publisher.stop.set()

    def is_complete() -> bool:
        for peer in (subscriber, *publishers):
            peer.check()
        return all(
            publisher.finished.is_set() and set(publisher.numbers) <= set(subscriber.got[publisher.topic])
            for publisher in publishers
        )

    wait_until(is_complete, "every message is there")
    subscriber.finished.set()
    assert subscriber.broker.terminate() == 0
    for peer in (subscriber, *publishers):
        peer.join(20)
        peer.check()
