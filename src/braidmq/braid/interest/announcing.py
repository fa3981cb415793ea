"""The interest that a broker announces to its braid: the filters of its clients, or wider ones that cover them.

A SUBACK waits until its subscription has taken effect everywhere, or that takes too long.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from braidmq.braid.interest.agreement import ShapeAgreement
from braidmq.braid.interest.covering import CoveringFilters
from braidmq.braid.interest.shapes import shape_of
from braidmq.braid.membership.presence import Presence
from braidmq.braid.task_limiter import TaskLimiter
from braidmq.host import Event, Host
from braidmq.pubsub.method import Method

SUBSCRIBE_WAIT_S = 3.0
"""How long a SUBACK waits until the subscription has taken effect in the whole braid."""


class InterestAnnouncer:
    """Follows what clients want, and knows what of it other brokers do not know yet."""

    def __init__(
        self,
        host: Host,
        method: Method,
        presence: Presence,
        covering: CoveringFilters,
        agreement: ShapeAgreement,
        limiter: TaskLimiter,
    ) -> None:
        self._host = host
        self._method = method
        self._presence = presence
        self._covering = covering
        self._agreement = agreement
        self._limiter = limiter
        self._filters: dict[str, None] = {}
        """Those that this broker has announced, or is about to."""
        self._ending: dict[str, None] = {}
        """Those that it is about to withdraw."""
        self._beginning: dict[str, None] = {}
        """Those that have not taken effect yet."""
        self._waiting: dict[Event, list[str]] = {}
        """Events that wait for filters to take effect."""

    @property
    def filters(self) -> list[str]:
        """All that other brokers may know of."""
        return [*self._filters, *self._ending]

    def update(self) -> None:
        """Announces what it should: new filters first, so that nothing is missed in between."""
        should = dict.fromkeys(self._covering.announced)
        for topic_filter in should:
            if topic_filter not in self._filters:
                self._filters[topic_filter] = self._beginning[topic_filter] = None
                begin = partial(self._limiter.submit, partial(self._begin, topic_filter))
                shape = shape_of(topic_filter)
                if shape is None:
                    begin()
                else:
                    self._agreement.when_reached(shape, begin)
        for topic_filter in [one for one in self._filters if one not in should]:
            del self._filters[topic_filter]
            self._ending[topic_filter] = None
            self._limiter.submit(partial(self._end, topic_filter))

    async def _begin(self, topic_filter: str) -> None:
        if topic_filter in self._filters and not self._presence.is_leaving:  # it may have lost its last subscription
            await self._method.subscribe(topic_filter)
        self._beginning.pop(topic_filter, None)
        for event, filters in list(self._waiting.items()):
            if not any(self.is_awaited(one) for one in filters):
                event.set()

    async def _end(self, topic_filter: str) -> None:
        if topic_filter not in self._filters:
            await self._method.unsubscribe(topic_filter)
        self._ending.pop(topic_filter, None)

    def is_awaited(self, topic_filter: str) -> bool:
        """Whether a filter of a subscription here has not taken effect in the braid yet."""
        announced = self._covering.announced_for(topic_filter)
        return self._presence.is_in and announced is not None and announced in self._beginning

    def when_effective(self, filters: list[str], done: Callable[[], None]) -> None:
        """Calls when subscriptions have taken effect, or when that takes too long; at once if they have."""
        awaited = [one for one in filters if self.is_awaited(one)]
        if awaited:
            self._host.spawn(self._call_when_effective(awaited, done))
        else:
            done()

    async def _call_when_effective(self, filters: list[str], done: Callable[[], None]) -> None:
        await self.until_effective(filters, SUBSCRIBE_WAIT_S)
        done()

    async def until_effective(self, filters: list[str], timeout_s: float) -> None:
        """Waits until subscriptions have taken effect, but not longer than so long."""
        if any(self.is_awaited(one) for one in filters):
            effective = self._host.event()
            self._waiting[effective] = filters
            await effective.wait(timeout_s)
            del self._waiting[effective]
