"""What must hold at any time, looked at during a run: also while messages are lost and brokers come and go.

The other checkers look at a network once it is quiet. What goes wrong and mends itself before that they cannot see. A
`RuleWatch` looks at its rules every so often in virtual time; nothing is paid for it where there is none.

    RuleWatch(sim, [joined_keys_are_unique(sim), left_links_never_go_back(sim)], complaints)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from braidmq.bounded import BoundedDict
from braidmq.host import Address
from braidmq.keys import Key
from braidmq.overlay.ring import LinkSequence, Ring, RingNode
from braidmq.sim.checkers.complaints import Complaints
from braidmq.sim.checkers.pubsub import nobody_else_was_bothered, nobody_got_it_twice
from braidmq.sim.engine import Simulator

EVERY_S = 1.0
"""How often a watch looks where nothing else is said."""

BREACHES_TOLD_MAX = 1_000
"""Breaches that are known to have been told, so that they are told once."""

Rule = Callable[[], Iterable[str]]
"""Says what is wrong now, in words; the same words for the same breach."""


class RuleWatch:
    """Looks at rules while time passes, and complains once of each breach."""

    def __init__(self, sim: Simulator, rules: Sequence[Rule], complaints: Complaints, every_s: float = EVERY_S) -> None:
        self.looks = 0
        self._sim = sim
        self._rules = rules
        self._complaints = complaints
        self._told: BoundedDict[str, None] = BoundedDict(BREACHES_TOLD_MAX)
        sim.watch(every_s, self._look)

    def _look(self) -> None:
        self.looks += 1
        for rule in self._rules:
            breaches = [breach for breach in rule() if self._told.add(breach)]
            self._complaints.add(f"at {self._sim.now:.3f} s: {breach}" for breach in breaches)


# Rings


def joined_keys_are_unique(sim: Simulator) -> Rule:
    """No two living hosts have a node with the same key in the same ring."""

    def look() -> Iterator[str]:
        owners: dict[tuple[int, Key], Address] = {}
        for address, node in _linked_nodes(sim):
            owner = owners.setdefault((node.ring, node.me.key), address)
            if owner != address:
                yield f"hosts {owner} and {address} are both {node.me.key!r} in ring {node.ring}"

    return look


def left_links_never_go_back(sim: Simulator) -> Rule:
    """The sequence number of a node's left link only grows, as long as the node is in its ring.

    That is what makes a message of an older link harmless when it comes late. A right link's
    number may become smaller, when the node that is right of it changes.
    """
    before: dict[RingNode, LinkSequence] = {}

    def look() -> Iterator[str]:
        nonlocal before
        now: dict[RingNode, LinkSequence] = {}
        for address, node in _linked_nodes(sim):
            last = before.get(node, node.lseq)
            if node.lseq < last:
                yield f"{node.me.key!r} of host {address} went back with its left link from {last} to {node.lseq}"
            now[node] = node.lseq
        before = now

    return look


def _linked_nodes(sim: Simulator) -> Iterator[tuple[Address, RingNode]]:
    for address, host in sim.hosts.items():
        for service in host.services:
            if isinstance(service, Ring):
                for node in service.nodes.values():
                    if node.is_linked:
                        yield address, node


# Publications


class UnderWay(Protocol):
    """A publication that is not over."""

    name: str
    members: tuple[int, ...]
    """The brokers that published its topic or subscribed to it when it was published."""
    got: list[int]
    """The brokers that have handed it to their clients, in the order in which they did."""
    sent: dict[Address, list[Address]]
    """Where each broker has sent it."""


def each_gets_it_at_most_once(under_way: Callable[[], Iterable[UnderWay]]) -> Rule:
    """No broker hands a publication to its clients twice."""
    return lambda: (wrong for one in under_way() for wrong in nobody_got_it_twice(one.name, one.got))


def only_members_receive_it(under_way: Callable[[], Iterable[UnderWay]]) -> Rule:
    """A publication is sent only to brokers that publish its topic or subscribe to it: there are no relays."""

    def look() -> Iterator[str]:
        for one in under_way():
            reached = [int(to) for receivers in one.sent.values() for to in receivers]
            yield from nobody_else_was_bothered(one.name, one.members, reached)

    return look
