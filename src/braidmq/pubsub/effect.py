"""When a subscription has taken effect: whatever is published anywhere from then on comes to the new subscriber.

It stands in the overlay when its left neighbour has linked it. Two more things must be known to others by then. A
publication may come from the right, by left links, and a left link is told after the right one was made: so the right
neighbour, if it subscribes to the same topic, must know who is on its left now. And the publishers must know that there
is demand, each of them: they are told by a range delivery that is proven.
"""

from __future__ import annotations

from braidmq.host import Address, CallError, Host, Message, Reply, Service, handles
from braidmq.keys import Key, in_arc
from braidmq.overlay import Overlay
from braidmq.overlay.key_ranges import KeyRange
from braidmq.overlay.ranges import Outcome, RangeDelivery

EFFECT_S = 5.0
"""How long a new subscriber makes sure of either; what is not known to others by then, they find out by themselves."""

POLL_S = 0.002
CALL_TIMEOUT_S = 1.0


class AskBehind(Message, frozen=True, array_like=True, gc=False):
    """Does your node `to` know that this one is on its left, or one between?"""

    to: Key
    key: Key


class TellBehind(Message, frozen=True, array_like=True, gc=False):
    is_known: bool


class Effect(Service):
    """One broker's part: of its own subscriptions, and as the neighbour of others."""

    def __init__(self, overlay: Overlay, ranges: RangeDelivery) -> None:
        self._overlay = overlay
        self._host: Host = overlay.host
        self._ranges = ranges
        self._host.serve(self)

    async def wait_for_right(self, key: Key, keys: KeyRange) -> None:
        """Returns when the right neighbour of an own node, if it is one of these keys, knows that the node is there."""
        ends_at = self._host.now() + EFFECT_S
        while self._host.now() < ends_at:
            own = self._overlay.view.own.get(key)
            if own is None or not key < own.right.key < keys[1]:
                return
            asked = AskBehind(own.right.key, key)
            try:
                told = await self._host.call(own.right.address, asked, CALL_TIMEOUT_S)
            except CallError:
                told = None
            if isinstance(told, TellBehind) and told.is_known:
                return
            await self._host.sleep(POLL_S)

    @handles(AskBehind)
    def on_ask_behind(self, _origin: Address, asked: AskBehind) -> Reply:
        node = self._overlay.view.own.get(asked.to)
        return TellBehind(node is not None and in_arc(asked.key, node.left.key, asked.to))

    async def tell(self, body: bytes, *ranges: KeyRange) -> bool:
        """Delivers to all nodes in some ranges; returns when that is proven, or whether it is when time is over."""
        outcomes: list[Outcome] = []
        try:
            for keys in ranges:
                self._ranges.deliver(*keys, body, EFFECT_S, outcomes.append)
        except RuntimeError:  # too many are under way
            return False
        while len(outcomes) < len(ranges):
            await self._host.sleep(POLL_S)
        return all(outcome.complete for outcome in outcomes)
