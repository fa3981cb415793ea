"""The files of a journal: `<position>.segment` and `<position>.snapshot`, in the order of their positions."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from braidmq.journal.headers import Kind

UNFINISHED: Final = ".unfinished"
"""The end of the name of a file that does not count yet."""
LOST: Final = ".lost"
"""The end of the name of a segment that cannot be used, since what came before it never reached the disk."""
_DIGITS: Final = 20


def file_name(position: int, kind: Kind) -> str:
    return f"{position:0{_DIGITS}}.{kind}"


def files_of(folder: Path, kind: Kind) -> list[tuple[int, Path]]:
    """Position and path of each file, in their order."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if path.suffix == f".{kind}" and path.stem.isdecimal()]
    return sorted((int(path.stem), path) for path in found)


def live_files(folder: Path) -> tuple[tuple[int, Path] | None, list[tuple[int, Path]]]:
    """The newest snapshot, and the segments that it does not stand for."""
    snapshots = files_of(folder, "snapshot")
    newest = snapshots[-1] if snapshots else None
    begin = newest[0] if newest else 0
    return newest, [one for one in files_of(folder, "segment") if one[0] >= begin]


def remove_obsolete(folder: Path) -> None:
    """Removes what the newest snapshot stands for, and what a crash left half made."""
    newest, segments = live_files(folder)
    live = {path for _, path in segments} | ({newest[1]} if newest else set())
    for path in sorted(folder.iterdir()):
        is_old = path.suffix in (".segment", ".snapshot") and path.stem.isdecimal() and path not in live
        if is_old or path.suffix == UNFINISHED:
            path.unlink(missing_ok=True)


def sync_file(path: Path) -> None:
    """Waits until what is in a file, or which names are in a folder, is on the disk."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
