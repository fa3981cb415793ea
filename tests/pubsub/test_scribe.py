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
from tests.overlay.test_ring import Rough
from tests.pubsub.village import Village

STILL = partial(Scribe, refresh_s=None)


def interior(village: Village[Scribe], topic: str) -> list[Address]:
    """Forwarders that neither subscribe nor are the root."""
    return [
        address
        for address, method in village.methods.items()
        if topic in method.topics and not method.topics[topic].subscribed and not method.topics[topic].is_root
    ]


def settled(brokers: int, seed: int, subscribers: list[Address], publisher: Address) -> Village[Scribe]:
    village = Village(Scribe, brokers, seed).grow()
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
        assert village.methods[7].roots[topic] == village.root_of(topic)


def test_topics_do_not_mix() -> None:
    village = Village(STILL, 64, 2).lay_out()
    village.subscribe("a", [1, 2])
    village.subscribe("b", [2, 3])
    for topic in ("a", "b"):
        village.advertise(topic, 4)
    village.run(5)
    village.publish("a", 4)
    village.methods[4].publish("b", b"other")
    village.run(5)
    assert sorted((address, got.topic) for address, got in village.got) == [(1, "a"), (2, "a"), (2, "b"), (3, "b")]


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
    assert 9 <= sum(hops) / len(hops) <= 12


def test_a_publication_to_nobody_goes_to_the_root_and_no_further() -> None:
    village = Village(STILL, 64, 4).lay_out()
    publisher = next(address for address in range(64) if address != village.root_of("t"))
    village.advertise("t", publisher)
    village.run(5)
    before = village.sim.messages
    assert village.publish("t", publisher) == []
    assert village.sim.messages == before + 1
    assert village.demand == [(publisher, "t", True)]


def test_the_root_itself_publishes_and_subscribes() -> None:
    village = Village(STILL, 64, 5).lay_out()
    root = village.root_of("t")
    village.subscribe("t", [root])
    village.advertise("t", root)
    village.run(5)
    assert [got.hops for got in village.publish("t", root)] == [0]


def test_nothing_is_published_before_it_is_advertised() -> None:
    village = Village(STILL, 8, 5).lay_out()
    with pytest.raises(ValueError, match="advertised"):
        village.methods[0].publish("t", b"")


def test_who_unsubscribes_gets_nothing_and_the_tree_withers() -> None:
    village = Village(STILL, 200, 6).lay_out()
    village.subscribe("t", [10, 20, 30])
    village.advertise("t", 1)
    village.run(5)
    village.do(20, village.methods[20].unsubscribe("t"))
    village.run(5)
    village.publish("t", 1)
    assert village.receivers() == {10: 1, 30: 1}
    for address in (10, 30):
        village.do(address, village.methods[address].unsubscribe("t"))
    village.run(5)
    assert [address for address, method in village.methods.items() if method.topics] == [village.root_of("t")]


def test_a_join_ends_at_a_forwarder_that_is_sure_of_its_way() -> None:
    village = Village(STILL, 200, 7).lay_out()
    village.subscribe("t", [address for address in range(200) if address % 3])
    village.run(5)
    joins: list[Address] = []
    village.sim.on_message = lambda _, to, message, __: joins.append(to) if type(message) is ScribeJoin else None
    village.subscribe("t", [address for address in range(200) if address % 3 == 0])
    village.run(5)
    assert all(village.methods[address].topics["t"].subscribed for address in range(200))
    assert len(joins) < 67 * 4, "they go but a few hops, not about 7"


def test_the_last_list_forms_no_circle() -> None:
    """Whoever of it joins first: from the root every subscriber is reached by one way."""
    for seed in range(20):
        village = Village(STILL, 12, seed).lay_out()
        village.subscribe("t", range(12))
        village.run(5)
        parents = {address: method.topics["t"].parent for address, method in village.methods.items()}
        root = village.root_of("t")
        assert [address for address, parent in parents.items() if parent is None] == [root]
        for address in range(12):
            at: Address | None = address
            for _ in range(12):
                at = parents[at] if at is not None and at != root else at
            assert at == root


def test_repeated_messages_are_delivered_once() -> None:
    village = Village(Scribe, 32, 8, Duplication(0.5, Constant(0.01))).grow()
    village.subscribe("t", [2, 3, 5, 7])
    village.advertise("t", 1)
    village.run(10)
    village.publish("t", 1)
    assert village.receivers() == {2: 1, 3: 1, 5: 1, 7: 1}


def test_a_late_leave_does_not_undo_a_later_join() -> None:
    village = Village(STILL, 64, 9).lay_out()
    root = village.root_of("t")
    child = next(address for address in range(64) if address != root)
    walk = Walk(id_of("t"), min(village.graphs[root].nodes), 0, b"", None, 0, 1, False)
    method = village.methods[root]
    method.on_join(child, ScribeJoin("t", child, 7, walk))
    method.on_leave(child, ScribeLeave("t", 6))
    assert list(method.topics["t"].children) == [child]
    method.on_leave(child, ScribeLeave("t", 7))
    assert "t" not in method.topics


def test_who_gets_what_it_does_not_want_leaves() -> None:
    village = Village(STILL, 64, 10).lay_out()
    village.subscribe("t", [5])
    village.advertise("t", 1)
    village.run(5)
    del village.methods[5].topics["t"]  # as if its leave had been lost
    village.publish("t", 1)
    before = village.sim.messages
    village.publish("t", 1)
    assert village.got == []
    assert village.sim.messages == before + 1


def test_a_crash_of_a_forwarder_heals_within_the_refresh_period() -> None:
    village = settled(24, 11, [2, 3, 5, 7, 11, 13], 1)
    victim = next(address for address in interior(village, "t") if address != 1)
    village.crash(victim)
    village.run(REFRESH_S + 15)
    village.publish("t", 1)
    assert village.receivers() == dict.fromkeys([2, 3, 5, 7, 11, 13], 1)


def test_a_crash_of_the_root_heals_within_the_refresh_period() -> None:
    village = Village(Scribe, 24, 12).grow()
    root = village.root_of("t")
    subscribers = [address for address in range(24) if address != root][1:8]
    publisher = next(address for address in range(24) if address != root)
    village.subscribe("t", subscribers)
    village.advertise("t", publisher)
    village.run(10)
    village.crash(root)
    village.run(REFRESH_S + 15)
    village.publish("t", publisher)
    assert village.receivers() == dict.fromkeys(subscribers, 1)
    assert village.methods[publisher].roots["t"] == village.root_of("t") != root


def test_a_new_owner_of_the_topic_becomes_the_root() -> None:
    village = settled(24, 13, [2, 3, 5, 7], 1)
    old = village.root_of("t")
    village.start(24, vector=id_of("t"))
    village.run(2 * REFRESH_S + 20)
    assert village.root_of("t") == 24 != old
    assert village.methods[24].topics["t"].is_root
    assert "t" not in village.methods[old].topics or not village.methods[old].topics["t"].is_root
    village.publish("t", 1)
    assert village.receivers() == {2: 1, 3: 1, 5: 1, 7: 1}
    assert village.methods[1].roots["t"] == 24


def test_a_former_root_passes_publications_on_and_says_so() -> None:
    village = settled(24, 14, [2, 3, 5], 1)
    old = village.root_of("t")
    village.start(24, vector=id_of("t"))
    village.run(20)
    village.do(old, village.methods[old]._check_root("t", village.methods[old].topics["t"]))
    village.run(5)
    village.got.clear()
    village.sim.hosts[1].send(old, Submit("t", 1, 99, 1, b"late"))
    village.methods[1].roots["t"] = old
    village.run(5)
    assert village.receivers() == {2: 1, 3: 1, 5: 1}
    assert village.methods[1].roots["t"] == 24


def test_what_is_not_renewed_is_forgotten() -> None:
    village = settled(16, 15, [3], 1)
    village.crash(3)
    village.do(1, village.methods[1].withdraw("t"))
    village.run((LEASE_REFRESHES + 1.5) * REFRESH_S * 3)
    assert not any(method.topics for method in village.methods.values())


@pytest.mark.parametrize("seed", range(3))
def test_after_loss_repetition_and_churn_everybody_is_served(seed: int) -> None:
    village = Village(Scribe, 24, seed, Rough(0.03, until=150.0)).grow()
    village.subscribe("t", range(2, 24, 3))
    village.advertise("t", 1)
    village.run(20)
    village.crash(4)
    village.crash(5)
    village.start(24, vector=village.sim.chance.getrandbits(DIGITS_MAX))
    village.do(8, village.methods[8].unsubscribe("t"))
    village.run(90 + 2 * REFRESH_S + 20)
    village.publish("t", 1)
    assert village.receivers() == dict.fromkeys([2, 11, 14, 17, 20, 23], 1)


def test_one_seed_twice_is_the_same() -> None:
    def run() -> tuple[int, list[tuple[Address, int]]]:
        village = settled(16, 16, [2, 3, 5], 1)
        village.publish("t", 1)
        return village.sim.messages, [(address, got.hops) for address, got in village.got]

    assert run() == run()
