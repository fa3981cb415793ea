"""What other brokers want, as they have told it to ask for what they have missed.

A broker may want tens of thousands of filters. It tells their shapes, and of each filter a hash: eight bytes, whatever
its length. A topic is wanted if one of the filters that its shapes give has a hash that was told; the asker looks again
at what it gets, so a hash that two filters share costs a publication too many on the way, and nothing else. Afterwards
it tells what has changed.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence

from braidmq.braid.interest.client_filters import candidates
from braidmq.braid.interest.shapes import Shape, shape_of
from braidmq.host import Address, Message
from braidmq.pubsub.covers.filter_pages import hash_of

HASH_BYTES = 8

SETS_MAX = 512
"""Brokers whose sets are remembered."""

HASHES_MAX = 4_000_000
"""Filters in all of these sets together; the set that was used least recently goes."""


class TellWanted(Message, frozen=True, array_like=True, gc=False):
    """What I want: the set with the digest `base` (the empty one, if there is none), with these hashes of filters and
    without those; its digest then is `digest`. `shapes` are those of all its filters."""

    digest: bytes
    base: bytes
    shapes: tuple[Shape, ...]
    added: bytes
    removed: bytes


class WantedTaken(Message, frozen=True, array_like=True, gc=False):
    """I know it now."""


def pack(hashes: Iterable[int]) -> bytes:
    return b"".join([one.to_bytes(HASH_BYTES) for one in hashes])


def unpack(packed: bytes) -> list[int]:
    return [int.from_bytes(packed[at : at + HASH_BYTES]) for at in range(0, len(packed), HASH_BYTES)]


class WantedSet:
    """What one broker wants."""

    __slots__ = ("_hashes", "digest", "shapes")

    def __init__(self, digest: bytes, shapes: Sequence[Shape], hashes: Iterable[int]) -> None:
        self.digest = digest
        self.shapes = list(shapes)
        self._hashes = array("Q", sorted(hashes))

    def __len__(self) -> int:
        return len(self._hashes)

    def wants(self, topic: str) -> bool:
        return any(self._has(hash_of(one)) for one in candidates(self.shapes, topic))

    def _has(self, hashed: int) -> bool:
        at = bisect_left(self._hashes, hashed)
        return at < len(self._hashes) and self._hashes[at] == hashed

    def changed(self, told: TellWanted) -> WantedSet:
        hashes = {*self._hashes, *unpack(told.added)}
        hashes.difference_update(unpack(told.removed))
        return WantedSet(told.digest, told.shapes, hashes)


def set_of(digest: bytes, filters: Sequence[str]) -> WantedSet:
    """A set whose filters are named."""
    shapes = dict.fromkeys(shape for one in filters if (shape := shape_of(one)))
    return WantedSet(digest, list(shapes), map(hash_of, filters))


class WantedSets:
    """By broker that has told what it wants; within bounds."""

    def __init__(self) -> None:
        self._by_asker: dict[Address, WantedSet] = {}
        self._count = 0

    def digest_of(self, asker: Address) -> bytes:
        """What names the set that is known of a broker; empty if there is none."""
        known = self._by_asker.get(asker)
        return b"" if known is None else known.digest

    def get(self, asker: Address, digest: bytes) -> WantedSet | None:
        """The set of a broker, if it is this one."""
        known = self._by_asker.get(asker)
        if known is None or known.digest != digest:
            return None
        self.put(asker, known)
        return known

    def change(self, asker: Address, told: TellWanted) -> bool:
        """Takes what a broker has told; False if that is of no use without what it has told before."""
        known = self.get(asker, told.base) if told.base else WantedSet(b"", (), ())
        if known is not None:
            self.put(asker, known.changed(told))
        return known is not None

    def put(self, asker: Address, wanted: WantedSet) -> None:
        before = self._by_asker.pop(asker, None)
        self._count += len(wanted) - (0 if before is None else len(before))
        self._by_asker[asker] = wanted
        while len(self._by_asker) > SETS_MAX or (self._count > HASHES_MAX and len(self._by_asker) > 1):
            oldest = next(iter(self._by_asker))
            self._count -= len(self._by_asker.pop(oldest))
