"""What clients that have come here published last elsewhere: the first publication of theirs here names it, on each
topic."""

from __future__ import annotations

from collections.abc import Callable

from braidmq.bounded import BoundedDict
from braidmq.braid.catch_up.last_sent import TOPICS_MAX, LastSent
from braidmq.braid.transfer.batch import Predecessor
from braidmq.host import Host

CLIENTS_MAX = 65_536
"""Clients that have come and not published again on all their topics; the one that has come first goes."""

ByTopic = tuple[tuple[str, Predecessor], ...]
"""Topics, and the last publication of a client on each of them."""


class Predecessors:
    def __init__(self, host: Host, origin: str, last_sent: LastSent) -> None:
        """`origin` names the history of this broker."""
        self._host = host
        self._origin = origin
        self._last_sent = last_sent
        self._by_client: BoundedDict[str, dict[str, Predecessor]] = BoundedDict(CLIENTS_MAX)
        self.on_taken: Callable[[str], None] = _ignore
        """Called with a client of which fewer are left."""

    def __bool__(self) -> bool:
        """Whether any client has come of which that is known."""
        return bool(self._by_client)

    def set(self, client_id: str, some: ByTopic) -> None:
        """A client has come."""
        self._by_client.pop(client_id, None)
        if some:
            self._by_client[client_id] = dict(some)

    def left(self, client_id: str) -> ByTopic:
        """Of the topics on which a client has not published since it came."""
        return tuple(self._by_client.get(client_id, {}).items())

    def last(self, client_id: str) -> ByTopic:
        """Of all topics, here or elsewhere: for the broker that the client goes to."""
        found = {
            topic: Predecessor(self._origin, offset, self._host.address)
            for topic, offset in self._last_sent.of(client_id).items()
        }
        found.update(self._by_client.get(client_id, {}))
        return tuple(found.items())[-TOPICS_MAX:]

    def take(self, client_id: str, topic: str) -> Predecessor | None:
        """What a publication follows that is kept now."""
        by_topic = self._by_client.get(client_id)
        found = None if by_topic is None else by_topic.pop(topic, None)
        if found is not None:
            if not by_topic:
                del self._by_client[client_id]
            self.on_taken(client_id)
        return found


def _ignore(_client_id: str) -> None:
    """Nobody wants to know."""
