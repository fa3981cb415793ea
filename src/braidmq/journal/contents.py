"""What a journal adds up to: its newest snapshot, and the segments behind it.

What a crash left half written at the end does not count. It is told from damage by what is behind it. If no whole block
is, the write had not ended, and nobody was told that it had. If one is, something that was written is missing, which is
an error, with one exception: without `sync = "full"` a power cut may take the newest pages of a file and leave later
ones. These pages are zeros, or the file ends early, in a part that was never known to be on the disk; the journal then
ends there, and says what it lost.
"""

from __future__ import annotations

import logging
import mmap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from braidmq.journal.block import HEAD_BYTES, block_ends, find_block, seed_of
from braidmq.journal.errors import JournalDamaged
from braidmq.journal.files import live_files
from braidmq.journal.headers import ALL, HEADER_BYTES, FileHeader, read_header
from braidmq.journal.keyed_tables import KeyedTables
from braidmq.journal.operation import Operation
from braidmq.journal.snapshot_file import is_whole

PAGE_BYTES: Final = 4096
"""What reaches the disk together."""
_ZEROS: Final = bytes(64)
"""At the end of a page: it was not written to its end."""
ATTEMPTS: Final = 3
"""A compaction that an earlier process has begun may take files away while they are read; then they are not needed."""

_log = logging.getLogger("braidmq.journal")
_decode: Final = msgspec.msgpack.Decoder(list[Operation]).decode


@dataclass(slots=True)
class JournalContents:
    """A journal as it was found."""

    tables: KeyedTables[msgspec.Raw] = field(default_factory=KeyedTables)
    journal_id: int = 0
    """0 if there is nothing yet."""
    position: int = 0
    """Where the next block belongs."""
    sequence: int = 0
    """Of the last block."""
    snapshot_position: int = 0
    snapshot_bytes: int = 0
    last: FileHeader | None = None
    """Of the segment that can be continued."""
    lost: list[Path] = field(default_factory=list)
    """Segments at the end that do not count."""
    synced: int = 0


def read_contents(folder: Path) -> JournalContents:
    """Raises an OSError, JournalDamaged or JournalFormatError if it cannot be used. Nothing is changed."""
    for _ in range(ATTEMPTS - 1):
        try:
            return _read(folder)
        except FileNotFoundError:
            continue
    return _read(folder)


def _read(folder: Path) -> JournalContents:
    contents = JournalContents()
    newest, segments = live_files(folder)
    if newest is not None:
        _read_snapshot(contents, newest[1])
    headers = [(path, read_header(path, "segment")) for _, path in segments]
    contents.synced = _synced([header for _, header in headers if header is not None])
    for number, (path, header) in enumerate(headers):
        if header is None and number < len(headers) - 1:
            raise JournalDamaged(path, "it has no header")
        if header is None or not _read_segment(contents, path, header, headers[number + 1 :]):
            first = number if header is None else number + 1
            contents.lost = [path for path, _ in headers[first:]]
            break
    return contents


def _synced(headers: list[FileHeader]) -> int:
    """The position up to which the journal was on the disk for sure."""
    ends = [header.position for header in headers[1:]] + [ALL]
    known = [end if header.synced == ALL else header.synced for header, end in zip(headers, ends, strict=False)]
    return max(known, default=0)


def _read_snapshot(contents: JournalContents, path: Path) -> None:
    header = read_header(path, "snapshot")
    if header is None:
        raise JournalDamaged(path, "it has no header")
    data = map_file(path)
    end, count = _fold(contents, data, 0, seed_of(header.journal_id), path)
    if end != len(data) or not is_whole(data, count, seed_of(header.journal_id)):
        raise JournalDamaged(path, f"block {count + 1} of a snapshot is missing or not as it was written")
    contents.journal_id = header.journal_id
    contents.tables.epoch = header.epoch
    contents.position = contents.snapshot_position = header.position
    contents.sequence = header.sequence
    contents.snapshot_bytes = len(data)


def _read_segment(
    contents: JournalContents, path: Path, header: FileHeader, later: list[tuple[Path, FileHeader | None]]
) -> bool:
    """Adds what a segment says; returns whether later ones may follow it."""
    if not contents.journal_id:
        contents.journal_id = header.journal_id
    if header.journal_id != contents.journal_id:
        raise JournalDamaged(path, "it belongs to another journal")
    if (header.position, header.sequence) != (contents.position, contents.sequence):
        raise JournalDamaged(path, f"the journal goes on at position {contents.position}, and this begins behind it")
    data = map_file(path)
    end, count = _fold(contents, data, header.sequence, seed_of(header.journal_id), path)
    contents.sequence += count
    contents.position += end - HEADER_BYTES
    contents.last = header
    if end == len(data) and (not later or _follows(contents, later[0][1])):
        return True
    _check_tail(contents, path, data, end, later)
    return False


def _follows(contents: JournalContents, header: FileHeader | None) -> bool:
    return header is None or header.position == contents.position


def _fold(contents: JournalContents, data: mmap.mmap, sequence: int, seed: int, path: Path) -> tuple[int, int]:
    """Applies the blocks of a file; returns where the last one ends, and how many there are."""
    tables = contents.tables
    apply = tables.apply
    end, count = HEADER_BYTES, 0
    for block_end in block_ends(data, end, sequence + 1, seed):
        try:
            for operation in _decode(data[end + HEAD_BYTES : block_end]):
                apply(operation, operation.value)
        except (msgspec.MsgspecError, TypeError, ValueError) as error:
            raise JournalDamaged(path, f"the block at byte {end} makes no sense ({error})") from error
        end = block_end
        count += 1
    return end, count


def _check_tail(
    contents: JournalContents, path: Path, data: mmap.mmap, end: int, later: list[tuple[Path, FileHeader | None]]
) -> None:
    """Raises JournalDamaged unless what is behind the last whole block may be left out."""
    found = find_block(data, end, contents.sequence + 1, seed_of(contents.journal_id))
    behind = sum(max(0, one.stat().st_size - HEADER_BYTES) for one, _ in later)
    if found < 0 and not behind:
        return
    until = len(data) if found < 0 else found
    following = later[0][1] if later else None
    is_short = following is not None and following.position > contents.position + len(data) - end
    if contents.position < contents.synced or not (is_short or _is_unwritten(data, end, until)):
        raise JournalDamaged(path, f"the block at byte {end} is not as it was written, and others are behind it")
    _log.error(
        "%s: %d bytes that were written last before a power cut never reached the disk, and the %d behind them are "
        'left out; store.sync = "full" prevents this',
        path,
        until - end,
        len(data) - until + behind,
    )


def _is_unwritten(data: mmap.mmap, begin: int, end: int) -> bool:
    """Whether a page between the two, or the last piece of one, is as the disk has it that was never written to."""
    first = begin + PAGE_BYTES - begin % PAGE_BYTES
    ends = [*range(first, end + 1, PAGE_BYTES), *([end] if end == len(data) else [])]
    return any(data[max(begin, at - len(_ZEROS)) : at] == _ZEROS for at in ends)


def map_file(path: Path) -> mmap.mmap:
    """What is in a file that has at least a header."""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
