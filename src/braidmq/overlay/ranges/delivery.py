"""Range delivery: one message to every node whose key lies in a range, along a tree, over any ordered overlay.

Who has a message for some ranges takes out its own keys and hands the rest on (`splitting`), so every key is in exactly
one message. `send` only tells. `deliver` also proves: whoever owns keys of the range answers for exactly those, whether
nodes stand there or not (`Covered`). The sender subtracts what is answered for from its gaps and is done when none is
left; what it sends again after a failure is just the gaps (ALGORITHMS §4).

A delivery can ask for answers: they come directly to the sender, or are put together up the tree. It can be repeated
fast (a hop that is not acknowledged is split again without the silent one), slowly (the sender re-issues the gaps), or
both. And it can be for those only for whom a condition holds: ranges whose aggregate rules it out are left out, and
what is not known counts as a match.

Where brokers may have several keys in a range, a Skip Graph lets the brokers be divided among forwarders, not the keys
(`errands`): then each broker gets one message for all its keys, and answers for what all of them own.

What lies before the first node that is known in a range is proven by a node outside of it, who has no use for the
message: it gets a `ProbeRange` without it. If a node does stand there, the sender is asked for the message
(`BodyWanted`).

A delivery to a part of a segment may pass nodes that stand before that part. Where those must not see it
(`Plan.within`), it begins at an entrance, a node inside, and goes from there only to others inside.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial

import msgspec

from braidmq.host import Address, CallError, Host, Reply, Service, handles
from braidmq.keys import Key
from braidmq.overlay.aggregates import Aggregate
from braidmq.overlay.conditions import Condition
from braidmq.overlay.key_ranges import KeyRange, without
from braidmq.overlay.overlay import Overlay
from braidmq.overlay.peers import Peer
from braidmq.overlay.ranges.errands import EVERYBODY, go_on
from braidmq.overlay.ranges.messages import (
    PROVEN,
    Accepted,
    Answering,
    BodyWanted,
    Covered,
    Deliver,
    Errand,
    Plan,
    ProbeRange,
    Retrying,
    Vacant,
)
from braidmq.overlay.ranges.splitting import Cut, Split, owned_part, split
from braidmq.overlay.ring import CALL_TIMEOUT_S, owns
from braidmq.overlay.skip_graph.vectors import Vector
from braidmq.overlay.view import View

HOPS_MAX = 128
SEEN_MAX = 4096
"""Deliveries that a host remembers, so that none is made twice."""

OPEN_MAX = 65536
"""Deliveries of its own that a host waits for at a time."""

REISSUE_S = 1.0
REISSUE_S_MAX = 8.0
"""How long the sender waits for answers before it sends to the gaps again: twice as long each time, up to a bound."""

SWEEP_S = 0.5
"""How often the sender looks for deliveries that are due."""

BRANCH_S = 3.0
"""How long a host waits for those below it, when answers are put together up the tree."""

SPLITS_MAX = 4096
SPLITS_KEPT_S = 0.5
"""Ranges whose cutting is remembered, while the view is the same, and for how long: who is suspected may change."""

INSERTING_S = 1.0
INSERTING_POLL_S = 0.005
INSERTING_MAX = 1024
"""How long what comes for a node that is just being inserted waits until it is, and how many messages may at a time."""

AVOID_MAX = 8
"""How many silent peers a hop goes round before it leaves the rest to the sender."""


_FAST = (Retrying.FAST, Retrying.BOTH)
_SLOW = (Retrying.SLOW, Retrying.BOTH)


class RangeArrival(msgspec.Struct, frozen=True, gc=False):
    """What the application gets: the own keys that the message is for, and how far it came."""

    root: Address
    number: int
    keys: tuple[Key, ...]
    hops: int
    body: bytes


class Outcome(msgspec.Struct, frozen=True):
    """`gaps` is what nobody has answered for; `ruled_out` was left out, as aggregates said that nobody matches there.

    An aggregate is of the past: who has joined or changed since may be missing from it. So without gaps, all have the
    message who have matched for longer than `age_s`; and all who match now only if nothing was ruled out.
    """

    gaps: tuple[KeyRange, ...]
    ruled_out: tuple[KeyRange, ...]
    age_s: float
    answers: dict[Key, bytes]

    @property
    def complete(self) -> bool:
        """Every node that the message is for has it."""
        return not self.gaps and not self.ruled_out


OnDelivery = Callable[[RangeArrival], bytes | None]
"""Called once for each own key's message; what it returns goes to a sender who wants answers."""

OnNobody = Callable[[Address, bytes, tuple[KeyRange, ...]], None]
"""The sender, the message, and the ranges."""

OnOutcome = Callable[[Outcome], None]

OnHop = Callable[[Address, Deliver], None]
"""The host that it comes from, and the message."""


class _OpenDelivery(msgspec.Struct):
    """A delivery of this host's own that is not proven yet."""

    message: Deliver
    gaps: tuple[KeyRange, ...]
    on_outcome: OnOutcome
    again_at: float
    ends_at: float
    entrance: Peer | None = None
    answers: dict[Key, bytes] = msgspec.field(default_factory=dict)
    ruled_out: tuple[KeyRange, ...] = ()
    age_s: float = 0.0


class _Branch(msgspec.Struct):
    """Somebody else's delivery, of which this host collects the answers from below."""

    parent: Address
    missing: tuple[KeyRange, ...]
    ranges: list[KeyRange] = msgspec.field(default_factory=list)
    ruled_out: list[KeyRange] = msgspec.field(default_factory=list)
    age_s: float = 0.0
    answers: list[tuple[Key, bytes]] = msgspec.field(default_factory=list)


class RangeDelivery(Service):
    """Sends to ranges of keys over the overlay of one host, and hands what arrives to the application."""

    def __init__(self, overlay: Overlay, on_delivery: OnDelivery, *, one_each: bool = False) -> None:
        """With `one_each` no broker has two keys in one range: then to cut ranges between keys is enough."""
        self._one_each = one_each
        self.overlay = overlay
        self.host: Host = overlay.host
        self._on_delivery = on_delivery
        self._number = self.host.chance.getrandbits(40)  # so that a host made anew does not repeat earlier ones
        self._open: dict[int, _OpenDelivery] = {}
        self._branches: dict[tuple[Address, int, int], _Branch] = {}
        self._seen: OrderedDict[tuple[Address, int, int, tuple[Key, ...]], tuple[KeyRange, ...]] = OrderedDict()
        self._errands: OrderedDict[tuple[Address, int, int], None] = OrderedDict()
        self._done: dict[tuple[Address, int], dict[Key, bytes | None]] = {}
        self._is_sweeping = False
        self._held = 0
        """Messages that wait for a node to be inserted."""
        self._splits: dict[tuple[Key, Key, Cut], Split] = {}
        self._split_view: View | None = None
        self._split_until = 0.0
        self.on_nobody: OnNobody | None = None
        """Called when ranges of a message have ended here, without a node in them, as far as is known here."""
        self.on_hop: OnHop | None = None
        """Called when a message has come here from another host, before it is passed on: for those who follow it."""
        self.values: Callable[[Key], Aggregate] | None = None
        """The own values of a node, for conditions; without it every node is a match."""
        self.host.serve(self)

    # Sending

    def send(self, low: Key, high: Key, body: bytes, cut: Cut = Cut.SFB) -> int:
        """Tells all nodes in [low, high), own ones included; the number of the message."""
        self._number += 1
        plan = _PLANS[cut]
        errand = self._errand(plan)
        message = Deliver(self.host.address, self._number, 0, ((low, high),), 0, body, plan, (), (), errand)
        self._begin(message, None)
        return self._number

    def send_within(self, low: Key, high: Key, body: bytes, cut: Cut, entrance: Peer) -> int:
        """As `send`, and nobody outside gets it: it begins at a node inside."""
        self._number += 1
        plan = Plan(cut, within=(low, high))
        self._begin(Deliver(self.host.address, self._number, 0, ((low, high),), 0, body, plan), entrance)
        return self._number

    def deliver(
        self,
        low: Key,
        high: Key,
        body: bytes,
        timeout_s: float,
        on_outcome: OnOutcome,
        plan: Plan = PROVEN,
        entrance: Peer | None = None,
    ) -> int:
        """Sends to all nodes in [low, high), and says when that is proven, or what is missing when time is over.

        It begins here, or at an entrance.
        """
        if plan.answering is None or plan.cut is not Cut.RIGHT:
            raise ValueError("only answers by right links are proof: the plan needs `answering` and Cut.RIGHT")
        if len(self._open) >= OPEN_MAX:
            raise RuntimeError(f"{OPEN_MAX} deliveries are under way: wait for their outcomes before beginning more")
        self._number += 1
        errand = self._errand(plan)
        message = Deliver(self.host.address, self._number, 0, ((low, high),), 0, body, plan, (), (), errand)
        now = self.host.now()
        self._open[self._number] = _OpenDelivery(
            message, ((low, high),), on_outcome, now + REISSUE_S, now + timeout_s, entrance
        )
        self._begin(message, entrance)
        if self._number in self._open and not self._is_sweeping:
            self._is_sweeping = True
            self.host.spawn(self._sweep())
        return self._number

    def _begin(self, message: Deliver, entrance: Peer | None) -> None:
        if entrance is not None and entrance.address != self.host.address:
            self.host.send(entrance.address, _onward(message, message.ranges, (entrance.key,)))
            return
        introducer = None if self.overlay.view.own else self.overlay.introduce()
        if introducer is None:
            self._spread(message, self.host.address, ())
        else:  # a broker that has no key in the overlay hands it to one that has
            self.host.send(introducer, _onward(message, message.ranges, (), message.errand))
        if message.errand is not None and message.plan.answering is not None:
            head = ProbeRange(message.root, message.number, message.attempt, message.ranges, message.hops, (), (), True)
            if introducer is None:
                self._see_to_head(head)
            else:
                self.host.send(introducer, head)

    async def _sweep(self) -> None:
        """Re-issues gaps, and ends what takes too long."""
        while self._open:
            await self.host.sleep(SWEEP_S)
            now = self.host.now()
            for number, mine in list(self._open.items()):
                if now >= mine.ends_at:
                    self._conclude(number, mine)
                elif now >= mine.again_at:
                    mine.again_at = now + min(REISSUE_S_MAX, REISSUE_S * 2 ** (1 + mine.message.attempt))
                    if mine.message.plan.retrying in _SLOW:
                        attempt = mine.message.attempt + 1
                        mine.message = msgspec.structs.replace(
                            mine.message, attempt=attempt, ranges=mine.gaps, errand=None
                        )
                        self._begin(mine.message, mine.entrance)
        self._is_sweeping = False

    def _conclude(self, number: int, mine: _OpenDelivery) -> None:
        del self._open[number]
        mine.on_outcome(Outcome(mine.gaps, mine.ruled_out, mine.age_s, mine.answers))

    # Passing on

    @handles(Deliver)
    def on_deliver(self, origin: Address, message: Deliver) -> Reply:
        fast = message.plan.retrying in _FAST
        if message.hops > HOPS_MAX or not self.overlay.view.own:
            return None
        if self.on_hop is not None:
            self.on_hop(origin, message)
        gone = self._gone(message)
        if not gone:
            self._spread(message, origin, ())
        elif self._is_early(gone):
            self.host.spawn(self._when_inserted(gone, partial(self._go_round, origin, message)))
        else:
            self._go_round(origin, message)
        return Accepted() if fast else None

    def _go_round(self, origin: Address, message: Deliver) -> None:
        """Passes a message on without those it was for and that are gone."""
        gone = self._gone(message)
        if gone:
            self.host.send(origin, Vacant(gone))
            avoid = tuple(dict.fromkeys((*message.avoid, *gone)))[-AVOID_MAX:]
            message = msgspec.structs.replace(message, avoid=avoid)
        self._spread(message, origin, ())

    def _gone(self, message: Deliver | ProbeRange) -> tuple[Key, ...]:
        """The nodes that a message is for, and that do not stand here."""
        return tuple([key for key in message.to if key not in self.overlay.view.own])

    def _is_early(self, keys: tuple[Key, ...]) -> bool:
        """Whether a node's left neighbour may have linked it, and it does not know that yet: it will in a moment."""
        return self._held < INSERTING_MAX and any(map(self.overlay.ring.is_inserting, keys))

    async def _when_inserted(self, keys: tuple[Key, ...], action: Callable[[], None]) -> None:
        ends_at = self.host.now() + INSERTING_S
        self._held += 1
        while any(map(self.overlay.ring.is_inserting, keys)) and self.host.now() < ends_at:
            await self.host.sleep(INSERTING_POLL_S)
        self._held -= 1
        action()

    @handles(ProbeRange)
    def on_probe(self, origin: Address, probe: ProbeRange) -> Reply:
        """Answers for what is empty, sends on what others know better, and asks for the message where somebody is."""
        if probe.hops > HOPS_MAX or not self.overlay.view.own:
            return None
        gone = self._gone(probe)
        if gone and self._is_early(gone):
            self.host.spawn(self._when_inserted(gone, partial(self._pass_probe_on, probe)))
        else:
            self._pass_probe_on(probe)
        return None

    def _pass_probe_on(self, probe: ProbeRange) -> None:
        view, now = self.overlay.view, self.host.now()
        avoid = tuple(dict.fromkeys((*probe.avoid, *self._gone(probe))))[-AVOID_MAX:]
        if probe.only_head and probe.ranges:
            self._see_to_head(msgspec.structs.replace(probe, avoid=avoid))
            return
        covered: list[KeyRange] = []
        wanted: list[tuple[Peer, KeyRange]] = []
        for low, high in probe.ranges:
            parts = split(view, low, high, Cut.RIGHT, now, avoid)
            if parts.keys:
                wanted.append((view.own[parts.keys[0]].me, (low, high)))
                continue
            covered += parts.covered
            for peer, piece in (*parts.pieces, *parts.heads):
                if low <= peer.key < high:
                    wanted.append((peer, piece))
                else:
                    onward = (probe.root, probe.number, probe.attempt, (piece,), probe.hops + 1, (peer.key,), avoid)
                    self.host.send(peer.address, ProbeRange(*onward))
        if covered:
            self._answer(_covered(probe, covered, ()), probe.root)
        if wanted:
            self.host.send(probe.root, BodyWanted(probe.number, probe.attempt, tuple(wanted), probe.hops))

    @handles(BodyWanted)
    def on_wanted(self, _origin: Address, told: BodyWanted) -> Reply:
        """Sends the message to those who were not known. What is lost on the way is a gap, and repeated like any."""
        mine = self._open.get(told.number)
        if mine is not None and mine.message.attempt == told.attempt:
            whole = msgspec.structs.replace(mine.message, hops=told.hops)
            for peer, piece in told.pieces:
                self.host.send(peer.address, _onward(whole, (piece,), (peer.key,)))
        return None

    @handles(Vacant)
    def on_vacant(self, origin: Address, told: Vacant) -> Reply:
        """Passes over what is gone, until the overlay has learnt better."""
        for key in told.keys:
            entry = self.overlay.view.at(key)
            if entry is not None and entry.peer.address == origin:
                entry.known.suspect(entry.peer, self.host.now())
        return None

    def _spread(self, message: Deliver, parent: Address, avoid: tuple[Key, ...]) -> None:
        """Does what is for this host's own nodes, and hands the rest to those that are nearer to it."""
        new = message.ranges if avoid else self._unseen(message)
        if message.errand is not None and message.ranges and self.overlay.view.vector is not None:
            self._run_errand(message, message.errand, self.overlay.view.vector, () if avoid else new, parent, avoid)
            return
        if not new:
            return
        view, now, plan = self.overlay.view, self.host.now(), message.plan
        passed_over = (*message.avoid, *avoid) if avoid else message.avoid
        keys: list[Key] = []
        covered: list[KeyRange] = []
        ruled_out: list[KeyRange] = []
        age_s = 0.0
        parcels: dict[Address, list[KeyRange]] = {}
        peers: dict[Address, dict[Key, Peer]] = {}
        heads: list[tuple[Peer, KeyRange]] = []
        may_probe = (
            plan.answering is Answering.DIRECT
            and plan.retrying in _SLOW
            and plan.condition is None
            and plan.within is None
            and not message.attempt
        )
        for low, high in new:
            if passed_over:
                parts = split(view, low, high, plan.cut, now, passed_over)
            else:
                parts = self._split(view, low, high, plan.cut, now)
            keys += parts.keys
            covered += parts.covered
            if may_probe:
                heads += parts.heads
                pieces = parts.pieces
            else:
                pieces = [*parts.pieces, *parts.heads]
            for peer, piece in pieces:
                if plan.within is not None and not plan.within[0] <= peer.key < plan.within[1]:
                    continue
                if plan.condition is not None:
                    known = view.aggregate_over(*piece)
                    if known is not None and known.aggregate is not None and not plan.condition.holds(known.aggregate):
                        ruled_out.append(piece)
                        age_s = max(age_s, now - known.as_of)
                        continue
                parcels.setdefault(peer.address, []).append(piece)
                peers.setdefault(peer.address, {})[peer.key] = peer
        answers = self._take(message, keys) if keys else ()
        if self.on_nobody is not None and not keys and not parcels:
            self.on_nobody(message.root, message.body, new)
        up = plan.answering is Answering.UP_THE_TREE
        if up and parcels and message.root != self.host.address and not avoid:
            self._branch(message, parent, new)
        if plan.answering is not None and (covered or ruled_out):
            done = (*covered, *ruled_out)
            answer = Covered(message.root, message.number, message.attempt, done, tuple(ruled_out), age_s, answers)
            self._answer(answer, parent if up else message.root)
        for address, ranges in parcels.items():
            self._pass_on(address, _onward(message, tuple(ranges), tuple(peers[address])), parent, avoid)
        for peer, piece in heads:
            probe = ProbeRange(
                message.root, message.number, message.attempt, (piece,), message.hops + 1, (peer.key,), message.avoid
            )
            self.host.send(peer.address, probe)

    def _pass_on(self, to: Address, message: Deliver, parent: Address, avoid: tuple[Key, ...]) -> None:
        if message.plan.retrying in _FAST:
            self.host.spawn(self._hand_over(to, message, parent, avoid))
        else:
            self.host.send(to, message)

    async def _hand_over(self, to: Address, message: Deliver, parent: Address, avoid: tuple[Key, ...]) -> None:
        """Gives ranges to a peer; if it does not take them on, they are split again without it."""
        for _ in range(2):
            try:
                answer = await self.host.call(to, message, CALL_TIMEOUT_S)
            except CallError:
                continue
            if isinstance(answer, Accepted):
                return
        if len(avoid) < AVOID_MAX:
            again = msgspec.structs.replace(message, hops=message.hops - 1)
            self._spread(again, parent, (*avoid, *message.to))

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
            if len(self._seen) > SEEN_MAX:
                self._seen.popitem(last=False)
            return message.ranges
        new = without(message.ranges, seen)
        self._seen[name] = seen + new
        return new

    # Once to each broker, whatever keys it has there

    def _errand(self, plan: Plan) -> Errand | None:
        """What everybody in a range is brought a message by; None if it goes by keys.

        So do answers up the tree: who waits for them must know for which keys. And so does what is sent again: that is
        for parts of a range, and lists are whole only in all of it.
        """
        if self._one_each or self.overlay.view.vector is None:
            return None
        return None if plan.answering is Answering.UP_THE_TREE or plan.within is not None else EVERYBODY

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
        view, now = self.overlay.view, self.host.now()
        if new:
            self._take_and_answer(message, new, view)
        low, high = message.ranges[0]
        if not avoid and not self._is_first(message, errand):
            return
        silent = {entry.peer.address for key in avoid if (entry := view.at(key)) is not None}
        beside = [
            entry
            for entry in view.inside(low, high, now, message.avoid)
            if entry.peer.address != parent and entry.peer.address not in silent
        ]
        if view.own_inside(low, high):
            sent = go_on(vector, beside, errand, at_most_two=message.plan.cut is Cut.MRF)
        else:  # nobody of this host is in the range: somebody who is, or is nearer to it, sees to all of it
            nearest = max(beside, key=lambda entry: entry.level, default=None)
            step = nearest or view.step_towards(low, now, avoid=(*message.avoid, *avoid))
            sent = [] if step is None else [(step.peer, errand)]
            if step is None and self.on_nobody is not None:
                self.on_nobody(message.root, message.body, new)
        for peer, its in sent:
            self._pass_on(peer.address, _onward(message, message.ranges, (peer.key,), its), parent, avoid)

    def _take_and_answer(self, message: Deliver, ranges: tuple[KeyRange, ...], view: View) -> None:
        """Takes a message for all own keys in the ranges, and answers for what they own of them."""
        mine = [(key, high) for low, high in ranges for key in view.own_inside(low, high)]
        if not mine:
            return
        answers = self._take(message, [key for key, _ in mine])
        if message.plan.answering is not None:
            covered = [owned_part(view.own[key], key, high) for key, high in mine]
            self._answer(_covered(message, covered, answers), message.root)

    def _is_first(self, message: Deliver, errand: Errand) -> bool:
        """Whether this errand comes here for the first time."""
        name = (message.root, message.number, errand.ring)
        if name in self._errands:
            return False
        self._errands[name] = None
        if len(self._errands) > SEEN_MAX:
            self._errands.pop(next(iter(self._errands)))
        return True

    def _see_to_head(self, probe: ProbeRange) -> None:
        """Answers for what lies before the first node of a range, if that is this host's; else asks whose it is."""
        view = self.overlay.view
        low, high = probe.ranges[0]
        own = view.own_up_to(low)
        step = view.step_towards(low, self.host.now(), avoid=probe.avoid)
        if step is not None:
            onward = msgspec.structs.replace(probe, hops=probe.hops + 1, to=(step.peer.key,))
            self.host.send(step.peer.address, onward)
        elif own is not None and own.me.key != low and owns(own, low):
            self._answer(_covered(probe, [owned_part(own, low, high)], ()), probe.root)

    # Arriving

    def _take(self, message: Deliver, keys: list[Key]) -> tuple[tuple[Key, bytes], ...]:
        """Hands a message to the application, once for each key; the answers, those of earlier attempts too."""
        if message.plan.answering is None:
            self._on_delivery(RangeArrival(message.root, message.number, tuple(keys), message.hops, message.body))
            return ()
        done = self._done.setdefault((message.root, message.number), {})
        if len(self._done) > SEEN_MAX:
            self._done.pop(next(iter(self._done)))
        condition = message.plan.condition
        for key in keys:
            if key in done or (condition and not self._holds(condition, key)):
                continue
            done[key] = self._on_delivery(
                RangeArrival(message.root, message.number, (key,), message.hops, message.body)
            )
        return tuple([(key, answer) for key in keys if (answer := done.get(key)) is not None])

    def _holds(self, condition: Condition, key: Key) -> bool:
        return self.values is None or condition.holds(self.values(key))

    # Answering

    def _branch(self, message: Deliver, parent: Address, ranges: tuple[KeyRange, ...]) -> None:
        name = (message.root, message.number, message.attempt)
        if name in self._branches:
            return
        self._branches[name] = _Branch(parent, ranges)
        if len(self._branches) > SEEN_MAX:
            self._branches.pop(next(iter(self._branches)))
        self.host.spawn(self._end_branch(name))

    async def _end_branch(self, name: tuple[Address, int, int]) -> None:
        """Passes on what has come, when the rest takes too long; what comes later goes to the root directly."""
        await self.host.sleep(BRANCH_S)
        branch = self._branches.pop(name, None)
        if branch is not None and branch.ranges:
            self.host.send(branch.parent, _collected(name, branch))

    def _answer(self, answer: Covered, to: Address) -> None:
        name = (answer.root, answer.number, answer.attempt)
        branch = self._branches.get(name)
        if branch is not None:
            branch.missing = without(branch.missing, answer.ranges)
            branch.ranges += answer.ranges
            branch.ruled_out += answer.ruled_out
            branch.age_s = max(branch.age_s, answer.age_s)
            branch.answers += answer.answers
            if not branch.missing:
                del self._branches[name]
                self.host.send(branch.parent, _collected(name, branch))
        elif answer.root == self.host.address:
            self._account(answer)
        else:
            self.host.send(to, answer)

    @handles(Covered)
    def on_covered(self, _origin: Address, answer: Covered) -> Reply:
        self._answer(answer, answer.root)
        return None

    def _account(self, answer: Covered) -> None:
        mine = self._open.get(answer.number)
        if mine is None:
            return
        mine.answers.update(answer.answers)
        mine.ruled_out += answer.ruled_out
        mine.age_s = max(mine.age_s, answer.age_s)
        mine.gaps = without(mine.gaps, answer.ranges)
        if not mine.gaps:
            self._conclude(answer.number, mine)


def _onward(
    message: Deliver, ranges: tuple[KeyRange, ...], to: tuple[Key, ...], errand: Errand | None = None
) -> Deliver:
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


def _covered(message: Deliver | ProbeRange, ranges: list[KeyRange], answers: tuple[tuple[Key, bytes], ...]) -> Covered:
    return Covered(message.root, message.number, message.attempt, tuple(ranges), (), 0.0, answers)


def _collected(name: tuple[Address, int, int], branch: _Branch) -> Covered:
    return Covered(*name, tuple(branch.ranges), tuple(branch.ruled_out), branch.age_s, tuple(branch.answers))


_PLANS = {cut: Plan(cut) for cut in Cut}
