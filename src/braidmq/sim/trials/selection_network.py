"""Brokers with components to select from: three topics at each, in clusters of equal size (Ishihara et al. 2021, §4.3).

Each broker stands in the overlay for itself and once for each topic, so there are four nodes a broker. The group that
is measured is that of one topic in one cluster; its first node is the delegate.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from statistics import mean

import msgspec

from braidmq.host import Address, Message
from braidmq.keys import Key, Role, key_of
from braidmq.overlay.peers import Peer
from braidmq.overlay.suzaku import PERIOD_S, Suzaku, SuzakuNode, Update, Updated
from braidmq.select.group import ComponentGroup
from braidmq.select.member import Component, Member
from braidmq.select.members import Aggregates
from braidmq.select.selector import Selector
from braidmq.sim.engine import Simulator
from braidmq.sim.layouts.suzaku import lay_out_suzaku, lay_out_totals

LEVEL_MAX = 9
"""The highest level of a table whose use is counted: of rings with up to 1,024 nodes all."""


class SelectionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How many of what there are."""

    brokers: int
    group_size: int
    topics: int = 3
    slots_max: int = 1
    aggregates: Aggregates = Aggregates.CUT
    plain: bool = False
    at_once: bool = False

    @property
    def group(self) -> ComponentGroup:
        """The one that is measured."""
        return self.group_of(0, 0)

    def group_of(self, topic: int, broker: int) -> ComponentGroup:
        return ComponentGroup(f"c{topic + 1}", f"edge{broker // self.group_size + 1}")


class SelectionMeter:
    """Counts what is sent: upkeep of the overlay by level, and all else, which is for selections.

    Updates between two nodes of one broker count as well, as in the papers: each node is one of its own there.
    """

    def __init__(self, sim: Simulator, *, counts_upkeep: bool = True) -> None:
        self._counts_upkeep = counts_upkeep
        self.upkeep_bytes: Counter[int] = Counter()
        self._sizes: dict[str, dict[int, list[int]]] = {"request": {}, "reply": {}}
        self.messages: Counter[str] = Counter()
        self.bytes = 0
        self._encode = msgspec.msgpack.Encoder().encode
        self._level_of: dict[tuple[Address, Address], int] = {}
        sim.on_send = self._sent

    def _sent(self, sender: Address, to: Address, message: Message, hops: int, delays: tuple[float, ...]) -> None:
        if isinstance(message, Update | Updated) and not self._counts_upkeep:
            return
        if isinstance(message, Update):
            self._level_of[to, sender] = message.level
            self._upkeep("request", message.level, message, hops)
        elif isinstance(message, Updated):
            self._upkeep("reply", self._level_of.get((sender, to), 0), message, hops)
        elif sender == to:
            return
        elif type(message).__module__.startswith("braidmq.select"):
            self.messages[type(message).__name__] += 1
            self.bytes += len(self._encode((0, hops, message)))
        else:
            self._upkeep("request", -1, message, hops)

    def _upkeep(self, kind: str, level: int, message: Message, hops: int) -> None:
        size = len(self._encode((0, hops, message)))
        self.upkeep_bytes[level] += size
        self._sizes[kind].setdefault(level, []).append(size)

    def mean_sizes(self, kind: str) -> list[float]:
        """Of updates or of their answers, by level from 0 on."""
        by_level = {level: sizes for level, sizes in self._sizes[kind].items() if level >= 0}
        return [mean(by_level.get(level, [0])) for level in range(max(by_level, default=-1) + 1)]

    def selection_messages(self) -> int:
        return sum(count for name, count in self.messages.items() if name not in ("Renew", "Renewed"))


class SelectionNetwork:
    """A network that is laid out, with aggregates as they are once updates have carried all values everywhere."""

    def __init__(self, sim: Simulator, plan: SelectionPlan) -> None:
        self.sim = sim
        self.plan = plan
        keys: dict[Address, list[Key]] = {
            broker: [
                key_of("", Role.PUBLISHER, "", name_of(broker)),
                *(plan.group_of(topic, broker).key(name_of(broker)) for topic in range(plan.topics)),
            ]
            for broker in range(plan.brokers)
        }
        self.overlays: dict[Address, Suzaku] = lay_out_suzaku(sim, keys, plain=plan.plain)
        self.selectors: dict[int, Selector] = {}
        self._group_members: list[tuple[int, Member]] = []
        for broker in range(plan.brokers):
            overlay = self.overlays[broker]
            selector = self.selectors[broker] = Selector(overlay, plan.aggregates, at_once=plan.at_once)
            for topic in range(plan.topics):
                group = plan.group_of(topic, broker)
                member = selector.members.offer(group, name_of(broker))
                slots = 1 + sim.chance.randrange(plan.slots_max) if plan.slots_max > 1 else 1
                member.add(Component(f"{group.topic}@{name_of(broker)}", slots))
        self.ask_everywhere()
        lay_out_totals(sim, self.overlays)

    def ask_everywhere(self) -> None:
        """Every group is asked for: aggregates that are cut to what anybody wants are those of all groups."""
        for selector in self.selectors.values():
            for member in selector.members.members.values():
                selector.members.interest.note(member.group.label)

    @property
    def nodes(self) -> Iterator[SuzakuNode]:
        for overlay in self.overlays.values():
            yield from overlay.nodes.values()

    def group_members(self) -> list[tuple[int, Member]]:
        """Of the group that is measured, in the order of keys: the first is the delegate."""
        if self._group_members:
            return self._group_members
        low, high = self.plan.group.keys
        found = [
            (broker, member)
            for broker, selector in self.selectors.items()
            for key, member in selector.members.members.items()
            if low <= key < high
        ]
        self._group_members = sorted(found, key=lambda one: one[1].key)
        return self._group_members

    @property
    def delegate(self) -> tuple[int, Peer]:
        """The broker with the first member, and its node there."""
        broker, member = self.group_members()[0]
        return broker, self.overlays[broker].nodes[member.key].me

    def distances(self) -> list[int]:
        """How many hops along the fingers each member is away from the delegate."""
        keys = dict.fromkeys(member.key for _, member in self.group_members())
        nodes = {key: node for overlay in self.overlays.values() for key, node in overlay.nodes.items()}
        hops = {next(iter(keys)): 0}
        queue = deque(hops)
        while queue:
            node = nodes[queue.popleft()]
            for peer in (node.link.right, *(finger.peer for finger in node.forward)):
                if peer.key in keys and peer.key not in hops:
                    hops[peer.key] = hops[node.me.key] + 1
                    queue.append(peer.key)
        return list(hops.values())

    def free(self) -> int:
        return sum(member.free(self.sim.now) for _, member in self.group_members())

    def begin_updates(self, *, near_only: bool = False) -> None:
        """Every node updates one level each period from now on; their phases are random, not in step.

        With `near_only`, those do whose updates can say something of the measured group: its members, and twice as many
        nodes before them. What the others would tell each other changes no search.
        """
        rounds = max(len(node.forward) for node in self.nodes) + 1
        nodes = sorted(self.nodes, key=lambda node: node.me.key)
        if near_only:
            low, high = self.plan.group.keys
            inside = [position for position, node in enumerate(nodes) if low <= node.me.key < high]
            first = inside[0] - 2 * len(inside)
            chosen = dict.fromkeys(position % len(nodes) for position in range(first, inside[-1] + 1))
            nodes = [nodes[position] for position in chosen]
        for node in nodes:
            node.host.spawn(self._update_later(node, self.sim.chance.uniform(0, rounds * PERIOD_S)))
        self.sim.run(self.sim.now + (rounds + 1) * PERIOD_S)

    async def _update_later(self, node: SuzakuNode, after_s: float) -> None:
        await node.host.sleep(after_s)
        await node.keep_learning()


def name_of(broker: int) -> str:
    return f"b{broker:05}"
