"""The brokers of a trial: with a method each, what their clients want and publish, and a meter for publications.

What is wanted is kept apart from what the methods know: the checkers compare the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec

from braidmq.detours.detours import Detours
from braidmq.host import Address
from braidmq.keys import Role
from braidmq.mqtt.topics import matches
from braidmq.pubsub.method import Method, WildcardMethod, ignore
from braidmq.sim.checkers.complaints import Complaints
from braidmq.sim.checkers.pubsub import suspended_only_without_subscribers
from braidmq.sim.checkers.watch import (
    RuleWatch,
    each_gets_it_at_most_once,
    joined_keys_are_unique,
    left_links_never_go_back,
    only_members_receive_it,
)
from braidmq.sim.engine import Simulator
from braidmq.sim.garbage import no_garbage_collection
from braidmq.sim.trials.meter import Meter, Tally
from braidmq.sim.trials.methods import ASK_EVERY_S, ByCovers, Options, TrialMethod, learn_fingers
from braidmq.sim.trials.patterns import RoleAssignment

START_EVERY_S = 0.1
"""The time between two brokers that start, when a network grows."""

SETTLED_MAX_S = 600.0
"""How long a network may take until all that was asked for at its beginning has taken effect."""

SETTLE_STEPS = 10
"""Signs of progress meanwhile."""

VISITS_MAX = 100
"""Topics without subscribers that one visitor subscribes to, one after the other."""

VISITED_MAX = 10_000
"""Topics without subscribers that are visited; of more, some are drawn by chance."""

PUBLISH_EVERY_S = 0.0001
OVER_S = 5.0
"""When nothing was heard of any publication for so long, they are over."""

BATCH_DELIVERIES_MAX = 200_000
"""Deliveries that are under way at a time."""

INTRODUCERS_TRIED_MAX = 8

OnProgress = Callable[[float], None]
"""Called with the part of a stretch of work that is done."""


class Roles(msgspec.Struct):
    """What the clients of a broker want, and what they publish: True once that has taken effect."""

    subscribed: dict[str, bool] = msgspec.field(default_factory=dict)
    advertised: dict[str, bool] = msgspec.field(default_factory=dict)
    demand: dict[str, bool] = msgspec.field(default_factory=dict)
    """What the method has told of the topics that are published here."""


class TrialBrokers:
    """All brokers of a trial. Those in `methods` live; the roles of those that crashed are kept."""

    def __init__(self, sim: Simulator, kind: TrialMethod, options: Options) -> None:
        self.sim = sim
        self.kind = kind
        self.options = options
        self.meter = Meter(sim, options.clusters)
        self.methods: dict[int, Method] = {}
        self.roles: dict[int, Roles] = {}
        self.members: dict[str, tuple[dict[int, None], dict[int, None]]] = {}
        """The living publishers and subscribers of each topic."""
        self.is_calm = True
        """Whether the network has no faults to mend, so that methods keep all that they promise."""
        self._has_detours = False

    def watch(self, every_s: float, complaints: Complaints) -> RuleWatch:
        """Looks at what must hold at any time, every so often; to be said before the network is built."""
        under_way = self.meter.under_way
        rules = [joined_keys_are_unique(self.sim), left_links_never_go_back(self.sim)]
        rules.append(each_gets_it_at_most_once(under_way))
        if self.kind.entry.is_relay_free:
            rules.append(only_members_receive_it(lambda: under_way() if self.is_calm else ()))
        return RuleWatch(self.sim, rules, complaints, every_s)

    # Building

    def lay_out(self, assignment: RoleAssignment, on_progress: OnProgress) -> list[str]:
        """The network as it is when every broker has its roles and knows what it should; what could not be had."""
        with no_garbage_collection():
            self.methods = self.kind.lay_out(self.sim, assignment, self.options)
            subscribes, advertises = (role in self.kind.laid_out for role in (Role.SUBSCRIBER, Role.PUBLISHER))
            for broker, (subscribed, adverts) in enumerate(assignment.roles()):
                self.roles[broker] = Roles(dict.fromkeys(subscribed, subscribes), dict.fromkeys(adverts, advertises))
                self._listen(broker)
                self._enter(broker)
        if not (subscribes and advertises):
            for broker in self.methods:
                ask = partial(self._ask_for_roles, broker)
                self.sim.at(self.sim.now + broker * ASK_EVERY_S, ask)
        return self._settle(assignment.brokers * ASK_EVERY_S, on_progress)

    def _ask_for_roles(self, broker: int) -> None:
        self.sim.hosts[broker].spawn(self._take_roles(broker))

    def grow(self, assignment: RoleAssignment, on_progress: OnProgress) -> list[str]:
        """The network as it comes about by messages, broker after broker; what could not be had."""
        for broker, (subscribed, adverts) in enumerate(assignment.roles()):
            roles = Roles(dict.fromkeys(subscribed, False), dict.fromkeys(adverts, False))
            self.sim.at(self.sim.now + broker * START_EVERY_S, partial(self.start, broker, roles))
        return self._settle(assignment.brokers * START_EVERY_S, on_progress)

    def _settle(self, begin_s: float, on_progress: OnProgress) -> list[str]:
        """Lets all begin; waits until what they ask for has taken effect, and publishers know if they are wanted."""
        step_s = begin_s / SETTLE_STEPS
        for step in range(SETTLE_STEPS):
            self.sim.run(self.sim.now + step_s)
            on_progress(step / SETTLE_STEPS)
        self._wait_until(lambda: not self.unsettled())
        self.sim.run(self.sim.now + self.kind.demand_s)
        return self.unsettled()

    def _wait_until(self, is_so: Callable[[], bool]) -> None:
        until = self.sim.now + SETTLED_MAX_S
        while not is_so() and self.sim.now < until:
            self.sim.run(self.sim.now + 1.0)

    def visit(self) -> tuple[int, int, list[str]]:
        """Subscribers come to all topics that are published and have none, and go again.

        So publishers learn by messages that they are wanted, and that they are no longer, as in the experiment of Banno
        et al. 2015, §6.1, in which the last subscriber unsubscribes. Silence alone would prove nothing: a broker that
        was never told anything is silent, too. The visitors' brokers stay, without roles. Returns how many topics were
        visited of how many, and what was wrong meanwhile.
        """
        deserted = [
            topic for topic, (publishers, subscribers) in self.members.items() if publishers and not subscribers
        ]
        if not deserted or not self.kind.entry.knows_demand:
            return 0, len(deserted), []
        visited = self.sim.chance.sample(deserted, VISITED_MAX) if len(deserted) > VISITED_MAX else deserted
        first = max(self.roles) + 1
        visitors = range(first, first + -(-len(visited) // VISITS_MAX))
        for position, visitor in enumerate(visitors):
            self.start(visitor, Roles(dict.fromkeys(visited[position :: len(visitors)], False)))
        wrong = self._settle(0.0, ignore) + self.wrong_demand()
        there = dict.fromkeys(visitors)
        for visitor in visitors:
            self._retire(visitor, partial(there.pop, visitor))
        self._wait_until(lambda: not there)
        learn_fingers(self.methods.values())
        self.sim.run(self.sim.now + self.kind.demand_s)
        return len(visited), len(deserted), wrong + [f"broker {visitor} cannot unsubscribe" for visitor in there]

    def unsettled(self) -> list[str]:
        """What living brokers have asked for and has not taken effect."""
        wrong = []
        for broker in self.methods:
            roles = self.roles[broker]
            wrong += [
                f"broker {broker} cannot subscribe to {topic}" for topic, done in roles.subscribed.items() if not done
            ]
            wrong += [
                f"broker {broker} cannot advertise {topic}" for topic, done in roles.advertised.items() if not done
            ]
        return wrong

    # Brokers that come and go

    def go_round_cuts(self) -> None:
        """From now on brokers pass on what is for one that a third cannot reach, as they do in a braid."""
        self._has_detours = True
        for broker in self.methods:
            Detours(self.sim.hosts[broker]).start()

    def start(self, broker: int, roles: Roles) -> None:
        """A broker begins an incarnation, and asks for its roles one after the other."""
        host = self.sim.hosts.get(broker) or self.sim.host(broker)
        host.restart()
        self.roles[broker] = Roles(dict.fromkeys(roles.subscribed, False), dict.fromkeys(roles.advertised, False))
        if self._has_detours:
            Detours(host).start()
        self.methods[broker] = self.kind.start(host, broker, partial(self._introduce, broker), self.options)
        self._listen(broker)
        self._enter(broker)
        host.spawn(self._take_roles(broker))

    async def _take_roles(self, broker: int) -> None:
        roles, method = self.roles[broker], self.methods[broker]
        for topic in [topic for topic, done in roles.subscribed.items() if not done]:
            await self._subscribe(broker, method, roles, topic)
        for topic in [topic for topic, done in roles.advertised.items() if not done]:
            if self.methods.get(broker) is method:
                await method.advertise(topic)
                roles.advertised[topic] = True
                if self.kind.entry.takes_filters:
                    self._on_wants(broker, topic)

    async def _subscribe(self, broker: int, method: Method, roles: Roles, topic: str) -> None:
        """Subscribes, if that is still wanted."""
        if self.methods.get(broker) is method and topic in roles.subscribed:
            await method.subscribe(topic)
            if topic in roles.subscribed:
                roles.subscribed[topic] = True

    def crash(self, broker: int) -> None:
        """Gone without a word; its roles wait for its return."""
        self._exit(broker)
        del self.methods[broker]
        self.sim.hosts[broker].crash()

    def leave(self, broker: int) -> None:
        """Gives all its roles back, and is gone for good when that has taken effect."""
        self._retire(broker, self.sim.hosts[broker].crash)

    def _retire(self, broker: int, then: Callable[[], object]) -> None:
        """Gives all its roles back, and does something when that has taken effect."""
        self._exit(broker)
        method = self.methods.pop(broker)
        roles = self.roles.pop(broker)

        async def give_back() -> None:
            for topic in roles.advertised:
                await method.withdraw(topic)
            for topic in roles.subscribed:
                await method.unsubscribe(topic)
            if isinstance(self.kind, ByCovers):
                await self.kind.leave(broker, method)
            then()

        self.sim.hosts[broker].spawn(give_back())

    def subscribe(self, broker: int, topic: str) -> None:
        self.roles[broker].subscribed[topic] = False
        self._members(topic)[1][broker] = None
        self.sim.hosts[broker].spawn(self._subscribe(broker, self.methods[broker], self.roles[broker], topic))

    def unsubscribe(self, broker: int, topic: str) -> None:
        del self.roles[broker].subscribed[topic]
        self._members(topic)[1].pop(broker, None)
        self.sim.hosts[broker].spawn(self.methods[broker].unsubscribe(topic))

    def _members(self, topic: str) -> tuple[dict[int, None], dict[int, None]]:
        return self.members.setdefault(topic, ({}, {}))

    def _enter(self, broker: int) -> None:
        for topic in self.roles[broker].advertised:
            self._members(topic)[0][broker] = None
        for topic in self.roles[broker].subscribed:
            self._members(topic)[1][broker] = None

    def _exit(self, broker: int) -> None:
        for topic in self.roles[broker].advertised:
            self._members(topic)[0].pop(broker, None)
        for topic in self.roles[broker].subscribed:
            self._members(topic)[1].pop(broker, None)

    def _listen(self, broker: int) -> None:
        method = self.methods[broker]
        method.on_message = partial(self.meter.received, broker)
        method.on_demand = self.roles[broker].demand.__setitem__
        if isinstance(method, WildcardMethod):
            method.on_wants = partial(self._on_wants, broker)

    def _on_wants(self, broker: int, topic_filter: str) -> None:
        """It may have changed who wants what a filter matches: that is looked up for each topic."""
        roles, method = self.roles[broker], self.methods.get(broker)
        if isinstance(method, WildcardMethod):
            for topic in roles.advertised:
                is_concerned = topic_filter == "#" or matches(topic_filter, topic)
                if is_concerned and method.is_wanted(topic) != roles.demand.get(topic, False):
                    method.on_demand(topic, method.is_wanted(topic))

    def _introduce(self, mine: int) -> Address | None:
        """Some other broker that is in, None if there is none."""
        others = [broker for broker in self.methods if broker != mine]
        for _ in range(INTRODUCERS_TRIED_MAX if others else 0):
            broker = self.sim.chance.choice(others)
            if self.kind.is_in(self.methods[broker]):
                return broker
        inside = [broker for broker in others if self.kind.is_in(self.methods[broker])]
        return self.sim.chance.choice(inside) if inside else None

    # Publishing

    def publish(self, broker: int, topic: str, tally: Tally) -> None:
        """One publication, if its publisher is there."""
        roles = self.roles.get(broker)
        if broker not in self.methods or roles is None or not roles.advertised.get(topic):
            return
        publishers, subscribers = self._members(topic)
        entry = self.kind.entry
        receivers = tuple(one for one in subscribers if entry.delivers_own or one != broker)
        may_see_it = receivers if entry.takes_filters else (*publishers, *receivers)
        body = self.meter.begin(topic, broker, receivers, (broker, *may_see_it))
        if not self.methods[broker].publish(topic, body):
            tally.suspended += 1

    def publish_all(
        self, publications: Sequence[tuple[str, int]], tally: Tally, complaints: Complaints, on_progress: OnProgress
    ) -> None:
        """Publishes batch after batch, each until it is over, and checks what has become of it."""
        done = 0

        def publish(topic: str, broker: int) -> None:
            nonlocal done
            self.publish(broker, topic, tally)
            done += 1
            on_progress(done / len(publications))

        for batch in self._batches(publications):
            for position, (topic, broker) in enumerate(batch):
                self.sim.at(self.sim.now + position * PUBLISH_EVERY_S, partial(publish, topic, broker))
            self.sim.run(self.sim.now + len(batch) * PUBLISH_EVERY_S + OVER_S)
            while self.sim.now < self.meter.heard_at + OVER_S:
                self.sim.run(self.meter.heard_at + OVER_S)
            self.meter.close(tally, complaints, self.kind.entry.is_relay_free)

    def _batches(self, publications: Sequence[tuple[str, int]]) -> Iterator[Sequence[tuple[str, int]]]:
        start = deliveries = 0
        for position, (topic, _) in enumerate(publications):
            deliveries += 1 + len(self._members(topic)[1])
            if deliveries > BATCH_DELIVERIES_MAX:
                yield publications[start : position + 1]
                start, deliveries = position + 1, 0
        if start < len(publications):
            yield publications[start:]

    def wrong_demand(self) -> list[str]:
        """Where a method says that a topic is wanted and it is not, or the other way round."""
        if not self.kind.entry.knows_demand:
            return []
        wrong = []
        for topic, (publishers, subscribers) in self.members.items():
            told = {broker: self.roles[broker].demand.get(topic, False) for broker in publishers}
            counts_own = self.kind.entry.delivers_own
            alone = (
                {} if counts_own else {broker: told.pop(broker) for broker in publishers if [broker] == [*subscribers]}
            )
            wrong += suspended_only_without_subscribers(topic, told, bool(subscribers))
            wrong += suspended_only_without_subscribers(topic, alone, False)
        return wrong
