"""Who waits until filters have taken effect in the whole braid: a SUBACK, or a session that comes from another broker.

A wait is noted at one of its filters that has not, and looked at again when that one has: so what is to be done when a
filter takes effect grows with those who wait for it, not with all who wait.
"""

from __future__ import annotations

from collections.abc import Callable

from braidmq.host import Event, Host

SUBSCRIBE_WAIT_S = 3.0
"""How long a SUBACK waits until the subscription has taken effect in the whole braid."""


class _Wait:
    __slots__ = ("at", "effective", "filters")

    def __init__(self, filters: list[str], effective: Event) -> None:
        self.filters = filters
        """Those of which it is not known yet that they have taken effect."""
        self.effective = effective
        self.at: str | None = None
        """Where it is noted."""


class EffectWaits:
    def __init__(self, host: Host, pending: Callable[[str], str | None]) -> None:
        """`pending` says what must take effect before a filter has: it, one that covers it, or nothing any more."""
        self._host = host
        self._pending = pending
        self._at: dict[str, dict[_Wait, None]] = {}

    def when_effective(self, filters: list[str], done: Callable[[], None]) -> None:
        """Calls when subscriptions have taken effect, or when that takes too long; at once if they have."""
        awaited = [one for one in filters if self._pending(one) is not None]
        if awaited:
            self._host.spawn(self._call_when_effective(awaited, done))
        else:
            done()

    async def _call_when_effective(self, filters: list[str], done: Callable[[], None]) -> None:
        await self.until_effective(filters, SUBSCRIBE_WAIT_S)
        done()

    def is_effective(self, filters: list[str]) -> bool:
        """Whether all of these subscriptions have taken effect."""
        return all(self._pending(one) is None for one in filters)

    async def until_effective(self, filters: list[str], timeout_s: float) -> None:
        """Waits until subscriptions have taken effect, but not longer than so long."""
        wait = _Wait(list(filters), self._host.event())
        self._note(wait)
        if not wait.effective.is_set:
            await wait.effective.wait(timeout_s)
            self._forget(wait)

    def on_effective(self, topic_filter: str) -> None:
        """A filter has taken effect, or is not wanted any more."""
        for wait in self._at.pop(topic_filter, ()):
            self._note(wait)

    def _note(self, wait: _Wait) -> None:
        """Where its last filter is pending; if none is, it has waited long enough."""
        while wait.filters:
            wait.at = self._pending(wait.filters[-1])
            if wait.at is not None:
                self._at.setdefault(wait.at, {})[wait] = None
                return
            wait.filters.pop()
        wait.at = None
        wait.effective.set()

    def _forget(self, wait: _Wait) -> None:
        if wait.at is not None:
            waits = self._at[wait.at]
            del waits[wait]
            if not waits:
                del self._at[wait.at]
