"""A journal beside plain dictionaries: whatever is done, whenever it crashes or is compacted, it holds what they do."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.journal import journal_writer as journals
from braidmq.journal.compaction import compact
from braidmq.journal.contents import read_contents
from braidmq.journal.files import files_of
from braidmq.journal.headers import HEADER_BYTES
from braidmq.journal.journal import Journal
from braidmq.journal.keyed_tables import KeyedTables
from braidmq.journal.operation import DELETE, DELETE_GROUP, DELETE_UP_TO, PUT, Change, Operation

EXAMPLES = settings(max_examples=60, deadline=None, print_blob=True)
Model = dict[int, dict[int | str, dict[int | str, Any]]]
"""Table → group → key → value."""


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    opened = Journal(tmp_path)
    yield opened
    opened.close()


def held(folder: Path) -> Model:
    """What is in a folder, with its order; groups without rows are left out."""
    tables = read_contents(folder).tables
    return tidied(
        {
            table: {
                group: {key: msgspec.msgpack.decode(value) for key, value in rows.items()}
                for group, rows in tables.groups(table).items()
            }
            for table in range(4)
        }
    )


def tidied(model: Model) -> Model:
    tables = {table: {group: rows for group, rows in groups.items() if rows} for table, groups in model.items()}
    return {table: groups for table, groups in tables.items() if groups}


def ordered(model: Model) -> list[tuple[int, int | str, list[tuple[int | str, Any]]]]:
    """For comparison: rows of a group in their order, groups in any."""
    found = [(table, group, list(rows.items())) for table, groups in model.items() for group, rows in groups.items()]
    return sorted(found, key=repr)


def apply(model: Model, change: Change) -> None:
    """What a change does, in the plainest way."""
    code, table, group, *rest = change
    rows = model.setdefault(table, {}).setdefault(group, {})
    if code == PUT:
        rows[rest[0]] = rest[1]
    elif code == DELETE:
        rows.pop(rest[0], None)
    elif code == DELETE_GROUP:
        rows.clear()
    else:
        for key in [key for key in rows if key <= rest[0]]:
            del rows[key]


numbers = st.integers(0, 12)
groups = st.sampled_from([0, 1, "a"])
values = (
    st.none()
    | st.integers(-5, (1 << 64) - 1)
    | st.binary(max_size=300)
    | st.lists(st.integers(0, 3), max_size=3)
    | st.text()
)
changes = st.one_of(
    st.tuples(st.just(PUT), st.integers(0, 1), groups, numbers, values),
    st.tuples(st.just(PUT), st.just(2), groups, st.text(max_size=2), values),
    st.tuples(st.just(DELETE), st.integers(0, 1), groups, numbers),
    st.tuples(st.just(DELETE), st.just(2), groups, st.text(max_size=2)),
    st.tuples(st.just(DELETE_GROUP), st.integers(0, 2), groups),
    st.tuples(st.just(DELETE_UP_TO), st.integers(0, 1), groups, numbers),
)
COMPACT, REOPEN, SEAL, EPOCH = "compact", "reopen", "seal", "epoch"
steps = st.lists(st.lists(changes, max_size=6) | st.sampled_from([COMPACT, REOPEN, SEAL, EPOCH]), max_size=14)


@given(steps, st.sampled_from([1, 200, 1 << 20]), st.booleans())
@EXAMPLES
def test_it_holds_what_a_dictionary_does(steps: list[Any], segment_bytes: int, is_synced: bool) -> None:
    model: Model = {}
    epoch = 0
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(journals, "SEGMENT_BYTES", segment_bytes)
        folder = Path(name)
        journal = Journal(folder, is_synced)
        for step in steps:
            position, sequence = journal.position, journal.sequence
            if step == COMPACT:
                journal.seal()
                if journal.sealed_position > journal.snapshot_position:
                    journal.compacted(journal.sealed_position, compact(folder, journal.sealed_position))
                    assert len(files_of(folder, "segment")) == len(files_of(folder, "snapshot")) == 1
            elif step == REOPEN:
                journal.close()
                is_synced = not is_synced
                journal = Journal(folder, is_synced)
            elif step == SEAL:
                journal.seal()
            elif step == EPOCH:
                epoch += 1
                journal.raise_epoch(epoch)
            else:
                journal.commit(step)
                for change in step:
                    apply(model, change)
            assert journal.position >= position
            assert journal.sequence - sequence == (isinstance(step, list) or step == EPOCH)
            assert journal.epoch == epoch
            assert ordered(held(folder)) == ordered(tidied(model))
        journal.close()


def test_the_oldest_rows_are_found_without_passing_those_that_went_before() -> None:
    """A history at its bound: each row that comes takes the oldest away. Ten times as many take ten times as long, and
    not a hundred times."""

    def spent_s(count: int) -> float:
        tables: KeyedTables[int] = KeyedTables()
        began_at = time.process_time()
        for key in range(2 * count):
            tables.apply(Operation(PUT, 0, 0, key), key)
            if key >= count:
                tables.apply(Operation(DELETE_UP_TO, 0, 0, key - count), 0)
        assert list(tables.group(0)) == list(range(count, 2 * count))
        return time.process_time() - began_at

    assert spent_s(100_000) < 40 * spent_s(10_000)


@given(st.lists(st.lists(changes, max_size=4), min_size=1, max_size=8), st.data())
@EXAMPLES
def test_a_crash_at_any_byte_leaves_whole_commits(commits: list[list[Change]], data: st.DataObject) -> None:
    """What was written of the last one, if not all of it, is cut off, and the journal goes on."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        journal = Journal(folder)
        models: list[tuple[int, Model]] = [(0, {})]
        model: Model = {}
        for commit in commits:
            journal.commit(commit)
            for change in commit:
                apply(model, change)
            models.append((journal.position, msgspec.convert(model, Model)))
        journal.close()
        ((_, path),) = files_of(folder, "segment")
        size = data.draw(st.integers(0, path.stat().st_size))
        os.truncate(path, size)
        survived = max(
            ((at, one) for at, one in models if at + HEADER_BYTES <= size), default=(0, {}), key=lambda x: x[0]
        )
        assert ordered(held(folder)) == ordered(tidied(survived[1]))
        journal = Journal(folder)
        assert journal.position == survived[0]
        journal.commit([(PUT, 3, 0, 0, b"after")])
        journal.close()
        after = held(folder)
        assert after.pop(3) == {0: {0: b"after"}}
        assert ordered(after) == ordered(tidied(survived[1]))


@given(st.lists(changes, min_size=1, max_size=20), st.data())
@EXAMPLES
def test_a_compaction_that_dies_anywhere_loses_nothing(drawn: list[Change], data: st.DataObject) -> None:
    """Each state of the folder while it is compacted is whole."""
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name) / "journal"
        journal = Journal(folder)
        model: Model = {}
        for number, change in enumerate(drawn):
            journal.commit([change])
            apply(model, change)
            if number % 3 == 1:
                journal.seal()
        journal.commit([(PUT, 3, 0, 0, None)])
        journal.seal()
        apply(model, (PUT, 3, 0, 0, None))
        deaths = data.draw(st.integers(0, 8))

        def die_at(function: Any) -> Any:
            def step(*arguments: Any, **named: Any) -> Any:
                nonlocal deaths
                deaths -= 1
                if deaths == 0:
                    raise KeyboardInterrupt
                return function(*arguments, **named)

            return step

        for each in ("unlink", "rename"):
            patch.setattr(Path, each, die_at(getattr(Path, each)))
        patch.setattr(os, "fsync", die_at(os.fsync))
        with suppress(KeyboardInterrupt):
            compact(folder, journal.sealed_position)
        patch.undo()
        assert ordered(held(folder)) == ordered(tidied(model))
        journal.commit([(PUT, 3, 0, 1, None)])
        apply(model, (PUT, 3, 0, 1, None))
        journal.close()
        Journal(folder).close()
        assert ordered(held(folder)) == ordered(tidied(model))
        assert not list(folder.glob("*.unfinished"))


def test_the_order_is_that_of_the_first_put(journal: Journal, tmp_path: Path) -> None:
    journal.commit([(PUT, 1, 0, key, b"old") for key in (5, 3, 9)])
    journal.commit([(PUT, 1, 0, 5, b"new"), (DELETE, 1, 0, 3), (PUT, 1, 0, 3, b"again")])
    assert list(held(tmp_path)[1][0].items()) == [(5, b"new"), (9, b"old"), (3, b"again")]
    journal.seal()
    compact(tmp_path, journal.sealed_position)
    assert list(held(tmp_path)[1][0].items()) == [(5, b"new"), (9, b"old"), (3, b"again")]


# For copies


def test_a_copy_goes_on_where_the_first_was_with_a_higher_epoch(journal: Journal, tmp_path: Path) -> None:
    journal.raise_epoch(3)
    journal.commit([(PUT, 1, 0, 1, b"x")])
    shutil.copytree(tmp_path, tmp_path / "copy")
    copy = Journal(tmp_path / "copy")
    assert (copy.journal_id, copy.position, copy.sequence) == (journal.journal_id, journal.position, journal.sequence)
    with pytest.raises(ValueError, match="not above 3"):
        copy.raise_epoch(3)
    copy.raise_epoch(4)
    copy.seal()
    compact(tmp_path / "copy", copy.sealed_position)
    copy.close()
    copy = Journal(tmp_path / "copy")
    assert (copy.epoch, journal.epoch) == (4, 3)
    copy.close()


# When there is something to do


def test_a_compaction_is_due_when_it_frees_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "COMPACT_BYTES", 10_000)
    journal = Journal(tmp_path)
    while not journal.is_compaction_due:
        journal.commit([(PUT, 1, 0, journal.sequence, bytes(1000))])
    assert 10_000 <= journal.position < 12_000
    journal.seal()
    journal.compacted(journal.sealed_position, compact(tmp_path, journal.sealed_position))
    assert not journal.is_compaction_due
    assert journal.snapshot_bytes == files_of(tmp_path, "snapshot")[0][1].stat().st_size
    behind = 0
    while not journal.is_compaction_due:
        journal.commit([(PUT, 1, 0, 0, bytes(1000))])
        behind += 1000
    assert behind >= journal.snapshot_bytes - 2000, "twice as much on the disk as is alive is what may be"
    journal.close()
    journal = Journal(tmp_path)
    assert journal.is_compaction_due, "it is not forgotten"
    journal.close()


def test_what_is_sealed_waits_for_the_disk(journal: Journal) -> None:
    assert journal.unsynced == []
    journal.commit([(PUT, 1, 0, 0, None)])
    assert journal.unsynced == []
    journal.seal()
    assert [path.stem for path in journal.unsynced] == [f"{0:020}"]
    journal.synced(journal.sealed_position)
    assert journal.unsynced == []
