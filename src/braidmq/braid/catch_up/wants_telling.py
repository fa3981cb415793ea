"""Telling another broker what is wanted here: all of it once, a page at a time, and then what has changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from braidmq.bounded import BoundedDict
from braidmq.braid.catch_up.wanted_sets import TellWanted, WantedTaken, pack
from braidmq.braid.interest.client_filters import ClientFilters
from braidmq.host import Address, Host, ask
from braidmq.pubsub.covers.filter_pages import hash_of

TELL_TIMEOUT_S = 2.5

HASHES_TOLD = 4096
"""Filters that are told at a time."""

TOLD_MAX = 4096
"""Brokers of which it is remembered what they were told; the one that was told least recently goes."""


class Wants(NamedTuple):
    """What was wanted here at a time (Unix time)."""

    digest: bytes
    version: int
    at: float


class WantsTelling:
    def __init__(self, host: Host, filters: ClientFilters, now: Callable[[], float]) -> None:
        self._host = host
        self._filters = filters
        self._now = now
        self._told: BoundedDict[Address, Wants] = BoundedDict(TOLD_MAX)

    def wants(self) -> Wants:
        return Wants(self._filters.digest, self._filters.version, self._now())

    async def tell(self, address: Address, known: bytes) -> Wants | None:
        """Tells a broker that knows a set of this digest what is wanted; None if it does not answer."""
        wants = self.wants()
        told = self._told.get(address)
        changes = self._filters.changes_since(told.version) if told is not None and told.digest == known else None
        shapes = tuple(self._filters.shapes)
        if changes is not None and len(changes.added) + len(changes.removed) <= HASHES_TOLD:
            changed = TellWanted(wants.digest, known, shapes, pack(changes.added), pack(changes.removed))
            is_told = await self._tell(address, changed)
        else:
            is_told = await self._tell_all(address, wants, shapes)
        if not is_told:
            return None
        self._told.renew(address, wants)
        return wants

    async def _tell_all(self, address: Address, wants: Wants, shapes: tuple[str, ...]) -> bool:
        """Each page but the last makes a set that is no broker's, and goes by a digest of its own."""
        filters = list(self._filters)
        base = b""
        for first in range(0, max(len(filters), 1), HASHES_TOLD):
            page = filters[first : first + HASHES_TOLD]
            is_last = first + HASHES_TOLD >= len(filters)
            digest = wants.digest if is_last else wants.digest + first.to_bytes(4)
            if not await self._tell(address, TellWanted(digest, base, shapes, pack(map(hash_of, page)), b"")):
                return False
            base = digest
        return True

    async def _tell(self, address: Address, told: TellWanted) -> bool:
        return await ask(self._host, address, told, WantedTaken, timeout_s=TELL_TIMEOUT_S) is not None
