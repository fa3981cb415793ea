"""The interest of clients here, announced to the braid. A SUBACK waits until its subscription has taken effect
everywhere, or that takes too long.

Where the method knows wildcards, it is given each filter as it is (`FilterAnnouncer`): what is to be done for one does
not depend on how many there are. Else each filter becomes a key, unless another one covers it (`key_announcing`).
"""

from __future__ import annotations

from typing import Protocol

from braidmq.braid.interest.client_filters import ClientFilters
from braidmq.braid.interest.effect_waits import EffectWaits
from braidmq.braid.membership.presence import Presence
from braidmq.host import Host
from braidmq.pubsub.method import WildcardMethod

ENTER_AT_ONCE = 500
"""Filters of sessions from before that are given to the method in one turn, when a broker enters."""


class Announcer(Protocol):
    """Follows what clients want, and knows what of it other brokers do not know yet."""

    waits: EffectWaits
    """Who waits until filters have taken effect."""

    @property
    def filters(self) -> list[str]:
        """All that other brokers may know of and that a broker which leaves gives up one by one."""
        ...

    def enter(self) -> None:
        """The braid is entered: announces what is wanted."""
        ...

    def on_filter(self, topic_filter: str, wanted: bool) -> None:
        """A filter has its first subscription here, or has lost its last."""
        ...

    def announces(self, topic_filter: str) -> bool:
        """Whether a filter of clients here is announced itself, and not a broader one for it."""
        ...

    def pending(self, topic_filter: str) -> str | None:
        """What has yet to take effect in the braid before a filter of clients here has: it, or one that covers it."""
        ...


class FilterAnnouncer:
    """An `Announcer` that gives the method each filter as it is."""

    def __init__(self, host: Host, method: WildcardMethod, presence: Presence, filters: ClientFilters) -> None:
        """`filters` are those that clients here want."""
        self._host = host
        self._method = method
        self._presence = presence
        self._filters = filters
        self.waits = EffectWaits(host, self.pending)
        self._has_begun = False
        self._changing: dict[str, bool] = {}
        """By filter of which the method is to be told, or is being told: whether it subscribes to it now."""

    @property
    def filters(self) -> list[str]:
        return []

    def enter(self) -> None:
        self._has_begun = True
        self._changing.update(dict.fromkeys(self._filters, False))
        self._host.spawn(self._follow_all(list(self._changing)))

    async def _follow_all(self, filters: list[str]) -> None:
        for first in range(0, len(filters), ENTER_AT_ONCE):
            for topic_filter in filters[first : first + ENTER_AT_ONCE]:
                self._host.spawn(self._follow(topic_filter))
            await self._host.sleep(0)

    def on_filter(self, topic_filter: str, wanted: bool) -> None:
        if self._has_begun and topic_filter not in self._changing:
            self._changing[topic_filter] = not wanted
            self._host.spawn(self._follow(topic_filter))

    async def _follow(self, topic_filter: str) -> None:
        """Brings the method to what clients want, however often that changes meanwhile: one step after the other."""
        while not self._presence.is_leaving:
            wanted = topic_filter in self._filters
            if wanted == self._changing[topic_filter]:
                break
            if wanted:
                await self._method.subscribe(topic_filter)
            else:
                await self._method.unsubscribe(topic_filter)
            self._changing[topic_filter] = wanted
        del self._changing[topic_filter]
        self.waits.on_effective(topic_filter)

    def announces(self, topic_filter: str) -> bool:
        return topic_filter in self._filters

    def pending(self, topic_filter: str) -> str | None:
        if not self._presence.is_in or topic_filter not in self._filters:
            return None
        return topic_filter if not self._has_begun or topic_filter in self._changing else None
