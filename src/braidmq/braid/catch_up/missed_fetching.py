"""Fetching what sessions have missed whose broker is gone: asked of every origin, from where that broker had come.

A broker follows the histories of others by its own cursors (`reconcile`). The sessions of a broker that is gone are
behind by what was published since; its cursors are in the copy of its store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from heapq import merge
from typing import NamedTuple

import msgspec

from braidmq.bounded import BoundedDict
from braidmq.braid.catch_up.cursors import Cursors, SavedCursor
from braidmq.braid.catch_up.history import History, Sent
from braidmq.braid.catch_up.reconcile import AskMissed, Missed
from braidmq.braid.interest.scope import may_see
from braidmq.braid.round_trips import RoundTrips
from braidmq.host import Address, Host, run_all
from braidmq.mqtt.topics import matches

ASK_TRIES = 2
"""How often an origin is asked: a client waits for its session."""

PAGES_MAX = 1000
"""So much of one history is fetched at the most."""

ELSEWHERE_S, ELSEWHERE_MAX = 2.0, 1024
"""How long an origin is not asked where another broker has answered: a mirror will say that it answers for it."""

DIGEST_BYTES = 16

Found = tuple[str, Sent]
"""An origin, and a publication of its history."""


class FoundBehind(NamedTuple):
    """What is behind cursors."""

    found: list[Found]
    silent: list[str]
    """Origins that did not answer, or not for all that there is."""
    floors: dict[str, int]
    """By origin that did: up to which offset that is all."""
    copied: list[str]
    """Origins for which another broker has answered, which takes them to be gone."""


class MissedFetcher:
    def __init__(
        self, host: Host, origin: str, history: History, cursors: Cursors, cluster: str, now: Callable[[], float]
    ) -> None:
        """`origin` names this broker's own history, `cluster` is where it is."""
        self._host = host
        self._origin = origin
        self._history = history
        self._cursors = cursors
        self._cluster = cluster
        self._now = now
        self.address_of: Callable[[str], Address | None] = lambda _origin: None
        """Where a broker is, as it says of itself."""
        self._elsewhere: BoundedDict[tuple[str, Address], float] = BoundedDict(ELSEWHERE_MAX)
        """By origin and address: until when it is not asked there, since another broker is there."""
        self.round_trips = RoundTrips(host)
        """How long other brokers take: known to all that ask while a client waits."""

    async def fetch(
        self, filters: Iterable[str], followed: Mapping[str, SavedCursor], gone: str, since: float
    ) -> list[Found]:
        """What was published under filters and is behind what the broker `gone` had followed; of origins that it did
        not know, what was stored since a time (Unix time). By time, and in the order of each origin."""
        wanted = tuple(filters)
        if not wanted:
            return []
        behind = {origin: SavedCursor(one.address, 0, since, []) for origin, one in self._cursors}
        behind.update(followed)
        behind.pop(gone, None)
        own = behind.pop(self._origin, None) or SavedCursor(self._host.address, 0, since, [])
        found: dict[str, list[Sent]] = {self._origin: self._own(wanted, own)}

        async def ask_one(origin: str, cursor: SavedCursor) -> None:
            found[origin] = await self._fetch(origin, cursor, wanted)

        await run_all(self._host, [ask_one(origin, cursor) for origin, cursor in behind.items()])
        return _by_time(found)

    async def fetch_behind(self, filters: Iterable[str], behind: Mapping[str, SavedCursor]) -> FoundBehind:
        """What was published under filters and is behind these cursors. By time, and in the order of each origin."""
        wanted = tuple(filters)
        found: dict[str, list[Sent]] = {}
        floors: dict[str, int] = {}
        silent: list[str] = []
        copied: list[str] = []

        async def ask_one(origin: str, cursor: SavedCursor) -> None:
            known = self._cursors.get(origin)
            head = 0 if known is None else known.head
            if origin == self._origin:
                found[origin], floors[origin] = self._own(wanted, cursor), self._history.head
            elif (page := await self._fetch_all(origin, cursor, wanted, copied)) is None:
                silent.append(origin)
            else:
                found[origin], floors[origin] = page
                if floors[origin] < head:  # there is more, elsewhere
                    silent.append(origin)

        await run_all(self._host, [ask_one(origin, cursor) for origin, cursor in behind.items()])
        return FoundBehind(_by_time(found), silent, floors, copied)

    def _own(self, filters: tuple[str, ...], cursor: SavedCursor) -> list[Sent]:
        def wants(sent: Sent) -> bool:
            may = sent.item is None or may_see(self._cluster, sent.item.forward)
            return may and any(matches(one, sent.topic) for one in filters)

        return self._history.missed(cursor.floor, cursor.since, cursor.seen, wants, 1 << 62, is_own=True).sent

    async def _fetch(self, origin: str, cursor: SavedCursor, filters: tuple[str, ...]) -> list[Sent]:
        page = await self._fetch_all(origin, cursor, filters, [])
        return [] if page is None else page[0]

    async def _fetch_all(
        self, origin: str, cursor: SavedCursor, filters: tuple[str, ...], copied: list[str]
    ) -> tuple[list[Sent], int] | None:
        """What there is, and up to which offset; `copied` gets the origin if another broker has answered for it.

        None if none does, or did just now; or if the origin is gone, and nobody has said yet that it answers for it.
        """
        known = self._cursors.get(origin)
        address = cursor.address if known is None else known.address
        if address == "" and (said := self.address_of(origin)) is not None:  # nothing has come from there directly
            address = said
        is_elsewhere = self._host.now() < self._elsewhere.get((origin, address), 0.0)
        if is_elsewhere or self.round_trips.is_silent(address):
            return None
        digest = self._host.chance.getrandbits(8 * DIGEST_BYTES).to_bytes(DIGEST_BYTES)
        found: list[Sent] = []
        floor = cursor.floor
        for _ in range(PAGES_MAX):
            seen = tuple([(low, high) for low, high in cursor.seen if high > floor])
            asked = AskMissed(origin, floor, cursor.since, seen, digest, filters, self._cluster, self._now(), True)
            answer = await self.round_trips.ask(address, asked, Missed, ASK_TRIES)
            if answer is None:
                return None
            if answer.is_elsewhere:
                self._elsewhere.renew((origin, address), self._host.now() + ELSEWHERE_S)
                return None
            found += [msgspec.msgpack.decode(row, type=Sent) for row in answer.sent]
            if answer.is_copy and origin not in copied:
                copied.append(origin)
            is_end = answer.floor >= answer.head or (not answer.sent and answer.floor <= floor)
            floor = max(floor, answer.floor)
            if is_end:
                break
        return found, floor


def _by_time(found: Mapping[str, list[Sent]]) -> list[Found]:
    """What a client has published here and there comes in its order, as far as the clocks of brokers agree."""
    rows = [[(origin, sent) for sent in some] for origin, some in found.items()]
    return list(merge(*rows, key=lambda row: row[1].stored_at))
