"""A broker's part in selections: its members, the ways to find one of a group, and where requests begin.

A request goes to the group's delegate, the first of its members (Ishihara et al. 2021, §3.1): this broker itself, or
the one that a lookup finds, which is remembered for a while. What the delegate does is the method: the ledger, unless
something else is asked for.
"""

from __future__ import annotations

from typing import Final

from braidmq.bounded import BoundedDict
from braidmq.host import Address, Event, Reply, Service, handles
from braidmq.overlay import Overlay
from braidmq.overlay.peers import Peer
from braidmq.select.anycast import Anycast, AnycastOptions
from braidmq.select.delegates import Delegates
from braidmq.select.elements import elements_of
from braidmq.select.group import ComponentGroup, groups_around
from braidmq.select.holder import Holder
from braidmq.select.member import Component, Member
from braidmq.select.members import Aggregates, Members
from braidmq.select.messages import AskDelegate, DelegateAnswer, Elsewhere, Notice, NotReserved, Reserved
from braidmq.select.multicast import GroupMulticast
from braidmq.select.request import SelectionRequest, problem_of

ASK_TIMEOUT_S: Final = 2.0
ASK_TRIES: Final = 8
"""A delegate may take longer, and is not disturbed by being asked again; one that is gone should be noticed soon."""

DELEGATES_MAX: Final = 10_000
"""Groups whose delegates a broker remembers."""

DELEGATE_S: Final = 60.0
"""How long it does."""

EMPTY_S: Final = 5.0
"""How long it remembers that a cluster has no components of a topic; of the whole braid it asks again each time."""

WAITING_MAX: Final = 10_000
"""Requests from here that wait for a delegate at a time."""

ANSWERS_MAX: Final = 1_000
"""Requests of others that a delegate remembers, to answer those that come again as it did before."""


class Selector(Service):
    """Members of groups here, and requests from here."""

    def __init__(self, overlay: Overlay, aggregates: Aggregates = Aggregates.CUT, *, at_once: bool = False) -> None:
        self.overlay = overlay
        self.host = overlay.host
        self.members = Members(overlay, aggregates, at_once=at_once)
        self.anycast = Anycast(self.members)
        self.multicast = GroupMulticast(self.members)
        self.delegates = Delegates(self.members, self.multicast)
        self._known: BoundedDict[ComponentGroup, tuple[Peer | None, float]] = BoundedDict(DELEGATES_MAX)
        """None for a group that has no members."""
        self._waiting: BoundedDict[str, tuple[Event, list[DelegateAnswer | Elsewhere]]] = BoundedDict(WAITING_MAX)
        self._answers: BoundedDict[str, DelegateAnswer | None] = BoundedDict(ANSWERS_MAX)
        """None while a request is being worked on."""
        self.host.serve(self)

    # Offering

    async def offer(
        self,
        group: ComponentGroup,
        broker: str,
        components: list[Component],
        incarnation: int = 0,
        resting_s: float = 0.0,
    ) -> Member:
        """Stands for components of a group, and tells its delegate."""
        member = self.members.offer(group, broker, incarnation, resting_s)
        for component in components:
            member.add(component)
        await self.overlay.join(member.key)
        await self.announce(member)
        if resting_s:
            self.host.spawn(self._announce_rested(member, resting_s))
        return member

    async def withdraw(self, member: Member) -> None:
        """Stands for its components no longer; whoever has one reserved hears of it with the next renewal."""
        self.members.members.pop(member.key, None)
        await self.overlay.leave(member.key)

    async def announce(self, member: Member) -> None:
        """Tells the delegates of its groups what a member has."""
        for group in groups_around(member.group.topic, member.group.cluster):
            delegate = await self.delegate_of(group)
            found = self.members.here(member.key)
            if delegate is not None and found is not None:
                self.delegates.notify(delegate.address, Notice(group, member.report(found[1], self.host.now())))

    async def _announce_rested(self, member: Member, resting_s: float) -> None:
        await self.host.sleep(resting_s)
        member.rested()
        await self.announce(member)

    # Requests from here

    async def reserve(self, request: SelectionRequest) -> Reserved | NotReserved:
        """By the ledger of the group's delegate; asked again, with the same id, where there is no answer.

        A ValueError says what is wrong with a request that makes no sense.
        """
        problem = problem_of(request)
        if problem is not None:
            raise ValueError(problem)
        hops = 0
        for _ in range(ASK_TRIES):
            delegate = await self.delegate_of(request.group)
            if delegate is None:
                return NotReserved(hops, is_known=True)
            if delegate.address == self.host.address:
                outcome = await self.delegates.reserve(request)
                if outcome is not None:
                    return outcome
            else:
                answer = await self._ask(delegate, request)
                hops += 1
                if isinstance(answer, DelegateAnswer):
                    if answer.reservation is None:
                        return NotReserved(hops + answer.hops, True, answer.expected_in_s)
                    return Reserved(answer.reservation, hops + answer.hops)
                if answer is not None and answer.delegate is not None:
                    self._known[request.group] = (answer.delegate, self.host.now() + DELEGATE_S)
                    continue
            self.forget_delegate(request.group)
        return NotReserved(hops)

    def take_here(self, request: SelectionRequest) -> Reserved | None:
        """Reserves what this broker itself has of the group, without a word to anybody."""
        low, high = request.group.keys
        for key in self.members.members:
            found = self.members.here(key) if low <= key < high else None
            taken = None if found is None else found[0].take(request, found[1], self.host.now())
            if taken is not None:
                self.members.watch_leases()
                return Reserved(taken, 0)
        return None

    def hold(self, reserved: Reserved, asked_at: float) -> Holder:
        """Keeps a reservation that was asked for at a time, until it is released."""
        holder = Holder(self.host, reserved.reservation, asked_at)
        self.host.spawn(holder.keep())
        return holder

    async def delegate_of(self, group: ComponentGroup) -> Peer | None:
        """The first member of a group; None if it has none, or none was found."""
        node = self.delegates.seat(group)
        if node is not None:
            return node.me
        known = self._known.get(group)
        if known is not None and self.host.now() < known[1]:
            return known[0]
        low, high = group.keys
        found = await self.overlay.lookup(low)
        if found is None or not low <= found.right.key < high:
            if group.cluster:
                self._known[group] = (None, self.host.now() + EMPTY_S)
            return None
        self._known[group] = (found.right, self.host.now() + DELEGATE_S)
        return found.right

    def forget_delegate(self, group: ComponentGroup) -> None:
        """The one that is known does not answer, or says that it is not: the next time it is looked up."""
        self._known.pop(group, None)

    async def _ask(self, delegate: Peer, request: SelectionRequest) -> DelegateAnswer | Elsewhere | None:
        event, answers = self.host.event(), list[DelegateAnswer | Elsewhere]()
        self._waiting[request.id] = (event, answers)
        self.host.send(delegate.address, AskDelegate(request))
        await event.wait(ASK_TIMEOUT_S)
        self._waiting.pop(request.id, None)
        return answers[0] if answers else None

    @handles(DelegateAnswer, Elsewhere)
    def on_answer(self, origin: Address, told: DelegateAnswer | Elsewhere) -> Reply:
        waiting = self._waiting.get(told.request)
        if waiting is not None:
            waiting[1].append(told)
            waiting[0].set()
        return None

    # Requests of others

    @handles(AskDelegate)
    def on_ask(self, origin: Address, asked: AskDelegate) -> Reply:
        known = self._answers.get(asked.request.id)
        if known is not None:
            self.host.send(origin, known)
        elif asked.request.id not in self._answers and problem_of(asked.request) is None:
            self._answers[asked.request.id] = None
            self.host.spawn(self._answer(origin, asked.request))
        return None

    async def _answer(self, origin: Address, request: SelectionRequest) -> None:
        outcome = await self.delegates.reserve(request)
        if outcome is None:
            self._answers.pop(request.id, None)
            self.host.send(origin, Elsewhere(request.id, self._to_the_left(request.group)))
            return
        reservation = outcome.reservation if isinstance(outcome, Reserved) else None
        expected_in_s = outcome.expected_in_s if isinstance(outcome, NotReserved) else None
        answer = DelegateAnswer(request.id, reservation, outcome.hops, expected_in_s)
        if reservation is None:
            self._answers.pop(request.id, None)
        else:
            self._answers[request.id] = answer
        self.host.send(origin, answer)

    def _to_the_left(self, group: ComponentGroup) -> Peer | None:
        """A member that is nearer to the first, if this broker has one of the group."""
        low, high = group.keys
        for key in self.members.members:
            node = self.members.node(key) if low <= key < high else None
            if node is not None and low <= node.link.left.key < node.me.key:
                return node.link.left
        return None

    # The methods of the papers

    async def search(
        self, request: SelectionRequest, start: Peer, options: AnycastOptions, multicast_below: int = 0
    ) -> Reserved | NotReserved:
        """Anycast from a node of this broker; Multicast where few remain, or the search was given up in vain."""
        node = self.members.node(start.key)
        if node is not None and multicast_below:
            low, high = request.group.keys
            left = sum(element.free for element in elements_of(node, request, low, high))
            if left < multicast_below:
                return await self.multicast.reserve(request, start)
        outcome = await self.anycast.reserve(request, start, options)
        if isinstance(outcome, Reserved) or not multicast_below:
            return outcome
        again = await self.multicast.reserve(request, start)
        if isinstance(again, Reserved):
            return Reserved(again.reservation, outcome.hops + again.hops)
        return NotReserved(outcome.hops + again.hops, again.is_known)
