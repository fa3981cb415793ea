"""Multicast: every member of a group is asked how it is, then the best is reserved (Ishihara et al. 2021, §3.4.1).

The question (InfoReq) goes down a tree: a node divides its part of the group's keys among the fingers that it has
there. The answers (InfoRep) come up the same tree, put together at each node. An answer that does not come in time is
left out, and what is told then says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from braidmq.bounded import BoundedDict
from braidmq.host import Address, Event, Reply, Service, ask, handles
from braidmq.keys import Key
from braidmq.overlay.peers import Peer
from braidmq.select.group import steps_between
from braidmq.select.member import Report
from braidmq.select.members import Members
from braidmq.select.messages import InfoRep, InfoReq, NotReserved, Reserved, TakeAt
from braidmq.select.nodes import SearchNode
from braidmq.select.request import SLOTS, SelectionRequest, score_of

WAIT_S: Final = 4.0
"""How long the node at the root waits for answers."""

WAIT_PART: Final = 0.75
"""Which part of the time of the node above it a node has."""

KEEP_MAX: Final = 16
"""Members that an answer names, where the best are wanted."""

ALL_MAX: Final = 4_096
"""Members that it names where all are wanted."""

QUERIES_MAX: Final = 1_000
"""Questions that a broker gathers answers to at a time."""

TAKE_TIMEOUT_S: Final = 2.0
TAKE_TRIES: Final = 3


class Gathered(msgspec.Struct, frozen=True):
    """What all members have said."""

    reports: tuple[Report, ...]
    count: int
    depth: int
    is_complete: bool


class _Gathering(msgspec.Struct):
    asked: InfoReq
    waiting: dict[Key, None]
    done: Event
    reports: list[Report] = msgspec.field(default_factory=list)
    count: int = 0
    depth: int = 0
    is_complete: bool = True


class GroupMulticast(Service):
    """A broker's part in questions to whole groups."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._host = members.host
        self._gathering: BoundedDict[tuple[str, Key], _Gathering] = BoundedDict(QUERIES_MAX)
        self._asked = 0
        self._host.serve(self)

    async def reserve(self, request: SelectionRequest, start: Peer, *, routed: bool = False) -> Reserved | NotReserved:
        """Asks all from the delegate, a node of this broker, then reserves the best.

        Hops are of the longest way, to and fro, and of the reservation. With `routed` the latter goes along fingers, as
        in the papers; otherwise straight to the member.
        """
        found = await self.gather(request, start)
        if found is None:
            return NotReserved(0)
        hops = 2 * found.depth
        for report in best_first(request, found.reports):
            if routed or report.peer.key == start.key:  # from the own node on, where it costs no hop
                to, asked = start.address, TakeAt(start.key, report.peer.key, request, 0)
            else:
                to, asked = report.peer.address, TakeAt(report.peer.key, report.peer.key, request, 1)
            kinds = (Reserved, NotReserved)
            answer = await ask(self._host, to, asked, kinds, timeout_s=TAKE_TIMEOUT_S, tries=TAKE_TRIES)
            hops += 1 if answer is None else answer.hops
            if isinstance(answer, Reserved):
                return Reserved(answer.reservation, hops)
        return NotReserved(hops, is_known=found.is_complete)

    async def gather(self, request: SelectionRequest, start: Peer, keep_max: int = KEEP_MAX) -> Gathered | None:
        """What all members say, asked from a node of this broker; None if it is not one."""
        node = self._members.node(start.key)
        if node is None:
            return None
        self._asked += 1
        query = f"{self._host.address}/{self._asked}"
        low, high = request.group.keys
        asked = InfoReq(start.key, query, self._host.address, request, low, high, 0, keep_max, WAIT_S)
        gathering = self._begin(asked)
        if gathering.waiting:
            await gathering.done.wait(WAIT_S)
        self._gathering.pop((query, low), None)
        is_complete = gathering.is_complete and not gathering.waiting and is_first(node, low)
        return Gathered(tuple(gathering.reports), gathering.count, gathering.depth, is_complete)

    def _begin(self, asked: InfoReq) -> _Gathering:
        """Answers for the own node, and asks those that the rest of the range is divided among."""
        gathering = _Gathering(asked, {}, self._host.event(), depth=asked.depth)
        node = self._members.node(asked.to)
        if node is None:
            gathering.is_complete = False
            return gathering
        found = self._members.here(asked.to)
        if found is not None and asked.low <= asked.to < asked.high:
            member, me = found
            if asked.keep_max == ALL_MAX or member.fits(asked.request, self._host.now()) is not None:
                _add(gathering, [member.report(me, self._host.now())], 1)
        for peer, low, high in parts_among(node, asked.high):
            gathering.waiting[low] = None
            part = InfoReq(
                peer.key,
                asked.query,
                self._host.address,
                asked.request,
                low,
                high,
                asked.depth + 1,
                asked.keep_max,
                asked.wait_s * WAIT_PART,
            )
            self._host.send(peer.address, part)
        if gathering.waiting:
            for low in gathering.waiting:
                self._gathering[asked.query, low] = gathering
        return gathering

    @handles(InfoReq)
    def on_info_req(self, origin: Address, asked: InfoReq) -> Reply:
        gathering = self._begin(asked)
        if gathering.waiting:
            self._host.spawn(self._answer_in_time(gathering))
        else:
            self._answer(gathering)
        return None

    async def _answer_in_time(self, gathering: _Gathering) -> None:
        await gathering.done.wait(gathering.asked.wait_s)
        self._answer(gathering)

    def _answer(self, gathering: _Gathering) -> None:
        asked = gathering.asked
        for low in gathering.waiting:
            self._gathering.pop((asked.query, low), None)
        reports = tuple(gathering.reports)
        is_complete = gathering.is_complete and not gathering.waiting
        answer = InfoRep(asked.query, asked.low, reports, gathering.count, gathering.depth, is_complete)
        self._host.send(asked.parent, answer)

    @handles(InfoRep)
    def on_info_rep(self, origin: Address, told: InfoRep) -> Reply:
        gathering = self._gathering.pop((told.query, told.low), None)
        if gathering is not None and told.low in gathering.waiting:
            del gathering.waiting[told.low]
            _add(gathering, told.reports, told.count)
            gathering.depth = max(gathering.depth, told.depth)
            gathering.is_complete &= told.is_complete
            if not gathering.waiting:
                gathering.done.set()
        return None


def _add(gathering: _Gathering, reports: Iterable[Report], count: int) -> None:
    asked = gathering.asked
    gathering.reports += reports
    gathering.count += count
    if len(gathering.reports) > asked.keep_max:
        gathering.reports = best_first(asked.request, gathering.reports)[: asked.keep_max]


def best_first(request: SelectionRequest, reports: Iterable[Report]) -> list[Report]:
    """By the request's score, and without one by how much is free."""

    def rank(report: Report) -> tuple[float, int, Key]:
        told = {**report.attributes, SLOTS: float(report.free)}
        steps = steps_between(request.cluster, request.group.cluster)
        return score_of(request, told, steps), -report.free, report.peer.key

    return sorted((report for report in reports if report.free > 0), key=rank)


def parts_among(node: SearchNode, high: Key) -> list[tuple[Peer, Key, Key]]:
    """How the fingers of a node divide what lies right of it in a range: each takes what begins with it (§3.2)."""
    peers: list[Peer] = []
    for level in range(len(node.forward) + 1):
        finger = node.finger(level, True)
        if finger is None or not node.me.key < finger.peer.key < high:
            break
        peers.append(finger.peer)
    ends = [peer.key for peer in peers[1:]] + [high]
    return [(peer, peer.key, end) for peer, end in zip(peers, ends, strict=False)]


def is_first(node: SearchNode, low: Key) -> bool:
    """Whether a node is the first of a range: the one on its left stands outside."""
    left = node.link.left.key
    return left < low or left >= node.me.key
