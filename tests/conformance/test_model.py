"""Random histories of several clients against a model of a broker that is small enough to be seen to be right.

The model knows subscriptions, retained messages and queues of kept sessions as plain dicts and lists, and matches
filters by their definition. Whatever the clients do, each must be sent exactly what the model says, in its order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from . import wire
from .pair import V3, V5, Peer, Received, Type, World
from .wire import props

CLIENTS = {"a": V3, "b": V5, "c": V5, "d": V3}
TOPICS = ("t", "t/u", "t/v", "u", "/t", "$x/t", "t/u/v")
FILTERS = ("t", "t/u", "t/+", "t/#", "#", "+", "+/u", "/+", "$x/#", "$x/t", "t/+/v", "+/+", "u")
KEPT_S = 1000

client_names = st.sampled_from(sorted(CLIENTS))
topics = st.sampled_from(TOPICS)
filters = st.sampled_from(FILTERS)
qualities = st.integers(0, 2)


@dataclass
class Wanted:
    """One publication that a client is to be sent."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    ids: list[int]
    """Sorted; the same identifier as often as subscriptions that match have it (§3.3.4)."""


@dataclass
class Subscription:
    qos: int
    no_local: bool = False
    as_published: bool = False
    identifier: int = 0


@dataclass
class Modelled:
    """What the model knows of one client."""

    kept: bool = False
    peer: Peer | None = None
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    queue: list[Wanted] = field(default_factory=list)


def matching(topic_filter: str, topic: str) -> bool:
    """§4.7, word for word."""
    if topic.startswith("$") and topic_filter[0] in "+#":
        return False

    def levels(wanted: list[str], given: list[str]) -> bool:
        if not wanted:
            return not given
        if wanted[0] == "#":
            return True
        return bool(given) and wanted[0] in ("+", given[0]) and levels(wanted[1:], given[1:])

    return levels(topic_filter.split("/"), topic.split("/"))


class Brokers(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.clients = {name: Modelled() for name in CLIENTS}
        self.retained: dict[str, tuple[bytes, int]] = {}
        self.count = 0

        for name in CLIENTS:
            self.connect(name, clean=True, kept=True)

    # What may happen

    @rule(name=client_names, clean=st.booleans(), kept=st.booleans())
    def connect(self, name: str, clean: bool, kept: bool) -> None:
        client, version = self.clients[name], CLIENTS[name]
        if version == V3:
            kept = not clean
        resumes = client.kept and not clean
        peer = self.world.peer(version)
        expiry = props(session_expiry=KEPT_S) if kept and version == V5 else b""
        connack = peer.connect(name, clean=clean, properties=expiry)
        if client.peer is not None:
            assert client.peer.link.closed
        assert connack.session_present == resumes
        if not resumes:
            client.subscriptions.clear()
            client.queue.clear()
        client.kept, client.peer = kept, peer
        self._read(name)

    @rule(name=client_names, politely=st.booleans())
    def leave(self, name: str, politely: bool) -> None:
        client = self.clients[name]
        if client.peer is None:
            return
        client.peer.disconnect() if politely else client.peer.drop()
        client.peer = None
        if not client.kept:
            client.subscriptions.clear()

    @rule(
        name=client_names, topic_filter=filters, qos=qualities, no_local=st.booleans(), exact=st.booleans(),
        identifier=st.integers(0, 3), handling=st.integers(0, 2)
    )  # fmt: skip
    def subscribe(
        self, name: str, topic_filter: str, qos: int, no_local: bool, exact: bool, identifier: int, handling: int
    ) -> None:
        client = self.clients[name]
        if client.peer is None:
            return
        if CLIENTS[name] == V3:
            no_local, exact, identifier, handling = False, False, 0, 0
        new = topic_filter not in client.subscriptions
        client.subscriptions[topic_filter] = Subscription(qos, no_local, exact, identifier)
        options = no_local << 2 | exact << 3 | handling << 4
        properties = props(subscription_id=identifier) if identifier else b""
        assert client.peer.subscribe(topic_filter, qos, options=options, properties=properties) == qos
        ids = [identifier] if identifier else []
        fetched = [
            Wanted(topic, payload, min(qos, published), True, ids)
            for topic, (payload, published) in self.retained.items()
            if matching(topic_filter, topic) and (handling == 0 or (handling == 1 and new))
        ]
        got = self._take(name)
        key = lambda one: one.topic  # noqa: E731
        assert [_seen(one) for one in sorted(got, key=key)] == sorted(fetched, key=key)

    @rule(name=client_names, topic_filter=filters)
    def unsubscribe(self, name: str, topic_filter: str) -> None:
        client = self.clients[name]
        if client.peer is None:
            return
        known = client.subscriptions.pop(topic_filter, None) is not None
        unsuback = client.peer.unsubscribe(topic_filter)
        assert unsuback.reasons == ([] if CLIENTS[name] == V3 else [0 if known else 0x11])

    @rule(name=client_names, topic=topics, qos=qualities, retain=st.booleans(), empty=st.booleans())
    def publish(self, name: str, topic: str, qos: int, retain: bool, empty: bool) -> None:
        client = self.clients[name]
        if client.peer is None:
            return
        self.count += 1
        payload = b"" if empty and retain else b"%d" % self.count
        reached = self._route(name, topic, payload, qos, retain)
        reason = self._publish(client.peer, topic, payload, qos, retain)
        if qos and CLIENTS[name] == V5:
            assert reason == (0 if reached else 0x10)
        for other in self.clients:
            self._read(other)

    @precondition(lambda self: any(not client.peer and client.kept for client in self.clients.values()))
    @rule(seconds=st.sampled_from((1, 2 * KEPT_S)))
    def wait(self, seconds: int) -> None:
        self.world.advance(seconds)
        if seconds > KEPT_S:
            for name, client in self.clients.items():
                if client.peer is None and CLIENTS[name] == V5:
                    client.kept = False
                    client.subscriptions.clear()
                    client.queue.clear()

    # What must come of it

    def _route(self, sender: str, topic: str, payload: bytes, qos: int, retain: bool) -> bool:
        if retain:
            self.retained.pop(topic, None)
            if payload:
                self.retained[topic] = (payload, qos)
        reached = False
        for name, client in self.clients.items():
            found = [one for key, one in client.subscriptions.items() if matching(key, topic)]
            found = [one for one in found if not (one.no_local and name == sender)]
            if not found or not (client.peer or client.kept):
                continue
            reached = True
            granted = min(qos, max(one.qos for one in found))
            flags = {retain and one.as_published for one in found}
            ids = sorted(one.identifier for one in found if one.identifier)
            wanted = Wanted(topic, payload, granted, max(flags), ids)
            if client.peer is not None or granted:
                client.queue.append(wanted)
        return reached

    def _publish(self, peer: Peer, topic: str, payload: bytes, qos: int, retain: bool) -> int | None:
        """PUBLISH with its hand-shake, where the publisher's own copy may come in between."""
        packet_id = peer.new_id() if qos else None
        peer.send(wire.publish(topic, payload, version=peer.version, qos=qos, packet_id=packet_id, retain=retain))
        if packet_id is None:
            return None
        answer = peer.pick(Type.PUBACK if qos == 1 else Type.PUBREC, packet_id)
        if qos == 2:
            peer.send(wire.ack(Type.PUBREL, packet_id))
            peer.pick(Type.PUBCOMP, packet_id)
        return answer.reason

    def _take(self, name: str) -> list[Received]:
        """Publications that have come, acknowledged to their end."""
        peer = self.clients[name].peer
        assert peer is not None
        got: list[Received] = []
        while new := peer.take():
            got += new
            for one in new:
                peer.acknowledge(one)
        return got

    def _read(self, name: str) -> None:
        client = self.clients[name]
        if client.peer is None:
            return
        got = [_seen(one) for one in self._take(name)]
        by_quality = [[one for one in got if one.qos == qos] for qos in range(3)]
        wanted = [[one for one in client.queue if one.qos == qos] for qos in range(3)]
        assert by_quality == wanted
        client.queue.clear()


def _seen(one: Received) -> Wanted:
    assert one.type is Type.PUBLISH
    assert not one.dup
    return Wanted(one.topic, one.payload, one.qos, one.retain, sorted(one.properties.get("subscription_id", [])))


TestBroker: Any = Brokers.TestCase
TestBroker.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
