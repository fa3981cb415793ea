"""Multicast, Anycast and the ledger over laid-out networks: what they find, and in how many hops."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from braidmq.host import Address, Forward, Message
from braidmq.overlay.peers import Peer
from braidmq.select.anycast import AnycastOptions
from braidmq.select.delegates import CLAIM_HOPS_MAX, windows_of
from braidmq.select.elements import SELF_LEVEL, elements_of, highest_level
from braidmq.select.group import ComponentGroup
from braidmq.select.member import FIRST_LEASE_S, Component
from braidmq.select.members import Aggregates
from braidmq.select.messages import (
    ClaimSlot,
    InfoReq,
    LedgerHandOver,
    Notice,
    NotReserved,
    Reserved,
    SlotClaimed,
    Window,
)
from braidmq.select.multicast import parts_among
from braidmq.select.request import Need
from braidmq.select.selector import Selector
from braidmq.select.strategies import STRATEGIES
from braidmq.sim.engine import Simulator
from braidmq.sim.layouts.suzaku import lay_out_suzaku
from braidmq.sim.trials.selection_network import SelectionNetwork
from tests.select.networks import Outcome, asked, ended, network, reserved


def members_of(outcomes: list[Outcome]) -> Counter[bytes]:
    return Counter(one.reservation.member.key for one in outcomes if isinstance(one, Reserved))


def sent_of(net: SelectionNetwork, *kinds: type[Message]) -> list[Message]:
    """What is sent from now on, of these kinds and from one broker to another."""
    seen: list[Message] = []

    def look(sender: Address, to: Address, message: Message, _hops: int, _delays: tuple[float, ...]) -> None:
        if sender != to and isinstance(message, kinds):
            seen.append(message)

    net.sim.on_send = look
    return seen


def test_a_range_is_cut_into_as_many_pieces_as_plain_fingers_have_in_it() -> None:
    """Ishihara et al. 2021, §3.2: from N0 to N2 … N8 there are three pieces, and the tree has one edge a node."""
    net = network(8, plain=True, aggregates=Aggregates.ALL)
    broker, me = net.delegate
    node = net.overlays[broker].nodes[me.key]
    keys = [member.key for _, member in net.group_members()]
    parts = parts_among(node, net.plan.group.keys[1])
    assert [keys.index(low) for _, low, _ in parts] == [1, 2, 4]
    asked_of = sent_of(net, InfoReq)
    outcome = ended(net, broker, net.selectors[broker].multicast.reserve(asked(net, "r"), me))[0]
    assert isinstance(outcome, Reserved)
    assert len(asked_of) == 7


def test_elements_are_those_of_the_papers_table() -> None:
    """FFT[−1] is the node itself, FFT[i] stands for 2^i nodes, BFT[i] for 2^(i − 1) up to the one before."""
    net = network(8, plain=True, aggregates=Aggregates.ALL)
    keys = [member.key for _, member in net.group_members()]
    low, high = net.plan.group.keys
    overlay = next(one for one in net.overlays.values() if keys[4] in one.nodes)
    found = list(elements_of(overlay.nodes[keys[4]], asked(net, "r"), low, high))
    forward = {one.level: one.free for one in found if one.forward}
    backward = {one.level: one.free for one in found if not one.forward and one.free}
    assert forward == {SELF_LEVEL: 1, 0: 1, 1: 2}
    assert backward == {0: 1, 1: 1, 2: 2}
    delegate = next(one for one in net.overlays.values() if keys[0] in one.nodes)
    assert highest_level(delegate.nodes[keys[0]], high) == 3


@pytest.mark.parametrize("strategy", [*STRATEGIES, "earlier"])
def test_anycast_reserves_all_and_each_once(strategy: str) -> None:
    net = network(8, plain=True, aggregates=Aggregates.ALL)
    broker, me = net.delegate
    anycast = net.selectors[broker].anycast
    start = next(iter(net.overlays[broker].nodes.values())).me if strategy == "earlier" else me
    options = AnycastOptions(strategy=strategy, hops_max=2_000)
    outcomes = [ended(net, broker, anycast.reserve(asked(net, f"r{n}"), start, options))[0] for n in range(8)]
    assert [*members_of(outcomes).values()] == [1] * 8
    assert net.free() == 0
    few_hops = AnycastOptions(strategy=strategy, hops_max=50)
    more = ended(net, broker, anycast.reserve(asked(net, "more"), start, few_hops))[0]
    assert isinstance(more, NotReserved), "the tables say that some are free: it ends all the same"


def test_a_search_that_is_given_up_ends_in_multicast() -> None:
    net = network(16, plain=True, aggregates=Aggregates.ALL)
    broker, me = net.delegate
    last = net.group_members()[-1][1]
    for _, member in net.group_members()[:-1]:
        member.take(asked(net, f"taken {member.key!r}"), me, 0.0)
    selector = net.selectors[broker]
    options = AnycastOptions(strategy="few", hops_max=1)
    given_up = ended(net, broker, selector.search(asked(net, "a"), me, options))[0]
    assert isinstance(given_up, NotReserved)
    found = ended(net, broker, selector.search(asked(net, "b"), me, options, multicast_below=1))[0]
    assert isinstance(found, Reserved)
    assert found.reservation.member.key == last.key


def test_few_that_remain_are_asked_for_by_multicast_at_once() -> None:
    net = network(8)
    broker, me = net.delegate
    questions = sent_of(net, InfoReq)
    outcome = ended(net, broker, net.selectors[broker].search(asked(net, "a"), me, AnycastOptions(), 100))[0]
    assert isinstance(outcome, Reserved)
    assert len(questions) == 7


def test_a_node_that_satisfies_is_not_passed_by() -> None:
    net = network(8)
    broker, me = net.delegate
    options = AnycastOptions(strategy="many", finishes_here=True)
    outcome = ended(net, broker, net.selectors[broker].anycast.reserve(asked(net, "a"), me, options))[0]
    assert isinstance(outcome, Reserved)
    assert (outcome.hops, outcome.reservation.member) == (0, me)


@pytest.mark.parametrize("aggregates", Aggregates)
def test_the_ledger_takes_a_hop_a_reservation_until_none_is_free(aggregates: Aggregates) -> None:
    net = network(16, aggregates=aggregates)
    outcomes = [reserved(net, asked(net, f"r{number}"))[0] for number in range(16)]
    assert [*members_of(outcomes).values()] == [1] * 16
    assert sorted(one.hops for one in outcomes) == [0] + [1] * 15
    assert isinstance(reserved(net, asked(net, "more"))[0], NotReserved)


def test_requests_at_the_same_time_get_one_each_and_one_too_many_gets_none() -> None:
    net = network(16)
    outcomes = reserved(net, *(asked(net, f"r{number}") for number in range(17)))
    assert [*members_of(outcomes).values()] == [1] * 16
    assert sum(isinstance(one, NotReserved) for one in outcomes) == 1


def test_a_broker_that_is_no_member_asks_the_delegate() -> None:
    net = network(8)
    other = next(broker for broker in net.selectors if broker >= 8)
    outcomes = reserved(net, *(asked(net, f"r{number}") for number in range(9)), broker=other)
    assert [*members_of(outcomes).values()] == [1] * 8
    assert sum(isinstance(one, NotReserved) for one in outcomes) == 1


def test_the_same_request_to_the_delegate_twice_is_answered_the_same() -> None:
    net = network(8)
    other = next(broker for broker in net.selectors if broker >= 8)
    first, again = reserved(net, asked(net, "r"), broker=other) + reserved(net, asked(net, "r"), broker=other)
    assert isinstance(first, Reserved)
    assert isinstance(again, Reserved)
    assert first.reservation == again.reservation
    assert net.free() == 7


def test_what_is_released_is_found_again_by_its_notice() -> None:
    net = network(8)
    broker, _ = net.delegate
    outcomes = [reserved(net, asked(net, f"r{number}"))[0] for number in range(8)]
    held = [net.selectors[broker].hold(one, net.sim.now) for one in outcomes if isinstance(one, Reserved)]
    notices = sent_of(net, Notice)
    ended(net, broker, held[5].release())
    net.sim.run(net.sim.now + 0.1)
    assert len(notices) == 1
    again = reserved(net, asked(net, "again"))[0]
    assert isinstance(again, Reserved)
    assert again.reservation.member == held[5].reservation.member
    assert again.hops == 1


def test_a_notice_that_was_lost_is_healed_by_asking() -> None:
    net = network(16)
    outcomes = [reserved(net, asked(net, f"r{number}"))[0] for number in range(16)]
    last = outcomes[-1]
    assert isinstance(last, Reserved)
    member = next(one for _, one in net.group_members() if one.key == last.reservation.member.key)
    member.release(last.reservation.request)
    found = reserved(net, asked(net, "found"))[0]
    assert isinstance(found, Reserved)
    assert found.reservation.member == last.reservation.member


def test_a_reservation_whose_answer_is_lost_is_free_again_soon() -> None:
    net = network(8)
    broker, _ = net.delegate
    reserved(net, asked(net, "here"))
    net.sim.hosts[broker].spawn(net.selectors[broker].reserve(asked(net, "lost")))
    net.sim.run(net.sim.now + 0.015)
    assert net.free() == 6, "it is taken, and the answer on its way"
    net.sim.hosts[broker].crash()
    assert net.free() == 6
    net.sim.run(net.sim.now + FIRST_LEASE_S + 2.0)
    assert sum(member.free(net.sim.now) for at, member in net.group_members() if at != broker) == 7


def test_a_score_finds_the_best_of_all() -> None:
    net = network(8)
    for number, (_, member) in enumerate(net.group_members()):
        name = next(iter(member.components))
        member.report_load(name, {"cpu": 10.0 * ((number + 3) % 8), "memory": 100.0 * number})
    least = reserved(net, asked(net, "least", score=(("cpu", 1.0),)))[0]
    assert isinstance(least, Reserved)
    assert [member.key for _, member in net.group_members()].index(least.reservation.member.key) == 5
    both = reserved(net, asked(net, "both", needs=(Need("memory", "<=", 150.0),), score=(("cpu", 1.0),)))[0]
    assert isinstance(both, Reserved)
    assert [member.key for _, member in net.group_members()].index(both.reservation.member.key) == 0


def test_a_delegate_that_is_no_longer_first_leaves_its_ledger() -> None:
    net = network(8)
    broker, _ = net.delegate
    reserved(net, asked(net, "r0"), asked(net, "r1"))
    second_broker, second = net.group_members()[1]
    office = net.selectors[broker].delegates
    assert office.seat(net.plan.group) is not None
    assert net.selectors[second_broker].delegates.seat(net.plan.group) is None
    told = sent_of(net, LedgerHandOver)
    seat = net.overlays[second_broker].nodes[second.key]
    seat.link.left = net.overlays[broker].nodes[min(net.overlays[broker].nodes)].me  # it counts itself as the first
    mine = net.selectors[second_broker]
    taken = ended(net, second_broker, mine.delegates.reserve(asked(net, "two")))[0]
    assert isinstance(taken, Reserved), "two delegates for a while"
    seat.link.left = net.delegate[1]
    assert ended(net, second_broker, mine.delegates.reserve(asked(net, "none")))[0] is None
    assert len(told) == 1
    rest = [reserved(net, asked(net, f"rest{number}"))[0] for number in range(6)]
    assert sum(isinstance(one, Reserved) for one in rest) == 5, "none of the 8 was given twice"


def test_a_request_that_makes_no_sense_is_not_sent() -> None:
    net = network(4)
    answers = sent_of(net, SlotClaimed)
    with pytest.raises(Exception, match="a lease of -1"):
        reserved(net, asked(net, "wrong", lease_s=-1.0))
    assert answers == []


def test_a_member_that_leaves_is_passed_over_and_its_holder_knows() -> None:
    net = network(8)
    broker, _ = net.delegate
    outcomes = [reserved(net, asked(net, f"r{number}"))[0] for number in range(8)]
    held = [net.selectors[broker].hold(one, net.sim.now) for one in outcomes if isinstance(one, Reserved)]
    gone, going = net.group_members()[5]
    mine = next(one for one in held if one.reservation.member.key == going.key)
    net.sim.hosts[gone].spawn(net.selectors[gone].withdraw(going))
    net.sim.run(net.sim.now + FIRST_LEASE_S)
    assert not mine.is_valid
    assert sum(one.is_valid for one in held) == 7
    assert isinstance(reserved(net, asked(net, "more"))[0], NotReserved)


def test_a_shortage_is_told_before_it_is_there() -> None:
    net = network(16)
    broker, _ = net.delegate
    told: list[float] = []
    net.selectors[broker].delegates.on_shortage = lambda _group, in_s: told.append(in_s)
    for number in range(12):
        reserved(net, asked(net, f"r{number}"))
        net.sim.run(net.sim.now + 1.0)
    assert told
    assert net.free() == 4
    assert told[-1] == pytest.approx(4.0, rel=0.5), "one goes each second"


def test_a_window_lies_to_the_right_of_who_tells_of_it() -> None:
    """Also where the group is all there is, and the right neighbour of the last member is the first."""
    sim = Simulator(1)
    group = ComponentGroup("c1", "edge1")
    overlays = lay_out_suzaku(sim, {number: [group.key(f"b{number}")] for number in range(5)})
    for number, overlay in overlays.items():
        Selector(overlay).members.offer(group, f"b{number}").add(Component("c"))
        for key, node in overlay.nodes.items():
            windows = windows_of(node, group)
            assert all(key < window.owner.key < window.until for window in windows)
            assert bool(windows) == (number != 4)


def test_a_request_goes_to_no_member_twice_and_not_on_for_ever() -> None:
    net = network(8)
    _, me = net.delegate
    broker, member = net.group_members()[3]
    mine = net.overlays[broker].nodes[member.key].me
    delegates = net.selectors[broker].delegates
    member.take(asked(net, "before"), mine, 0.0)
    alone = ClaimSlot(mine.key, mine.key + b"\0", asked(net, "r"), me, 1, 1, (Window(mine, mine.key + b"\0", 5),))
    for _ in range(2):
        answer = delegates.on_claim(me.address, alone)
        assert isinstance(answer, SlotClaimed)
        assert answer.reservation is None
    other = net.group_members()[5][1]
    peer = Peer(other.key, 5)
    onward = msgspec.structs.replace(alone, request=asked(net, "s"), others=(Window(peer, other.key + b"\0", 1),))
    assert isinstance(delegates.on_claim(me.address, onward), Forward)
    assert isinstance(delegates.on_claim(me.address, onward), Forward), "the same way again"
    late = msgspec.structs.replace(onward, hops=CLAIM_HOPS_MAX)
    assert isinstance(delegates.on_claim(me.address, late), SlotClaimed)
