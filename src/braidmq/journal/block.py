"""A block: what one commit changes, with a header that proves that it is whole.

checksum   4 bytes, of all that follows, begun with the journal's id: a payload cannot pass for a block
length     4 bytes, of the body
sequence   8 bytes, one more than that of the block before
body       a MessagePack array of operations
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from mmap import mmap
from struct import Struct
from typing import Final
from zlib import crc32

import msgspec

from braidmq.journal.operation import Change

_HEAD: Final = Struct("<IIQ")
_REST: Final = Struct("<IQ")
HEAD_BYTES: Final = _HEAD.size
_CHECKSUM_BYTES: Final = 4
_NOT_ZERO: Final = re.compile(rb"[^\0]")

Buffer = bytes | mmap


def seed_of(journal_id: int) -> int:
    """What the checksums of a journal begin with."""
    return crc32(journal_id.to_bytes(8, "little"))


class BlockEncoder:
    """Makes blocks, and uses the same memory for all of them."""

    def __init__(self, journal_id: int) -> None:
        self._seed = seed_of(journal_id)
        self._buffer = bytearray()
        self._encode_into = msgspec.msgpack.Encoder().encode_into

    def encode(self, changes: Sequence[Change], sequence: int) -> bytearray:
        """A block with these operations; what is returned is overwritten by the next one."""
        buffer = self._buffer
        self._encode_into(changes, buffer, HEAD_BYTES)
        _seal(buffer, sequence, self._seed)
        return buffer


def block_of(body: bytes, sequence: int, seed: int) -> bytearray:
    """A block with a body that is encoded already."""
    buffer = bytearray(HEAD_BYTES) + body
    _seal(buffer, sequence, seed)
    return buffer


def _seal(buffer: bytearray, sequence: int, seed: int) -> None:
    _REST.pack_into(buffer, _CHECKSUM_BYTES, len(buffer) - HEAD_BYTES, sequence)
    with memoryview(buffer) as whole:
        checksum = crc32(whole[_CHECKSUM_BYTES:], seed)
    buffer[:_CHECKSUM_BYTES] = checksum.to_bytes(_CHECKSUM_BYTES, "little")


def block_end(data: Buffer, at: int, sequence: int, seed: int) -> int:
    """Where the block at this place of a buffer ends; 0 if there is no whole block with this sequence."""
    begin = at + HEAD_BYTES
    if begin > len(data):
        return 0
    checksum, length, found = _HEAD.unpack_from(data, at)
    end: int = begin + length
    if found != sequence or end > len(data) or crc32(data[at + _CHECKSUM_BYTES : end], seed) != checksum:
        return 0
    return end


def block_length(data: Buffer, at: int) -> int:
    """How long the block at this place of a buffer is, with its header; 0 if that is not all there."""
    return HEAD_BYTES + int(_HEAD.unpack_from(data, at)[1]) if at + HEAD_BYTES <= len(data) else 0


def block_ends(data: Buffer, at: int, sequence: int, seed: int) -> Iterator[int]:
    """Where each of the blocks from this place on ends, up to the first that is not whole; `sequence` is that of the
    first one."""
    while at := block_end(data, at, sequence, seed):
        yield at
        sequence += 1


def find_block(data: Buffer, at: int, after: int, seed: int) -> int:
    """Where a whole block with a higher sequence than `after` stands, anywhere behind a place; -1 if there is none."""
    count_max = (len(data) - at) // HEAD_BYTES + 1
    last = len(data) - HEAD_BYTES
    while at <= last:
        checksum, length, sequence = _HEAD.unpack_from(data, at)
        if not (checksum or length or sequence):  # a hole is passed over at once
            something = _NOT_ZERO.search(data, at)
            at = last + 1 if something is None else max(at + 1, something.start() - HEAD_BYTES + 1)
            continue
        is_plausible = after < sequence <= after + count_max and length <= last - at
        if is_plausible and block_end(data, at, sequence, seed):
            return at
        at += 1
    return -1
