"""A topic that grows from few subscribers to many and back, while it is published: one hop, a tree, one hop again.

Whether subscribers are reached directly or by a tree is no mode that a topic has: it is what routing tables have room
for (Banno and Shudo 2019). So there is no moment of switching in which something could be lost; this test looks for it.
"""

from __future__ import annotations

import pytest

from braidmq.braid.membership.introducers import Introducers
from braidmq.overlay import Overlay
from braidmq.overlay.flexible import FlexibleGraph
from braidmq.overlay.vectors import DIGITS_MAX
from braidmq.pubsub.method import Publication
from tests.conformance.pair import Peer

from .sites import Site, Sites, payloads

TABLE_SIZE = 8
"""Room for a few subscribers beside the neighbours and one entry a level; not for all of these sites."""

SITES = 16
FEW = 3
TOPIC = "tide"
STEP_S = 0.3
"""Between two publications."""

PUBLICATIONS = 3
"""Between two that come or go."""


class SmallTables(Sites):
    """Sites with the adaptive method, whose tables hold little; it is noted how far publications came."""

    def __init__(self, count: int, seed: int) -> None:
        self.hops: list[tuple[int, int]] = []
        """The receiving site, and how far it was."""
        super().__init__(count, seed, method="adaptive")

    def overlay(self, site: Site, introducers: Introducers) -> Overlay:
        vector = self.sim.chance.getrandbits(DIGITS_MAX)
        return FlexibleGraph(site.host, vector, introducers, site.host.incarnation, TABLE_SIZE)

    def add(self, number: int, **options: object) -> Site:
        site = super().add(number, **options)
        take = site.braid.method.on_message

        def note(publication: Publication) -> None:
            if publication.topic == TOPIC:
                self.hops.append((number, publication.hops))
            take(publication)

        site.braid.method.on_message = note
        return site


class Stream:
    """A publisher that goes on, and subscribers that come and go; who must have what."""

    def __init__(self, sites: SmallTables) -> None:
        self.sites = sites
        self.publisher = sites.client(0, "publisher")
        self.number = 0
        self.there: dict[int, Peer] = {}
        self.must: dict[int, list[bytes]] = {}
        self.got: dict[int, list[bytes]] = {}

    def publish(self) -> None:
        payload = b"%d" % self.number
        self.number += 1
        assert self.publisher.publish(TOPIC, payload, 1) in (0, 0x10)
        for site in self.there:
            self.must[site].append(payload)
        for site, peer in self.there.items():
            self.got[site] += payloads(peer)

    def publish_some(self) -> None:
        for _ in range(PUBLICATIONS):
            self.publish()

    def come(self, site: int) -> None:
        peer = self.sites.client(site)
        peer.subscribe(TOPIC, 1)
        self.there[site] = peer
        self.must.setdefault(site, [])
        self.got.setdefault(site, [])

    def go(self, site: int) -> None:
        self.there.pop(site).unsubscribe(TOPIC)

    def farthest(self) -> tuple[int, int]:
        """The longest way of a publication that all are settled for, and how many the publisher's site sends itself."""
        self.sites.run(30.0)
        self.publish()
        self.sites.hops.clear()
        self.sites.sent.clear()
        self.publish()
        assert sorted(site for site, _ in self.sites.hops) == sorted(self.there)
        return max(hops for _, hops in self.sites.hops), sum(sender == 0 for sender, _ in self.sites.sent)


@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_is_lost_or_comes_twice_when_a_topic_grows_and_shrinks(seed: int) -> None:
    sites = SmallTables(SITES, seed)
    stream = Stream(sites)
    sites.settle_s = STEP_S
    everybody = list(range(1, SITES))
    for site in everybody[:FEW]:
        stream.come(site)
        stream.publish_some()
    assert stream.farthest() == (1, FEW)
    for site in everybody[FEW:]:
        stream.come(site)
        stream.publish_some()
    hops, sent = stream.farthest()
    assert hops > 1
    assert FEW < sent < len(everybody)
    for site in everybody[FEW:]:
        stream.go(site)
        stream.publish_some()
    assert stream.farthest() == (1, FEW)
    assert stream.got == stream.must
