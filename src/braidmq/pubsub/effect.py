"""When a subscription has taken effect: whatever is published anywhere from then on comes to the new subscriber.

Its key is in the overlay when its left neighbour has linked it. Two more things must be known elsewhere by then. A
publication may come from the right, by left links, and a left link is told after the right one was made: so the right
neighbour, if it subscribes to the same topic, must have the new one as its left link. And each publisher must know that
there is demand: they are told by a range delivery that is proven.
"""

from __future__ import annotations

from braidmq.host import Address, Host, Message, Reply, Service, ask, handles
from braidmq.keys import Key, in_arc
from braidmq.overlay import Overlay
from braidmq.overlay.key_ranges import KeyRange
from braidmq.overlay.ranges import RangeDelivery

EFFECT_S = 5.0
"""How long a new subscriber makes sure of either; brokers that do not know by then find out by themselves."""

ASK_AGAIN_S = 0.002
"""The pause before the right neighbour is asked again: its left link is on its way."""

CALL_TIMEOUT_S = 1.0


class AskLeftLink(Message, tag="AskBehind", frozen=True, array_like=True, gc=False):
    """Does your node `to` know that this one is on its left, or one between?"""

    to: Key
    key: Key


class LeftLinkKnown(Message, tag="TellBehind", frozen=True, array_like=True, gc=False):
    is_known: bool


class Effect(Service):
    """One broker's part: for its own subscriptions, and as the neighbour of other subscribers."""

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
            asked = AskLeftLink(own.right.key, key)
            told = await ask(self._host, own.right.address, asked, LeftLinkKnown, timeout_s=CALL_TIMEOUT_S)
            if told is not None and told.is_known:
                return
            await self._host.sleep(ASK_AGAIN_S)

    @handles(AskLeftLink)
    def on_ask_behind(self, _origin: Address, asked: AskLeftLink) -> Reply:
        node = self._overlay.view.own.get(asked.to)
        return LeftLinkKnown(node is not None and in_arc(asked.key, node.left.key, asked.to))

    async def tell(self, body: bytes, *ranges: KeyRange) -> bool:
        """Delivers to all nodes in some ranges; returns when that is proven, or whether it is when time is over."""
        outcomes = await self._ranges.deliver_all(ranges, body, EFFECT_S)
        return outcomes is not None and all(outcome.complete for outcome in outcomes)
