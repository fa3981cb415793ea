"""The mirrors of a broker, as its journal keeps them: the next start goes on with them.

The term is raised with every change of the set. Each mirror knows the term in which it counted last: of two copies of a
journal, the one with the higher term is the one that acknowledgements have waited for.
"""

from __future__ import annotations

import msgspec

from braidmq.broker.broker import Broker
from braidmq.host import Address

MIRRORS_ROW = "$mirrors"
"""The key of the store's row for it, among the cursors."""

FORMER_MAX = 64
"""Brokers that were mirrors and have not been told yet that they are none; the oldest are forgotten."""


class Mirror(msgspec.Struct, frozen=True, array_like=True):
    identity: str
    address: Address


class MirrorSet(msgspec.Struct, frozen=True, array_like=True):
    term: int = 0
    mirrors: tuple[Mirror, ...] = ()
    former: tuple[Mirror, ...] = ()
    """Those that may still have a copy."""

    def changed(self, mirrors: tuple[Mirror, ...], term: int) -> MirrorSet:
        """The next set; those that are in it no longer are former ones."""
        now = {one.identity for one in mirrors}
        former = {one.identity: one for one in (*self.former, *self.mirrors) if one.identity not in now}
        return MirrorSet(term, mirrors, tuple(former.values())[-FORMER_MAX:])

    def without_former(self, identity: str) -> MirrorSet:
        """One of them has no copy any more."""
        return MirrorSet(self.term, self.mirrors, tuple(one for one in self.former if one.identity != identity))


def saved_mirrors(broker: Broker) -> MirrorSet:
    row = dict(broker.saved_cursors).get(MIRRORS_ROW)
    return MirrorSet() if row is None else msgspec.msgpack.decode(row, type=MirrorSet)


def save_mirrors(broker: Broker, mirrors: MirrorSet) -> None:
    """Written with the next commit."""
    broker.store.save_cursor(MIRRORS_ROW, msgspec.msgpack.encode(mirrors))
    broker.request_flush()
