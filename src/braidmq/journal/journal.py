"""A journal that is open for writing: one commit is one block, written by one call (`journal_writer`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from braidmq.journal.block import BlockEncoder
from braidmq.journal.contents import JournalContents, read_contents
from braidmq.journal.journal_writer import JournalWriter
from braidmq.journal.operation import EPOCH, Change


class Journal(JournalWriter):
    """Opens the journal of a folder.

    Raises an OSError, JournalDamaged or JournalFormatError if it cannot be used.
    """

    def __init__(self, folder: Path, is_synced: bool = False) -> None:
        self.on_commit: Callable[[int, bytes], None] | None = None
        """Called with the position and the bytes of each block that is written."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        contents = read_contents(folder)
        contents.journal_id = contents.journal_id or int.from_bytes(os.urandom(8)) or 1
        self._contents: JournalContents | None = contents
        super().__init__(folder, contents, is_synced)
        self._encoder = BlockEncoder(self.journal_id)

    def take_contents(self) -> JournalContents:
        """What it held when it was opened. It is not kept: this can be called once."""
        contents, self._contents = self._contents, None
        assert contents is not None, "it has been taken"
        return contents

    def commit(self, changes: Sequence[Change]) -> None:
        """Writes operations (`operation`) as one block, all of them or none. Raises OSError."""
        self.prepare()
        block = self._encoder.encode(changes, self.sequence + 1)
        begin = self.position
        self.write(block, 1)
        if self.on_commit is not None:
            self.on_commit(begin, bytes(block))

    def raise_epoch(self, epoch: int) -> None:
        """What is written from now on is another's than what was. Raises OSError, or ValueError if it is no higher."""
        if epoch <= self.epoch:
            raise ValueError(f"epoch {epoch} is not above {self.epoch}")
        self.commit([(EPOCH, epoch)])
        self.epoch = epoch
