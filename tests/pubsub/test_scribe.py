"""Scribe: who gets what, by how many hops, and what is left after faults."""

from __future__ import annotations

from functools import partial

import pytest

from braidmq.host import Address
from braidmq.overlay.skip_graph import Walk, id_of
from braidmq.overlay.vectors import DIGITS_MAX
from braidmq.pubsub.baselines.rendezvous_tree import LEASE_REFRESHES, REFRESH_S, Submit
from braidmq.pubsub.baselines.scribe import Scribe, ScribeJoin, ScribeLeave
from braidmq.sim.network import Constant, Duplication
from tests.pubsub.dht_network import DhtNetwork
from tests.simulated import FaultyNetwork

STILL = partial(Scribe, refresh_s=None)


def interior(network: DhtNetwork[Scribe], topic: str) -> list[Address]:
    """Forwarders that neither subscribe nor are the root."""
    return [
        address
        for address, method in network.methods.items()
        if topic in method.topics and not method.topics[topic].subscribed and not method.topics[topic].is_root
    ]


def settled(brokers: int, seed: int, subscribers: list[Address], publisher: Address) -> DhtNetwork[Scribe]:
    network = DhtNetwork(Scribe, brokers, seed).grow()
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
        assert network.methods[7].roots[topic] == network.root_of(topic)


def test_topics_do_not_mix() -> None:
    network = DhtNetwork(STILL, 64, 2).lay_out()
    network.subscribe("a", 1, 2)
    network.subscribe("b", 2, 3)
    for topic in ("a", "b"):
        network.advertise(topic, 4)
    network.run(5)
    network.publish("a", 4)
    network.methods[4].publish("b", b"other")
    network.run(5)
    assert sorted((address, got.topic) for address, got in network.got) == [(1, "a"), (2, "a"), (2, "b"), (3, "b")]


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
    assert 9 <= sum(hops) / len(hops) <= 12


def test_a_publication_to_nobody_goes_to_the_root_and_no_further() -> None:
    network = DhtNetwork(STILL, 64, 4).lay_out()
    publisher = next(address for address in range(64) if address != network.root_of("t"))
    network.advertise("t", publisher)
    network.run(5)
    before = network.sim.messages
    assert network.publish("t", publisher) == []
    assert network.sim.messages == before + 1
    assert network.demand == [(publisher, "t", True)]


def test_the_root_itself_publishes_and_subscribes() -> None:
    network = DhtNetwork(STILL, 64, 5).lay_out()
    root = network.root_of("t")
    network.subscribe("t", root)
    network.advertise("t", root)
    network.run(5)
    assert [got.hops for got in network.publish("t", root)] == [0]


def test_nothing_is_published_before_it_is_advertised() -> None:
    network = DhtNetwork(STILL, 8, 5).lay_out()
    with pytest.raises(ValueError, match="advertised"):
        network.methods[0].publish("t", b"")


def test_who_unsubscribes_gets_nothing_and_the_tree_withers() -> None:
    network = DhtNetwork(STILL, 200, 6).lay_out()
    network.subscribe("t", 10, 20, 30)
    network.advertise("t", 1)
    network.run(5)
    network.do(20, network.methods[20].unsubscribe("t"))
    network.run(5)
    network.publish("t", 1)
    assert network.copies() == {10: 1, 30: 1}
    for address in (10, 30):
        network.do(address, network.methods[address].unsubscribe("t"))
    network.run(5)
    assert [address for address, method in network.methods.items() if method.topics] == [network.root_of("t")]


def test_a_join_ends_at_a_forwarder_that_is_sure_of_its_way() -> None:
    network = DhtNetwork(STILL, 200, 7).lay_out()
    network.subscribe("t", *[address for address in range(200) if address % 3])
    network.run(5)
    joins: list[Address] = []
    network.sim.on_message = lambda _, to, message, __: joins.append(to) if type(message) is ScribeJoin else None
    network.subscribe("t", *[address for address in range(200) if address % 3 == 0])
    network.run(5)
    assert all(network.methods[address].topics["t"].subscribed for address in range(200))
    assert len(joins) < 67 * 4, "they go but a few hops, not about 7"


def test_the_last_list_forms_no_circle() -> None:
    """Whoever of it joins first: from the root every subscriber is reached by one way."""
    for seed in range(20):
        network = DhtNetwork(STILL, 12, seed).lay_out()
        network.subscribe("t", *range(12))
        network.run(5)
        parents = {address: method.topics["t"].parent for address, method in network.methods.items()}
        root = network.root_of("t")
        assert [address for address, parent in parents.items() if parent is None] == [root]
        for address in range(12):
            at: Address | None = address
            for _ in range(12):
                at = parents[at] if at is not None and at != root else at
            assert at == root


def test_repeated_messages_are_delivered_once() -> None:
    network = DhtNetwork(Scribe, 32, 8, Duplication(0.5, Constant(0.01))).grow()
    network.subscribe("t", 2, 3, 5, 7)
    network.advertise("t", 1)
    network.run(10)
    network.publish("t", 1)
    assert network.copies() == {2: 1, 3: 1, 5: 1, 7: 1}


def test_a_late_leave_does_not_undo_a_later_join() -> None:
    network = DhtNetwork(STILL, 64, 9).lay_out()
    root = network.root_of("t")
    child = next(address for address in range(64) if address != root)
    walk = Walk(id_of("t"), min(network.overlays[root].nodes), 0, b"", None, 0, 1, False)
    method = network.methods[root]
    method.on_join(child, ScribeJoin("t", child, 7, walk))
    method.on_leave(child, ScribeLeave("t", 6))
    assert list(method.topics["t"].children) == [child]
    method.on_leave(child, ScribeLeave("t", 7))
    assert "t" not in method.topics


def test_who_gets_what_it_does_not_want_leaves() -> None:
    network = DhtNetwork(STILL, 64, 10).lay_out()
    network.subscribe("t", 5)
    network.advertise("t", 1)
    network.run(5)
    del network.methods[5].topics["t"]  # as if its leave had been lost
    network.publish("t", 1)
    before = network.sim.messages
    network.publish("t", 1)
    assert network.got == []
    assert network.sim.messages == before + 1


def test_a_crash_of_a_forwarder_heals_within_the_refresh_period() -> None:
    network = settled(24, 11, [2, 3, 5, 7, 11, 13], 1)
    victim = next(address for address in interior(network, "t") if address != 1)
    network.crash(victim)
    network.run(REFRESH_S + 15)
    network.publish("t", 1)
    assert network.copies() == dict.fromkeys([2, 3, 5, 7, 11, 13], 1)


def test_a_crash_of_the_root_heals_within_the_refresh_period() -> None:
    network = DhtNetwork(Scribe, 24, 12).grow()
    root = network.root_of("t")
    subscribers = [address for address in range(24) if address != root][1:8]
    publisher = next(address for address in range(24) if address != root)
    network.subscribe("t", *subscribers)
    network.advertise("t", publisher)
    network.run(10)
    network.crash(root)
    network.run(REFRESH_S + 15)
    network.publish("t", publisher)
    assert network.copies() == dict.fromkeys(subscribers, 1)
    assert network.methods[publisher].roots["t"] == network.root_of("t") != root


def test_a_new_owner_of_the_topic_becomes_the_root() -> None:
    network = settled(24, 13, [2, 3, 5, 7], 1)
    old = network.root_of("t")
    network.start(24, vector=id_of("t"))
    network.run(2 * REFRESH_S + 20)
    assert network.root_of("t") == 24 != old
    assert network.methods[24].topics["t"].is_root
    assert "t" not in network.methods[old].topics or not network.methods[old].topics["t"].is_root
    network.publish("t", 1)
    assert network.copies() == {2: 1, 3: 1, 5: 1, 7: 1}
    assert network.methods[1].roots["t"] == 24


def test_a_former_root_passes_publications_on_and_says_so() -> None:
    network = settled(24, 14, [2, 3, 5], 1)
    old = network.root_of("t")
    network.start(24, vector=id_of("t"))
    network.run(20)
    network.do(old, network.methods[old]._check_root("t", network.methods[old].topics["t"]))
    network.run(5)
    network.got.clear()
    network.sim.hosts[1].send(old, Submit("t", 1, 99, 1, b"late"))
    network.methods[1].roots["t"] = old
    network.run(5)
    assert network.copies() == {2: 1, 3: 1, 5: 1}
    assert network.methods[1].roots["t"] == 24


def test_what_is_not_renewed_is_forgotten() -> None:
    network = settled(16, 15, [3], 1)
    network.crash(3)
    network.do(1, network.methods[1].withdraw("t"))
    network.run((LEASE_REFRESHES + 1.5) * REFRESH_S * 3)
    assert not any(method.topics for method in network.methods.values())


@pytest.mark.parametrize("seed", range(3))
def test_after_loss_repetition_and_churn_everybody_is_served(seed: int) -> None:
    network = DhtNetwork(Scribe, 24, seed, FaultyNetwork(0.03, until=150.0)).grow()
    network.subscribe("t", *range(2, 24, 3))
    network.advertise("t", 1)
    network.run(20)
    network.crash(4)
    network.crash(5)
    network.start(24, vector=network.sim.chance.getrandbits(DIGITS_MAX))
    network.do(8, network.methods[8].unsubscribe("t"))
    network.run(90 + 2 * REFRESH_S + 20)
    network.publish("t", 1)
    assert network.copies() == dict.fromkeys([2, 11, 14, 17, 20, 23], 1)


def test_one_seed_twice_is_the_same() -> None:
    def run() -> tuple[int, list[tuple[Address, int]]]:
        network = settled(16, 16, [2, 3, 5], 1)
        network.publish("t", 1)
        return network.sim.messages, [(address, got.hops) for address, got in network.got]

    assert run() == run()
