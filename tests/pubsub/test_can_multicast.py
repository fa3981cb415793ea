"""CAN-MC: zones that fit together, floods that reach each member once, and what is left after faults."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest

from braidmq.host import Address
from braidmq.overlay.skip_graph import id_of
from braidmq.pubsub.baselines.can.messages import CanFlood
from braidmq.pubsub.baselines.can.multicast import SILENT_UPDATES_MAX, UPDATES_A_REFRESH, CanMulticast
from braidmq.pubsub.baselines.can.network import SIDE, Can, Space, overlap, sibling, volume
from braidmq.pubsub.baselines.rendezvous_tree import REFRESH_S
from braidmq.sim.network import Constant, Duplication
from tests.pubsub.dht_network import DhtNetwork
from tests.simulated import FaultyNetwork

STILL = partial(CanMulticast, refresh_s=None)
KEEP_S = REFRESH_S / UPDATES_A_REFRESH
NOTICED_S = (SILENT_UPDATES_MAX + 4) * KEEP_S
"""After this a crash is noticed and its zone taken over."""


def settled(brokers: int, seed: int, subscribers: list[Address], publisher: Address) -> DhtNetwork[CanMulticast]:
    network = DhtNetwork(CanMulticast, brokers, seed).grow()
    network.subscribe("t", *subscribers)
    network.advertise("t", publisher)
    network.run(15)
    return network


def zones(network: DhtNetwork[CanMulticast], topic: str) -> dict[Address, list[str]]:
    parts = {address: method.topics[topic] for address, method in network.methods.items() if topic in method.topics}
    return {address: list(part.can.zones) if part.can else [] for address, part in parts.items()}


def is_whole(network: DhtNetwork[CanMulticast], topic: str) -> bool:
    """Whether the zones cover the space once, and every member knows all its neighbours."""
    held = [zone for mine in zones(network, topic).values() for zone in mine]
    apart = not any(overlap(a, b) for i, a in enumerate(held) for b in held[:i])
    cans = [method.topics[topic].can for method in network.methods.values() if topic in method.topics]
    return apart and sum(map(volume, held)) == 1 and not any(can is None or can.holes() for can in cans)


# Zones


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_a_zone_and_what_is_across_its_faces(dimensions: int) -> None:
    space, chance = Space(dimensions), Random(1)
    for _ in range(200):
        zone = "".join(chance.choice("01") for _ in range(chance.randrange(9)))
        assert space.has(zone, space.any_point(chance, zone))
        assert space.distance(zone, space.any_point(chance, zone)) == 0
        for dimension, sign in space.directions():
            beyond = space.across(zone, dimension, sign)
            if beyond is None:
                assert space.interval(zone, dimension) == (0, SIDE)
            else:
                assert space.touches(zone, beyond, dimension, sign)
                assert space.touches(beyond, zone, dimension, -sign)
                assert space.across(beyond, dimension, -sign) == zone
                assert space.are_near(zone, beyond)


def test_zones_that_only_share_a_corner_are_not_near() -> None:
    space = Space(2)
    assert space.are_near("0000", "0001")
    assert not space.are_near("0000", "0011")
    assert space.are_near("0000", "00")


def test_a_space_has_dimensions() -> None:
    with pytest.raises(ValueError, match="1 or more"):
        Space(0)


def test_the_later_claim_holds_and_the_rest_is_kept() -> None:
    can = Can(Space(2), 1, 0)
    can.claim([""])
    can.hear(2, (("010", 9),), 0.0)
    assert sorted(can.zones) == ["00", "011", "1"]
    can.hear(3, (("1", 0),), 0.0)
    assert sorted(can.zones) == ["00", "011", "1"], "an older claim does not"
    can.claim(["010"])
    assert can.claims == (("", 10),), "what belongs together is merged"


def test_a_hole_is_what_nobody_is_known_to_hold() -> None:
    can = Can(Space(2), 1, 0)
    can.accept(("00", 1))
    can.hear(2, (("01", 1),), 0.0)
    assert can.holes() == ["10"]
    can.hear(3, (("1", 1),), 0.0)
    assert can.holes() == []


def test_halves_are_given_away_down_to_a_bound() -> None:
    can = Can(Space(1), 1, 0)
    can.claim([""])
    for digits in range(1, 33):
        given = can.split((0,))
        assert given is not None
        assert given[0] == "0" * digits
        can.zones = {given[0]: given[1]}
    assert can.split((0,)) is None


def test_siblings() -> None:
    assert sibling("010") == "011"
    assert sibling(sibling("1")) == "1"


# Floods


@pytest.mark.parametrize("members", [1, 2, 3, 4, 7, 20, 64])
def test_each_subscriber_gets_it_once_and_nobody_else(members: int) -> None:
    network = DhtNetwork(STILL, 100, members).lay_out()
    subscribers = list(range(1, members))
    network.subscribe("t", *subscribers)
    network.advertise("t", 0)
    network.run(30)
    assert is_whole(network, "t")
    assert sorted(map(int, zones(network, "t"))) == list(range(members)), "publishers are members, others are not"
    network.publish("t", 0)
    assert network.copies() == dict.fromkeys(subscribers, 1)
    assert network.demand == [(0, "t", True)]


@pytest.mark.parametrize("dimensions", [1, 3])
def test_floods_in_other_dimensions(dimensions: int) -> None:
    network = DhtNetwork(partial(CanMulticast, refresh_s=None, dimensions=dimensions), 64, 1).lay_out()
    network.subscribe("t", *range(1, 40))
    network.advertise("t", 0)
    network.run(30)
    network.publish("t", 0)
    assert network.copies() == dict.fromkeys(range(1, 40), 1)


def test_every_member_can_publish() -> None:
    network = DhtNetwork(STILL, 40, 3).lay_out()
    network.subscribe("t", *range(40))
    for address in range(40):
        network.advertise("t", address)
    network.run(30)
    for address in range(40):
        network.publish("t", address)
        assert network.copies() == dict.fromkeys(range(40), 1)


def test_the_mean_path_is_that_of_a_torus() -> None:
    """d/4 · M^(1/d) hops, and hardly more messages than members."""
    network = DhtNetwork(STILL, 256, 4).lay_out()
    network.subscribe("t", *range(256))
    for address in range(0, 256, 16):
        network.advertise("t", address)
    network.run(30)
    floods: list[Address] = []
    network.sim.on_message = lambda _, to, message, __: floods.append(to) if type(message) is CanFlood else None
    hops = [got.hops for address in range(0, 256, 16) for got in network.publish("t", address)]
    assert len(hops) == 16 * 256
    assert 6.5 <= sum(hops) / len(hops) <= 9
    assert len(floods) < 16 * 256 * 1.6


def test_topics_do_not_mix() -> None:
    network = DhtNetwork(STILL, 64, 5).lay_out()
    network.subscribe("a", 1, 2)
    network.subscribe("b", 2, 3)
    for topic in ("a", "b"):
        network.advertise(topic, 4)
    network.run(20)
    network.publish("a", 4)
    network.methods[4].publish("b", b"other")
    network.run(5)
    assert sorted((address, got.topic) for address, got in network.got) == [(1, "a"), (2, "a"), (2, "b"), (3, "b")]


def test_nothing_is_published_before_it_is_advertised() -> None:
    network = DhtNetwork(STILL, 8, 5).lay_out()
    with pytest.raises(ValueError, match="advertised"):
        network.methods[0].publish("t", b"")


def test_repeated_messages_are_delivered_once() -> None:
    network = DhtNetwork(CanMulticast, 24, 6, Duplication(0.5, Constant(0.01))).grow()
    network.subscribe("t", 2, 3, 5, 7)
    network.advertise("t", 1)
    network.run(15)
    network.publish("t", 1)
    assert network.copies() == {2: 1, 3: 1, 5: 1, 7: 1}


# Members that come and go


def test_who_leaves_hands_its_zones_over() -> None:
    network = DhtNetwork(STILL, 40, 7).lay_out()
    network.subscribe("t", *range(1, 20))
    network.advertise("t", 0)
    network.run(30)
    for address in range(1, 20, 2):
        network.do(address, network.methods[address].unsubscribe("t"))
        network.run(2)
        assert is_whole(network, "t")
    network.publish("t", 0)
    assert network.copies() == dict.fromkeys(range(2, 20, 2), 1)
    for address in range(2, 20, 2):
        network.do(address, network.methods[address].unsubscribe("t"))
    network.do(0, network.methods[0].withdraw("t"))
    network.run(30)
    assert not any(method.topics or method.introducer.topics for method in network.methods.values())


def test_who_comes_back_is_served_again() -> None:
    network = settled(16, 8, [2, 3, 5], 1)
    network.do(3, network.methods[3].unsubscribe("t"))
    network.do(3, network.methods[3].subscribe("t"))
    network.run(15)
    network.publish("t", 1)
    assert network.copies() == {2: 1, 3: 1, 5: 1}


@pytest.mark.parametrize("seed", range(3))
def test_the_smallest_neighbour_takes_over_after_a_crash(seed: int) -> None:
    members: list[Address] = list(range(1, 12))
    network = settled(20, 20 + seed, members, 0)
    assert is_whole(network, "t")
    victim = network.sim.chance.choice(members)
    can = network.methods[victim].topics["t"].can
    assert can is not None
    lost, near = list(can.zones), list(can.holders)
    least = min(sum(map(volume, zones(network, "t")[address])) for address in near)
    before = zones(network, "t")
    network.crash(victim)
    network.run(NOTICED_S)
    assert is_whole(network, "t")
    heirs = [a for a, held in zones(network, "t").items() if any(overlap(zone, lost[0]) for zone in held)]
    assert [sum(map(volume, before[address])) for address in heirs] == [least]
    network.publish("t", 0)
    assert network.copies() == dict.fromkeys([address for address in members if address != victim], 1)


def test_half_of_the_members_crash_at_once() -> None:
    network = settled(24, 31, list(range(1, 17)), 0)
    for address in range(2, 17, 2):
        network.crash(address)
    network.run(3 * NOTICED_S)
    assert is_whole(network, "t")
    network.publish("t", 0)
    assert network.copies() == dict.fromkeys(range(1, 17, 2), 1)


def test_a_crash_of_the_introducer_is_no_matter() -> None:
    network = DhtNetwork(CanMulticast, 24, 32).grow()
    introducer = network.root_of("t")
    publisher, *subscribers = [address for address in range(24) if address != introducer][:8]
    network.subscribe("t", *subscribers[:-1])
    network.advertise("t", publisher)
    network.run(15)
    network.crash(introducer)
    network.run(REFRESH_S + 15)
    network.subscribe("t", *subscribers[-1:])
    network.run(15)
    network.publish("t", publisher)
    assert network.copies() == dict.fromkeys(subscribers, 1)


def test_two_networks_of_one_topic_become_one() -> None:
    """A new introducer that knows nobody lets a newcomer found another one."""
    network = settled(24, 33, [2, 3, 5], 1)
    network.start(24, vector=id_of("t"))
    network.run(12)
    network.subscribe("t", 7)
    network.run(3)
    network.run(2 * REFRESH_S)
    assert is_whole(network, "t")
    network.publish("t", 1)
    assert network.copies() == {2: 1, 3: 1, 5: 1, 7: 1}


@pytest.mark.parametrize("seed", range(3))
def test_after_loss_repetition_churn_and_a_partition_everybody_is_served(seed: int) -> None:
    network = DhtNetwork(CanMulticast, 24, seed, FaultyNetwork(0.03, split=(90.0, 120.0), until=150.0)).grow()
    network.subscribe("t", *range(2, 24, 3))
    network.advertise("t", 1)
    network.run(20)
    network.crash(4)
    network.crash(5)
    network.start(24)
    network.do(8, network.methods[8].unsubscribe("t"))
    network.run(90 + 6 * REFRESH_S)
    assert is_whole(network, "t")
    network.publish("t", 1)
    assert network.copies() == dict.fromkeys([2, 11, 14, 17, 20, 23], 1)


def test_one_seed_twice_is_the_same() -> None:
    def run() -> tuple[int, list[tuple[Address, int]]]:
        network = settled(16, 16, [2, 3, 5], 1)
        network.publish("t", 1)
        return network.sim.messages, [(address, got.hops) for address, got in network.got]

    assert run() == run()
