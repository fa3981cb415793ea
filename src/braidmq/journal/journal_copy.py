"""A copy of a journal: blocks that another process has written are appended as they are, if they follow the last one.

It has the files of a journal, and whoever reads a journal reads it (`contents`). Its segments begin elsewhere, and it
is compacted on its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from braidmq.journal.block import HEAD_BYTES, block_end, block_length, seed_of
from braidmq.journal.contents import JournalContents, read_contents
from braidmq.journal.errors import JournalDamaged
from braidmq.journal.files import files_of
from braidmq.journal.headers import read_header
from braidmq.journal.journal_reader import last_head
from braidmq.journal.journal_writer import JournalWriter
from braidmq.journal.keyed_tables import KeyedTables


class CopyStart(NamedTuple):
    """Where a copy begins that has nothing yet, or only the snapshot of this position and size."""

    journal_id: int
    position: int = 0
    sequence: int = 0
    epoch: int = 0
    snapshot_bytes: int = 0


class JournalCopy(JournalWriter):
    """Raises an OSError, JournalDamaged or JournalFormatError if it cannot be used."""

    def __init__(self, folder: Path, is_synced: bool = False, start: CopyStart | None = None) -> None:
        """Goes on with what is in the folder, which must be there; with a `start`, nothing of it is read."""
        if start is None:
            contents = read_contents(folder)
            if not contents.journal_id:
                raise JournalDamaged(folder, "it holds nothing")
        else:
            contents = JournalContents(
                KeyedTables(),
                start.journal_id,
                start.position,
                start.sequence,
                start.position if start.snapshot_bytes else 0,
                start.snapshot_bytes,
            )
            contents.tables.epoch = start.epoch
        super().__init__(folder, contents, is_synced)
        self._seed = seed_of(self.journal_id)
        self.last_head = b"" if start is not None else last_head(folder, self.position)
        """The first bytes of the last block, which tell it from others at the same position; empty if they are not
        known."""

    def append(self, data: bytes) -> int:
        """Writes the whole blocks that stand at the beginning of what is given, and returns their size.

        Raises OSError, or JournalDamaged if these are not the blocks that follow; then nothing has changed.
        """
        end = count = last = 0
        while length := block_length(data, end):
            if length > len(data) - end:
                break
            if not block_end(data, end, self.sequence + count + 1, self._seed):
                raise JournalDamaged(self.folder, f"what is to follow position {self.position + end} does not")
            last, end = end, end + length
            count += 1
        if count:
            self.prepare()
            self.write(data if end == len(data) else data[:end], count)
            self.last_head = data[last : last + HEAD_BYTES]
        return end

    @property
    def size(self) -> int:
        """About how many bytes its files have."""
        return self.snapshot_bytes + self.position - self.snapshot_position


def start_of_snapshot(folder: Path) -> CopyStart:
    """Where a copy begins of which a folder has the snapshot. Raises OSError, JournalDamaged or JournalFormatError."""
    position, path = files_of(folder, "snapshot")[-1]
    header = read_header(path, "snapshot")
    if header is None or header.position != position:
        raise JournalDamaged(path, "it is not the snapshot that it should be")
    return CopyStart(header.journal_id, position, header.sequence, header.epoch, path.stat().st_size)
