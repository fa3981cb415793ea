"""The same braid in virtual time and on sockets: publications take the same hops, delivery by delivery.

Twelve brokers join one after the other, subscribe, and wait until their tables are what they should be; nothing here
knows which world it is in. Keys and membership vectors come from names, so the tables that a method strives for are the
same in both worlds, however chance and the clock have led there. Then hops are a function of the tables: each delivery
must have come as far in one world as in the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import pytest

from braidmq.braid.membership.introducers import Introducers
from braidmq.braid.node import build, messages_of
from braidmq.config.settings import BraidConfig
from braidmq.host import Host
from braidmq.keys import Role, key_of
from braidmq.overlay import Overlay
from braidmq.overlay.flexible import FlexibleGraph, FlexibleTable, learning
from braidmq.overlay.ranges import Cut, RangeDelivery
from braidmq.overlay.ring import NEIGHBOURS_MAX
from braidmq.overlay.skip_graph import SkipGraph
from braidmq.overlay.suzaku import Suzaku
from braidmq.pubsub.method import ProvenMethod, Publication
from braidmq.sim.checkers.ring import fingers_are_right, ring_is_closed_and_sorted
from braidmq.sim.checkers.skip_graph import levels_are_right
from braidmq.sim.trials.trial import Trial, play
from tests import scenarios

BROKERS = 12
WANTED = {"one": (7,), "few": (2, 5, 9), "many": (0, 1, 3, 4, 5, 6, 7, 8, 10, 11)}
"""By topic: who subscribes."""

PUBLISHERS = (1, 9)
"""Who publishes all of them; each is also a subscriber of one."""

SMALL = 7
"""Entries of a table that has no room for the subscribers of the topic with many."""

PERIOD_S = 0.05
"""How often tables are brought up to date here: a working braid need not hurry as a test must."""

POLL_S = 0.02
PROOF_S = 10.0

MethodName = Literal["adaptive", "relayfree", "suzaku", "locality"]


class Hop(NamedTuple):
    """A delivery: what, from whom, to whom, and how far it came."""

    body: str
    topic: str
    receiver: int
    hops: int


class Member:
    """One broker's part: the overlay and the method that `braidmq up` would build."""

    def __init__(self, hosts: Sequence[Host], number: int, config: BraidConfig) -> None:
        self.number = number
        self.host = hosts[number]
        self.name = f"b{number}"
        introducers = Introducers(self.host, [hosts[0].address] if number else [])
        introducers.may_be_used = True
        self.overlay, method = build(config, self.host, self.name, 0, introducers)
        assert isinstance(method, ProvenMethod)
        self.method = method
        self.got: list[Hop] = []
        method.on_message = self._on_message
        if isinstance(self.overlay, Suzaku):
            self.overlay.period_s = PERIOD_S

    async def enter(self) -> None:
        home = key_of("", Role.PUBLISHER, "", self.name)
        if self.number:
            await self.overlay.join(home)
        else:
            self.overlay.found(home)

    def _on_message(self, publication: Publication) -> None:
        self.got.append(Hop(publication.body.decode(), publication.topic, self.number, publication.hops))


def what_is_not_settled(overlays: Sequence[Overlay]) -> list[str]:
    """What is not yet in the tables as it will be for good."""
    graphs = [one for one in overlays if isinstance(one, SkipGraph)]
    if graphs:
        return levels_are_right(graphs)
    flexible = [one for one in overlays if isinstance(one, FlexibleGraph)]
    if flexible:
        return what_tables_lack(flexible)
    return what_fingers_lack([one for one in overlays if isinstance(one, Suzaku)])


def what_tables_lack(graphs: Sequence[FlexibleGraph]) -> list[str]:
    """Every table is the one that a node which has met all would choose."""
    nodes = [node for graph in graphs for node in graph.nodes.values()]
    wrong = ring_is_closed_and_sorted([node.base for node in nodes])
    contacts = [node.contact for node in nodes]
    for node in nodes:
        mine = node.table
        best = FlexibleTable(node.key, node.contact.vector, mine.size, mine.others_max)
        best.sticky = (node.base.left.key, node.base.right.key)
        best.learn(contacts)
        if mine.contacts != best.contacts:
            wrong.append(f"{node.key!r} has {len(mine.contacts)} entries that are not the best {len(best.contacts)}")
    return wrong


def what_fingers_lack(overlays: Sequence[Suzaku]) -> list[str]:
    """Fingers lead where they should, and every node knows those on the left of itself and of its fingers."""
    nodes = sorted((node for one in overlays for node in one.nodes.values()), key=lambda node: node.me.key)
    wrong = ring_is_closed_and_sorted([node.link for node in nodes]) + fingers_are_right(nodes)
    peers = [node.me for node in nodes]
    near = {
        peer: tuple(peers[index - step] for step in range(1, min(NEIGHBOURS_MAX, len(peers) - 1) + 1))
        for index, peer in enumerate(peers)
    }
    for node in nodes:
        if node.link.neighbours != near[node.me]:
            wrong.append(f"{node.me.key!r} has other neighbours")
        wrong += [
            f"{node.me.key!r} has other backups for {finger.peer.key!r}"
            for finger in (*node.forward, *node.backward)
            if finger.backups != near.get(finger.peer)
        ]
    return wrong


async def braid(hosts: Sequence[Host], config: BraidConfig) -> list[Hop]:
    """The scenario."""
    members = [Member(hosts, number, cluster_of(config, number)) for number in range(BROKERS)]
    for member in members:
        await member.enter()
    for topic, subscribers in WANTED.items():
        for number in subscribers:
            await members[number].method.subscribe(topic)
    for number in PUBLISHERS:
        for topic in WANTED:
            await members[number].method.advertise(topic)
    while what_is_not_settled([member.overlay for member in members]):
        await hosts[0].sleep(POLL_S)
    expected = 0
    for topic, subscribers in WANTED.items():
        for number in PUBLISHERS:
            publisher = members[number].method
            for sure in (False, True):
                while not publish(publisher, topic, f"from {number}", sure):
                    await hosts[0].sleep(POLL_S)
                expected += len(subscribers)
    while sum(len(member.got) for member in members) < expected:
        await hosts[0].sleep(POLL_S)
    return sorted(hop for member in members for hop in member.got)


def publish(method: ProvenMethod, topic: str, body: str, sure: bool) -> bool:
    """False if nobody is known to want it yet."""
    if sure:
        return method.publish_surely(topic, f"{body}, surely".encode(), PROOF_S, lambda _: None)
    return method.publish(topic, body.encode())


def cluster_of(config: BraidConfig, number: int) -> BraidConfig:
    cluster = f"cloud{number % 3}" if config.method == "locality" else ""
    return BraidConfig(method=config.method, table_size=config.table_size, cluster=cluster)


@pytest.mark.parametrize(
    ("method", "table_size", "farthest"),
    [
        ("adaptive", 60, {"one": 1, "few": 1, "many": 1}),
        ("adaptive", SMALL, {"one": 1, "few": 1, "many": 2}),
        ("relayfree", 60, {"one": 2, "few": 3, "many": 7}),
        ("suzaku", 60, {"one": 1, "few": 1, "many": 1}),
        ("locality", 60, {"one": 1, "few": 2, "many": 2}),
    ],
    ids=["adaptive", "adaptive-small", "relayfree", "suzaku", "locality"],
)
async def test_the_hops_are_the_same(
    method: MethodName, table_size: int, farthest: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning, "ROUND_S", PERIOD_S)
    monkeypatch.setattr(learning, "SLOW_ROUND_S", PERIOD_S)
    config = BraidConfig(method=method, table_size=table_size)
    simulated = scenarios.simulate(lambda hosts: braid(hosts, config), BROKERS).result
    real = (await scenarios.run_on_network(lambda hosts: braid(hosts, config), BROKERS, messages_of(method))).result
    assert isinstance(simulated, list)
    assert len(simulated) == sum(2 * len(PUBLISHERS) * len(subscribers) for subscribers in WANTED.values())
    assert simulated == real
    assert {topic: max(hop.hops for hop in simulated if hop.topic == topic) for topic in WANTED} == farthest


@pytest.mark.parametrize("method", ["adaptive", "relayfree", "suzaku", "locality"])
def test_a_trial_splits_ranges_as_a_broker_does(method: MethodName, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is found out about a method in trials is true of brokers only if both go the same way."""
    monkeypatch.setattr(learning, "ROUND_S", PERIOD_S)
    monkeypatch.setattr(learning, "SLOW_ROUND_S", PERIOD_S)
    cuts: set[Cut] = set()
    send = RangeDelivery.send

    def note(self: RangeDelivery, low: bytes, high: bytes, body: bytes, cut: Cut = Cut.SFB) -> int:
        cuts.add(cut)
        return send(self, low, high, body, cut)

    monkeypatch.setattr(RangeDelivery, "send", note)
    assert play(Trial(method=method, pattern="2x8x1", nodes=12)).figures.deliveries == 16
    of_trials = {*cuts}
    cuts.clear()
    scenarios.simulate(lambda hosts: braid(hosts, BraidConfig(method=method)), BROKERS)
    assert cuts == of_trials
    assert len(cuts) == 1
