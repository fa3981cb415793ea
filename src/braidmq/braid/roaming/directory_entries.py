"""The entries that a registrar keeps, and digests of them by holder.

A holder that repeats what it has need not tell it all again: client ids fall into buckets by their hashes, and a bucket
of one holder has a digest, kept as entries come and go. Where the holder's own digest is the same, the whole bucket is
as good as repeated. So repeating costs what has changed since, and some bytes a bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from hashlib import blake2b
from itertools import islice
from operator import xor

import msgspec

from braidmq.bounded import BoundedDict
from braidmq.braid.roaming.directory_messages import BucketDigest, Client, ConfirmEntries, DirectoryEntry, SessionHolder
from braidmq.braid.roaming.hash_ranges import hash_key_of, hash_of
from braidmq.host import Address
from braidmq.keys import Key

REGISTER_S = 30.0
"""How often a broker repeats which clients it has."""

ENTRY_KEPT_S = 4 * REGISTER_S
"""How long an entry is kept that nobody repeats."""

ENTRIES_MAX = 1_000_000
"""Entries that a broker keeps, its own and copies; the one that was heard of least recently goes."""

BUCKET_BITS = 8
"""A holder has 2 to the power of so many buckets at most."""

EXPIRE_AT_ONCE = 10_000
"""Entries that are looked at in one turn, to forget those that nobody repeats."""

_DIGEST_BYTES = 8


def bucket_of(client_id: str) -> int:
    """Neighbours in the order of hashes share a bucket, so those of a registrar and its copies of another's do not."""
    return int(hash_of(client_id)[:4], 16) >> (16 - BUCKET_BITS)


def fingerprint_of(client: Client) -> int:
    """Of what is a client's own: where its holder is, and its mirrors, are the same for all."""
    return int.from_bytes(blake2b(msgspec.msgpack.encode(client), digest_size=_DIGEST_BYTES).digest())


def digests_of(clients: Iterable[Client]) -> Iterator[BucketDigest]:
    """Of each for itself."""
    return (BucketDigest(bucket_of(one.client_id), fingerprint_of(one)) for one in clients)


def merged(digests: Iterable[BucketDigest]) -> tuple[BucketDigest, ...]:
    """One for each bucket."""
    found: dict[int, int] = {}
    for bucket, digest in digests:
        found[bucket] = found.get(bucket, 0) ^ digest
    return tuple(BucketDigest(*one) for one in found.items())


HolderPlaces = tuple[Address, tuple[Address, ...]]
"""Where a holder is, and its mirrors."""


class _Bucket(msgspec.Struct):
    """The entries of one holder in one bucket."""

    digest: int = 0
    """Their fingerprints, exclusive or."""
    heard_at: float = 0.0
    """When it was confirmed as a whole …"""
    found_at: HolderPlaces | None = None
    """… and with which places, if all of it has them still."""
    fingerprints: dict[str, int] = msgspec.field(default_factory=dict)
    """By client id."""


class DirectoryEntries:
    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._entries: BoundedDict[str, DirectoryEntry] = BoundedDict(ENTRIES_MAX, self._on_drop)
        """The one that was heard of least recently first."""
        self._heard_at: dict[str, float] = {}
        self._buckets: dict[tuple[str, int], _Bucket] = {}
        """By the holder's name and the number of the bucket."""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __contains__(self, client_id: str) -> bool:
        return client_id in self._entries

    def __getitem__(self, client_id: str) -> DirectoryEntry:
        return self._entries[client_id]

    def get(self, client_id: str) -> DirectoryEntry | None:
        return self._entries.get(client_id)

    def values(self) -> Iterable[DirectoryEntry]:
        return self._entries.values()

    def keep(self, entry: DirectoryEntry) -> None:
        holder = entry.holder
        client_id = holder.client_id
        old = self._entries.get(client_id)
        if old is None or old.holder != holder:
            if old is not None:
                self._leave_bucket(old.holder)
            self._enter_bucket(holder)
        self._renew(client_id, entry, self._now())

    def _renew(self, client_id: str, entry: DirectoryEntry, heard_at: float) -> None:
        self._heard_at.pop(client_id, None)
        self._heard_at[client_id] = heard_at
        self._entries.renew(client_id, entry)

    # Buckets

    def _enter_bucket(self, holder: SessionHolder) -> None:
        at = (holder.name, bucket_of(holder.client_id))
        bucket = self._buckets.get(at)
        if bucket is None:
            bucket = self._buckets[at] = _Bucket()
        fingerprint = bucket.fingerprints[holder.client_id] = fingerprint_of(
            Client(holder.client_id, holder.epoch, holder.owner)
        )
        bucket.digest ^= fingerprint
        if bucket.found_at != (holder.address, holder.mirrors):
            bucket.found_at = None

    def _leave_bucket(self, holder: SessionHolder) -> None:
        at = (holder.name, bucket_of(holder.client_id))
        bucket = self._buckets[at]
        bucket.digest ^= bucket.fingerprints.pop(holder.client_id)
        if not bucket.fingerprints:
            del self._buckets[at]

    def confirm(self, told: ConfirmEntries) -> tuple[int, ...]:
        """A holder repeats what it has in a hash range: buckets that are the same are renewed; which are not."""
        differing = []
        for number, digest in told.digests:
            bucket = self._buckets.get((told.name, number))
            if bucket is not None and digest in self._digests(bucket, told.low, told.high):
                bucket.heard_at = self._now()
                self._move(bucket, (told.address, told.mirrors))
            else:
                differing.append(number)
        return tuple(differing)

    def _digests(self, bucket: _Bucket, low: Key, high: Key) -> Iterator[int]:
        """That of all, and of a part: a range may end within a bucket, and then the rest is another registrar's."""
        yield bucket.digest
        yield reduce(xor, (mark for one, mark in bucket.fingerprints.items() if low <= hash_key_of(one) < high), 0)

    def _move(self, bucket: _Bucket, places: HolderPlaces) -> None:
        """The holder has other mirrors now, or is elsewhere."""
        if bucket.found_at == places:
            return
        address, mirrors = bucket.found_at = places
        for client_id in bucket.fingerprints:
            entry = self._entries[client_id]
            holder = msgspec.structs.replace(entry.holder, address=address, mirrors=mirrors)
            self._entries[client_id] = msgspec.structs.replace(entry, holder=holder)

    def of_holder(self, name: str, buckets: Iterable[int]) -> list[DirectoryEntry]:
        found = [bucket for number in buckets if (bucket := self._buckets.get((name, number))) is not None]
        return [self._entries[client_id] for bucket in found for client_id in bucket.fingerprints]

    # The end of entries

    def expire(self) -> None:
        """Forgets what nobody has repeated for long."""
        oldest = self._now() - ENTRY_KEPT_S
        for client_id, heard_at in list(islice(self._heard_at.items(), EXPIRE_AT_ONCE)):
            if heard_at >= oldest:
                break
            entry = self._entries[client_id]
            confirmed_at = self._buckets[entry.holder.name, bucket_of(client_id)].heard_at
            if confirmed_at >= oldest:
                self._renew(client_id, entry, confirmed_at)
            else:
                del self._entries[client_id]
                self._on_drop(client_id, entry)

    def _on_drop(self, client_id: str, entry: DirectoryEntry) -> None:
        del self._heard_at[client_id]
        self._leave_bucket(entry.holder)
