"""What can be wrong with a journal, beside what the system says about its files."""

from __future__ import annotations

from pathlib import Path


class JournalDamaged(Exception):
    """A file is not as it was written; what is behind the damage cannot be used without what is missing."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"{path}: {what}")
        self.path = path
        self.what = what


class JournalFormatError(Exception):
    """A file was written by a later version, or by another program."""

    def __init__(self, path: Path, version: int | None) -> None:
        super().__init__(f"{path}: format {version}")
        self.path = path
        self.version = version
        """None if it is not a file of a journal at all."""


class PositionGoneError(LookupError):
    """What stood at a position has been compacted: a reader begins with the snapshot."""
