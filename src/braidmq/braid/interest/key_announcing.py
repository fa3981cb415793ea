"""Interest announced filter by filter, as keys in the overlay: for methods that know no wildcards.

Of the filters of clients here, those that no other one covers are announced. One with wildcards waits until all brokers
have taken up its shape.
"""

from __future__ import annotations

from functools import partial

from braidmq.braid.interest.agreement import ShapeAgreement
from braidmq.braid.interest.covering import AnnouncedChange, CoveringFilters
from braidmq.braid.interest.effect_waits import EffectWaits
from braidmq.braid.interest.shapes import shape_of
from braidmq.braid.membership.presence import Presence
from braidmq.braid.task_limiter import TaskLimiter
from braidmq.host import Host
from braidmq.pubsub.method import Method


class KeyAnnouncer:
    """An `Announcer` that announces the fewest filters that cover all."""

    def __init__(
        self, host: Host, method: Method, presence: Presence, agreement: ShapeAgreement, limiter: TaskLimiter
    ) -> None:
        self._method = method
        self._presence = presence
        self._agreement = agreement
        self._limiter = limiter
        self._covering = CoveringFilters()
        self.waits = EffectWaits(host, self.pending)
        self._filters: dict[str, None] = {}
        """Those that this broker has announced, or is about to."""
        self._ending: dict[str, None] = {}
        """Those that it is about to withdraw."""
        self._beginning: dict[str, None] = {}
        """Those that have not taken effect yet."""

    @property
    def filters(self) -> list[str]:
        return [*self._filters, *self._ending]

    def enter(self) -> None:
        self._announce(AnnouncedChange([one for one in self._covering.announced if one not in self._filters], []))

    def on_filter(self, topic_filter: str, wanted: bool) -> None:
        changes = self._covering.add(topic_filter) if wanted else self._covering.discard(topic_filter)
        if self._presence.is_in:
            self._announce(changes)

    def _announce(self, changes: AnnouncedChange) -> None:
        """New filters first, so that nothing is missed in between."""
        for topic_filter in changes.begun:
            self._filters[topic_filter] = self._beginning[topic_filter] = None
            begin = partial(self._limiter.submit, partial(self._begin, topic_filter))
            shape = shape_of(topic_filter)
            if shape is None:
                begin()
            else:
                self._agreement.when_reached(shape, begin)
        for topic_filter in changes.ended:
            if topic_filter in self._filters:
                del self._filters[topic_filter]
                self._ending[topic_filter] = None
                self._limiter.submit(partial(self._end, topic_filter))

    async def _begin(self, topic_filter: str) -> None:
        if topic_filter in self._filters and not self._presence.is_leaving:  # it may have lost its last subscription
            await self._method.subscribe(topic_filter)
        self._beginning.pop(topic_filter, None)
        self.waits.on_effective(topic_filter)

    async def _end(self, topic_filter: str) -> None:
        if topic_filter not in self._filters:
            await self._method.unsubscribe(topic_filter)
        self._ending.pop(topic_filter, None)

    def announces(self, topic_filter: str) -> bool:
        return self._covering.announced_for(topic_filter) == topic_filter

    def pending(self, topic_filter: str) -> str | None:
        announced = self._covering.announced_for(topic_filter)
        return announced if self._presence.is_in and announced in self._beginning else None
