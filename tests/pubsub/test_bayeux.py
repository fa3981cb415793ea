"""Bayeux: who gets what, what the relays note, and what is left after faults."""

from __future__ import annotations

from functools import partial

import pytest

from braidmq.host import Address
from braidmq.overlay.skip_graph import Walk, id_of
from braidmq.pubsub.baselines.bayeux import Bayeux, BayeuxTree
from braidmq.pubsub.baselines.rendezvous_tree import LEASE_REFRESHES, REFRESH_S, TreeDelivery
from braidmq.sim.network import Constant, Duplication
from tests.overlay.test_ring import Rough
from tests.pubsub.village import Village

STILL = partial(Bayeux, refresh_s=None)


def settled(brokers: int, seed: int, subscribers: list[Address], publisher: Address) -> Village[Bayeux]:
    village = Village(Bayeux, brokers, seed).grow()
    village.subscribe("t", subscribers)
    village.advertise("t", publisher)
    village.run(10)
    return village


def test_each_subscriber_gets_it_once_and_nobody_else() -> None:
    village = Village(STILL, 200, 1).lay_out()
    wanted: dict[str, list[Address]] = {f"t{i}": list(range(i, 200, 20)) for i in range(20)}
    for topic, subscribers in wanted.items():
        village.subscribe(topic, subscribers)
        village.advertise(topic, 7)
    village.run(10)
    for topic, subscribers in wanted.items():
        publications = village.publish(topic, 7, topic.encode())
        assert village.receivers() == dict.fromkeys(subscribers, 1)
        assert {(got.topic, got.body, got.origin) for got in publications} == {(topic, topic.encode(), 7)}


def test_each_relay_notes_the_member_and_the_next_hop() -> None:
    village = Village(STILL, 200, 2).lay_out()
    root = village.root_of("t")
    village.subscribe("t", [50])
    village.run(5)
    at: Address = root
    way = [at]
    while at != 50:
        at = village.methods[at].topics["t"].routes[50].to
        way.append(at)
    noted = [address for address, method in village.methods.items() if "t" in method.topics]
    assert sorted(map(int, noted)) == sorted(map(int, way))


def test_one_message_a_next_hop_however_many_members() -> None:
    village = Village(STILL, 200, 3).lay_out()
    village.subscribe("t", range(100))
    village.advertise("t", 150)
    village.run(5)
    sent: list[tuple[Address, Address]] = []
    village.sim.on_message = lambda by, to, message, _: sent.append((by, to)) if type(message) is TreeDelivery else None
    village.publish("t", 150)
    assert len(sent) == len(set(sent)) < 400
    assert village.receivers() == dict.fromkeys(range(100), 1)


def test_the_mean_path_is_log2_n() -> None:
    village = Village(STILL, 1024, 3).lay_out()
    hops: list[int] = []
    for number in range(60):
        topic = f"t{number}"
        village.subscribe(topic, [(number * 17 + place * 101) % 1024 for place in range(1, 10)])
        village.advertise(topic, number * 17 % 1024)
    village.run(10)
    for number in range(60):
        hops += [got.hops for got in village.publish(f"t{number}", number * 17 % 1024)]
    assert len(hops) == 60 * 9
    assert 8.5 <= sum(hops) / len(hops) <= 12


def test_who_unsubscribes_is_struck_out_everywhere() -> None:
    village = Village(STILL, 200, 4).lay_out()
    village.subscribe("t", [10, 20, 30])
    village.advertise("t", 1)
    village.run(5)
    village.do(20, village.methods[20].unsubscribe("t"))
    village.run(5)
    assert not any(20 in method.topics["t"].routes for method in village.methods.values() if "t" in method.topics)
    village.publish("t", 1)
    assert village.receivers() == {10: 1, 30: 1}
    for address in (10, 30):
        village.do(address, village.methods[address].unsubscribe("t"))
    village.run(5)
    assert [address for address, method in village.methods.items() if method.topics] == [village.root_of("t")]


def test_a_late_tree_does_not_undo_a_later_wish() -> None:
    village = Village(STILL, 64, 5).lay_out()
    village.subscribe("t", [9])
    village.run(5)
    root = village.methods[village.root_of("t")]
    note = root.topics["t"].routes[9]
    late = BayeuxTree("t", 9, note.number - 1, False, Walk(note.vector))
    assert root._update_route(late, note.to)
    assert root.topics["t"].routes[9] == note


def test_repeated_messages_are_delivered_once() -> None:
    village = Village(Bayeux, 32, 8, Duplication(0.5, Constant(0.01))).grow()
    village.subscribe("t", [2, 3, 5, 7])
    village.advertise("t", 1)
    village.run(10)
    village.publish("t", 1)
    assert village.receivers() == {2: 1, 3: 1, 5: 1, 7: 1}


def test_a_crash_of_a_relay_heals_within_the_refresh_period() -> None:
    village = settled(24, 11, [2, 3, 5, 7, 11, 13], 1)
    root = village.root_of("t")
    relays = [
        address
        for address, method in village.methods.items()
        if "t" in method.topics and not method.topics["t"].subscribed and address not in (1, root)
    ]
    village.crash(relays[0])
    village.run(REFRESH_S + 15)
    village.publish("t", 1)
    assert village.receivers() == dict.fromkeys([2, 3, 5, 7, 11, 13], 1)


def test_a_crash_of_the_root_heals_within_the_refresh_period() -> None:
    village = Village(Bayeux, 24, 12).grow()
    root = village.root_of("t")
    publisher, *subscribers = [address for address in range(24) if address != root][:8]
    village.subscribe("t", subscribers)
    village.advertise("t", publisher)
    village.run(10)
    village.crash(root)
    village.run(REFRESH_S + 15)
    village.publish("t", publisher)
    assert village.receivers() == dict.fromkeys(subscribers, 1)


def test_a_root_that_resigns_hands_its_members_over() -> None:
    village = settled(24, 13, [2, 3, 5, 7], 1)
    old = village.root_of("t")
    village.start(24, vector=id_of("t"))
    village.run(20)
    village.do(old, village.methods[old]._check_root("t", village.methods[old].topics["t"]))
    village.run(5)
    assert sorted(village.methods[24].topics["t"].routes) == [2, 3, 5, 7]
    village.publish("t", 1)
    assert village.receivers() == {2: 1, 3: 1, 5: 1, 7: 1}


def test_what_is_not_renewed_is_forgotten() -> None:
    village = settled(16, 15, [3], 1)
    village.crash(3)
    village.do(1, village.methods[1].withdraw("t"))
    village.run((LEASE_REFRESHES + 1.5) * REFRESH_S)
    assert not any(method.topics for method in village.methods.values())


@pytest.mark.parametrize("seed", range(3))
def test_after_loss_repetition_and_churn_everybody_is_served(seed: int) -> None:
    village = Village(Bayeux, 24, seed, Rough(0.03, until=150.0)).grow()
    village.subscribe("t", range(2, 24, 3))
    village.advertise("t", 1)
    village.run(20)
    village.crash(4)
    village.crash(5)
    village.start(24)
    village.do(8, village.methods[8].unsubscribe("t"))
    village.run(90 + 2 * REFRESH_S + 20)
    village.publish("t", 1)
    assert village.receivers() == dict.fromkeys([2, 11, 14, 17, 20, 23], 1)
