"""The SUBACK's promise: whatever is published anywhere after it was sent reaches the subscriber, at QoS 0 too.

Others publish at the very moment of the SUBACK, and again a little later: brokers that have published the topic before
and know that nobody wanted it, and brokers that begin with it now. Others have subscribed before, and some have left.
"""

from __future__ import annotations

from random import Random

import pytest

from braidmq.braid.interest import agreement
from braidmq.braid.membership.home import HOME
from braidmq.host import Address, Message
from braidmq.keys import Role, segment
from braidmq.overlay.ranges import Deliver
from braidmq.pubsub.relay_free.signals import QUESTION
from braidmq.sim.network import Constant
from tests.conformance import wire
from tests.conformance.pair import Peer, Type
from tests.conformance.wire import V5

from .sites import Sites, payloads

METHODS = ["covers", "relayfree", "adaptive", "suzaku", "locality", "scribe", "bayeux", "canmc"]
FILTERS = ["t/k", "t/+", "t/#", "+/k", "#"]
CLUSTERS = ["", "a", "a/x", "a/y", "b", "b/z", "a/x/1", "c"]
EVERYBODY = segment(HOME, Role.SUBSCRIBER)
DELAYS_S = (0.0, 0.003, 0.02, 0.1, 1.0)
STEP_S = 0.001
SEEDS = range(8)


def tell(peer: Peer, packet: bytes) -> None:
    """What a client sends now; no time passes."""
    peer.connection.receive(packet)


def publish(peer: Peer, payload: bytes, topic: str = "t/k", qos: int = 0) -> None:
    tell(peer, wire.publish(topic, payload, version=V5, qos=qos, packet_id=peer.new_id() if qos else None))


def subscribe(sites: Sites, peer: Peer, topic_filter: str) -> float:
    """Until the SUBACK is there, and not a moment longer; how long that took."""
    began_at = sites.sim.now
    tell(peer, wire.subscribe(7, (topic_filter, 0), version=V5))
    while sites.sim.now < began_at + 5:
        if any(one.type is Type.SUBACK for one in peer.take()):
            return sites.sim.now - began_at
        sites.run(STEP_S)
    raise AssertionError("no SUBACK")


class Scene:
    """A braid in which some brokers have published a topic, and others will."""

    def __init__(self, method: str, seed: int) -> None:
        self.chance = chance = Random(seed)
        self.count = chance.randrange(3, 9)
        clusters = [chance.choice(CLUSTERS) for _ in range(self.count)]
        self.sites = Sites(self.count, seed, method=method, clusters=clusters)
        order = list(range(self.count))
        chance.shuffle(order)
        self.subscriber = self.sites.client(order[0], "subscriber")
        self.publishers = {number: self.sites.client(number, f"p{number}") for number in order[1:]}
        for number in order[1 : 1 + self.count // 2]:
            publish(self.publishers[number], b"%d early" % number)
        self.pause()

    def pause(self) -> None:
        self.sites.run(self.chance.choice([0.0, 0.005, 0.1, 4.0]))

    def others(self) -> None:
        """Some of the others subscribe, and some of them leave again."""
        for number in self.publishers:
            if self.chance.random() < 0.3:
                other = self.sites.client(number, f"o{number}")
                tell(other, wire.subscribe(7, (self.chance.choice(FILTERS), 0), version=V5))
                self.pause()
                if self.chance.random() < 0.6:
                    tell(other, wire.disconnect())
                    self.pause()

    def missing(self, topic_filter: str) -> list[bytes]:
        """What is published from the SUBACK on, and does not come."""
        subscribe(self.sites, self.subscriber, topic_filter)
        wanted = []
        passed_s = 0.0
        for delay_s in DELAYS_S:
            self.sites.run(delay_s - passed_s)
            passed_s = delay_s
            for number, publisher in self.publishers.items():
                wanted.append(b"%d after %g s" % (number, delay_s))
                publish(publisher, wanted[-1])
        self.sites.run(8)
        got = payloads(self.subscriber)
        assert len(got) == len({*got}), "something came twice"
        return [one for one in wanted if one not in got]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("topic_filter", ["t/k", "t/+", "#"])
def test_what_is_published_after_the_suback_arrives(method: str, topic_filter: str) -> None:
    for seed in SEEDS:
        scene = Scene(method, seed)
        if seed % 2:
            scene.others()
        assert scene.missing(topic_filter) == [], f"seed {seed}"


@pytest.mark.parametrize("method", ["covers", "relayfree", "adaptive", "suzaku", "locality"])
@pytest.mark.parametrize("topic_filter", ["t/k", "t/+"])
def test_brokers_that_have_just_entered_are_part_of_the_promise(method: str, topic_filter: str) -> None:
    for seed in SEEDS:
        scene = Scene(method, seed)
        sites, late = scene.sites, scene.count
        sites.clusters[late] = scene.chance.choice(CLUSTERS)
        sites.add(late)
        while not sites[late].braid.presence.is_in:
            sites.run(0.1)
        if seed % 2:
            scene.publishers[late] = sites.client(late, "late")
        else:
            scene.subscriber = sites.client(late, "late")
        assert scene.missing(topic_filter) == [], f"seed {seed}"


@pytest.mark.parametrize("method", ["covers", "relayfree", "adaptive", "locality"])
def test_a_publisher_of_qos_1_is_not_told_that_nobody_listens_after_the_suback(method: str) -> None:
    sites = Sites(6, method=method, clusters=["a", "a/x", "b", "b/y", "c", ""])
    publisher = sites.client(0, "p")
    assert publisher.publish("t/k", b"nobody", 1) == 0x10
    for number in (3, 5, 1, 2):
        subscriber = sites.client(number, "s")
        subscribe(sites, subscriber, "t/k")
        publish(publisher, b"somebody", qos=1)
        sites.run(1)
        assert publisher.expect(Type.PUBACK).reason == 0
        assert payloads(subscriber) == [b"somebody"]
        subscriber.disconnect()
        sites.run(40)
        assert publisher.publish("t/k", b"nobody", 1) == 0x10


def test_many_topics_take_a_new_shape_up_before_the_suback() -> None:
    sites = Sites(3, method="adaptive", network=Constant(0.01))
    publisher = sites.client(0, "p")
    topics = [f"t/{number}" for number in range(40)]
    for topic in topics:
        publish(publisher, b"early", topic)
    sites.run(20)
    subscriber = sites.client(2, "s")
    subscribe(sites, subscriber, "t/+")
    for topic in topics:
        publish(publisher, topic.encode(), topic)
    sites.run(1)
    assert sorted(payloads(subscriber)) == sorted(topic.encode() for topic in topics)


def test_a_broker_that_cannot_be_reached_does_not_keep_the_suback_back() -> None:
    sites = Sites(4, method="adaptive")
    sites[3].crash()
    subscriber = sites.client(1, "s")
    assert subscribe(sites, subscriber, "t/+") < agreement.AGREE_S + 3.0 + STEP_S


def test_a_shape_is_agreed_on_once() -> None:
    """By each broker that uses it; then a subscription waits for nothing but its own key."""
    sites = Sites(4, method="adaptive", network=Constant(0.01))
    publisher = sites.client(0, "p")
    publish(publisher, b"early")
    sites.run(5)
    subscriber = sites.client(1, "s")
    first_s = subscribe(sites, subscriber, "t/+")
    sites.run(1)
    asked: list[Address] = []

    def note(_sender: Address, to: Address, message: Message, _hops: int) -> None:
        nonlocal asked
        if isinstance(message, Deliver) and message.body[:1] == QUESTION:
            asked += [to for low, _ in message.ranges if EVERYBODY[0] <= low < EVERYBODY[1]]

    sites.sim.on_message = note
    assert subscribe(sites, subscriber, "u/+") < first_s
    assert asked == []
    subscribe(sites, subscriber, "u/+/v")
    assert {0, 2, 3} >= {*asked} != set()
