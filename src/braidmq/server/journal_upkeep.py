"""What a journal needs now and then and the loop has no time for: compaction, and sealed segments brought to the disk.

A compaction is a process of its own. If it fails, or dies, nothing is lost but the room on the disk that it would have
freed, and it is tried again later.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from typing import Final

from braidmq.journal.files import sync_file
from braidmq.journal.journal import Journal

LOOK_EVERY_S: Final = 1.0
"""How often it is looked whether something is due."""
RETRY_S: Final = 60.0
"""How long after a failure it is tried again."""

_log = logging.getLogger("braidmq.store")


class JournalUpkeep:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                await self.look()
            except OSError as error:
                _log.error("the journal in %s cannot be compacted: %s", self._journal.folder, error)
                await asyncio.sleep(RETRY_S)

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
        if journal.is_compaction_due:
            journal.seal()
            await self._compact(journal.sealed_position)

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
