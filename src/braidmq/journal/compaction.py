"""Compaction: the rows that are alive at the end of the sealed segments become a snapshot, and these segments go.

Rows are copied as they stand in their files. In memory is only where each one is: first all files are read for that,
and then the rows are copied in their order.
"""

from __future__ import annotations

from collections.abc import Iterator
from mmap import mmap
from pathlib import Path
from typing import Final

import msgspec

from braidmq.journal.block import HEAD_BYTES, block_ends, seed_of
from braidmq.journal.contents import map_file
from braidmq.journal.errors import JournalDamaged
from braidmq.journal.files import live_files, remove_obsolete
from braidmq.journal.headers import HEADER_BYTES, FileHeader, Kind, read_header
from braidmq.journal.keyed_tables import KeyedTables
from braidmq.journal.operation import Operation
from braidmq.journal.snapshot_file import is_whole, write_snapshot

_decode_rows: Final = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_decode_row: Final = msgspec.msgpack.Decoder(Operation).decode

_SIZE_BITS: Final = 32
_PLACE_BITS: Final = 40
"""A row's place in one number: file, place in the file, size."""


def compact(folder: Path, position: int) -> int:
    """Makes a snapshot of all before a position, where a segment begins, and removes what it stands for.

    Returns its size. Raises OSError or JournalDamaged, and then nothing is lost.
    """
    return _Compaction(folder, position).run()


class _Compaction:
    def __init__(self, folder: Path, position: int) -> None:
        self._folder = folder
        self._position = position
        self._files: list[mmap] = []
        self._places: KeyedTables[int] = KeyedTables()
        self._end = self._sequence = 0
        """Of what has been read: its position, and the sequence of its last block."""

    def run(self) -> int:
        newest, segments = live_files(self._folder)
        last: FileHeader | None = None
        if newest is not None:
            last = self._read(newest[1], "snapshot")
            self._places.epoch = last.epoch
        for begin, path in segments:
            if begin < self._position:
                last = self._read(path, "segment")
        if last is None or self._end != self._position:
            raise JournalDamaged(self._folder, f"its sealed segments end at {self._end}, not at {self._position}")
        header = FileHeader(
            "snapshot", last.journal_id, self._position, self._sequence, self._places.epoch, self._position
        )
        size = write_snapshot(self._folder, header, self._rows()).stat().st_size
        remove_obsolete(self._folder)
        return size

    def _read(self, path: Path, kind: Kind) -> FileHeader:
        """Notes where rows stand, and forgets those that are dead."""
        header = read_header(path, kind)
        if header is None:
            raise JournalDamaged(path, "it has no header")
        if kind == "segment" and (header.position, header.sequence) != (self._end, self._sequence):
            raise JournalDamaged(path, f"the segment before it, at {self._end}, is missing")
        data = map_file(path)
        self._files.append(data)
        file = (len(self._files) - 1) << _PLACE_BITS
        sequence = 0 if kind == "snapshot" else header.sequence
        end, count = HEADER_BYTES, 0
        for block_end in block_ends(data, end, sequence + 1, seed_of(header.journal_id)):
            body = data[end + HEAD_BYTES : block_end]
            rows = _decode_rows(body)
            at = block_end - sum(map(len, rows))
            for row in rows:
                size = len(row)
                self._places.apply(_decode_row(row), (file + at) << _SIZE_BITS | size)
                at += size
            end = block_end
            count += 1
        seed = seed_of(header.journal_id)
        if end != len(data) or (kind == "snapshot" and not is_whole(data, count, seed)):
            raise JournalDamaged(path, f"the block at byte {end} is not as it was written")
        self._end, self._sequence = header.position, header.sequence
        if kind == "segment":
            self._end += end - HEADER_BYTES
            self._sequence += count
        return header

    def _rows(self) -> Iterator[bytes]:
        for place in self._places.rows():
            where, size = divmod(place, 1 << _SIZE_BITS)
            file, at = divmod(where, 1 << _PLACE_BITS)
            yield self._files[file][at : at + size]
