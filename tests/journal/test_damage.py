"""A journal that is not as it was written: an unfinished end is cut off, all else is said, and nothing thrown away."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from braidmq.journal.block import block_of, seed_of
from braidmq.journal.compaction import compact
from braidmq.journal.contents import PAGE_BYTES, read_contents
from braidmq.journal.errors import JournalDamaged, JournalFormatError
from braidmq.journal.files import LOST, files_of
from braidmq.journal.headers import HEADER_BYTES
from braidmq.journal.journal import Journal
from braidmq.journal.operation import PUT

ROWS = 40
ROW_BYTES = 500


def written(folder: Path, is_synced: bool = False, seal_at: int = ROWS) -> Journal:
    """A journal with one row a block; the blocks from a number on are in a segment of their own."""
    journal = Journal(folder, is_synced)
    for number in range(ROWS):
        if number == seal_at:
            journal.seal()
        journal.commit([(PUT, 1, 0, number, b"%c" % (number + 1) * ROW_BYTES)])
    journal.close()
    return journal


def rows(folder: Path) -> list[int | str]:
    return list(read_contents(folder).tables.group(1))


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def segment(folder: Path, number: int = 0) -> Path:
    return files_of(folder, "segment")[number][1]


@pytest.mark.parametrize("at", [HEADER_BYTES + 1, 5000, 15_000])
def test_a_flipped_bit_in_the_middle_is_an_error_and_nothing_is_changed(tmp_path: Path, at: int) -> None:
    written(tmp_path)
    path = segment(tmp_path)
    overwrite(path, at, bytes([path.read_bytes()[at] ^ 4]))
    before = path.read_bytes()
    for _ in range(2):
        with pytest.raises(JournalDamaged, match="others are behind it"):
            Journal(tmp_path)
    assert path.read_bytes() == before


def test_a_flipped_bit_in_a_segment_that_others_follow_is_an_error(tmp_path: Path) -> None:
    written(tmp_path, seal_at=30)
    path = segment(tmp_path)
    overwrite(path, path.stat().st_size - 100, b"?")
    with pytest.raises(JournalDamaged, match="others are behind it"):
        Journal(tmp_path)


@pytest.mark.parametrize("junk", [b"\0" * 10_000, b"?" * 700, b"\1\0\0"], ids=["zeros", "rubbish", "three bytes"])
def test_what_is_behind_the_last_block_and_is_none_is_cut_off(tmp_path: Path, junk: bytes) -> None:
    end = written(tmp_path).position
    path = segment(tmp_path)
    with path.open("ab") as file:
        file.write(junk)
    journal = Journal(tmp_path)
    assert (journal.position, path.stat().st_size) == (end, end + HEADER_BYTES)
    journal.close()
    assert rows(tmp_path) == list(range(ROWS))


def test_a_payload_cannot_pass_for_a_block(tmp_path: Path) -> None:
    """A client that guesses what is before its message does not make a torn write of it look like damage."""
    journal = written(tmp_path)
    forged = bytes(block_of(b"\x90", ROWS + 2, seed_of(journal.journal_id ^ 1)))
    journal = Journal(tmp_path)
    journal.commit([(PUT, 1, 0, ROWS, forged * 10 + bytes(1000))])
    journal.close()
    os.truncate(segment(tmp_path), segment(tmp_path).stat().st_size - 500)
    assert rows(tmp_path) == list(range(ROWS))


# Power cuts: pages that never reached the disk


def lose_page(path: Path, number: int) -> None:
    overwrite(path, number * PAGE_BYTES, bytes(PAGE_BYTES))


def test_a_page_that_was_lost_ends_the_journal_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    written(tmp_path)
    lose_page(segment(tmp_path), 2)
    journal = Journal(tmp_path)
    assert "before a power cut never reached the disk" in caplog.text
    journal.commit([(PUT, 2, 0, 0, None)])
    journal.close()
    kept = rows(tmp_path)
    assert kept == list(range(len(kept)))
    assert 2 * PAGE_BYTES // (ROW_BYTES + 60) <= len(kept) < ROWS


def test_a_page_that_was_on_the_disk_for_sure_is_an_error(tmp_path: Path) -> None:
    written(tmp_path, is_synced=True)
    lose_page(segment(tmp_path), 2)
    with pytest.raises(JournalDamaged, match="others are behind it"):
        Journal(tmp_path)


def test_a_sealed_segment_that_lost_its_end_ends_the_journal(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    written(tmp_path, seal_at=30)
    os.truncate(segment(tmp_path), 5000)
    Journal(tmp_path).close()
    assert "never reached the disk" in caplog.text
    assert rows(tmp_path) == list(range(len(rows(tmp_path))))
    assert len(list(tmp_path.glob(f"*{LOST}"))) == 1, "what cannot be used is kept for whoever wants to look"
    assert len(files_of(tmp_path, "segment")) == 1


def test_a_sealed_segment_that_was_on_the_disk_is_an_error(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for number in range(3):
        journal.commit([(PUT, 1, 0, number, bytes(1000))])
        journal.seal()
        journal.synced(journal.sealed_position)
    journal.close()
    os.truncate(segment(tmp_path), 500)
    with pytest.raises(JournalDamaged, match="others are behind it"):
        Journal(tmp_path)


def test_what_was_on_the_disk_for_sure_is_not_what_comes_after(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker that waited for the disk, and no longer does, may lose what it wrote since then, and only that."""
    written(tmp_path, is_synced=True)
    journal = Journal(tmp_path)
    for number in range(ROWS, 2 * ROWS):
        journal.commit([(PUT, 1, 0, number, b"%c" % number * ROW_BYTES)])
    journal.close()
    before = [path.read_bytes() for _, path in files_of(tmp_path, "segment")]
    lose_page(segment(tmp_path, 0), 2)
    with pytest.raises(JournalDamaged, match="others are behind it"):
        Journal(tmp_path)
    segment(tmp_path, 0).write_bytes(before[0])
    lose_page(segment(tmp_path, 1), 2)
    Journal(tmp_path).close()
    assert "never reached the disk" in caplog.text
    assert ROWS < len(rows(tmp_path)) < 2 * ROWS


def test_a_large_hole_at_the_end_is_cut_off_at_once(tmp_path: Path) -> None:
    end = written(tmp_path).position
    os.truncate(segment(tmp_path), 1 << 30)
    journal = Journal(tmp_path)
    assert journal.position == end
    journal.close()


# Writes that fail


def fail_after(monkeypatch: pytest.MonkeyPatch, bytes_taken: int) -> None:
    """The disk takes so many bytes more, and then also refuses to cut a file."""
    write, left = os.pwrite, [bytes_taken]

    def pwrite(file: int, data: bytes, at: int) -> int:
        if not left[0]:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        written = write(file, bytes(data)[: left[0]], at)
        left[0] -= written
        return written

    def ftruncate(file: int, size: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pwrite", pwrite)
    monkeypatch.setattr(os, "ftruncate", ftruncate)


@pytest.mark.parametrize("bytes_taken", [0, 10, 400, 700])
def test_a_write_that_failed_in_the_middle_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bytes_taken: int
) -> None:
    journal = Journal(tmp_path)
    journal.commit([(PUT, 1, 0, 0, None)])
    with monkeypatch.context() as patch:
        fail_after(patch, bytes_taken)
        for _ in range(2):
            with pytest.raises(OSError, match="Input/output"):
                journal.commit([(PUT, 1, 0, 1, bytes(1000))])
        with pytest.raises(OSError, match="Input/output"):
            journal.seal()
        assert rows(tmp_path) == [0]
    journal.seal()
    journal.commit([(PUT, 1, 0, 2, None)])
    journal.close()
    Journal(tmp_path).close()
    assert rows(tmp_path) == [0, 2]


@pytest.mark.parametrize("bytes_taken", [0, 3, HEADER_BYTES - 1])
def test_a_segment_that_could_not_be_begun_is_begun_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bytes_taken: int
) -> None:
    journal = Journal(tmp_path)
    journal.commit([(PUT, 1, 0, 0, None)])
    with monkeypatch.context() as patch:
        fail_after(patch, bytes_taken)
        with pytest.raises(OSError, match="Input/output"):
            journal.seal()
    journal.commit([(PUT, 1, 0, 1, None)])
    journal.seal()
    journal.commit([(PUT, 1, 0, 2, None)])
    journal.close()
    assert rows(tmp_path) == [0, 1, 2]


# Files


def test_a_segment_without_a_header_was_just_begun(tmp_path: Path) -> None:
    end = written(tmp_path).position
    for left in (b"", b"BMQ", bytes(100)):
        (tmp_path / f"{end:020}.segment").write_bytes(left)
        journal = Journal(tmp_path)
        assert journal.position == end
        journal.close()
        assert len(files_of(tmp_path, "segment")) == 1


def test_a_segment_that_is_missing_is_an_error(tmp_path: Path) -> None:
    written(tmp_path, seal_at=30)
    segment(tmp_path).unlink()
    with pytest.raises(JournalDamaged, match="goes on at position 0"):
        Journal(tmp_path)


def test_a_segment_of_another_journal_is_an_error(tmp_path: Path) -> None:
    end = written(tmp_path / "one").position
    other = Journal(tmp_path / "two")
    while other.position < end:
        other.commit([(PUT, 1, 0, other.sequence, b"%c" % 1 * ROW_BYTES)])
    other.seal()
    other.close()
    path = segment(tmp_path / "two", 1)
    path.rename(tmp_path / "one" / path.name)
    with pytest.raises(JournalDamaged, match="another journal"):
        Journal(tmp_path / "one")


@pytest.mark.parametrize("size", [0, 30, HEADER_BYTES, 10_000, -1, -17])
def test_a_snapshot_that_is_cut_is_an_error(tmp_path: Path, size: int) -> None:
    journal = written(tmp_path)
    journal = Journal(tmp_path)
    journal.seal()
    compact(tmp_path, journal.sealed_position)
    journal.close()
    path = files_of(tmp_path, "snapshot")[0][1]
    os.truncate(path, size if size >= 0 else path.stat().st_size + size)
    with pytest.raises(JournalDamaged, match="snapshot"):
        Journal(tmp_path)
    with pytest.raises(JournalDamaged, match="snapshot"):
        compact(tmp_path, journal.sealed_position)


def test_a_compaction_of_damaged_segments_fails_and_removes_nothing(tmp_path: Path) -> None:
    journal = written(tmp_path)
    journal = Journal(tmp_path)
    journal.seal()
    journal.close()
    overwrite(segment(tmp_path), 5000, b"?")
    names = sorted(os.listdir(tmp_path))
    with pytest.raises(JournalDamaged, match="not as it was written"):
        compact(tmp_path, journal.sealed_position)
    assert sorted(os.listdir(tmp_path)) == names


def test_a_file_of_a_later_format_or_of_another_program_is_told(tmp_path: Path) -> None:
    written(tmp_path)
    path = segment(tmp_path)
    overwrite(path, 8, b"\x07")
    with pytest.raises(JournalFormatError) as later:
        Journal(tmp_path)
    assert later.value.version == 7
    path.write_bytes(b"somebody else has written this" * 10)
    with pytest.raises(JournalFormatError) as other:
        Journal(tmp_path)
    assert other.value.version is None
