"""The SQLite store by itself: what goes in comes out, in order, and nothing is lost when it cannot be written."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.broker.message import Delivery, Message
from braidmq.broker.sqlite_store import FILE_NAME, VERSION, SqliteStore
from braidmq.broker.store import SavedSession, SavedWill, Snapshot, StoreError
from braidmq.broker.subscription import Subscribed
from braidmq.mqtt.packets import Will
from braidmq.mqtt.properties import Properties
from braidmq.mqtt.wire import string

EXAMPLES = settings(max_examples=40, deadline=None, print_blob=True)

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
names = texts.filter(bool)
times = st.none() | st.floats(0, 5e9)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    opened = SqliteStore(tmp_path)
    yield opened
    opened.close()


def message(topic: str = "t", payload: bytes = b"x", qos: int = 1) -> Message:
    return Message(topic, string(topic), payload, qos)


def reopened(store: SqliteStore) -> Snapshot:
    """What a broker that starts on the same folder would find."""
    store.close()
    store.__init__(store.path.parent)  # type: ignore[misc]
    return store.load()


def counts(store: SqliteStore) -> dict[str, int]:
    """Rows that are committed, as another process would see them."""
    tables = ("session", "subscription", "message", "delivery", "received", "retained", "will")
    database = sqlite3.connect(store.path)
    found = {name: database.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in tables}
    database.close()
    return {name: count for name, count in found.items() if count}


def session(
    store: SqliteStore, client_id: str = "c", expiry_s: int = 100, ends_at: float | None = None, owner: str = ""
) -> int:
    row = store.next_row()
    store.save_session(row, client_id, expiry_s, ends_at, owner)
    return row


# Round trips


wills = st.builds(
    Will,
    topic=names,
    payload=st.binary(max_size=20),
    qos=st.integers(0, 2),
    retain=st.booleans(),
    properties=st.builds(
        Properties,
        will_delay_interval=st.none() | st.integers(0, 0xFFFFFFFF),
        message_expiry_interval=st.none() | st.integers(0, 0xFFFFFFFF),
        content_type=st.none() | texts,
        correlation_data=st.none() | st.binary(max_size=9),
        user_properties=st.lists(st.tuples(texts, texts), max_size=2),
    ),
)
messages = st.builds(
    lambda topic, payload, qos, retain, sender, forward, expires_at: Message(
        topic, string(topic), payload, qos, retain, sender, forward, expires_at
    ),
    names,
    st.binary(max_size=30),
    st.integers(0, 2),
    st.booleans(),
    texts,
    st.binary(max_size=10),
    times,
)
subscriptions = st.builds(Subscribed, st.integers(0, 2), st.booleans(), st.booleans(), st.integers(0, 268_435_455))


@given(
    sessions=st.lists(
        st.tuples(
            st.integers(1, 0xFFFFFFFF),
            times,
            st.dictionaries(names, subscriptions, max_size=3),
            st.sets(st.integers(1, 65535), max_size=3),
        ),
        max_size=3,
    ),
    retained=st.lists(messages, max_size=4, unique_by=lambda one: one.topic),
    left=st.dictionaries(texts, st.tuples(wills, times, texts), max_size=3),
)
@EXAMPLES
def test_sessions_retained_messages_and_wills_come_back(
    sessions: list[tuple[int, float | None, dict[str, Subscribed], set[int]]],
    retained: list[Message],
    left: dict[str, tuple[Will, float | None, str]],
) -> None:
    with TemporaryDirectory() as folder:
        store = SqliteStore(Path(folder))
        saved = []
        for number, (expiry_s, ends_at, subscribed, received) in enumerate(sessions):
            row = session(store, f"é{number}", expiry_s, ends_at, f"user{number}")
            for full_filter, options in subscribed.items():
                store.save_subscription(row, full_filter, options)
            for packet_id in received:
                store.save_received(row, packet_id)
            owner = f"user{number}"
            saved.append(SavedSession(row, f"é{number}", expiry_s, ends_at, owner, subscribed, [], received))
        for one in retained:
            one.retain = True
            store.save_retained(one)
        for client_id, (will, due_at, owner) in left.items():
            store.save_will(client_id, will, due_at, owner)
        store.commit()
        snapshot = reopened(store)
        store.close()
    assert snapshot.sessions == saved
    assert sorted(snapshot.retained, key=lambda one: one.topic) == sorted(retained, key=lambda one: one.topic)
    assert {one.client_id: (one.will, one.due_at, one.owner) for one in snapshot.wills} == left


@given(st.lists(st.tuples(messages, st.sets(st.integers(0, 2), min_size=1), st.integers(1, 2), texts), max_size=8))
@EXAMPLES
def test_deliveries_come_back_in_their_order_and_share_their_message(
    drawn: list[tuple[Message, set[int], int, str]],
) -> None:
    with TemporaryDirectory() as folder:
        store = SqliteStore(Path(folder))
        rows = [session(store, f"c{number}") for number in range(3)]
        wanted: list[list[tuple[bytes, str, int, str, int]]] = [[], [], []]
        packet_id = 0
        for one, receivers, qos, group in drawn:
            for number in sorted(receivers):
                packet_id += 1
                delivery = Delivery(one, qos, bool(number), (number + 1, 300), group)
                store.save_delivery(rows[number], delivery)
                if packet_id % 2:
                    delivery.packet_id = packet_id
                    store.save_delivery(rows[number], delivery)
                wanted[number].append((one.payload, one.topic, qos, group, delivery.packet_id))
            assert one.holders == len(receivers)
        store.commit()
        snapshot = reopened(store)
        store.close()
    for number, saved in enumerate(snapshot.sessions):
        found = [one.delivery for one in saved.deliveries]
        assert [(d.message.payload, d.message.topic, d.qos, d.group, d.packet_id) for d in found] == wanted[number]
        assert all(d.retain == bool(number) and d.ids == (number + 1, 300) for d in found)
        assert all(d.message.name == string(d.message.topic) for d in found)
        assert not any(one.released for one in saved.deliveries)
    shared = {d.message.row: d.message for saved in snapshot.sessions for d in (o.delivery for o in saved.deliveries)}
    assert sorted(one.holders for one in shared.values()) == sorted(len(receivers) for _, receivers, _, _ in drawn)


def test_the_last_word_counts(store: SqliteStore) -> None:
    row = session(store, "c", 100, None)
    store.save_session(row, "c", 200, 5.0, "op")
    store.save_subscription(row, "a", Subscribed(0))
    store.save_subscription(row, "a", Subscribed(2, identifier=3))
    store.save_subscription(row, "b", Subscribed(0))
    store.drop_subscription(row, "b")
    store.save_received(row, 1)
    store.save_received(row, 1)
    store.save_received(row, 2)
    store.drop_received(row, 2)
    for payload in (b"1", b"2"):
        store.save_retained(Message("r", string("r"), payload, 1, True))
    store.save_retained(Message("s", string("s"), b"", 1, True))
    store.drop_retained("s")
    store.save_will("c", Will("w", b"1"), None, "")
    store.save_will("c", Will("w", b"2"), 9.0, "op")
    store.save_will("d", Will("w", b"3"), None, "")
    store.drop_will("d")
    store.commit()
    snapshot = reopened(store)
    assert snapshot.sessions == [SavedSession(row, "c", 200, 5.0, "op", {"a": Subscribed(2, identifier=3)}, [], {1})]
    assert [(one.topic, one.payload) for one in snapshot.retained] == [("r", b"2")]
    assert snapshot.wills == [SavedWill("c", Will("w", b"2"), 9.0, "op")]


def test_a_store_of_an_earlier_version_does_not_know_whose_its_sessions_are(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    session(store, "c", owner="op")
    store.save_will("c", Will("w", b"1"), None, "op")
    store.commit()
    for table in ("session", "will"):
        store._db.execute(f"ALTER TABLE {table} DROP COLUMN owner")
    store._db.execute("PRAGMA user_version = 3")
    store.close()
    store = SqliteStore(tmp_path)
    snapshot = store.load()
    store.close()
    assert [(one.client_id, one.owner) for one in snapshot.sessions] == [("c", None)]
    assert snapshot.wills == [SavedWill("c", Will("w", b"1"), None, None)]


def test_a_released_delivery_comes_back_without_its_message(store: SqliteStore) -> None:
    row = session(store)
    delivery = Delivery(message(qos=2), 2, packet_id=7)
    store.save_delivery(row, delivery)
    store.release_delivery(delivery)
    store.commit()
    assert counts(store) == {"session": 1, "delivery": 1}
    (saved,) = reopened(store).sessions
    assert [(one.released, one.delivery.packet_id, one.delivery.qos) for one in saved.deliveries] == [(True, 7, 2)]
    store.drop_delivery(saved.deliveries[0].delivery)
    store.commit()
    assert counts(store) == {"session": 1}


# What is freed


def test_a_message_goes_with_its_last_delivery(store: SqliteStore) -> None:
    first, second = session(store, "a"), session(store, "b")
    one = message()
    deliveries = [Delivery(one, 1), Delivery(one, 1)]
    for row, delivery in zip((first, second), deliveries, strict=True):
        store.save_delivery(row, delivery)
    store.commit()
    assert counts(store) == {"session": 2, "message": 1, "delivery": 2}
    store.drop_delivery(deliveries[0])
    store.commit()
    assert counts(store) == {"session": 2, "message": 1, "delivery": 1}
    store.drop_delivery(deliveries[1])
    store.commit()
    assert counts(store) == {"session": 2}
    store.save_delivery(first, deliveries[0])
    store.commit()
    assert counts(store) == {"session": 2, "message": 1, "delivery": 1}, "it may come again, as something new"


def test_a_message_that_came_and_went_between_two_commits_leaves_nothing(store: SqliteStore) -> None:
    row = session(store)
    delivery = Delivery(message(), 1)
    store.save_delivery(row, delivery)
    store.drop_delivery(delivery)
    store.commit()
    assert counts(store) == {"session": 1}


def test_a_session_takes_all_that_is_its_own_with_it(store: SqliteStore) -> None:
    gone, stays = session(store, "a"), session(store, "b")
    for row in (gone, stays):
        store.save_subscription(row, "t", Subscribed(1))
        store.save_received(row, 5)
        store.save_delivery(row, Delivery(message(), 1))
    store.commit()
    store.drop_session(gone)
    store.commit()
    (saved,) = reopened(store).sessions
    assert (saved.row, saved.client_id, len(saved.deliveries)) == (stays, "b", 1)
    assert counts(store) == {"session": 1, "subscription": 1, "message": 1, "delivery": 1, "received": 1}


def test_a_client_id_may_come_again_in_the_same_tick(store: SqliteStore) -> None:
    first = session(store, "c")
    store.save_subscription(first, "t", Subscribed(1))
    store.commit()
    store.drop_session(first)
    second = session(store, "c", 7)
    store.commit()
    assert reopened(store).sessions == [SavedSession(second, "c", 7, None, "")]
    assert second != first


def test_what_belongs_to_no_session_is_swept_and_never_given_to_another(store: SqliteStore) -> None:
    kept = session(store, "kept")
    orphan = store.next_row()
    store.save_subscription(orphan, "t", Subscribed(1))
    store.save_received(orphan, 3)
    store.save_delivery(orphan, Delivery(message("orphan"), 1))
    store.save_delivery(kept, Delivery(message("kept"), 1))
    store.commit()
    snapshot = reopened(store)
    assert [saved.client_id for saved in snapshot.sessions] == ["kept"]
    new = session(store, "new")
    store.commit()
    assert reopened(store).sessions[1] == SavedSession(new, "new", 100, None, "")
    assert counts(store) == {"session": 2, "message": 1, "delivery": 1}


def test_messages_that_nobody_waits_for_are_swept(store: SqliteStore) -> None:
    row = session(store)
    delivery = Delivery(message(), 1)
    store.save_delivery(row, delivery)
    store.commit()
    store._db.execute("DELETE FROM delivery")
    snapshot = reopened(store)
    assert snapshot.sessions[0].deliveries == []
    assert counts(store) == {"session": 1}


def test_numbers_go_on_where_they_were(store: SqliteStore) -> None:
    row = session(store)
    delivery = Delivery(message(), 1)
    store.save_delivery(row, delivery)
    store.commit()
    (saved,) = reopened(store).sessions
    assert store.next_row() > row
    later = Delivery(message(), 1)
    store.save_delivery(row, later)
    store.commit()
    assert later.row > delivery.row
    assert later.message.row > saved.deliveries[0].delivery.message.row
    assert [one.delivery.row for one in reopened(store).sessions[0].deliveries] == [delivery.row, later.row]


# One transaction


def test_nothing_is_there_before_the_commit_and_all_of_it_behind(store: SqliteStore) -> None:
    assert not store.dirty
    row = session(store)
    store.save_subscription(row, "t", Subscribed(0))
    store.save_retained(message("r"))
    assert store.dirty
    assert counts(store) == {}
    store.commit()
    assert not store.dirty
    assert counts(store) == {"session": 1, "subscription": 1, "retained": 1}


def test_a_process_that_dies_without_a_word_leaves_its_commits(tmp_path: Path) -> None:
    """The files as they are at that moment, write-ahead log and all, are enough."""
    store = SqliteStore(tmp_path / "first")
    session(store, "committed")
    store.commit()
    session(store, "not committed")
    (tmp_path / "second").mkdir()
    for path in (tmp_path / "first").iterdir():
        (tmp_path / "second" / path.name).write_bytes(path.read_bytes())
    store.close()
    after = SqliteStore(tmp_path / "second")
    assert [saved.client_id for saved in after.load().sessions] == ["committed"]
    after.close()


@pytest.mark.parametrize(("sync", "level"), [("normal", 1), ("full", 2)])
def test_the_write_ahead_log_and_its_sync(tmp_path: Path, sync: str, level: int) -> None:
    store = SqliteStore(tmp_path, sync)  # type: ignore[arg-type]
    assert store._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert store._db.execute("PRAGMA synchronous").fetchone() == (level,)
    store.close()


# Failures


def fill(store: SqliteStore, count: int) -> None:
    row = session(store)
    for number in range(count):
        store.save_delivery(row, Delivery(message("t", b"%d" % number + bytes(3000)), 1))


def test_a_full_disk_keeps_the_changes_for_the_next_try(store: SqliteStore) -> None:
    session(store, "before")
    store.commit()
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count = {pages + 3}")
    fill(store, 50)
    for _ in range(3):
        with pytest.raises(StoreError, match=r"the disk is full.*make room"):
            store.commit()
        assert store.dirty
        assert counts(store) == {"session": 1}, "all of it or nothing"
    store.save_retained(message("r"))
    store._db.execute("PRAGMA max_page_count = 1000000")
    store.commit()
    assert not store.dirty
    assert counts(store) == {"session": 2, "delivery": 50, "message": 50, "retained": 1}
    saved = reopened(store).sessions[1]
    assert [int(one.delivery.message.payload.split(b"\0")[0]) for one in saved.deliveries] == list(range(50))


def test_a_locked_database_keeps_the_changes_for_the_next_try(store: SqliteStore) -> None:
    store._db.execute("PRAGMA busy_timeout = 0")
    other = sqlite3.connect(store.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    session(store)
    with pytest.raises(StoreError, match="locked"):
        store.commit()
    assert store.dirty
    other.execute("ROLLBACK")
    other.close()
    store.commit()
    assert counts(store) == {"session": 1}


def test_a_read_only_database_says_so(store: SqliteStore) -> None:
    store._db.execute("PRAGMA query_only = ON")
    session(store)
    with pytest.raises(StoreError, match=f"{FILE_NAME} cannot be used"):
        store.commit()
    store._db.execute("PRAGMA query_only = OFF")
    store.commit()
    assert counts(store) == {"session": 1}


def test_two_brokers_cannot_have_one_folder(tmp_path: Path) -> None:
    first = SqliteStore(tmp_path)
    with pytest.raises(StoreError, match=r"in use by another broker.*--data"):
        SqliteStore(tmp_path)
    first.close()
    SqliteStore(tmp_path).close()


def test_another_format_is_refused_each_time_with_the_same_words(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    store._db.execute(f"PRAGMA user_version = {VERSION + 1}")
    store.close()
    for _ in range(2):
        words = f"another version \\(format {VERSION + 1}, this one reads 1 to {VERSION}\\)"
        with pytest.raises(StoreError, match=words):
            SqliteStore(tmp_path)


@pytest.mark.parametrize(
    "rubbish", [b"not a database at all, but long enough to be one" * 100, b"SQLite format 3\0junk"]
)
def test_a_damaged_file_is_refused_with_a_way_out(tmp_path: Path, rubbish: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(rubbish)
    for _ in range(2):
        with pytest.raises(StoreError, match=f"{FILE_NAME} is damaged.*(restore|move it away)"):
            SqliteStore(tmp_path)
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
def test_rows_that_make_no_sense_are_reported(store: SqliteStore, harm: str) -> None:
    row = session(store)
    store.save_subscription(row, "t", Subscribed(1))
    store.save_delivery(row, Delivery(message(), 1))
    store.save_will("c", Will("w", b"x"), None, "")
    store.commit()
    store._db.execute(harm)
    with pytest.raises(StoreError, match=FILE_NAME):
        reopened(store)


def test_a_folder_that_cannot_be_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match=r"the data folder .*file cannot be used"):
        SqliteStore(tmp_path / "file")
    SqliteStore(tmp_path / "new" / "and" / "deep").close()
    assert (tmp_path / "new" / "and" / "deep" / FILE_NAME).exists()


def test_what_is_kept_is_nobody_elses_to_read(tmp_path: Path) -> None:
    """Messages are their clients' own: other users of the machine cannot open the files."""
    store = SqliteStore(tmp_path / "data")
    session(store)
    store.commit()
    for path in (tmp_path / "data").iterdir():
        assert path.stat().st_mode & 0o077 == 0 or (tmp_path / "data").stat().st_mode & 0o077 == 0, path.name
    store.close()
