"""Range delivery: one message to every node whose key lies in a range, along a tree, over any ordered overlay.

A host that has a message for some ranges takes out its own keys and hands the rest on (`forwarding`), so every key is
in exactly one message. `send` only tells. `deliver` also proves: the owner of keys of the range answers for exactly
those, whether nodes stand there or not (`Covered`). The sender subtracts what is answered for from its gaps and is done
when none is left; what it sends again after a failure is just the gaps (`collecting`).

A delivery can ask for answers: they come directly to the sender, or are put together up the tree (`answering`). It can
be repeated fast (a hop that is not acknowledged is split again without the silent one), slowly (the sender re-issues
the gaps), or both. And it can be for those nodes only for which a condition holds: ranges whose aggregate rules it out
are left out, and what is not known counts as a match (`conditions`).

Where brokers may have several keys in a range, a Skip Graph lets the brokers be divided among forwarders, not the keys
(`errands`): then each broker gets one message for all its keys, and answers for what all of them own. What lies before
the first node that is known in a range is proven without the message (`probing`).

A delivery to a part of a segment may pass nodes that stand before that part. Where those must not see it
(`Plan.within`), it begins at an entrance, a node inside, and goes from there only to others inside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec

from braidmq.host import Address, Host, Reply, Service, handles
from braidmq.keys import Key
from braidmq.overlay.key_ranges import KeyRange
from braidmq.overlay.overlay import Overlay
from braidmq.overlay.peers import Peer
from braidmq.overlay.ranges.answering import Answers
from braidmq.overlay.ranges.arriving import Arrivals, OnDelivery, Values
from braidmq.overlay.ranges.collecting import Collector, OnOutcome, Outcome
from braidmq.overlay.ranges.errands import EVERYBODY
from braidmq.overlay.ranges.forwarding import OnNobody, RangeForwarder, onward
from braidmq.overlay.ranges.messages import (
    AVOID_MAX,
    PROVEN,
    RETRIED_FAST,
    Accepted,
    Answering,
    BodyWanted,
    Covered,
    Deliver,
    Errand,
    Plan,
    ProbeRange,
    Vacant,
)
from braidmq.overlay.ranges.probing import Prober
from braidmq.overlay.ranges.splitting import Cut

HOPS_MAX = 128

INSERTING_S = 1.0
INSERTING_MAX = 1024
"""How long what comes for a node that is just being inserted waits until it is, and how many messages may at a time."""

OnHop = Callable[[Address, Deliver], None]
"""The host that it comes from, and the message."""

_PLANS: Final = {cut: Plan(cut) for cut in Cut}


class RangeDelivery(Service):
    """Sends to ranges of keys over the overlay of one host, and hands what arrives to the application."""

    def __init__(
        self,
        overlay: Overlay,
        on_delivery: OnDelivery,
        *,
        one_each: bool = False,
        on_nobody: OnNobody | None = None,
        values: Values | None = None,
    ) -> None:
        """With `one_each` no broker has two keys in one range: then to cut ranges between keys is enough.

        `on_nobody` is called when ranges of a message have ended here, without a node in them, as far as is known here.
        `values` are the own values of a node, for conditions; without them every node is a match.
        """
        self.overlay = overlay
        self.host: Host = overlay.host
        self.on_hop: OnHop | None = None
        """Called when a message has come here from another host, before it is passed on: to follow it."""
        self._one_each = one_each
        self._number = self.host.chance.getrandbits(40)  # so that a host made anew does not repeat earlier ones
        self._held = 0
        """Messages that wait for a node to be inserted."""
        self._collector = Collector(self.host, self._begin)
        self._answers = Answers(self.host, self._collector.account)
        self._forwarder = RangeForwarder(overlay, Arrivals(on_delivery, values), self._answers, on_nobody)
        self._prober = Prober(overlay, self._answers)
        self.host.serve(self)

    # Sending

    def send(self, low: Key, high: Key, body: bytes, cut: Cut = Cut.SFB) -> int:
        """Tells all nodes in [low, high), own ones included; the number of the message."""
        message = self._message(low, high, body, _PLANS[cut])
        self._begin(message, None)
        return message.number

    def send_within(self, low: Key, high: Key, body: bytes, cut: Cut, entrance: Peer) -> int:
        """As `send`, and no node outside gets it: it begins at a node inside."""
        message = self._message(low, high, body, Plan(cut, within=(low, high)))
        self._begin(message, entrance)
        return message.number

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
        self._collector.check_room()
        message = self._message(low, high, body, plan)
        self._collector.begin(message, entrance, timeout_s, on_outcome)
        return message.number

    async def deliver_all(self, ranges: Sequence[KeyRange], body: bytes, timeout_s: float) -> list[Outcome] | None:
        """Delivers to several ranges, and returns when all is known; None if too many deliveries are under way."""
        outcomes: list[Outcome] = []
        all_known = self.host.event()

        def on_outcome(outcome: Outcome) -> None:
            outcomes.append(outcome)
            if len(outcomes) == len(ranges):
                all_known.set()

        try:
            for low, high in ranges:
                self.deliver(low, high, body, timeout_s, on_outcome)
        except RuntimeError:
            return None
        if ranges:
            await all_known.wait()
        return outcomes

    def _message(self, low: Key, high: Key, body: bytes, plan: Plan) -> Deliver:
        self._number += 1
        errand = self._errand(plan)
        return Deliver(self.host.address, self._number, 0, ((low, high),), 0, body, plan, (), (), errand)

    def _errand(self, plan: Plan) -> Errand | None:
        """What brings a message to all brokers in a range; None if it goes by keys.

        So do answers up the tree: a host that waits for them must know for which keys. And so does what is sent again:
        that is for parts of a range, and lists are whole only in all of it.
        """
        if self._one_each or self.overlay.view.vector is None:
            return None
        return None if plan.answering is Answering.UP_THE_TREE or plan.within is not None else EVERYBODY

    def _begin(self, message: Deliver, entrance: Peer | None) -> None:
        if entrance is not None and entrance.address != self.host.address:
            self.host.send(entrance.address, onward(message, message.ranges, (entrance.key,)))
            return
        introducer = None if self.overlay.view.own else self.overlay.introduce()
        if introducer is None:
            self._forwarder.spread(message, self.host.address, ())
        else:  # a broker that has no key in the overlay hands it to one that has
            self.host.send(introducer, onward(message, message.ranges, (), message.errand))
        if message.errand is not None and message.plan.answering is not None:
            head = ProbeRange(message.root, message.number, message.attempt, message.ranges, message.hops, (), (), True)
            if introducer is None:
                self._prober.prove_head(head)
            else:
                self.host.send(introducer, head)

    # Passing on

    @handles(Deliver)
    def on_deliver(self, origin: Address, message: Deliver) -> Reply:
        if message.hops > HOPS_MAX or not self.overlay.view.own:
            return None
        if self.on_hop is not None:
            self.on_hop(origin, message)
        gone = self._gone(message)
        if not gone:
            self._forwarder.spread(message, origin, ())
        elif self._is_early(gone):
            self.host.spawn(self._when_inserted(gone, partial(self._go_round, origin, message)))
        else:
            self._go_round(origin, message)
        return Accepted() if message.plan.retrying in RETRIED_FAST else None

    def _go_round(self, origin: Address, message: Deliver) -> None:
        """Passes a message on without those nodes that it was for and that are gone."""
        gone = self._gone(message)
        if gone:
            self.host.send(origin, Vacant(gone))
            avoid = tuple(dict.fromkeys((*message.avoid, *gone)))[-AVOID_MAX:]
            message = msgspec.structs.replace(message, avoid=avoid)
        self._forwarder.spread(message, origin, ())

    def _gone(self, message: Deliver | ProbeRange) -> tuple[Key, ...]:
        """The nodes that a message is for, and that do not stand here."""
        return tuple([key for key in message.to if key not in self.overlay.view.own])

    def _is_early(self, keys: tuple[Key, ...]) -> bool:
        """Whether a node's left neighbour may have linked it, and it does not know that yet: it will in a moment."""
        return self._held < INSERTING_MAX and any(map(self.overlay.ring.is_inserting, keys))

    async def _when_inserted(self, keys: tuple[Key, ...], action: Callable[[], None]) -> None:
        ends_at = self.host.now() + INSERTING_S
        self._held += 1
        for key in keys:
            node = self.overlay.ring.inserting(key)
            if node is not None:
                await node.insertion_over().wait(max(0.0, ends_at - self.host.now()))
        self._held -= 1
        action()

    @handles(ProbeRange)
    def on_probe(self, origin: Address, probe: ProbeRange) -> Reply:
        """What is empty is answered for, or passed on to nodes that know better."""
        if probe.hops > HOPS_MAX or not self.overlay.view.own:
            return None
        gone = self._gone(probe)
        if gone and self._is_early(gone):
            self.host.spawn(self._when_inserted(gone, partial(self._pass_probe_on, probe)))
        else:
            self._pass_probe_on(probe)
        return None

    def _pass_probe_on(self, probe: ProbeRange) -> None:
        self._prober.pass_on(probe, self._gone(probe))

    @handles(BodyWanted)
    def on_body_wanted(self, _origin: Address, told: BodyWanted) -> Reply:
        """Sends the message to nodes that were not known. What is lost on the way is a gap, and repeated like any."""
        message = self._collector.message(told.number, told.attempt)
        if message is not None:
            whole = msgspec.structs.replace(message, hops=told.hops)
            for peer, piece in told.pieces:
                self.host.send(peer.address, onward(whole, (piece,), (peer.key,)))
        return None

    @handles(Vacant)
    def on_vacant(self, origin: Address, told: Vacant) -> Reply:
        """Passes over what is gone, until the overlay has learnt better."""
        for key in told.keys:
            entry = self.overlay.view.at(key)
            if entry is not None and entry.peer.address == origin:
                entry.known.suspect(entry.peer, self.host.now())
        return None

    @handles(Covered)
    def on_covered(self, _origin: Address, answer: Covered) -> Reply:
        self._answers.give(answer, answer.root)
        return None
