"""Checkers that look during a run: they do not change it, and each of them complains when its rule is broken."""

from __future__ import annotations

from typing import Any

import pytest

from braidmq.host import Address, Message
from braidmq.keys import Key
from braidmq.overlay import Peer
from braidmq.overlay.ring import Ring, RingNode
from braidmq.overlay.ring.messages import LinkGranted, SetRight
from braidmq.pubsub.method import Publication
from braidmq.sim.checkers.complaints import Complaints
from braidmq.sim.checkers.watch import RuleWatch, joined_keys_are_unique, left_links_never_go_back
from braidmq.sim.engine import SimulationError, Simulator
from braidmq.sim.trials.brokers import TrialBrokers
from braidmq.sim.trials.figures import OF_THE_MACHINE
from braidmq.sim.trials.meter import Tally
from braidmq.sim.trials.methods import TRIAL_METHODS, Options
from braidmq.sim.trials.patterns import RoleAssignment, Topic
from braidmq.sim.trials.trial import Trial, play

FAULTS = "loss=0.02,dup=0.02,reorder=0.05,clog=0.01,partition=20-40,oneway=50-70,jump=0.2,drift=0.2,churn=1"


# The hook


def test_a_watch_looks_between_events_and_at_the_end() -> None:
    sim = Simulator(1)
    looked: list[tuple[float, int]] = []
    happened: list[float] = []
    for when in (0.5, 1.0, 2.5, 7.25):
        sim.at(when, lambda when=when: happened.append(when))  # type: ignore[misc]
    sim.watch(1.0, lambda: looked.append((sim.now, len(happened))))
    sim.run(3.5)
    assert looked == [(1.0, 2), (2.0, 2), (3.0, 3), (3.5, 3)]
    sim.run()
    assert looked[4:] == [(4.0, 3), (5.0, 3), (6.0, 3), (7.0, 3), (8.0, 4)], "and no further than there is anything"


def test_a_watch_that_fails_names_the_seed() -> None:
    def look() -> None:
        raise AssertionError("broken")

    sim = Simulator(42)
    sim.watch(1.0, look)
    with pytest.raises(SimulationError, match=r"seed 42, at 1\.000000 s: the watch failed: AssertionError: broken"):
        sim.run(5.0)
    with pytest.raises(ValueError, match="watched already"):
        sim.watch(1.0, look)
    with pytest.raises(ValueError, match="every 0"):
        Simulator(1).watch(0.0, look)


@pytest.mark.parametrize("method", ["relayfree", "adaptive"])
def test_a_watched_trial_has_the_same_figures_and_keeps_the_rules(method: str) -> None:
    trial = Trial(method=method, pattern="delta", nodes=20, seed=3, faults=FAULTS)
    watched, plain = play(trial, watch_every_s=0.25), play(trial)
    assert watched.complaints == plain.complaints == []
    for name in watched.figures.__struct_fields__:
        if name not in OF_THE_MACHINE:
            assert getattr(watched.figures, name) == getattr(plain.figures, name), name


# Rings


def rings(count: int = 2) -> tuple[Simulator, list[Ring], Complaints]:
    """A watched simulator, and hosts with a ring of one node each, all with different keys."""
    sim, complaints = Simulator(1), Complaints()
    found = [Ring(sim.host(number)) for number in range(count)]
    for number, ring in enumerate(found):
        joined(ring, b"%d" % number)
    RuleWatch(sim, [joined_keys_are_unique(sim), left_links_never_go_back(sim)], complaints)
    return sim, found, complaints


def joined(ring: Ring, key: Key, number: int = 0) -> RingNode:
    node = ring.node(number, Peer(key, ring.host.address))
    node.found()
    return node


def test_two_joined_nodes_of_one_key_are_seen() -> None:
    sim, (_, two), complaints = rings()
    joined(two, b"0", number=7)
    sim.run(5.0)
    assert complaints.count == 0, "in another ring it may have any key"
    joined(two, b"0")
    sim.run(7.0)
    assert complaints.first == ["at 6.000 s: hosts 0 and 1 are both b'0' in ring 0"]


def test_the_dead_and_those_that_have_not_joined_have_no_key() -> None:
    sim, (_, two), complaints = rings()
    two.node(0, Peer(b"0", 1))
    sim.run(5.0)
    sim.hosts[0].crash()
    joined(two, b"0")
    sim.run(10.0)
    assert complaints.count == 0


def test_a_left_link_that_goes_back_is_seen() -> None:
    sim, (one, _), complaints = rings()
    node = one.nodes[0, b"0"]
    for second, number in enumerate([(0, 1), (0, 2), (1, 0), (0, 5), (1, 1)]):
        sim.at(second + 0.5, lambda number=number: setattr(node, "lseq", number))  # type: ignore[misc]
    sim.run(6.0)
    assert complaints.first == ["at 4.000 s: b'0' of host 0 went back with its left link from (1, 0) to (0, 5)"]


def test_a_node_that_joins_again_begins_anew() -> None:
    sim, (one, _), complaints = rings()
    node = one.nodes[0, b"0"]
    node.lseq = (3, 0)
    sim.run(2.0)
    one.forget(node)
    joined(one, b"0")
    sim.run(4.0)
    assert complaints.count == 0


def test_a_leave_that_comes_late_does_not_take_the_number_of_a_left_link_back() -> None:
    """A neighbour wished to leave, gave that up as lost, and has been linked anew by a repair since."""
    sim, (one, two), complaints = rings()
    node, other = one.nodes[0, b"0"], two.nodes[0, b"1"].me
    node.left = node.right = other
    node.lseq, node.rseq = (3, 0), (1, 0)
    sim.run(1.5)
    assert isinstance(node.on_set_right(1, SetRight(0, b"0", node.me, other, (2, 1), False, 1)), LinkGranted)
    sim.run(3.0)
    assert node.left == node.right == node.me
    assert node.lseq == node.rseq == (3, 0)
    assert complaints.count == 0


# Publications


def brokers(method: str = "relayfree") -> tuple[TrialBrokers, Complaints]:
    """Broker 0 publishes, 1 and 2 subscribe, 3 has another topic."""
    built, complaints = TrialBrokers(Simulator(1), TRIAL_METHODS[method], Options()), Complaints()
    built.watch(0.01, complaints)
    roles = RoleAssignment(4, (Topic("t/1", (0,), (1, 2)), Topic("t/2", (), (3,))))
    assert built.lay_out(roles, lambda _part: None) == []
    return built, complaints


def test_a_publication_that_comes_twice_is_seen_when_it_does() -> None:
    built, complaints = brokers()
    method: Any = built.methods[1]
    once = method.on_message

    def twice(publication: Publication) -> None:
        once(publication)
        once(publication)

    method.on_message = twice
    began_at = built.sim.now
    built.publish(0, "t/1", Tally())
    built.sim.run(began_at + 1.0)
    assert complaints.count == 1
    assert complaints.first[0].endswith("publication 1 of broker 0 on t/1 came more than once to broker 1")
    assert float(complaints.first[0].split()[1]) < began_at + 0.1


def test_a_relay_is_seen_when_it_is_asked_and_not_while_all_is_rough() -> None:
    built, complaints = brokers()

    class Carry(Message):
        body: bytes

    def relay(to: Address) -> None:
        body = built.meter.begin("t/1", 0, (1, 2), (0, 1, 2))
        built.sim.hosts[0].send(to, Carry(body))
        built.sim.run(built.sim.now + 1.0)

    relay(1)
    assert complaints.count == 0
    built.is_calm = False
    relay(3)
    assert complaints.count == 0
    built.meter.close(Tally(), None, relay_free=True)
    built.is_calm = True
    relay(3)
    assert complaints.count == 1
    assert complaints.first[0].endswith("publication 3 of broker 0 on t/1 bothered broker 3")


def test_methods_with_relays_may_have_them() -> None:
    built, complaints = brokers("scribe")
    built.publish(0, "t/1", Tally())
    built.sim.run(built.sim.now + 5.0)
    assert complaints.count == 0
