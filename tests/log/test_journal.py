"""What was noted in the journal is in the log after a crash, once."""

from __future__ import annotations

import shutil
from pathlib import Path

from braidmq.log.journal import NAMES
from braidmq.log.log import Log
from braidmq.log.run import Run
from tests.log.rows import numbers_in, row


def noted(first: int, *numbers: int) -> list[Run]:
    return [row(number)._replace(first=first + place) for place, number in enumerate(numbers)]


def crashed(folder: Path, name: str) -> Path:
    return Path(shutil.copytree(folder, folder.parent / name))


def test_noted_rows_come_to_their_segments(tmp_path: Path) -> None:
    log = Log(tmp_path / "log", "b", sync="full")
    log.append(noted(0, 0, 1))
    log.note(noted(2, 2, 3))
    log.note(noted(7, 7))  # 4 to 6 were of QoS 0
    assert numbers_in(tmp_path / "log") == [0, 1]
    folder = crashed(tmp_path / "log", "crashed")
    for _ in range(2):
        again = Log(folder, "b")
        assert numbers_in(folder) == [0, 1, 2, 3, 7]
        assert again.next_offset > 7
        again.close()
    log.close()


def test_rows_that_are_there_already_do_not_come_twice(tmp_path: Path) -> None:
    log = Log(tmp_path / "log", "b")
    log.note(noted(0, 0, 1))
    log.append(noted(0, 0, 1))
    log.note(noted(2, 2))
    folder = crashed(tmp_path / "log", "crashed")
    Log(folder, "b").close()
    assert numbers_in(folder) == [0, 1, 2]
    log.close()


def test_the_files_are_emptied(tmp_path: Path) -> None:
    log = Log(tmp_path, "b")
    for number in range(200):
        log.note(noted(number, number))
        log.append(noted(number, number))
        assert sum((tmp_path / name).stat().st_size for name in NAMES) < 1000
    assert numbers_in(tmp_path) == list(range(200))
    log.close()


def test_what_was_noted_meanwhile_is_not_forgotten(tmp_path: Path) -> None:
    """A note that comes while other rows are being written outlives the emptying."""
    log = Log(tmp_path / "log", "b")
    log.note(noted(0, 0))
    log.note(noted(1, 1))
    log.append(noted(0, 0))  # taken before 1 was handed over
    folder = crashed(tmp_path / "log", "crashed")
    Log(folder, "b").close()
    assert numbers_in(folder) == [0, 1]
    log.append(noted(1, 1))
    log.append(noted(2, 2))
    assert sum((tmp_path / "log" / name).stat().st_size for name in NAMES) == 0
    log.close()


def test_an_unfinished_note_is_left_out(tmp_path: Path) -> None:
    log = Log(tmp_path / "log", "b")
    log.note(noted(0, 0))
    whole = (tmp_path / "log" / NAMES[0]).stat().st_size
    log.note(noted(1, 1))
    data = (tmp_path / "log" / NAMES[0]).read_bytes()
    for size in range(whole, len(data) + 1, 3):
        folder = crashed(tmp_path / "log", f"crashed{size}")
        (folder / NAMES[0]).write_bytes(data[:size])
        Log(folder, "b").close()
        assert numbers_in(folder) == ([0, 1] if size == len(data) else [0])
    log.close()
