"""What a broker stands for in its braid: the filters of its clients, or wider ones that cover them (`interest`).

A SUBACK waits until its subscription has taken effect everywhere, or that takes too long.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from braidmq.braid.interest.shapes import shape_of

if TYPE_CHECKING:
    from braidmq.braid.braid import Braid
    from braidmq.braid.task_limiter import TaskLimiter

SUBSCRIBE_WAIT_S = 3.0
"""How long a SUBACK waits until the subscription has taken effect in the whole braid."""


class PendingSuback:
    """A SUBACK that waits until its subscriptions have taken effect."""

    def __init__(self, standing: InterestAnnouncer, filters: list[str], done: Callable[[], None]) -> None:
        self._standing = standing
        self._filters = filters
        self._done: Callable[[], None] | None = done

    def look(self) -> None:
        if not any(self._standing.is_awaited(one) for one in self._filters):
            self.end()

    def end(self) -> None:
        done, self._done = self._done, None
        self._standing.forget(self)
        if done is not None:
            done()


class InterestAnnouncer:
    """Follows what clients want, and knows what of it others do not know yet."""

    def __init__(self, braid: Braid, limiter: TaskLimiter) -> None:
        self._braid = braid
        self._host = braid.host
        self._limiter = limiter
        self._filters: dict[str, None] = {}
        """Those that this broker stands for, or is about to."""
        self._ending: dict[str, None] = {}
        """Those that it is about to stand for no longer."""
        self._settling: dict[str, None] = {}
        """Those that have not taken effect yet."""
        self._waiting: dict[PendingSuback, None] = {}

    @property
    def filters(self) -> list[str]:
        """All that others may know of it."""
        return [*self._filters, *self._ending]

    def update(self) -> None:
        """Makes the broker stand for what it should: new filters first, so that nothing is missed in between."""
        should = dict.fromkeys(self._braid.interest.standing)
        for topic_filter in should:
            if topic_filter not in self._filters:
                self._filters[topic_filter] = self._settling[topic_filter] = None
                begin = partial(self._limiter.submit, partial(self._begin, topic_filter))
                shape = shape_of(topic_filter)
                if shape is None:
                    begin()
                else:
                    self._braid.agreement.when_reached(shape, begin)
        for topic_filter in [one for one in self._filters if one not in should]:
            del self._filters[topic_filter]
            self._ending[topic_filter] = None
            self._limiter.submit(partial(self._end, topic_filter))

    async def _begin(self, topic_filter: str) -> None:
        if topic_filter in self._filters and not self._braid.is_leaving:  # it may have lost its last subscription
            await self._braid.method.subscribe(topic_filter)
        self._settling.pop(topic_filter, None)
        for waiting in list(self._waiting):
            waiting.look()

    async def _end(self, topic_filter: str) -> None:
        if topic_filter not in self._filters:
            await self._braid.method.unsubscribe(topic_filter)
        self._ending.pop(topic_filter, None)

    def is_awaited(self, topic_filter: str) -> bool:
        """Whether a filter of a subscription here has not taken effect in the braid yet."""
        standing = self._braid.interest.stands_for(topic_filter)
        return self._braid.is_in and standing is not None and standing in self._settling

    def when_effective(self, filters: list[str], done: Callable[[], None]) -> None:
        """Calls when subscriptions have taken effect, or when that takes too long."""
        waiting = PendingSuback(self, filters, done)
        self._waiting[waiting] = None
        self._host.spawn(self._give_up(waiting))

    async def _give_up(self, waiting: PendingSuback) -> None:
        await self._host.sleep(SUBSCRIBE_WAIT_S)
        waiting.end()

    def forget(self, waiting: PendingSuback) -> None:
        self._waiting.pop(waiting, None)
