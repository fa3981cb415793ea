"""Files with spools: one for a partition and an offset, written as a whole or not at all; the last few are kept.

They are below the query's checkpoint, where all workers should reach them. A worker that cannot see the folder, or
finds a file that it cannot use, makes the spools from the log.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from braidmq.pipeline.stateful.spools import SnapshotError, Spools, SpoolsKey

KEPT: Final = 3
"""Snapshots of a partition that are at or before the offset where the last batch began."""
SUFFIX: Final = ".spools"
_log = logging.getLogger("braidmq.pipeline")


class Snapshots:
    """Of one partition of a log."""

    def __init__(self, folder: str, key: SpoolsKey) -> None:
        self._folder = Path(folder) / f"{key.log}-{key.partition}"
        self._key = key

    def find(self, offset: int) -> Spools | None:
        """The latest one that can be used, of those up to an offset."""
        for at in sorted(self._offsets(), reverse=True):
            if at > offset:
                continue
            path = self._path(at)
            try:
                return Spools.decode(path.read_bytes(), self._key)
            except OSError as error:
                _log.warning("%s cannot be read (%s); spools are made from the log", path, error)
            except SnapshotError as error:
                _log.warning("%s is left out: %s; spools are made from the log", path, error)
        return None

    def write(self, spools: Spools, began: int) -> None:
        """`began` is where the batch began that led to these spools: it may be run again."""
        path = self._path(spools.at)
        part = path.with_name(f"{path.name}.{os.getpid()}")  # two attempts at the same task may meet here
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            part.write_bytes(spools.encode())
            part.replace(path)
        except OSError as error:
            _log.warning("%s cannot be written (%s); spools will be made from the log", path, error)
            with suppress(OSError):
                part.unlink(missing_ok=True)
            return
        spools.rows_since = 0
        for at in sorted(one for one in self._offsets() if one <= began)[:-KEPT]:
            with suppress(OSError):
                self._path(at).unlink(missing_ok=True)

    def _offsets(self) -> list[int]:
        with suppress(OSError):
            names = [path.name.removesuffix(SUFFIX) for path in self._folder.glob(f"*{SUFFIX}")]
            return [int(name) for name in names if name.isdecimal()]
        return []

    def _path(self, at: int) -> Path:
        return self._folder / f"{at:020d}{SUFFIX}"
