"""How far the histories of all brokers have come, and how far this one has followed them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from braidmq.braid.catch_up.cursors import Cursors
from braidmq.braid.catch_up.history import History
from braidmq.braid.membership.introducers import Introducers
from braidmq.host import Address, Host

Head = tuple[str, Address, int]
"""An origin, its address, and the last offset of its history."""

Followed = tuple[str, int, tuple[tuple[int, int], ...]]
"""Of an origin's history: everything up to an offset, and ranges behind it."""


class HistoryHeads:
    def __init__(
        self, host: Host, origin: str, since: float, history: History, cursors: Cursors, introducers: Introducers
    ) -> None:
        """`origin` names this broker's own history. What was published before `since` is not missed here."""
        self._host = host
        self._origin = origin
        self._since = since
        self._history = history
        self._cursors = cursors
        self._introducers = introducers
        self.gone: Callable[[], list[Head]] = list
        """Those of brokers that are gone, which are answered for here."""

    def told(self) -> tuple[Head, ...]:
        """What this broker says of them."""
        gone = self.gone()
        answered = {origin for origin, _, _ in gone}
        heads = [(origin, one.address, one.head) for origin, one in self._cursors if origin not in answered]
        heads += gone
        if own := self._history.head:
            heads.insert(0, (self._origin, self._host.address, own))
        return tuple(heads)

    def learn(self, teller: Address, heads: Iterable[Head]) -> None:
        """What a broker says of where a third one is may be old: it counts if that one does not answer where it was."""
        for origin, address, head in heads:
            if origin == self._origin:
                continue
            known = self._cursors.get(origin)
            is_there = known is not None and not known.retry_s and not self._introducers.has_parted(known.address)
            is_behind = known is not None and head < known.head  # an old copy of it, or it has lost its store
            if known is not None and (is_behind or (is_there and address != teller)):
                address = known.address
            cursor = self._cursors.of(origin, address, self._since)
            if head > cursor.head:
                cursor.head = head
                self._introducers.recall(address)  # a broker that publishes is there

    def reached(self) -> Iterator[tuple[str, int]]:
        """The last offset of each history, as far as it is known."""
        yield self._origin, self._history.head
        for origin, cursor in self._cursors:
            yield origin, max(cursor.head, cursor.floor)

    def followed(self) -> Iterator[Followed]:
        """How far clients here have had what the histories hold."""
        yield self._origin, self._history.head, ()
        for origin, cursor in self._cursors:
            yield origin, cursor.floor, tuple(cursor.seen_ranges())
