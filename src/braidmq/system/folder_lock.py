"""A lock on a folder, by a file in it: held until it is closed, or until the process ends, in whatever way."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

LOCK_NAME: Final = "lock"


class FolderInUse(OSError):
    """Another process holds the lock."""


def lock_folder(folder: Path) -> int:
    """Makes the folder if need be and locks it; `os.close` of the returned file releases it.

    Raises FolderInUse, or an OSError if the folder cannot be used. Only its owner may look into it.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        raise FolderInUse(f"{folder} is in use by another process") from None
    return file
