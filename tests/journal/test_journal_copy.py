"""Copies of a journal: the same stream, in files of their own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from braidmq.journal import journal_writer as journals
from braidmq.journal.compaction import compact
from braidmq.journal.contents import read_contents
from braidmq.journal.errors import JournalDamaged, PositionGoneError
from braidmq.journal.files import files_of
from braidmq.journal.journal import Journal
from braidmq.journal.journal_copy import CopyStart, JournalCopy, start_of_snapshot
from braidmq.journal.journal_reader import JournalReader
from braidmq.journal.operation import PUT

Told = list[tuple[int, bytes]]


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Journal]:
    monkeypatch.setattr(journals, "SEGMENT_BYTES", 400)
    journal = Journal(tmp_path / "first")
    yield journal
    journal.close()


def write(journal: Journal, count: int, told: Told) -> None:
    journal.on_commit = lambda position, block: told.append((position, block))
    for _ in range(count):
        journal.commit([(PUT, 1, 0, journal.sequence, bytes(100))])


def rows(folder: Path) -> list[object]:
    return list(read_contents(folder).tables.group(1))


def new_copy(folder: Path, journal: Journal) -> JournalCopy:
    folder.mkdir()
    return JournalCopy(folder, start=CopyStart(journal.journal_id))


def test_the_stream_is_read_from_any_position_on(journal: Journal) -> None:
    told: Told = []
    write(journal, 20, told)
    assert len(files_of(journal.folder, "segment")) > 3
    stream = b"".join(block for _, block in told)
    reader = JournalReader(journal.folder)
    for position in (0, 1, told[7][0], told[19][0], journal.position - 1):
        data = b""
        while position + len(data) < journal.position:
            data += reader.read(position + len(data), journal.position, 150)
        assert data == stream[position:]
    with pytest.raises(PositionGoneError):
        reader.read(journal.position, journal.position + 1, 1)
    journal.seal()
    compact(journal.folder, journal.sealed_position)
    with pytest.raises(PositionGoneError):
        JournalReader(journal.folder).read(told[7][0], journal.position, 10)
    reader.close()


def test_a_block_is_known_by_its_head(journal: Journal) -> None:
    told: Told = []
    write(journal, 5, told)
    reader = JournalReader(journal.folder)
    head = told[2][1][:16]
    assert reader.has_block(head, told[3][0])
    assert not reader.has_block(head, told[2][0])
    assert not reader.has_block(b"", told[3][0])
    assert not reader.has_block(told[3][1][:16], told[3][0])
    reader.close()


def test_blocks_in_any_pieces_make_the_same_journal(journal: Journal, tmp_path: Path) -> None:
    told: Told = []
    write(journal, 20, told)
    stream = b"".join(block for _, block in told)
    copy = new_copy(tmp_path / "copy", journal)
    waiting = b""
    for at in range(0, len(stream), 333):
        waiting += stream[at : at + 333]
        waiting = waiting[copy.append(waiting) :]
    assert not waiting
    assert (copy.position, copy.sequence) == (journal.position, journal.sequence)
    assert copy.last_head == told[-1][1][:16]
    assert len(files_of(copy.folder, "segment")) > 3
    assert rows(copy.folder) == rows(journal.folder)
    copy.close()


def test_a_copy_is_opened_again_where_it_was(journal: Journal, tmp_path: Path) -> None:
    told: Told = []
    write(journal, 9, told)
    copy = new_copy(tmp_path / "copy", journal)
    for _, block in told[:5]:
        copy.append(block)
    copy.close()
    copy = JournalCopy(copy.folder)
    assert (copy.journal_id, copy.position, copy.sequence) == (journal.journal_id, told[5][0], 5)
    assert copy.last_head == told[4][1][:16]
    for _, block in told[5:]:
        copy.append(block)
    assert rows(copy.folder) == rows(journal.folder)
    copy.close()


def test_what_does_not_follow_is_refused(journal: Journal, tmp_path: Path) -> None:
    told: Told = []
    write(journal, 3, told)
    copy = new_copy(tmp_path / "copy", journal)
    other = JournalCopy(Path(shutil.copytree(copy.folder, tmp_path / "other")), start=CopyStart(7))
    for bad, block in ((copy, told[1][1]), (other, told[0][1])):
        with pytest.raises(JournalDamaged):
            bad.append(block)
        assert bad.position == 0
    copy.append(told[0][1])
    with pytest.raises(JournalDamaged):
        copy.append(told[1][1] + told[1][1])
    assert copy.position == told[1][0]
    copy.close()
    other.close()


def test_a_copy_begins_with_a_snapshot_and_is_compacted(journal: Journal, tmp_path: Path) -> None:
    told: Told = []
    write(journal, 9, told)
    journal.seal()
    compact(journal.folder, journal.sealed_position)
    (tmp_path / "copy").mkdir()
    shutil.copy(files_of(journal.folder, "snapshot")[0][1], tmp_path / "copy")
    copy = JournalCopy(tmp_path / "copy", start=start_of_snapshot(tmp_path / "copy"))
    write(journal, 9, told)
    for _, block in told[9:]:
        copy.append(block)
    assert rows(copy.folder) == rows(journal.folder)
    copy.seal()
    copy.compacted(copy.sealed_position, compact(copy.folder, copy.sealed_position))
    write(journal, 1, told)
    copy.append(told[-1][1])
    assert rows(copy.folder) == rows(journal.folder)
    assert copy.size > 2000
    copy.close()
