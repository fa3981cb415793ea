"""Clients that offer themselves as components, and clients that reserve them."""

from __future__ import annotations

import json
from typing import Any

from tests.conformance import wire
from tests.conformance.pair import Peer, Type
from tests.conformance.wire import V3, V5

from .sites import Sites

Answer = dict[str, Any]


EFFECT_S = 4.0
"""How long a subscription may take to have effect when a broker has just been lost."""


def patient_client(sites: Sites, site: int, name: str, topic_filter: str, **options: Any) -> Peer:
    """A client with a subscription, which the braid gets time for: it may be busy with a broker that is gone."""
    settle_s, sites.settle_s = sites.settle_s, EFFECT_S
    try:
        client = sites.client(site, name, **options)
        subscribe(client, topic_filter)
    finally:
        sites.settle_s = settle_s
    return client


def subscribe(client: Peer, topic_filter: str) -> None:
    """At QoS 1; what waited for the client may come first, and stays to be read."""
    packet_id = client.new_id()
    client.send(wire.subscribe(packet_id, (topic_filter, 1), version=client.version))
    assert client.pick(Type.SUBACK, packet_id).reasons == [1]


class Worker:
    """An instance of a component, which sees what is reserved of it."""

    def __init__(self, sites: Sites, site: int, name: str, component: str = "detector", **options: Any) -> None:
        self.name = name
        self.component = component
        self.client = patient_client(sites, site, name, f"$share/{component}/frames", **options)
        subscribe(self.client, f"$reservation/{component}")

    def load(self, qos: int = 1, **told: float) -> int | None:
        return self.client.publish(f"$load/{self.component}", json.dumps(told).encode(), qos=qos)

    def seen(self) -> list[tuple[str, bytes]]:
        got = [one for one in self.client.take() if one.type is Type.PUBLISH]
        for one in got:
            self.client.acknowledge(one)
        return [(one.topic or "", one.payload) for one in got]

    def events(self) -> list[Answer]:
        return [json.loads(payload) for topic, payload in self.seen() if topic == f"$reservation/{self.component}"]


class Device:
    """A client that reserves: by response topic, or as a client of 3.1.1 does."""

    def __init__(self, sites: Sites, site: int, name: str = "device", version: int = V5, **options: Any) -> None:
        self.name = name
        self.version = version
        self._number = 0
        topic = f"answers/{name}" if version == V5 else f"$reserved/{name}/#"
        self.client: Peer = patient_client(sites, site, name, topic, version=version, **options)

    def ask(self, topic: str, payload: bytes = b"", **asked: Any) -> int | None:
        """Publishes a request, at QoS 1; the reason code of its acknowledgement. The answer is in `answers`."""
        properties = b""
        if self.version == V5:
            self._number += 1
            correlation = self._number.to_bytes(2)
            properties = wire.props(response_topic=f"answers/{self.name}", correlation_data=correlation)
        body = payload or (json.dumps(asked).encode() if asked else b"")
        packet_id = self.client.new_id()
        self.client.send(
            wire.publish(topic, body, version=self.version, qos=1, packet_id=packet_id, properties=properties)
        )
        return self.client.pick(Type.PUBACK, packet_id).reason

    def answers(self) -> list[Answer]:
        got = [one for one in self.client.take() if one.type is Type.PUBLISH]
        for one in got:
            self.client.acknowledge(one)
        return [json.loads(one.payload) for one in got]

    def request(self, topic: str, payload: bytes = b"", **asked: Any) -> Answer:
        self.ask(topic, payload, **asked)
        answers = self.answers()
        assert len(answers) == 1, answers
        return answers[0]

    def reserve(self, component: str = "detector", **asked: Any) -> Answer:
        return self.request(f"$reserve/{component}", **asked)


VERSIONS = (V3, V5)
