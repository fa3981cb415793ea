"""The flexible graph: what tables are learnt by messages, lookups, and what faults leave behind."""

from __future__ import annotations

import statistics
from collections import Counter
from random import Random

import msgspec
import pytest

from braidmq.host import Address, Message
from braidmq.keys import Key, Role, key_of, segment
from braidmq.overlay import Peer
from braidmq.overlay.flexible import SIZE_MAX, Contact, FlexibleGraph, is_better, subscribers_of
from braidmq.overlay.flexible.learning import CHECK_S, LEARNERS_MAX, ROUND_S, SLOW_ROUND_MAX_S
from braidmq.overlay.flexible.messages import ExchangeTables, Greet, NodeGone
from braidmq.overlay.flexible.node import EXPLORE_MAX_S
from braidmq.overlay.flexible.tables import OTHERS_MIN
from braidmq.overlay.peers import SUSPICION_S
from braidmq.overlay.ranges import Cut, RangeArrival, RangeDelivery
from braidmq.overlay.vectors import DIGITS_MAX
from braidmq.sim.checkers.flexible import entries_are_there, graph_is_whole, missing_part
from braidmq.sim.checkers.ring import lookups_end_at_owners
from braidmq.sim.engine import Constant, Network, Simulator
from braidmq.sim.layouts.flexible import lay_out
from braidmq.sim.layouts.skip_graph import vectors_of
from tests.simulated import FaultyNetwork, OverlayNetwork, flexible_of, two_faulty_minutes

TOPICS = 8
SIZE = 30
"""Small tables, so that not all nodes fit."""

QUIET_S = 2 * SUSPICION_S + CHECK_S
"""Long enough for all entries to be checked, and for the suspected to be trusted and learnt again."""

SLOW_CYCLE_S = 16 * SLOW_ROUND_MAX_S
"""In which a node that learns slowly has asked all nodes whose turn it is, in networks of these sizes."""


class FlexibleNetwork(OverlayNetwork[FlexibleGraph]):
    """Brokers with a few subscriptions each."""

    def __init__(self, seed: int, network: Network, size: int = SIZE) -> None:
        super().__init__(flexible_of(size), seed, network)

    def new_key(self) -> Key:
        self.keys_made += 1
        role = Role.SUBSCRIBER if self.sim.chance.random() < 0.8 else Role.PUBLISHER
        return key_of(f"t{self.sim.chance.randrange(TOPICS)}", role, "", f"b{self.keys_made:05}")

    def broken(self) -> list[str]:
        return graph_is_whole(list(self.overlays.values()))

    def unreached(self) -> list[str]:
        return lookups_end_at_owners(self.sim, list(self.overlays.values()), [self.new_key() for _ in range(4)])


def wrong_after_faults(seed: int, brokers: int = 12) -> list[str]:
    """What the checkers complain about after faults and churn."""
    network = FlexibleNetwork(seed, two_faulty_minutes())
    network.endure(brokers, QUIET_S + SLOW_CYCLE_S)
    return network.wrong()


def topics(brokers: int, keys: int, seed: int) -> dict[Address, list[Key]]:
    """Brokers that each take part in some topics."""
    chance = Random(seed)
    names = brokers * keys // 20
    return {
        broker: [
            key_of(f"t{topic:03}", Role.PUBLISHER if chance.random() < 0.1 else Role.SUBSCRIBER, "", f"b{broker:04}")
            for topic in chance.sample(range(names), keys)
        ]
        for broker in range(brokers)
    }


def test_what_is_learnt_by_messages_is_nearly_what_is_laid_out() -> None:
    wanted = topics(40, 3, 5)
    vectors = vectors_of(wanted, 7)
    network = FlexibleNetwork(1, Constant(0.02))
    for number, (address, mine) in enumerate(wanted.items()):
        network.sim.at(number * 0.2, lambda a=address, m=mine: network.start(a, m, vectors[a]))  # type: ignore[misc]
    network.sim.run(8 + QUIET_S)
    assert network.wrong() == []
    ideal = {
        key: node.table.contacts
        for graph in lay_out(Simulator(2), wanted, 7, SIZE).values()
        for key, node in graph.nodes.items()
    }
    missing = [
        missing_part(node, ideal[key]) for graph in network.overlays.values() for key, node in graph.nodes.items()
    ]
    assert sum(missing) / len(missing) < 0.02


def test_what_is_laid_out_is_the_best_there_is() -> None:
    graphs = lay_out(Simulator(2), topics(60, 2, 3), 4, size=20)
    assert graph_is_whole(list(graphs.values())) == []
    contacts = [node.contact for graph in graphs.values() for node in graph.nodes.values()]
    for graph in graphs.values():
        for node in graph.nodes.values():
            before = node.table.contacts
            assert not node.learn(contacts)
            assert not is_better(node.table, node.table.contacts, before)


def test_plain_tables_are_those_of_a_skip_graph() -> None:
    graphs = lay_out(sim := Simulator(2), topics(100, 2, 3), 4, 1000, is_ideal=lambda key: False)
    for graph in graphs.values():
        for node in graph.nodes.values():
            assert 0 < len(node.table) <= 2 * (1 + max(node.table.levels()))
    assert lookups_end_at_owners(sim, list(graphs.values()), [b"t001", b"t003\0x"]) == []


def test_a_small_topic_knows_all_its_subscribers_and_forgets_who_leaves() -> None:
    network = FlexibleNetwork(3, Constant(0.02))
    for address in range(24):
        network.start(address, [key_of("a", Role.SUBSCRIBER if address else Role.PUBLISHER, "", f"b{address:02}")])
    network.sim.run(60)
    low, high = segment("a", Role.SUBSCRIBER)
    publisher = network.overlays[0]
    assert len(publisher.view.inside(low, high, network.sim.now)) == 23
    network.lose_key(7)
    network.sim.run(network.sim.now + 1)
    gone = key_of("a", Role.SUBSCRIBER, "", "b07")
    assert all(
        node.table.get(gone) is None
        for address, graph in network.overlays.items()
        for node in graph.nodes.values()
        if address != 7
    )
    network.wanted[7].append(gone)
    network.join(7, gone)
    network.sim.run(network.sim.now + 30)
    assert len(publisher.view.inside(low, high, network.sim.now)) == 23
    publisher.forget(gone)
    assert len(publisher.view.inside(low, high, network.sim.now)) == 22


def test_a_publication_reaches_each_subscriber_once_and_a_small_topic_in_one_hop() -> None:
    wanted = topics(100, 2, 6)
    sim = Simulator(3)
    graphs = lay_out(sim, wanted, 6)
    deliveries: list[RangeArrival] = []
    ranges = {address: RangeDelivery(graph, deliveries.append) for address, graph in graphs.items()}
    for address, keys in wanted.items():
        for key in keys:
            low, high = subscribers_of(key)
            if low <= key < high:
                continue
            ranges[address].send(low, high, b"news", Cut.SFB)
            sim.run(sim.now + 10)
            expected = sorted(other for others in wanted.values() for other in others if low <= other < high)
            assert sorted(key for delivery in deliveries for key in delivery.keys) == expected
            assert {delivery.hops for delivery in deliveries} <= {0, 1}
            deliveries.clear()


def test_a_silent_host_is_dropped_with_all_its_nodes() -> None:
    network = FlexibleNetwork(4, Constant(0.02))
    for address in range(20):
        network.start(address, [network.new_key(), network.new_key()])
    network.sim.run(60)
    network.crash(5)
    network.sim.run(60 + QUIET_S)
    assert entries_are_there(list(network.overlays.values())) == []
    assert network.wrong() == []


def test_brokers_that_join_at_once_form_a_graph() -> None:
    network = FlexibleNetwork(3, FaultyNetwork(0.0))
    for address in range(32):
        network.start(address, [network.new_key(), network.new_key()])
    network.sim.run(QUIET_S)
    assert network.wrong() == []


def test_all_keys_but_one_leave_at_once() -> None:
    network = FlexibleNetwork(4, FaultyNetwork(0.0))
    for address in range(12):
        network.start(address, [network.new_key(), network.new_key()])
    network.sim.run(60)
    for address in range(12):
        for _ in range(2 if address else 1):
            network.lose_key(address)
    network.sim.run(60 + QUIET_S)
    assert network.wrong() == []
    assert sum(len(graph.nodes) for graph in network.overlays.values()) == 1


def test_who_lies_about_its_address_is_not_learnt() -> None:
    network = FlexibleNetwork(5, Constant(0.01))
    key = key_of("a", Role.SUBSCRIBER, "", "b0")
    network.start(0, [key])
    network.sim.run(1)
    graph, me = network.overlays[0], Contact(Peer(b"\xff\0", 9, 1), 1)
    assert isinstance(graph.learning.on_greet(8, Greet(key, me)), NodeGone)
    assert isinstance(graph.learning.on_exchange(8, ExchangeTables(key, me, 10, 10, ())), NodeGone)
    assert len(graph.nodes[key].table) == 0
    graph.learning.on_exchange(9, ExchangeTables(key, me, 10, 10, ()))
    assert graph.nodes[key].table.contacts == (me,)
    graph.learning.on_gone(8, NodeGone(me.peer))
    assert len(graph.nodes[key].table) == 1
    graph.learning.on_gone(9, NodeGone(me.peer))
    assert len(graph.nodes[key].table) == 0


def test_a_publisher_can_ask_at_once() -> None:
    network = FlexibleNetwork(6, Constant(0.02))
    for address in range(12):
        network.start(address, [key_of("a", Role.SUBSCRIBER if address else Role.PUBLISHER, "", f"b{address:02}")])
    network.sim.run(300)
    late = key_of("a", Role.SUBSCRIBER, "", "b99")
    network.start(99, [late])
    network.sim.run(303)
    publisher = network.overlays[0]
    publisher.forget(late)
    publisher.explore(publisher.view.own_keys[0])
    network.sim.run(304)
    assert late in [entry.peer.key for entry in publisher.view.entries]


def test_a_publisher_asks_again_after_a_pause_that_grows_while_it_finds_nothing() -> None:
    network = FlexibleNetwork(7, Constant(0.01))
    for address in range(6):
        network.start(address, [key_of("a", Role.SUBSCRIBER if address else Role.PUBLISHER, "", f"b{address:02}")])
    network.sim.run(1000)
    asked: list[float] = []

    def count(sender: Address, _to: Address, message: Message, _hops: int) -> None:
        if isinstance(message, ExchangeTables) and sender == 0:
            asked.append(network.sim.now)

    publisher, key = network.overlays[0], network.wanted[0][0]
    network.sim.on_message = count
    for hundredth in range(6000):
        network.sim.at(1000 + hundredth / 100, lambda: publisher.explore(key))
    network.sim.run(1004)
    assert len(asked) >= 3
    asked.clear()
    network.sim.run(1060)
    assert len(asked) <= 2 + 56 / EXPLORE_MAX_S + 56 / (SLOW_ROUND_MAX_S / 2)


def test_many_keys_of_a_broker_share_its_entries() -> None:
    network = FlexibleNetwork(8, Constant(0.01))
    for address in range(24):
        network.start(address, [key_of("a", Role.SUBSCRIBER, "", f"b{address:02}")])
    network.sim.run(20)
    mine = [key_of(f"m{number:02}", Role.SUBSCRIBER, "", "b00") for number in range(60)]
    asked = Counter[int]()

    def count(sender: Address, _to: Address, message: Message, _hops: int) -> None:
        if isinstance(message, ExchangeTables) and sender == 0:
            asked[int(network.sim.now)] += 1

    network.sim.on_message = count
    for key in mine:
        network.wanted[0].append(key)
        network.join(0, key)
    network.sim.run(20 + QUIET_S)
    assert network.wrong() == []
    assert max(asked.values()) <= len(mine) + 2 * LEARNERS_MAX / ROUND_S, "the first rounds come at once"
    assert statistics.mean(asked[second] for second in range(22, 42)) <= 2 * LEARNERS_MAX / ROUND_S
    tables = {key: node.table for key, node in network.overlays[0].nodes.items()}
    assert {table.others_max for table in tables.values()} == {OTHERS_MIN}
    assert len(tables.pop(network.wanted[0][0]).own_subscribers()) == 23, "its topic has them all"
    for table in tables.values():
        assert len(table) <= max(OTHERS_MIN, len(table.levels()) + 2)
    for key in mine[3:]:
        network.lose_key(0, key)
    network.sim.run(network.sim.now + QUIET_S)
    assert network.wrong() == []
    assert {node.table.others_max for node in network.overlays[0].nodes.values()} == {SIZE}
    assert {len(node.table) for node in network.overlays[0].nodes.values()} == {23}


def test_what_a_broker_was_before_its_restart_is_forgotten() -> None:
    network = FlexibleNetwork(9, Constant(0.01))
    for address in range(8):
        network.start(
            address, [key_of("a", Role.SUBSCRIBER, "", f"b{address}"), key_of("b", Role.PUBLISHER, "", f"b{address}")]
        )
    network.sim.run(60)
    before, other = network.wanted[3]
    assert any(node.table.get(before) for node in network.overlays[1].nodes.values())
    network.crash(3)
    network.start(3, [other])
    network.sim.run(90)
    assert entries_are_there(list(network.overlays.values())) == []


@pytest.mark.parametrize(
    "wrong",
    [
        ExchangeTables(b"a", Contact(Peer(b"b", 1), 1 << DIGITS_MAX), 60, 60, ()),
        ExchangeTables(b"a", Contact(Peer(b"b", 1), 5), 60, 60, (Contact(Peer(b"c", 2), -1),)),
        ExchangeTables(b"a", Contact(Peer(b"b", 1), 5), SIZE_MAX + 1, 60, ()),
        ExchangeTables(b"a", Contact(Peer(b"b", 1), 5), 60, 60, (Contact(Peer(b"c", 2), 7),) * (SIZE_MAX + 1)),
    ],
)
def test_what_cannot_be_is_not_let_in(wrong: ExchangeTables) -> None:
    good = ExchangeTables(b"a", Contact(Peer(b"b", 1), 5), 60, 60, (Contact(Peer(b"c", 2), 7),))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(good), type=ExchangeTables) == good
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(wrong), type=ExchangeTables)


def test_lookups_take_about_log2_n_hops() -> None:
    wanted = topics(512, 2, 8)
    sim = Simulator(9)
    graphs = lay_out(sim, wanted, 9)
    assert graph_is_whole(list(graphs.values())) == []
    hops: list[int] = []

    async def look(graph: FlexibleGraph, key: Key) -> None:
        found = await graph.lookup(key)
        assert found is not None
        hops.append(found.hops)

    for address, graph in graphs.items():
        sim.hosts[address].spawn(look(graph, b"t%03d" % sim.chance.randrange(50)))
    sim.run(60.0)
    assert len(hops) == 512
    assert sum(hops) / len(hops) < 5


@pytest.mark.parametrize("seed", range(3))
def test_a_graph_mends_itself(seed: int) -> None:
    assert wrong_after_faults(seed) == [], f"seed {seed}"


def test_what_is_learnt_only_in_a_slow_round_is_learnt() -> None:
    assert wrong_after_faults(116, 64) == []
