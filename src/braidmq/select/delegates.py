"""The delegate of a group: the first of its members, which keeps the ledger and goes straight to who is thought free.

A request takes what is free here, or goes to the single or window that is the most promising, with some others to go
to from there. Who is asked reserves and answers the delegate at once; else it says how its own fingers divide its
window and passes the request on, until that was in vain often enough. Where nothing is known to be free, those that
have not been heard of for longest are asked (an audit, which heals notices that were lost), then all, but not often.

Delegates may be two for a while: members decide what is reserved, so that costs hops only. Each has an epoch, members
tell changes to the delegate of the highest one that they have met, and a delegate that is not the first member any
more leaves its ledger to the one that is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from braidmq.bounded import BoundedDict
from braidmq.host import Address, Forward, Reply, Service, ask, handles, run_all
from braidmq.keys import Key
from braidmq.overlay.peers import Peer
from braidmq.select.elements import SELF_LEVEL, elements_of, highest_level
from braidmq.select.forecast import Forecast
from braidmq.select.group import ComponentGroup, groups_around
from braidmq.select.ledger import Ledger
from braidmq.select.member import Member, Reservation
from braidmq.select.members import Members
from braidmq.select.messages import (
    ClaimSlot,
    LedgerHandOver,
    Notice,
    NotReserved,
    Probe,
    Probed,
    Reserved,
    SlotClaimed,
    Visit,
    Window,
)
from braidmq.select.multicast import ALL_MAX, GroupMulticast, is_first
from braidmq.select.nodes import SearchNode
from braidmq.select.request import SelectionRequest

CLAIM_TIMEOUT_S: Final = 1.0
CLAIM_TRIES: Final = 2
CLAIM_HOPS_MAX: Final = 4
"""How often a request is passed on in vain before it goes back to the delegate, which may know better."""

CLAIMS_MAX: Final = 16
"""How often a delegate sends one request out."""

OTHERS: Final = 2
"""How many others a request knows of when it leaves the delegate."""

OTHERS_MAX: Final = 8
"""How many it knows of at most on its way."""

AUDIT: Final = 4
"""How many members are asked when nothing is known to be free."""

ASK_ALL_EVERY_S: Final = 10.0
"""How often all members of a group are asked at most."""

GROUPS_MAX: Final = 1_000
"""Groups that a broker is the delegate of, or whose delegate it knows as a member."""

PASSED_MAX: Final = 1_000
"""Requests of which a member remembers where it has passed them on to: one that comes again goes the same way."""


class _Office(msgspec.Struct):
    """What makes a broker the delegate of a group."""

    ledger: Ledger
    epoch: int
    forecast: Forecast
    asked_all_at: float | None = None


class Delegates(Service):
    """A broker as the delegate of groups, and as a member that delegates ask."""

    def __init__(self, members: Members, multicast: GroupMulticast) -> None:
        self._members = members
        self._multicast = multicast
        self._host = members.host
        self._offices: BoundedDict[ComponentGroup, _Office] = BoundedDict(GROUPS_MAX)
        self._known: BoundedDict[ComponentGroup, tuple[int, Peer]] = BoundedDict(GROUPS_MAX)
        """The delegate of the highest epoch that was met, with the epoch."""
        self._passed: BoundedDict[str, tuple[Window, tuple[Window, ...]]] = BoundedDict(PASSED_MAX)
        self.on_shortage: Callable[[ComponentGroup, float], None] = lambda _group, _in_s: None
        """Called with in how many seconds a group is expected to have nothing free."""
        members.on_freed = self._tell_delegate
        self._host.serve(self)

    # As a delegate

    def seat(self, group: ComponentGroup) -> SearchNode | None:
        """The node of this broker that is the first of a group; None if it has none."""
        low, high = group.keys
        for key in sorted(self._members.members):
            node = self._members.node(key) if low <= key < high else None
            if node is not None:
                return node if is_first(node, low) else None
        return None

    async def reserve(self, request: SelectionRequest) -> Reserved | NotReserved | None:
        """Finds and reserves one; None if this broker is not the group's delegate."""
        node = self.seat(request.group)
        if node is None:
            self._leave_office(request.group)
            return None
        self._members.interest.note(request.group.label)
        office = self._office(request.group, node)
        tried: dict[Key, None] = {}
        hops = 0
        if request.score:  # all must be known, the own member as well, to tell which is the best
            self._hear_own(office, node)
            hops = await self._ask_all(office, node, request) if office.ledger.windows else 0
        else:
            taken = self._take(node.me.key, request, self._host.address)
            if taken is not None:
                return Reserved(taken, 0)
            tried[node.me.key] = None
        for search in (self._claims, self._audited, self._asked_all):
            outcome, more = await search(office, node, request, tried)
            hops += more
            if outcome is not None:
                self._note_free(office)
                return Reserved(outcome.reservation, hops)
        self._hear_own(office, node)
        return NotReserved(hops, True, office.ledger.expected_in_s(self._host.now()))

    def _hear_own(self, office: _Office, node: SearchNode) -> None:
        found = self._members.here(node.me.key)
        if found is not None:
            now = self._host.now()
            office.ledger.hear(found[0].report(found[1], now), now)

    def _office(self, group: ComponentGroup, node: SearchNode) -> _Office:
        office = self._offices.get(group)
        if office is None:
            known = self._known.get(group)
            ledger = Ledger(group, windows_of(node, group))
            office = _Office(ledger, 1 if known is None else known[0] + 1, Forecast())
            self._offices[group] = office
        return office

    async def _claims(
        self, office: _Office, node: SearchNode, request: SelectionRequest, tried: dict[Key, None]
    ) -> tuple[Reserved | None, int]:
        """Goes to those that are thought to be free, until one is, or as far as the tables of the group reach twice."""
        hops, hops_max = 0, 2 * max(1, highest_level(node, request.group.keys[1])) + CLAIM_HOPS_MAX
        for _ in range(CLAIMS_MAX):
            chosen = office.ledger.pick(request, self._host.now(), tried)
            if chosen is None or hops > hops_max:
                break
            tried[chosen.owner.key] = None
            answer, more = await self._claim(office, node.me, request, chosen)
            hops += more
            if answer is not None and answer.reservation is not None:
                return Reserved(answer.reservation, hops), hops
        return None, hops

    async def _claim(
        self, office: _Office, me: Peer, request: SelectionRequest, chosen: Window
    ) -> tuple[SlotClaimed | None, int]:
        """Sends a request out, and again if there is no answer; what it brought back is in the ledger."""
        ledger = office.ledger
        others = ledger.others(request, chosen, self._host.now(), OTHERS)
        first = 0 if chosen.owner.address == self._host.address else 1
        claim = ClaimSlot(chosen.owner.key, chosen.until, request, me, office.epoch, first, others)
        ledger.sent(chosen)
        answer: SlotClaimed | None = None
        hops = 0
        for _ in range(CLAIM_TRIES):
            answer = await ask(self._host, chosen.owner.address, claim, SlotClaimed, timeout_s=CLAIM_TIMEOUT_S)
            hops += 1 if answer is None else answer.hops
            if answer is not None:
                break
        ledger.returned(chosen)
        if answer is None:
            ledger.suspect(chosen, self._host.now())
            return None, hops
        self._rise(office, answer.epoch)
        ledger.learn(answer.visits, self._host.now())
        if not answer.visits or answer.visits[0].report.peer.key != chosen.owner.key:
            ledger.forget(chosen.owner.key)
        return answer, hops

    async def _audited(
        self, office: _Office, node: SearchNode, request: SelectionRequest, tried: dict[Key, None]
    ) -> tuple[Reserved | None, int]:
        """Asks those that have not been heard of for longest, all at a time, and goes to them if that is worth it."""
        oldest = office.ledger.oldest(AUDIT, self._host.now(), tried)
        if not oldest:
            return None, 0
        await run_all(self._host, [self._probe(office, node.me, window) for window in oldest])
        for key in [window.owner.key for window in oldest]:
            tried.pop(key, None)
        outcome, hops = await self._claims(office, node, request, tried)
        return outcome, hops + 2

    async def _probe(self, office: _Office, me: Peer, window: Window) -> None:
        owner = window.owner
        asked = Probe(owner.key, me, office.epoch)
        answer = await ask(self._host, owner.address, asked, Probed, timeout_s=CLAIM_TIMEOUT_S, tries=CLAIM_TRIES)
        if answer is None:
            office.ledger.suspect(window, self._host.now())
            return
        self._rise(office, answer.epoch)
        if owner.key not in office.ledger.windows:
            office.ledger.hear(answer.report, self._host.now())
        elif answer.report.free:
            office.ledger.windows[owner.key] = msgspec.structs.replace(window, count=answer.report.free)

    async def _asked_all(
        self, office: _Office, node: SearchNode, request: SelectionRequest, tried: dict[Key, None]
    ) -> tuple[Reserved | None, int]:
        """Asks all members, if that was not done lately, and goes to who has something free."""
        now = self._host.now()
        if office.asked_all_at is not None and now < office.asked_all_at + ASK_ALL_EVERY_S:
            return None, 0
        asked = await self._ask_all(office, node, request)
        tried.clear()
        outcome, hops = await self._claims(office, node, request, tried)
        return outcome, hops + asked

    async def _ask_all(self, office: _Office, node: SearchNode, request: SelectionRequest) -> int:
        """Asks all members how they are; how many hops that takes, to and fro."""
        office.asked_all_at = self._host.now()
        found = await self._multicast.gather(request, node.me, ALL_MAX)
        if found is None:
            return 0
        if found.is_complete:
            office.ledger.replace_all(found.reports, self._host.now())
        else:
            for report in found.reports:
                office.ledger.hear(report, self._host.now())
        return 2 * found.depth

    def _rise(self, office: _Office, epoch: int) -> None:
        """Members know of a delegate with a higher epoch: this one comes after it."""
        if epoch > office.epoch:
            office.epoch = epoch + 1

    def _note_free(self, office: _Office) -> None:
        now = self._host.now()
        office.forecast.note(now, office.ledger.free)
        in_s = office.forecast.shortage_in_s(now)
        if in_s is not None:
            self.on_shortage(office.ledger.group, in_s)

    def _leave_office(self, group: ComponentGroup) -> None:
        """Another member is the first: what is known here goes to the one on the left, and on from there if need be."""
        office = self._offices.pop(group, None)
        low, high = group.keys
        node = next((self._members.node(key) for key in self._members.members if low <= key < high), None)
        if office is None or node is None:
            return
        reports = tuple(single.report for single in office.ledger.singles.values())
        self._host.send(node.link.left.address, LedgerHandOver(group, office.epoch, reports[-ALL_MAX:]))

    @handles(LedgerHandOver)
    def on_hand_over(self, origin: Address, told: LedgerHandOver) -> Reply:
        node = self.seat(told.group)
        if node is not None:
            office = self._office(told.group, node)
            office.epoch = max(office.epoch, told.epoch + 1)
            for report in told.reports:
                if report.peer.key not in office.ledger.windows:
                    office.ledger.hear(report, self._host.now())
        return None

    @handles(Notice)
    def on_notice(self, origin: Address, told: Notice) -> Reply:
        office = self._offices.get(told.group)
        if office is not None and told.report.peer.key not in office.ledger.windows:
            office.ledger.hear(told.report, self._host.now())
        return None

    # As a member

    def _tell_delegate(self, member: Member, address: Address) -> None:
        """More is free than before: the delegates of the highest epochs are told, or the one that reserved it."""
        found = self._members.here(member.key)
        if found is None:
            return
        report = member.report(found[1], self._host.now())
        told = {group: self._known.get(group) for group in groups_around(member.group.topic, member.group.cluster)}
        if not any(told.values()):
            self.notify(address, Notice(member.group, report))
        for group, known in told.items():
            if known is not None:
                self.notify(known[1].address, Notice(group, report))

    def notify(self, delegate: Address, notice: Notice) -> None:
        """Tells a delegate, which may be this broker."""
        if delegate == self._host.address:
            self.on_notice(delegate, notice)
        else:
            self._host.send(delegate, notice)

    def _take(self, key: Key, request: SelectionRequest, notify: Address) -> Reservation | None:
        found = self._members.here(key)
        taken = None if found is None else found[0].take(request, found[1], self._host.now(), notify)
        if taken is not None:
            self._members.watch_leases()
        return taken

    def _meet(self, group: ComponentGroup, epoch: int, delegate: Peer) -> int:
        """The highest epoch that is known."""
        known = self._known.get(group)
        if known is None or epoch >= known[0]:
            self._known[group] = (epoch, delegate)
            return epoch
        return known[0]

    @handles(ClaimSlot)
    def on_claim(self, origin: Address, claim: ClaimSlot) -> Reply:
        """Reserves here, or passes it on to the most promising that is known, here or to the request."""
        group = claim.request.group
        epoch = self._meet(group, claim.epoch, claim.delegate)
        found, node = self._members.here(claim.to), self._members.node(claim.to)
        if found is None or node is None:
            return SlotClaimed(None, claim.visits, claim.others, claim.hops, epoch)
        taken = self._take(claim.to, claim.request, claim.delegate.address)
        parts = windows_of(node, group, claim.until)
        visits = (*claim.visits, Visit(found[0].report(found[1], self._host.now()), parts))
        if taken is not None:
            return SlotClaimed(taken, visits, claim.others, claim.hops, epoch)
        known = self._passed.get(claim.request.id)
        visited = {visit.report.peer.key for visit in visits}
        if known is None or known[0].owner.key in visited:
            pool = sorted((*claim.others, *parts), key=lambda window: window.count, reverse=True)
            pool = [window for window in pool if window.count > 0 and window.owner.key not in visited]
            known = (pool[0], tuple(pool[1:OTHERS_MAX])) if pool else None
        if known is None or claim.hops >= CLAIM_HOPS_MAX:
            return SlotClaimed(None, visits, claim.others, claim.hops, epoch)
        self._passed[claim.request.id] = known
        chosen, others = known
        onward = ClaimSlot(
            chosen.owner.key, chosen.until, claim.request, claim.delegate, epoch, claim.hops + 1, others, visits
        )
        return Forward(chosen.owner.address, onward)

    @handles(Probe)
    def on_probe(self, origin: Address, asked: Probe) -> Reply:
        found = self._members.here(asked.to)
        if found is None:
            return None
        member, me = found
        epoch = self._meet(member.group, asked.epoch, asked.delegate)
        return Probed(member.report(me, self._host.now()), epoch)


def windows_of(node: SearchNode, group: ComponentGroup, until: Key | None = None) -> tuple[Window, ...]:
    """How the forward table of a node divides the group's keys to its right, or those up to a key."""
    high = group.keys[1]
    request = SelectionRequest("", group, 0.0)
    elements = elements_of(node, request, node.me.key, high if until is None else min(high, until))
    return tuple(
        Window(element.peer, element.high, element.free)
        for element in elements
        if element.forward and element.level != SELF_LEVEL
    )
