"""Clients that have come to this broker, and what they published before they came: they are not read until it is here.

So what they publish now comes behind it to the clients here. Only topics matter that clients here want.
"""

from __future__ import annotations

from collections.abc import Callable

from braidmq.braid.interest.client_filters import ClientFilters
from braidmq.braid.transfer.awaited_predecessors import AwaitedPredecessors
from braidmq.braid.transfer.batch import Predecessor
from braidmq.braid.transfer.predecessors import Predecessors
from braidmq.host import Host

FOLLOW_S = 2.0
"""How long a client that has come is not read at the most."""


class PublishedBefore:
    def __init__(
        self, host: Host, predecessors: Predecessors, awaited: AwaitedPredecessors, filters: ClientFilters
    ) -> None:
        """`filters` are those of the clients here."""
        self._host = host
        self._predecessors = predecessors
        self._awaited = awaited
        self._filters = filters

    def when_here(self, client_id: str, go_on: Callable[[], None]) -> None:
        """Calls when all is here that a client has published elsewhere, or that has taken too long."""
        missing = [
            one
            for topic, one in self._predecessors.left(client_id)
            if not self._awaited.is_here(one) and any(self._filters.matching(topic))
        ]
        if missing:
            self._host.spawn(self._wait(client_id, missing, go_on))
        else:
            go_on()

    async def _wait(self, client_id: str, missing: list[Predecessor], go_on: Callable[[], None]) -> None:
        ends_at = self._host.now() + FOLLOW_S
        for one in missing:
            if not self._awaited.is_here(one):
                here = self._host.event()
                self._awaited.wait(client_id, one, here.set)
                await here.wait(max(0.0, ends_at - self._host.now()))
                self._awaited.leave(client_id, one.origin)
        go_on()
