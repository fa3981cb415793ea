"""What a journal needs now and then and the loop has no time for: compaction, and sealed segments brought to the disk.

A compaction is a process of its own, and there is one at a time, whatever the number of journals: the broker's own, and
the copies that it holds of others'. If it fails, or dies, nothing is lost but the room on the disk that it would have
freed, and it is tried again later.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from braidmq.journal.files import sync_file
from braidmq.journal.journal_writer import JournalWriter

LOOK_EVERY_S: Final = 1.0
"""How often it is looked whether something is due."""
RETRY_S: Final = 60.0
"""How long after a failure it is tried again."""

_log = logging.getLogger("braidmq.store")


async def keep_journals(journals: Callable[[], Iterable[JournalWriter]]) -> None:
    """Does what is due, for one journal after the other, until it is cancelled."""
    retry_at: dict[Path, float] = {}
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        retry_at = {folder: at for folder, at in retry_at.items() if at > time.monotonic()}
        for journal in list(journals()):
            if journal.folder in retry_at:
                continue
            try:
                await JournalUpkeep(journal).look()
            except OSError as error:
                if journal.is_open:  # and no copy that has just been dropped
                    _log.error("the journal in %s cannot be compacted: %s", journal.folder, error)
                    retry_at[journal.folder] = time.monotonic() + RETRY_S


class JournalUpkeep:
    def __init__(self, journal: JournalWriter) -> None:
        self._journal = journal

    async def look(self) -> None:
        """Does what is due. Raises OSError."""
        journal = self._journal
        sealed = journal.sealed_position
        if unsynced := journal.unsynced:
            for path in unsynced:
                with contextlib.suppress(FileNotFoundError):  # it has been compacted
                    await asyncio.to_thread(sync_file, path)
            await asyncio.to_thread(sync_file, journal.folder)
            journal.synced(sealed)
        if journal.is_open and journal.is_compaction_due:
            journal.seal()
            journal.is_compacting = True
            try:
                await self._compact(journal.sealed_position)
            finally:
                journal.is_compacting = False

    async def _compact(self, position: int) -> None:
        command = [sys.executable, "-m", "braidmq.journal.compactor", str(self._journal.folder), str(position)]
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        try:
            told, errors = await process.communicate()
        finally:
            with contextlib.suppress(ProcessLookupError):  # the broker ends; the next one will compact it
                process.kill()
        if process.returncode != 0:
            raise OSError(errors.decode(errors="replace").strip() or f"its process ended with {process.returncode}")
        self._journal.compacted(position, int(told))
