"""What a host does with a message for some ranges: takes out what is for its own keys, and hands the rest on.

By keys, ranges are split among the known nodes in them (`splitting`), and each other host gets one message for all that
falls to its nodes. By brokers, where a Skip Graph lets them be divided (`errands`), each gets one message for all its
keys. Either way a hop may be acknowledged: what a silent host was to see to is split again without it.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from braidmq.bounded import BoundedDict
from braidmq.host import Address, Host, ask
from braidmq.keys import Key
from braidmq.overlay.key_ranges import KeyRange, without
from braidmq.overlay.overlay import Overlay
from braidmq.overlay.peers import Peer
from braidmq.overlay.ranges.answering import Answers, covered_by
from braidmq.overlay.ranges.arriving import Arrivals
from braidmq.overlay.ranges.errands import go_on
from braidmq.overlay.ranges.messages import (
    AVOID_MAX,
    RETRIED_FAST,
    RETRIED_SLOWLY,
    Accepted,
    Answering,
    Covered,
    Deliver,
    Errand,
    Plan,
    ProbeRange,
)
from braidmq.overlay.ranges.splitting import Cut, Split, owned_part, split
from braidmq.overlay.ring import CALL_TIMEOUT_S
from braidmq.overlay.vectors import Vector
from braidmq.overlay.view import View

SEEN_MAX = 4096
"""Deliveries that a host remembers, so that none is passed on twice."""

SPLITS_MAX = 4096
SPLITS_KEPT_S = 0.5
"""Ranges whose cutting is remembered, while the view is the same, and for how long: suspicions may change."""

HOP_TRIES = 2
"""How often a hop that is to be acknowledged is tried."""

OnNobody = Callable[[Address, bytes, tuple[KeyRange, ...]], None]
"""The sender, the message, and the ranges."""


class _Shares(msgspec.Struct):
    """How ranges of a message are shared out: the own keys in them, what is accounted for here, and what others get."""

    keys: list[Key] = msgspec.field(default_factory=list)
    covered: list[KeyRange] = msgspec.field(default_factory=list)
    ruled_out: list[KeyRange] = msgspec.field(default_factory=list)
    age_s: float = 0.0
    """Of the oldest aggregate that has ruled something out."""
    parcels: dict[Address, list[KeyRange]] = msgspec.field(default_factory=dict)
    peers: dict[Address, dict[Key, Peer]] = msgspec.field(default_factory=dict)
    """The nodes for which a host gets its parcel."""
    heads: list[tuple[Peer, KeyRange]] = msgspec.field(default_factory=list)
    """Parts to be proven without the message."""


class RangeForwarder:
    """One host's part in bringing messages to all nodes of a range."""

    def __init__(self, overlay: Overlay, arrivals: Arrivals, answers: Answers, on_nobody: OnNobody | None) -> None:
        """`on_nobody` is called when ranges of a message end here without a node in them, as far as is known here."""
        self._overlay = overlay
        self._host: Host = overlay.host
        self._arrivals = arrivals
        self._answers = answers
        self._on_nobody = on_nobody
        self._seen: BoundedDict[tuple[Address, int, int, tuple[Key, ...]], tuple[KeyRange, ...]] = BoundedDict(SEEN_MAX)
        self._errands: BoundedDict[tuple[Address, int, int], None] = BoundedDict(SEEN_MAX)
        self._splits: dict[tuple[Key, Key, Cut], Split] = {}
        self._split_view: View | None = None
        self._split_until = 0.0

    def spread(self, message: Deliver, parent: Address, avoid: tuple[Key, ...]) -> None:
        """Does what is for this host's own nodes, and hands the rest to those that are nearer to it."""
        new = message.ranges if avoid else self._unseen(message)
        view = self._overlay.view
        if message.errand is not None and message.ranges and view.vector is not None:
            self._run_errand(message, message.errand, view.vector, () if avoid else new, parent, avoid)
            return
        if not new:
            return
        shares = self._share_out(message, new, view, avoid)
        keys, parcels, plan = shares.keys, shares.parcels, message.plan
        answers = self._arrivals.arrive(message, keys) if keys else ()
        if self._on_nobody is not None and not keys and not parcels:
            self._on_nobody(message.root, message.body, new)
        up = plan.answering is Answering.UP_THE_TREE
        if up and parcels and message.root != self._host.address and not avoid:
            self._answers.collect(message, parent, new)
        if plan.answering is not None and (shares.covered or shares.ruled_out):
            self._answers.give(_answer(message, shares, answers), parent if up else message.root)
        for address, ranges in parcels.items():
            self._pass_on(address, onward(message, tuple(ranges), tuple(shares.peers[address])), parent, avoid)
        for peer, piece in shares.heads:
            probe = ProbeRange(
                message.root, message.number, message.attempt, (piece,), message.hops + 1, (peer.key,), message.avoid
            )
            self._host.send(peer.address, probe)

    def _share_out(self, message: Deliver, ranges: tuple[KeyRange, ...], view: View, avoid: tuple[Key, ...]) -> _Shares:
        plan, now = message.plan, self._host.now()
        passed_over = (*message.avoid, *avoid) if avoid else message.avoid
        may_probe = _may_probe(plan, message.attempt)
        shares = _Shares()
        for low, high in ranges:
            if passed_over:
                parts = split(view, low, high, plan.cut, now, passed_over)
            else:
                parts = self._split(view, low, high, plan.cut, now)
            shares.keys += parts.keys
            shares.covered += parts.covered
            if may_probe:
                shares.heads += parts.heads
                pieces = parts.pieces
            else:
                pieces = [*parts.pieces, *parts.heads]
            for peer, piece in pieces:
                if plan.within is not None and not plan.within[0] <= peer.key < plan.within[1]:
                    continue
                if plan.condition is not None and _rules_out(plan, view, piece, now, shares):
                    continue
                shares.parcels.setdefault(peer.address, []).append(piece)
                shares.peers.setdefault(peer.address, {})[peer.key] = peer
        return shares

    def _split(self, view: View, low: Key, high: Key, cut: Cut, now: float) -> Split:
        """As `split`, remembered for a moment: a stream of messages to one range is cut the same way each time."""
        if view is not self._split_view or now >= self._split_until:
            self._splits.clear()
            self._split_view, self._split_until = view, now + SPLITS_KEPT_S
        parts = self._splits.get((low, high, cut))
        if parts is None:
            parts = split(view, low, high, cut, now)
            if len(self._splits) < SPLITS_MAX:
                self._splits[low, high, cut] = parts
        return parts

    def _unseen(self, message: Deliver) -> tuple[KeyRange, ...]:
        """The parts of the message's ranges that come here for the first time in this attempt.

        A part that was handed to a node that is gone may come back, to go round it: that is the first time again.
        """
        name = (message.root, message.number, message.attempt, message.avoid)
        seen = self._seen.get(name)
        if seen is None:
            self._seen[name] = message.ranges
            return message.ranges
        new = without(message.ranges, seen)
        self._seen[name] = seen + new
        return new

    # To the next host

    def _pass_on(self, to: Address, message: Deliver, parent: Address, avoid: tuple[Key, ...]) -> None:
        if message.plan.retrying in RETRIED_FAST:
            self._host.spawn(self._hand_over(to, message, parent, avoid))
        else:
            self._host.send(to, message)

    async def _hand_over(self, to: Address, message: Deliver, parent: Address, avoid: tuple[Key, ...]) -> None:
        """Gives ranges to a peer; if it does not accept them, they are split again without it."""
        accepted = await ask(self._host, to, message, Accepted, timeout_s=CALL_TIMEOUT_S, tries=HOP_TRIES)
        if accepted is None and len(avoid) < AVOID_MAX:
            again = msgspec.structs.replace(message, hops=message.hops - 1)
            self.spread(again, parent, (*avoid, *message.to))

    # Once to each broker, whatever keys it has there

    def _run_errand(
        self,
        message: Deliver,
        errand: Errand,
        vector: Vector,
        new: tuple[KeyRange, ...],
        parent: Address,
        avoid: tuple[Key, ...],
    ) -> None:
        """Does what is for this host's own nodes, and sends others on what is left to do."""
        view, now = self._overlay.view, self._host.now()
        if new:
            self._arrive_and_answer(message, new, view)
        low, high = message.ranges[0]
        if not avoid and not self._errands.add((message.root, message.number, errand.ring)):
            return  # this errand was run before
        silent = {entry.peer.address for key in avoid if (entry := view.at(key)) is not None}
        beside = [
            entry
            for entry in view.inside(low, high, now, message.avoid)
            if entry.peer.address != parent and entry.peer.address not in silent
        ]
        if view.own_inside(low, high):
            sent = go_on(vector, beside, errand, at_most_two=message.plan.cut is Cut.MRF)
        else:  # no node of this host is in the range: one that is, or is nearer to it, sees to all of it
            nearest = max(beside, key=lambda entry: entry.level, default=None)
            step = nearest or view.step_towards(low, now, avoid=(*message.avoid, *avoid))
            sent = [] if step is None else [(step.peer, errand)]
            if step is None and self._on_nobody is not None:
                self._on_nobody(message.root, message.body, new)
        for peer, its in sent:
            self._pass_on(peer.address, onward(message, message.ranges, (peer.key,), its), parent, avoid)

    def _arrive_and_answer(self, message: Deliver, ranges: tuple[KeyRange, ...], view: View) -> None:
        """A message has come for all own keys in the ranges: answers for what they own of them."""
        mine = [(key, high) for low, high in ranges for key in view.own_inside(low, high)]
        if not mine:
            return
        answers = self._arrivals.arrive(message, [key for key, _ in mine])
        if message.plan.answering is not None:
            covered = [owned_part(view.own[key], key, high) for key, high in mine]
            self._answers.give(covered_by(message, covered, answers), message.root)


def onward(
    message: Deliver, ranges: tuple[KeyRange, ...], to: tuple[Key, ...], errand: Errand | None = None
) -> Deliver:
    """A message as it goes on: for some ranges, to a host with these nodes."""
    return Deliver(
        message.root,
        message.number,
        message.attempt,
        ranges,
        message.hops + 1,
        message.body,
        message.plan,
        to,
        message.avoid,
        errand,
    )


def _may_probe(plan: Plan, attempt: int) -> bool:
    """Whether what lies before all nodes that are known in a range may be proven without the message."""
    return (
        plan.answering is Answering.DIRECT
        and plan.retrying in RETRIED_SLOWLY
        and plan.condition is None
        and plan.within is None
        and not attempt
    )


def _rules_out(plan: Plan, view: View, piece: KeyRange, now: float, shares: _Shares) -> bool:
    """Whether an aggregate says that the plan's condition holds for no node of a piece; what is not known may hold."""
    known = view.aggregate_over(*piece)
    if known is None or known.aggregate is None or plan.condition is None or plan.condition.holds(known.aggregate):
        return False
    shares.ruled_out.append(piece)
    shares.age_s = max(shares.age_s, now - known.as_of)
    return True


def _answer(message: Deliver, shares: _Shares, answers: tuple[tuple[Key, bytes], ...]) -> Covered:
    done = (*shares.covered, *shares.ruled_out)
    ruled_out = tuple(shares.ruled_out)
    return Covered(message.root, message.number, message.attempt, done, ruled_out, shares.age_s, answers)
