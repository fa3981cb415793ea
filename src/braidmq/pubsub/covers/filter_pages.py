"""Sets of filters on their way: sorted and compressed pages, and a hash of each for digests.

Filters of one broker share most of their levels. Sorted, each is near those that it is like, and zlib says of it little
more than where it differs: ten thousand `cmd/<id>/#` take 2 to 3 bytes each.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import islice

RAW_PAGE_MAX = 1 << 18
"""Bytes of a page before it is compressed, and so what a page can expand to. A page with one filter may have more."""
FILTER_MAX = 65_535
"""Bytes of a filter (MQTT §1.5.4)."""

_SEPARATOR = b"\0"
"""No MQTT string has it [MQTT-1.5.4-2]."""
_LEVEL = 1
"""Of zlib. The highest takes twice as long, for a twentieth to a tenth less."""


def pages_of(filters: Iterable[str], bytes_max: int) -> Iterator[bytes]:
    """All of these filters in pages of at most `bytes_max` bytes each; a page has at least one filter.

    The pages come one by one, so that a large set need not be compressed at once.
    """
    waiting = sorted(filters)
    start = 0
    count = len(waiting)
    while start < len(waiting):
        page, taken = _page(waiting, start, count, bytes_max)
        yield page
        start += taken
        count = max(1, taken * bytes_max // len(page))  # what would fill it, if the next ones are alike


def _page(waiting: list[str], start: int, count: int, bytes_max: int) -> tuple[bytes, int]:
    """The next page, of at most `count` filters, and how many it has."""
    raws: list[bytes] = []
    size = 0
    for topic_filter in islice(waiting, start, start + count):
        raw = topic_filter.encode()
        size += len(raw) + 1
        if raws and size > RAW_PAGE_MAX:
            break
        raws.append(raw)
    taken = len(raws)
    while True:
        page = zlib.compress(_SEPARATOR.join(raws[:taken]), _LEVEL)
        if len(page) <= bytes_max or taken == 1:
            return page, taken
        taken = max(1, min(taken - 1, taken * bytes_max * 9 // (len(page) * 10)))


def filters_in(page: bytes) -> list[str]:
    """The filters of a page. ValueError if it is none, or expands to more than a page may hold."""
    room = max(RAW_PAGE_MAX, FILTER_MAX)
    inflating = zlib.decompressobj()
    try:
        raw = inflating.decompress(page, room + 1)
    except zlib.error as error:
        raise ValueError(f"not a page of filters: {error}") from None
    if len(raw) > room:
        raise ValueError(f"a page of filters that expands to more than {room} bytes")
    if not inflating.eof or inflating.unused_data:
        raise ValueError("a page of filters that is cut short, or has something after its end")
    try:
        filters = raw.decode().split(_SEPARATOR.decode())
    except UnicodeDecodeError as error:
        raise ValueError(f"a page of filters that is not UTF-8: {error}") from None
    if "" in filters:
        raise ValueError("an empty filter in a page of filters")
    return filters


def hash_of(topic_filter: str) -> int:
    """64 bits of a filter, the same on every machine: the digest of a set is all of them, xored."""
    return int.from_bytes(blake2b(topic_filter.encode(), digest_size=8).digest(), "big")
