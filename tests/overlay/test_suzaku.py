"""Suzaku: joins that build the tables, periods that mend them, lookups that halve the way."""

from __future__ import annotations

from statistics import mean

import msgspec
import pytest

from braidmq.host import Address, Message
from braidmq.overlay import FoundOwner, Introduce, Peer
from braidmq.overlay.aggregates import Aggregate, merged
from braidmq.overlay.ring import CHECK_INTERVAL_S
from braidmq.overlay.suzaku import PERIOD_S, Suzaku, SuzakuNode
from braidmq.overlay.suzaku.messages import AskSum, Leaving, Update, Updated
from braidmq.overlay.vectors import Vector
from braidmq.sim.checkers.ring import fingers_are_right, ring_is_closed_and_sorted
from braidmq.sim.engine import Constant, Network, SimHost, Simulator
from braidmq.sim.layouts.suzaku import lay_out_suzaku
from tests.simulated import FaultyNetwork, OverlayNetwork, suzaku_of

QUIET_S = 40 * CHECK_INTERVAL_S


class SuzakuNetwork(OverlayNetwork[Suzaku]):
    """Brokers with one key each, which say of themselves what is summed up."""

    def __init__(
        self, seed: int, network: Network | None = None, period_s: float = PERIOD_S, both_ways: bool = True
    ) -> None:
        self.period_s = period_s
        self.labels: tuple[str, ...] | None = None
        build = suzaku_of(period_s, both_ways=both_ways)

        def build_with_value(host: SimHost, introduce: Introduce, vector: Vector | None) -> Suzaku:
            overlay = build(host, introduce, vector)
            overlay.labels = lambda _mine, _theirs: self.labels
            one: Aggregate = {"nodes:count": 1, "low:min": int(host.address)}
            overlay.value = lambda _key: one
            return overlay

        super().__init__(build_with_value, seed, network)

    @property
    def nodes(self) -> list[SuzakuNode]:
        return [node for overlay in self.overlays.values() for node in overlay.nodes.values()]

    def broken(self) -> list[str]:
        return ring_is_closed_and_sorted([node.link for node in self.nodes]) + fingers_are_right(self.nodes)

    def lookups(self) -> list[FoundOwner]:
        """From every host for every node's key; all of them must end."""
        found: list[FoundOwner] = []
        asked = [(start, goal) for start in self.nodes for goal in self.nodes]

        async def one(start: SuzakuNode, goal: SuzakuNode) -> None:
            answer = await self.overlays[start.me.address].lookup(goal.me.key)
            assert answer is not None
            assert answer.owner == goal.me
            found.append(answer)

        for start, goal in asked:
            self.sim.hosts[start.me.address].spawn(one(start, goal))
        self.sim.run(self.sim.now + 60)
        assert len(found) == len(asked)
        return found


def grown(
    count: int,
    apart_s: float = 1.0,
    period_s: float = PERIOD_S,
    both_ways: bool = True,
    labels: tuple[str, ...] | None = None,
) -> SuzakuNetwork:
    """Hosts that have joined one after the other."""
    network = SuzakuNetwork(1, period_s=period_s, both_ways=both_ways)
    network.labels = labels
    for number in range(count):
        network.sim.at(number * apart_s, network.add)
    network.sim.run(count * apart_s)
    return network


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 21, 32])
def test_tables_converge(count: int) -> None:
    network = grown(count)
    network.sim.run(count + 12 * PERIOD_S * max(1, count.bit_length()))
    assert network.wrong() == []


def test_a_lookup_takes_few_hops() -> None:
    network = grown(64)
    network.sim.run(100 * PERIOD_S)
    assert network.wrong() == []
    hops = [found.hops for found in network.lookups()]
    assert mean(hops) <= 1.6
    assert max(hops) <= 3


@pytest.mark.parametrize(("count", "periods"), [(2, 60), (3, 60), (24, 60), (100, 60), (400, 80)])
def test_a_network_that_is_laid_out_equals_one_that_has_grown(count: int, periods: int) -> None:
    network = grown(count, apart_s=0.05, period_s=3.0)
    network.sim.run(network.sim.now + periods * network.period_s)
    other = Simulator(1)
    overlays = lay_out_suzaku(other, {node.me.address: [node.me.key] for node in network.nodes})
    laid_out = sorted((node for one in overlays.values() for node in one.nodes.values()), key=lambda node: node.me.key)
    for mine, theirs in zip(sorted(network.nodes, key=lambda node: node.me.key), laid_out, strict=True):
        assert (mine.link.left, mine.link.right) == (theirs.link.left, theirs.link.right)
        assert mine.link.neighbours == theirs.link.neighbours
        for level in range(1, count.bit_length() + 1):
            for forward in (True, False):
                one, another = mine.finger(level, forward), theirs.finger(level, forward)
                assert (one and one.peer, one and one.backups) == (
                    another and another.peer,
                    another and another.backups,
                )


def test_a_finger_to_a_node_that_is_gone_misleads_no_lookup() -> None:
    sim = Simulator(1)
    overlays = lay_out_suzaku(sim, {number: [b"%02d" % (10 * number)] for number in range(8)})
    for number, overlay in overlays.items():
        node = overlay.nodes[b"%02d" % (10 * int(number))]
        node.on_leaving(Leaving(node.me.key, node.forward[0].peer, Peer(b"%02d" % (10 * int(number) + 5), 99)))
    found: list[FoundOwner | None] = []

    async def look_up(overlay: Suzaku, key: bytes) -> None:
        found.append(await overlay.lookup(key))

    for overlay in overlays.values():
        overlay.host.spawn(look_up(overlay, b"37"))
    sim.run(1.0)
    assert [one and one.owner.key for one in found] == [b"30"] * 8


def test_a_lookup_right_after_the_joins_ends() -> None:
    assert max(found.hops for found in grown(64).lookups()) <= 12


@pytest.mark.parametrize("count", [2, 7, 16, 20])
def test_aggregates_count_every_node_once(count: int) -> None:
    network = grown(count)
    network.sim.run(count + 60 * PERIOD_S)
    for node in network.nodes:
        fingers = [node.finger(level, True) for level in range(len(node.forward) + 1)]
        totals = [finger.total for finger in fingers if finger]
        assert all(totals)
        known = merged([node.value(), *(total.aggregate for total in totals if total)])
        assert known == {"nodes:count": count, "low:min": 0}


def between(keys: list[bytes], low: bytes, high: bytes) -> Aggregate:
    """What the nodes at the keys of [low, high) add up to, from the keys alone; the circle is closed."""
    inside = [key for key in keys if (low <= key < high if low < high else key >= low or key < high)]
    return {"nodes:count": len(inside), "keys:union": tuple(sorted(key.decode() for key in inside))}


def told_by_keys(network: SuzakuNetwork) -> list[bytes]:
    """Has every node add its own key to the aggregates; all keys, in order."""
    for overlay in network.overlays.values():
        overlay.value = lambda key: {"nodes:count": 1, "keys:union": (key.decode(),)}
    return sorted(node.me.key for node in network.nodes)


@pytest.mark.parametrize("count", [2, 3, 7, 16, 20])
def test_the_backward_table_adds_up_what_lies_up_to_the_next_finger(count: int) -> None:
    """BFT[0] is the left neighbour alone, BFT[i] 2^(i − 1) nodes up to BFT[i − 1] (Ishihara et al. 2021, Table 1)."""
    network = grown(count)
    keys = told_by_keys(network)
    network.sim.run(count + 60 * PERIOD_S)
    for node in network.nodes:
        end = node.me.key
        for level in range(len(node.backward) + 1):
            finger = node.finger(level, False)
            assert finger is not None
            assert finger.peer.key == keys[keys.index(node.me.key) - (1 << level)]
            assert finger.total is not None
            assert finger.total.until == end
            assert finger.total.aggregate == between(keys, finger.peer.key, end)
            assert finger.total.aggregate["nodes:count"] == max(1, (1 << level) >> 1)
            end = finger.peer.key


def test_the_left_neighbours_aggregate_is_there_from_the_start_and_goes_with_it() -> None:
    """A node that joins asks for it; the next to come between is asked in its turn, and the old one is forgotten."""
    network = grown(8)
    told_by_keys(network)
    network.sim.run(network.sim.now + 60 * PERIOD_S)
    network.add()
    told_by_keys(network)
    network.sim.run(network.sim.now + 1.0)
    keys = told_by_keys(network)
    assert len(keys) == 9
    for node in network.nodes:
        left = keys[keys.index(node.me.key) - 1]
        finger = node.finger(0, False)
        assert finger is not None
        assert finger.peer.key == left
        assert finger.total is not None
        assert finger.total.aggregate == between(keys, left, node.me.key)
        if left < node.me.key:
            known = network.overlays[node.me.address].view.aggregate_over(left, node.me.key)
            assert known is not None
            assert known.peer.key == left
            assert known.aggregate == finger.total.aggregate


def test_chord_sharp_has_fingers_to_one_side_only_and_takes_more_hops() -> None:
    """The ancestor, by a flag: the same tables to the right, none to the left."""
    means = {}
    for both_ways in (True, False):
        network = grown(48, 0.2, 10.0, both_ways)
        network.sim.run(network.sim.now + 100 * 10.0)
        assert all(bool(node.backward) == both_ways for node in network.nodes)
        before = [node.finger(0, False) for node in network.nodes]
        assert all((finger is not None and finger.total is not None) == both_ways for finger in before)
        ordered = sorted(network.nodes, key=lambda node: node.me.key)
        for index, node in enumerate(ordered):
            assert [finger.peer for finger in node.forward] == [
                ordered[(index + (1 << level)) % 48].me for level in range(1, 6)
            ]
        hops = [found.hops for found in network.lookups()]
        assert max(hops) <= 6
        means[both_ways] = mean(hops)
    assert means[True] < means[False]


def test_only_the_labels_that_are_wanted_travel() -> None:
    """Of two labels one, or none at all: updates get smaller by what is not asked for (Ishihara et al. 2021, §4.7)."""
    sizes: dict[tuple[str, ...] | None, int] = {}
    for labels in (None, ("low:min",), ()):
        network = grown(16, 0.2, 10.0, labels=labels)
        network.sim.run(network.sim.now + 300)
        for node in network.nodes:
            for level in range(len(node.forward) + 1):
                finger = node.finger(level, True)
                assert finger is not None
                told = set(finger.total.aggregate) if finger.total else set()
                assert told == ({"nodes:count", "low:min"} if labels is None else set(labels))
        sent: list[int] = []

        def weigh(_s: Address, _t: Address, message: Message, _h: int, sent: list[int] = sent) -> None:
            if isinstance(message, Update | Updated):
                sent.append(len(msgspec.msgpack.encode(message)))

        network.sim.on_message = weigh
        network.sim.run(network.sim.now + 200)
        sizes[labels] = sum(sent)
    assert sizes[()] < sizes["low:min",] < sizes[None]


def test_without_values_nothing_is_added_up_asked_or_sent() -> None:
    overlays: list[Suzaku] = []
    sim = Simulator(1, Constant(0.01))
    totals: list[object] = []

    def note(_s: Address, _t: Address, message: Message, _h: int) -> None:
        assert not isinstance(message, AskSum)
        if isinstance(message, Update | Updated):
            totals.append(message.total)

    sim.on_message = note
    for number in range(12):
        overlay = Suzaku(sim.host(number), lambda: 0, period_s=10.0)
        overlays.append(overlay)
        if number:
            overlay.host.spawn(overlay.join(b"%02d" % number))
        else:
            overlay.found(b"00")
    sim.run(600.0)
    assert set(totals) == {None}
    assert fingers_are_right([node for overlay in overlays for node in overlay.nodes.values()]) == []


@pytest.mark.parametrize("seed", range(4))
def test_it_mends_itself(seed: int) -> None:
    """Loss, repetition, overtaking, churn and a partition; then quiet: ring and fingers are right, lookups end."""
    network = SuzakuNetwork(seed, FaultyNetwork(0.02, split=(40.0, 55.0), until=120.0))
    for _ in range(24):
        network.add()
    for second in range(20, 120):
        network.sim.at(second, network.churn_brokers)
    network.sim.run(120 + QUIET_S + 60 * PERIOD_S)
    assert network.wrong() == [], f"seed {seed}"
    network.lookups()
