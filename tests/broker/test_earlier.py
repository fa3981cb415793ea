"""A SQLite store of an earlier release (`earlier/store.zip`) is taken over at the first start; nothing of it is lost.

It is of format 4, as a crash left it: its last commits are in the write-ahead log only. Earlier formats are made of it.
"""

from __future__ import annotations

import shutil
import sqlite3
import zipfile
from pathlib import Path
from typing import Any

import pytest

from braidmq.broker import sqlite_import
from braidmq.broker.journal_store import FOLDER_NAME, JournalStore
from braidmq.broker.message import Message, forwarded
from braidmq.broker.sqlite_import import FILE_NAME, TAKEN_OVER, VERSION
from braidmq.broker.store import SavedSession, SavedWill, Snapshot, StoreError
from braidmq.broker.subscription import Subscribed
from braidmq.mqtt.packets import Will
from braidmq.mqtt.properties import Properties
from braidmq.mqtt.wire import string

EARLIER = Path(__file__).parent / "earlier" / "store.zip"
FORWARD = forwarded(
    Properties(content_type="text/plain", correlation_data=b"\0\xff", user_properties=[("unit", "°C"), ("unit", "K")])
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with zipfile.ZipFile(EARLIER) as archive:
        archive.extractall(tmp_path)
    return tmp_path


def loaded(folder: Path) -> Snapshot:
    store = JournalStore(folder)
    snapshot = store.load()
    assert not store.dirty, "nothing needs to be swept"
    store.close()
    return snapshot


def taken_out(session: SavedSession) -> list[tuple[Any, ...]]:
    """The deliveries of a session; it has none afterwards."""
    found = [
        (d.message.topic, d.message.payload, d.qos, d.retain, d.ids, d.group, d.packet_id, one.released)
        for one in session.deliveries
        for d in (one.delivery,)
    ]
    session.deliveries = []
    return found


def test_everything_is_there(folder: Path) -> None:
    snapshot = loaded(folder)
    away, here, unknown = snapshot.sessions
    shared = away.deliveries[0].delivery.message
    assert shared is here.deliveries[0].delivery.message
    assert (shared.sender, shared.forward, shared.expires_at, shared.holders) == (
        "device1", FORWARD, 4_000_000_000.25, 2
    )  # fmt: skip
    assert taken_out(away) == [
        ("plant/1/state", b"shared", 1, False, (), "", 0, False),
        ("plant/2/state", b"2", 1, False, (), "", 0, False),
        ("plant/4/state", b"4", 1, False, (), "", 0, False),
        ("plant/5/state", b"5", 1, False, (), "", 0, False),
        ("jobs/1", bytes(range(256)), 2, False, (268_435_455, 9), "$share/g/jobs/#", 0, False),
    ]
    assert taken_out(here) == [
        ("plant/1/state", b"shared", 1, False, (7,), "", 0, False),
        ("größe/1", b"in flight", 2, False, (7,), "", 12, False),
        ("", b"", 2, False, (7,), "", 65_535, True),
    ]
    job = Subscribed(2, False, True, 268_435_455)
    subscriptions = {"plant/+/state": Subscribed(1), "$share/g/jobs/#": job}
    assert away == SavedSession(1, "away", 3600, 4_000_000_000.0, "op", subscriptions, [], {1})
    size = {"größe/#": Subscribed(2, True, False, 7)}
    assert here == SavedSession(2, "here-é", 0xFFFFFFFF, None, "", size, [], {1, 65_535})
    assert unknown == SavedSession(3, "unknown owner", 600, 4_000_000_600.5, None)
    assert snapshot.retained == [
        Message("kept/expires", string("kept/expires"), b"x" * 300, 2, True, "", b"", 4e9, at=1_700_000_001.0),
        Message("kept/é", string("kept/é"), b"21.5", 1, True, "device1", FORWARD, None, at=1_700_000_000.125),
    ]
    properties = Properties(will_delay_interval=30, content_type="text/plain")
    assert snapshot.wills == [
        SavedWill("away", Will("wills/away", b"bye", 1, True, properties), 4_000_000_030.0, "op"),
        SavedWill("here-é", Will("wills/here", b"", 0, False), None, ""),
    ]
    assert snapshot.sent == [b"sent up to 7", b"sent up to 8", b"sent up to 20"]
    assert snapshot.cursors == [("$identity", b"who this is"), ("site2#1f", b"cursor of site2")]
    assert snapshot.writers == [("spark-1", b"writer")]
    assert snapshot.parts == [("spark-1", 12, 0, b"rows 0"), ("spark-1", 12, 1, b"rows 1")]


def test_it_goes_on_in_the_journal(folder: Path) -> None:
    before = loaded(folder)
    assert loaded(folder) == before
    store = JournalStore(folder)
    away = store.load().sessions[0]
    assert store.next_row() == 4
    for one in away.deliveries:
        store.drop_delivery(one.delivery)
    store.drop_sent(8)
    store.commit()
    store.close()
    after = loaded(folder)
    assert after.sessions[0].deliveries == []
    assert len(after.sessions[1].deliveries) == 3
    assert after.sessions[1].deliveries[0].delivery.message.payload == b"shared"
    assert after.sent == [b"sent up to 20"]


def test_the_file_is_kept_under_another_name_and_that_is_said(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    loaded(folder)
    kept = folder / (FILE_NAME + TAKEN_OVER)
    assert str(kept) in caplog.text
    assert not (folder / FILE_NAME).exists()
    database = sqlite3.connect(kept)
    assert database.execute("SELECT count(*) FROM session").fetchone() == (3,)
    database.close()
    caplog.clear()
    loaded(folder)
    assert caplog.text == ""


def convert(folder: Path, version: int) -> None:
    """Makes an earlier format of it."""
    database = sqlite3.connect(folder / FILE_NAME, isolation_level=None)
    statements = {
        4: ["ALTER TABLE session DROP COLUMN owner", "ALTER TABLE will DROP COLUMN owner"],
        3: ["DROP TABLE writer", "DROP TABLE part"],
        2: ["DROP TABLE sent", "DROP TABLE cursor", "ALTER TABLE retained DROP COLUMN at"],
    }
    for since in range(VERSION, version, -1):
        for statement in statements[since]:
            database.execute(statement)
    database.execute(f"PRAGMA user_version = {version}")
    database.close()


@pytest.mark.parametrize("version", [1, 2, 3])
def test_earlier_formats_are_read_too(folder: Path, version: int) -> None:
    full = loaded(Path(shutil.copytree(folder, folder / "format-4")))
    convert(folder, version)
    snapshot = loaded(folder)
    for session in full.sessions:
        session.owner = None
    for will in full.wills:
        will.owner = None
    if version < 3:
        full.writers, full.parts = [], []
    if version < 2:
        full.sent, full.cursors = [], []
        for message in full.retained:
            message.at = 0.0
    assert snapshot == full


def test_rows_of_a_session_that_is_gone_are_left_out(folder: Path) -> None:
    database = sqlite3.connect(folder / FILE_NAME, isolation_level=None)
    database.execute("DELETE FROM session WHERE client_id != 'here-é'")
    database.close()
    (here,) = loaded(folder).sessions
    assert (here.client_id, len(here.deliveries), here.received) == ("here-é", 3, {1, 65_535})


@pytest.mark.parametrize("step", ["write_snapshot", "_free_name", "sync_file"])
def test_a_crash_on_the_way_repeats_it(folder: Path, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = loaded(Path(shutil.copytree(folder, folder / "copy")))

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sqlite_import, step, die)
        with pytest.raises(KeyboardInterrupt):
            sqlite_import.take_over(folder, folder / FOLDER_NAME)
    assert loaded(folder) == expected
    assert loaded(folder) == expected


def test_a_store_of_an_earlier_release_beside_a_journal_is_not_guessed_about(folder: Path) -> None:
    """An earlier release was started again in between: which of the two counts is for a person to say."""
    copy = Path(shutil.copytree(folder, folder / "copy"))
    loaded(folder)
    for path in copy.glob(f"{FILE_NAME}*"):
        path.rename(folder / path.name)
    for _ in range(2):
        with pytest.raises(StoreError, match=r"braidmq.sqlite, and a journal, .*; move away the one"):
            JournalStore(folder)
    (folder / FOLDER_NAME).rename(folder / "away")
    loaded(folder)
    assert {path.name for path in folder.glob(f"*{TAKEN_OVER}*")} == {
        FILE_NAME + TAKEN_OVER, f"{FILE_NAME}{TAKEN_OVER}-2"
    }  # fmt: skip


def test_an_empty_file_is_no_store(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"")
    assert loaded(tmp_path) == Snapshot()


def test_a_file_without_tables_was_just_made(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.close()
    assert loaded(tmp_path) == Snapshot()


# One that cannot be used


def test_a_later_format_is_refused_each_time_with_the_same_words(folder: Path) -> None:
    database = sqlite3.connect(folder / FILE_NAME, isolation_level=None)
    database.execute(f"PRAGMA user_version = {VERSION + 1}")
    database.close()
    for _ in range(2):
        words = f"another version \\(format {VERSION + 1}, this one reads 1 to {VERSION}\\)"
        with pytest.raises(StoreError, match=words):
            JournalStore(folder)


@pytest.mark.parametrize(
    "rubbish", [b"not a database at all, but long enough to be one" * 100, b"SQLite format 3\0junk"]
)
def test_a_damaged_file_is_refused_with_a_way_out(tmp_path: Path, rubbish: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(rubbish)
    for _ in range(2):
        with pytest.raises(StoreError, match=f"{FILE_NAME} is damaged.*(restore|move it away)"):
            JournalStore(tmp_path)
    assert (tmp_path / FILE_NAME).read_bytes() == rubbish, "nothing of it is thrown away"


@pytest.mark.parametrize(
    "harm",
    [
        "UPDATE subscription SET options = x'c1'",
        "UPDATE subscription SET options = x''",
        "UPDATE will SET will = x'c1ff'",
        "UPDATE delivery SET ids = x'ff'",
        "UPDATE delivery SET message = 4711",
        "DROP TABLE retained",
    ],
)
def test_rows_that_make_no_sense_are_reported(folder: Path, harm: str) -> None:
    database = sqlite3.connect(folder / FILE_NAME, isolation_level=None)
    database.execute(harm)
    database.close()
    with pytest.raises(StoreError, match=FILE_NAME):
        JournalStore(folder)
    assert (folder / FILE_NAME).exists()
