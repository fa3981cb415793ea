"""The blocks of a journal as they were written, for whoever holds a copy of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from braidmq.journal.block import block_ends, seed_of
from braidmq.journal.errors import PositionGoneError
from braidmq.journal.files import files_of
from braidmq.journal.headers import HEADER_BYTES, read_header


def blocks_from(folder: Path, position: int) -> Iterator[tuple[int, bytes]]:
    """Position and bytes of each whole block from a position on, where one begins.

    Raises PositionGoneError if it has been compacted, or is none of this journal's.
    """
    segments = files_of(folder, "segment")
    before = [begin for begin, _ in segments if begin <= position]
    if not before:
        raise PositionGoneError(f"position {position} of {folder} has been compacted")
    for _, path in segments[len(before) - 1 :]:
        header = read_header(path, "segment")
        if header is None:
            return
        data = path.read_bytes()
        at = HEADER_BYTES
        for end in block_ends(data, at, header.sequence + 1, seed_of(header.journal_id)):
            begin = header.position + at - HEADER_BYTES
            if begin >= position:
                yield begin, data[at:end]
            at = end
