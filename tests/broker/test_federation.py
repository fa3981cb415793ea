"""The core knows other brokers by one protocol: alone it needs none of them, and it asks whatever federation it has."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

from braidmq.broker.federation import Alone, ScopeError
from braidmq.broker.message import Message, Reached
from braidmq.mqtt.packets import Publish, Will
from braidmq.mqtt.reasons import Reason
from tests.conformance import wire
from tests.conformance.pair import Type, World

NO_MATCHING_SUBSCRIBERS = 0x10
IMPLEMENTATION_SPECIFIC_ERROR = 0x83


class Noted(Alone):
    """Notes what the core asks of it."""

    def __init__(self) -> None:
        self.filters: list[tuple[str, bool]] = []
        self.sent: list[tuple[str, bool]] = []
        self.effective: list[Callable[[], None]] = []
        self.reached = Reached.NOBODY
        self.refuses_scope = False
        self.is_leaving = False

    def on_filter(self, topic_filter: str, wanted: bool) -> None:
        self.filters.append((topic_filter, wanted))

    def send(self, message: Message, is_new: bool) -> Reached:
        self.sent.append((message.topic, is_new))
        return self.reached

    def resolve_scope(self, packet: Publish | Will) -> None:
        if self.refuses_scope:
            raise ScopeError(Reason.IMPLEMENTATION_SPECIFIC_ERROR, "not here")

    def refusal_of(self, topic_filter: str) -> Reason | None:
        return Reason.TOPIC_FILTER_INVALID if topic_filter == "refused" else None

    def when_effective(self, filters: list[str], done: Callable[[], None]) -> None:
        self.effective.append(done)

    def begin_leaving(self) -> None:
        self.is_leaving = True


def test_the_core_loads_no_braid_and_no_overlay() -> None:
    code = (
        "import sys, braidmq.broker\n"
        "print(*sorted({'braid', 'overlay', 'pubsub', 'processing', 'server', 'config'}"
        " & {name.split('.')[1] for name in sys.modules if name.startswith('braidmq.')}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_broker_that_is_alone_waits_for_nobody() -> None:
    world = World()
    publisher, subscriber = world.client("p"), world.client("s")
    assert publisher.publish("t", b"1", 1) == NO_MATCHING_SUBSCRIBERS
    assert subscriber.subscribe("t", 1) == 1
    assert publisher.publish("t", b"2", 1, retain=True) == 0
    subscriber.expect_payloads(b"2")


def test_a_federation_is_told_of_filters_and_publications() -> None:
    world = World()
    noted = Noted()
    world.broker.federate(noted)
    client = world.client("c")
    client.send(wire.subscribe(1, ("a/+", 0)))
    client.expect_nothing()
    noted.effective.pop()()
    world.settle()
    client.expect(Type.SUBACK, packet_id=1)
    assert noted.filters == [("a/+", True)]
    client.unsubscribe("a/+")
    assert noted.filters == [("a/+", True), ("a/+", False)]
    noted.reached = Reached.SOMEBODY
    assert client.publish("b", b"1", 1, retain=True) == 0, "it is wanted elsewhere"
    assert client.publish("b", b"2", 1, retain=True) == 0
    assert noted.sent == [("b", True), ("b", False)]
    world.broker.shut_down()
    assert noted.is_leaving


def test_a_federation_refuses_scopes_and_filters() -> None:
    world = World()
    noted = Noted()
    world.broker.federate(noted)
    client = world.client("c")
    noted.refuses_scope = True
    scoped = wire.props(user=("scope", "x"))
    assert client.publish("b", b"1", 1, properties=scoped) == IMPLEMENTATION_SPECIFIC_ERROR
    assert noted.sent == []
    client.send(wire.subscribe(1, ("refused", 0)))
    noted.effective.pop()()
    world.settle()
    assert client.expect(Type.SUBACK, packet_id=1).reasons == [0x8F]
    assert noted.filters == []
