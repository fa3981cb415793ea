"""Messages that have arrived: each is handed to the application once for each own key, and its answers are kept.

A message that is to be proven may come several times: after a loss, or to go round a silent host. Its answers are those
of the first time.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from braidmq.bounded import BoundedDict
from braidmq.host import Address
from braidmq.keys import Key
from braidmq.overlay.aggregates import Aggregate
from braidmq.overlay.ranges.messages import Deliver

ANSWERED_MAX = 4096
"""Deliveries with answers that a host remembers, so that none is made twice."""


class RangeArrival(msgspec.Struct, frozen=True, gc=False):
    """What the application gets: the own keys that the message is for, and how far it came."""

    root: Address
    number: int
    keys: tuple[Key, ...]
    hops: int
    body: bytes


OnDelivery = Callable[[RangeArrival], bytes | None]
"""Called once for each own key's message; what it returns goes to a sender that wants answers."""

Values = Callable[[Key], Aggregate]
"""The own values of a node, for conditions."""


class Arrivals:
    """Hands messages to the application."""

    def __init__(self, on_delivery: OnDelivery, values: Values | None) -> None:
        """Without `values` every condition holds for every node."""
        self._on_delivery = on_delivery
        self._values = values
        self._answered: BoundedDict[tuple[Address, int], dict[Key, bytes | None]] = BoundedDict(ANSWERED_MAX)

    def arrive(self, message: Deliver, keys: list[Key]) -> tuple[tuple[Key, bytes], ...]:
        """Hands a message over, once for each key; the answers, those of earlier attempts too."""
        if message.plan.answering is None:
            self._on_delivery(RangeArrival(message.root, message.number, tuple(keys), message.hops, message.body))
            return ()
        answered = self._answered.setdefault((message.root, message.number), {})
        for key in keys:
            if key not in answered and self._is_for(message, key):
                one = RangeArrival(message.root, message.number, (key,), message.hops, message.body)
                answered[key] = self._on_delivery(one)
        return tuple([(key, answer) for key in keys if (answer := answered.get(key)) is not None])

    def _is_for(self, message: Deliver, key: Key) -> bool:
        condition = message.plan.condition
        return condition is None or self._values is None or condition.holds(self._values(key))
