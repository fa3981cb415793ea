"""A snapshot: the rows that were alive at a position, as PUTs, in blocks like those of a segment.

It is written beside its place, brought to the disk and renamed, so that it is there as a whole or not at all. An empty
block is its end.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, Final

from braidmq.journal.block import HEAD_BYTES, Buffer, block_end, block_of, seed_of
from braidmq.journal.files import UNFINISHED, file_name, sync_file
from braidmq.journal.headers import FileHeader

BLOCK_BYTES: Final = 64 * 1024
"""How large a block of a snapshot grows before the next begins."""
_ARRAY: Final = b"\xdd"
"""A MessagePack array with its length in four bytes."""
_EMPTY: Final = b"\x90"


def write_snapshot(folder: Path, header: FileHeader, puts: Iterable[bytes]) -> Path:
    """Writes encoded PUTs; returns once the snapshot is on the disk. Raises OSError, and then nothing has changed."""
    path = folder / file_name(header.position, "snapshot")
    unfinished = path.with_name(f"{path.name}.{os.getpid()}{UNFINISHED}")
    try:
        with open(unfinished, "xb", opener=_private) as file:
            file.write(header.encode())
            _write_blocks(file, seed_of(header.journal_id), puts)
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    sync_file(folder)
    return path


def is_whole(data: Buffer, blocks: int, seed: int) -> bool:
    """Whether the last of so many blocks is the one that ends a snapshot."""
    return block_end(data, max(0, len(data) - HEAD_BYTES - len(_EMPTY)), blocks, seed) == len(data)


def _write_blocks(file: BinaryIO, seed: int, puts: Iterable[bytes]) -> None:
    waiting: list[bytes] = []
    sequence = size = 0
    for put in puts:
        waiting.append(put)
        size += len(put)
        if size >= BLOCK_BYTES:
            sequence += 1
            file.write(block_of(_body(waiting), sequence, seed))
            waiting.clear()
            size = 0
    if waiting:
        sequence += 1
        file.write(block_of(_body(waiting), sequence, seed))
    file.write(block_of(_EMPTY, sequence + 1, seed))


def _body(puts: list[bytes]) -> bytes:
    return b"".join((_ARRAY, len(puts).to_bytes(4), *puts))


def _private(path: str, flags: int) -> int:
    """Messages are their clients' own: other users of the machine cannot open the file."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
