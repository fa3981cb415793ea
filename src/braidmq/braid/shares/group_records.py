"""Which brokers have members of which groups: what each broker says of itself, known to all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec

from braidmq.braid.shares.messages import GroupRecord
from braidmq.broker.store import Store
from braidmq.host import Address

RECORDS_MAX: Final = 65_536
"""Groups of other brokers that are known here; members of those beyond get nothing that is published here."""

OWN_MAX: Final = 8192
"""Groups of this broker that others are told of; members of those beyond get only what is published here."""

KEPT_S: Final = 900.0
"""How long members without lasting sessions count of which their broker has not spoken again."""

LASTING_S: Final = 7 * 86_400.0
"""How long those with lasting sessions do."""

DIGEST_BYTES: Final = 8

GROUPS: Final = "$group/"
"""What the store's rows for groups of other brokers begin with, among the cursors."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(GroupRecord).decode

_Key = tuple[str, str]
"""A broker's identity, and a group's filter."""


class Standing(NamedTuple):
    """What a broker says of the members of one group there: see `GroupRecord`."""

    members: int
    is_kept: bool
    room: int | None = None
    idle: float = 1.0


def standing_of(record: GroupRecord) -> Standing:
    return Standing(record.members, record.is_kept, record.room, record.idle)


class GroupRecords:
    def __init__(self, identity: str, cluster: str, store: Store, saved: Iterable[tuple[str, bytes]]) -> None:
        """Of the broker that keeps them; `saved` are rows of its store from an earlier process."""
        self._store = store
        self._identity = identity
        self._cluster = cluster
        self._others: dict[_Key, GroupRecord] = {}
        self._by_group: dict[str, dict[str, GroupRecord]] = {}
        """By filter, and identity: those of other brokers that have members."""
        self._own: dict[str, GroupRecord] = {}
        self._digest = b""
        """Of all that is known; empty if that has changed since it was reckoned."""
        self._addresses: dict[str, tuple[float, Address]] = {}
        """By identity: where a broker is, and when it said so."""
        self.on_change: Callable[[str], None] = _ignore
        """Called with a group that has members at other brokers than before."""
        self.on_contradiction: Callable[[str], None] = _ignore
        """Called with a group of which others know something that is not so any more."""
        self.on_saved: Callable[[], None] = lambda: None
        """Called when the store has something to commit."""
        self.restored = [_decode(row) for key, row in saved if key.startswith(GROUPS)]
        """What was known of lasting sessions at other brokers; to be learnt."""

    def members_of(self, full_filter: str) -> Iterable[GroupRecord]:
        """The other brokers that have connected members of a group."""
        return [one for one in self._by_group.get(full_filter, {}).values() if one.members]

    def known_of(self, full_filter: str) -> Iterable[GroupRecord]:
        """The other brokers that have members of a group, connected or away."""
        return self._by_group.get(full_filter, {}).values()

    def count_of(self, full_filter: str) -> int:
        return len(self._by_group.get(full_filter, ()))

    def address_of(self, identity: str) -> Address | None:
        """Where a broker is that has, or had, members of a group."""
        return self._addresses.get(identity, (0.0, None))[1]

    def identity_at(self, address: Address) -> str | None:
        """Which broker, of those that have or had members of a group, is there."""
        return next((identity for identity, (_, one) in self._addresses.items() if one == address), None)

    # Own

    @property
    def own(self) -> tuple[GroupRecord, ...]:
        return tuple(self._own.values())

    def own_of(self, full_filter: str) -> GroupRecord | None:
        return self._own.get(full_filter)

    def say(self, full_filter: str, address: Address, now: float, standing: Standing) -> GroupRecord | None:
        """What this broker says of a group of its own from now on; None if it has too many."""
        before = self._own.get(full_filter)
        if before is None and len(self._own) >= OWN_MAX:
            return None
        at = now if before is None else max(now, before.at + 0.001)
        record = GroupRecord(self._identity, full_filter, address, self._cluster, at, *standing)
        self._own[full_filter] = record
        self._digest = b""
        return record

    # Those of others

    def learn(self, told: Iterable[GroupRecord]) -> None:
        for record in told:
            if record.identity == self._identity:
                own = self._own.get(record.full_filter)
                if record.at > (0.0 if own is None else own.at) and record.has_anybody:
                    self._own[record.full_filter] = record
                    self._digest = b""
                    self.on_contradiction(record.full_filter)
                continue
            key = (record.identity, record.full_filter)
            known = self._others.get(key)
            if (known is None and len(self._others) >= RECORDS_MAX) or (known is not None and known.at >= record.at):
                continue
            self._others[key] = record
            self._digest = b""
            self._save(record, known)
            if record.at >= self._addresses.get(record.identity, (0.0, None))[0]:
                self._addresses[record.identity] = (record.at, record.address)
            self._note(record)

    def _save(self, record: GroupRecord, known: GroupRecord | None) -> None:
        """Members with lasting sessions are remembered after a restart, too: what is published before this broker has
        met the others again waits for them."""
        key = f"{GROUPS}{record.identity}/{record.full_filter}"
        if record.is_kept:
            if known is None or not _is_load_only(known, record):
                self._store.save_cursor(key, _encode(record))
                self.on_saved()
        elif known is None or known.is_kept:
            self._store.drop_cursor(key)

    def _note(self, record: GroupRecord) -> None:
        group = self._by_group.setdefault(record.full_filter, {})
        before = group.get(record.identity)
        if record.has_anybody:
            group[record.identity] = record
        else:
            group.pop(record.identity, None)
            if not group:
                del self._by_group[record.full_filter]
        if before is None or (bool(before.members), before.is_kept) != (bool(record.members), record.is_kept):
            self.on_change(record.full_filter)

    def expire(self, now: float) -> None:
        """Drops what has not been said for long."""
        self._digest = b""
        for full_filter, own in list(self._own.items()):
            if not own.has_anybody and now - own.at > KEPT_S:
                del self._own[full_filter]
        for key, record in list(self._others.items()):
            if now - record.at > (LASTING_S if record.is_kept else KEPT_S):
                del self._others[key]
                if record.is_kept:
                    self._store.drop_cursor(f"{GROUPS}{record.identity}/{record.full_filter}")
                group = self._by_group.get(record.full_filter, {})
                if group.pop(record.identity, None) is not None:
                    if not group:
                        del self._by_group[record.full_filter]
                    self.on_change(record.full_filter)

    # As a whole

    @property
    def digest(self) -> bytes:
        if not self._digest:
            known = sorted(f"{one.identity}\0{one.full_filter}\0{one.at}" for one in self.all)
            self._digest = blake2b("\0".join(known).encode(), digest_size=DIGEST_BYTES).digest()
        return self._digest

    @property
    def all(self) -> tuple[GroupRecord, ...]:
        return (*self._own.values(), *self._others.values())


def _is_load_only(known: GroupRecord, record: GroupRecord) -> bool:
    """Whether a record says nothing new but how busy its members are: that comes often, and need not be written."""
    before, after = standing_of(known), standing_of(record)
    return before != after and before[:2] == after[:2] and known.address == record.address


def _ignore(_full_filter: str) -> None:
    """Nobody wants to know."""
