"""The lock on a folder: one process at a time, and none that is dead."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from braidmq.system.folder_lock import FolderInUse, lock_folder

HOLDS = "import sys; from pathlib import Path; from braidmq.system.folder_lock import lock_folder; "
HOLDS += "lock_folder(Path(sys.argv[1])); print('locked', flush=True); sys.stdin.read()"


def test_a_folder_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "log"
    os.close(lock_folder(folder))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "lock").stat().st_mode) == 0o600


def test_the_second_one_is_refused_until_the_first_ends(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDS, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(FolderInUse):
            lock_folder(tmp_path)
        other.kill()
    os.close(lock_folder(tmp_path))


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file") as refused:
        lock_folder(tmp_path / "file")
    assert not isinstance(refused.value, FolderInUse)
