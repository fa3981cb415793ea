"""Bayeux: who gets what, what the relays note, and what is left after faults."""

from __future__ import annotations

from functools import partial

import pytest

from braidmq.host import Address
from braidmq.overlay.skip_graph import Walk, id_of
from braidmq.pubsub.baselines.bayeux import Bayeux, BayeuxTree
from braidmq.pubsub.baselines.rendezvous_tree import LEASE_REFRESHES, REFRESH_S, TreeDelivery
from braidmq.sim.network import Constant, Duplication
from tests.pubsub.dht_network import DhtNetwork
from tests.simulated import FaultyNetwork

STILL = partial(Bayeux, refresh_s=None)


def settled(brokers: int, seed: int, subscribers: list[Address], publisher: Address) -> DhtNetwork[Bayeux]:
    network = DhtNetwork(Bayeux, brokers, seed).grow()
    network.subscribe("t", *subscribers)
    network.advertise("t", publisher)
    network.run(10)
    return network


def test_each_subscriber_gets_it_once_and_nobody_else() -> None:
    network = DhtNetwork(STILL, 200, 1).lay_out()
    wanted: dict[str, list[Address]] = {f"t{i}": list(range(i, 200, 20)) for i in range(20)}
    for topic, subscribers in wanted.items():
        network.subscribe(topic, *subscribers)
        network.advertise(topic, 7)
    network.run(10)
    for topic, subscribers in wanted.items():
        publications = network.publish(topic, 7, topic.encode())
        assert network.copies() == dict.fromkeys(subscribers, 1)
        assert {(got.topic, got.body, got.origin) for got in publications} == {(topic, topic.encode(), 7)}


def test_each_relay_notes_the_member_and_the_next_hop() -> None:
    network = DhtNetwork(STILL, 200, 2).lay_out()
    root = network.root_of("t")
    network.subscribe("t", 50)
    network.run(5)
    at: Address = root
    way = [at]
    while at != 50:
        at = network.methods[at].topics["t"].routes[50].to
        way.append(at)
    noted = [address for address, method in network.methods.items() if "t" in method.topics]
    assert sorted(map(int, noted)) == sorted(map(int, way))


def test_one_message_a_next_hop_however_many_members() -> None:
    network = DhtNetwork(STILL, 200, 3).lay_out()
    network.subscribe("t", *range(100))
    network.advertise("t", 150)
    network.run(5)
    sent: list[tuple[Address, Address]] = []
    network.sim.on_message = lambda by, to, message, _: sent.append((by, to)) if type(message) is TreeDelivery else None
    network.publish("t", 150)
    assert len(sent) == len(set(sent)) < 400
    assert network.copies() == dict.fromkeys(range(100), 1)


def test_the_mean_path_is_log2_n() -> None:
    network = DhtNetwork(STILL, 1024, 3).lay_out()
    hops: list[int] = []
    for number in range(60):
        topic = f"t{number}"
        network.subscribe(topic, *[(number * 17 + place * 101) % 1024 for place in range(1, 10)])
        network.advertise(topic, number * 17 % 1024)
    network.run(10)
    for number in range(60):
        hops += [got.hops for got in network.publish(f"t{number}", number * 17 % 1024)]
    assert len(hops) == 60 * 9
    assert 8.5 <= sum(hops) / len(hops) <= 12


def test_who_unsubscribes_is_struck_out_everywhere() -> None:
    network = DhtNetwork(STILL, 200, 4).lay_out()
    network.subscribe("t", 10, 20, 30)
    network.advertise("t", 1)
    network.run(5)
    network.do(20, network.methods[20].unsubscribe("t"))
    network.run(5)
    assert not any(20 in method.topics["t"].routes for method in network.methods.values() if "t" in method.topics)
    network.publish("t", 1)
    assert network.copies() == {10: 1, 30: 1}
    for address in (10, 30):
        network.do(address, network.methods[address].unsubscribe("t"))
    network.run(5)
    assert [address for address, method in network.methods.items() if method.topics] == [network.root_of("t")]


def test_a_late_tree_does_not_undo_a_later_wish() -> None:
    network = DhtNetwork(STILL, 64, 5).lay_out()
    network.subscribe("t", 9)
    network.run(5)
    root = network.methods[network.root_of("t")]
    note = root.topics["t"].routes[9]
    late = BayeuxTree("t", 9, note.number - 1, False, Walk(note.vector))
    assert root._update_route(late, note.to)
    assert root.topics["t"].routes[9] == note


def test_repeated_messages_are_delivered_once() -> None:
    network = DhtNetwork(Bayeux, 32, 8, Duplication(0.5, Constant(0.01))).grow()
    network.subscribe("t", 2, 3, 5, 7)
    network.advertise("t", 1)
    network.run(10)
    network.publish("t", 1)
    assert network.copies() == {2: 1, 3: 1, 5: 1, 7: 1}


def test_a_crash_of_a_relay_heals_within_the_refresh_period() -> None:
    network = settled(24, 11, [2, 3, 5, 7, 11, 13], 1)
    root = network.root_of("t")
    relays = [
        address
        for address, method in network.methods.items()
        if "t" in method.topics and not method.topics["t"].subscribed and address not in (1, root)
    ]
    network.crash(relays[0])
    network.run(REFRESH_S + 15)
    network.publish("t", 1)
    assert network.copies() == dict.fromkeys([2, 3, 5, 7, 11, 13], 1)


def test_a_crash_of_the_root_heals_within_the_refresh_period() -> None:
    network = DhtNetwork(Bayeux, 24, 12).grow()
    root = network.root_of("t")
    publisher, *subscribers = [address for address in range(24) if address != root][:8]
    network.subscribe("t", *subscribers)
    network.advertise("t", publisher)
    network.run(10)
    network.crash(root)
    network.run(REFRESH_S + 15)
    network.publish("t", publisher)
    assert network.copies() == dict.fromkeys(subscribers, 1)


def test_a_root_that_resigns_hands_its_members_over() -> None:
    network = settled(24, 13, [2, 3, 5, 7], 1)
    old = network.root_of("t")
    network.start(24, vector=id_of("t"))
    network.run(20)
    network.do(old, network.methods[old]._check_root("t", network.methods[old].topics["t"]))
    network.run(5)
    assert sorted(network.methods[24].topics["t"].routes) == [2, 3, 5, 7]
    network.publish("t", 1)
    assert network.copies() == {2: 1, 3: 1, 5: 1, 7: 1}


def test_what_is_not_renewed_is_forgotten() -> None:
    network = settled(16, 15, [3], 1)
    network.crash(3)
    network.do(1, network.methods[1].withdraw("t"))
    network.run((LEASE_REFRESHES + 1.5) * REFRESH_S)
    assert not any(method.topics for method in network.methods.values())


@pytest.mark.parametrize("seed", range(3))
def test_after_loss_repetition_and_churn_everybody_is_served(seed: int) -> None:
    network = DhtNetwork(Bayeux, 24, seed, FaultyNetwork(0.03, until=150.0)).grow()
    network.subscribe("t", *range(2, 24, 3))
    network.advertise("t", 1)
    network.run(20)
    network.crash(4)
    network.crash(5)
    network.start(24)
    network.do(8, network.methods[8].unsubscribe("t"))
    network.run(90 + 2 * REFRESH_S + 20)
    network.publish("t", 1)
    assert network.copies() == dict.fromkeys([2, 11, 14, 17, 20, 23], 1)
