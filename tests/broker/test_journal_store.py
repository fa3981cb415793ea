"""The store by itself: what goes in comes out, in order, and nothing is lost when it cannot be written."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.broker.journal_store import FOLDER_NAME, JournalStore, read_copy
from braidmq.broker.message import Delivery, Message
from braidmq.broker.store import SavedSession, SavedWill, Snapshot, StoreError
from braidmq.broker.store_changes import DELIVERY, MESSAGE, RETAINED, SUBSCRIPTION, WILL
from braidmq.broker.subscription import Subscribed
from braidmq.journal.files import file_name
from braidmq.journal.headers import VERSION
from braidmq.journal.operation import DELETE, PUT
from braidmq.mqtt.packets import Will
from braidmq.mqtt.properties import Properties
from braidmq.mqtt.wire import string
from tests.store_rows import counts

EXAMPLES = settings(max_examples=40, deadline=None, print_blob=True)

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
names = texts.filter(bool)
times = st.none() | st.floats(0, 5e9)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[JournalStore]:
    opened = JournalStore(tmp_path)
    yield opened
    opened.close()


def message(topic: str = "t", payload: bytes = b"x", qos: int = 1) -> Message:
    return Message(topic, string(topic), payload, qos)


def reopened(store: JournalStore) -> Snapshot:
    """What a broker that starts on the same folder would find."""
    store.close()
    store.__init__(store.path.parent)  # type: ignore[misc]
    return store.load()


def session(
    store: JournalStore, client_id: str = "c", expiry_s: int = 100, ends_at: float | None = None, owner: str = ""
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
        store = JournalStore(Path(folder))
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
        store = JournalStore(Path(folder))
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


def test_the_last_word_counts(store: JournalStore) -> None:
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


def test_a_released_delivery_comes_back_without_its_message(store: JournalStore) -> None:
    row = session(store)
    delivery = Delivery(message(qos=2), 2, packet_id=7)
    store.save_delivery(row, delivery)
    store.release_delivery(delivery)
    store.commit()
    assert counts(store) == {"session": 1, "delivery": 1, "in_flight": 1}
    (saved,) = reopened(store).sessions
    assert [(one.released, one.delivery.packet_id, one.delivery.qos) for one in saved.deliveries] == [(True, 7, 2)]
    store.drop_delivery(saved.deliveries[0].delivery)
    store.commit()
    assert counts(store) == {"session": 1}


# What is freed


def test_a_message_goes_with_its_last_delivery(store: JournalStore) -> None:
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


def test_a_message_that_came_and_went_between_two_commits_leaves_nothing(store: JournalStore) -> None:
    row = session(store)
    delivery = Delivery(message(), 1)
    store.save_delivery(row, delivery)
    store.drop_delivery(delivery)
    store.commit()
    assert counts(store) == {"session": 1}


def test_a_session_takes_all_that_is_its_own_with_it(store: JournalStore) -> None:
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
    store.commit()
    assert counts(store) == {"session": 1, "subscription": 1, "message": 1, "delivery": 1, "received": 1}


def test_a_client_id_may_come_again_in_the_same_tick(store: JournalStore) -> None:
    first = session(store, "c")
    store.save_subscription(first, "t", Subscribed(1))
    store.commit()
    store.drop_session(first)
    second = session(store, "c", 7)
    store.commit()
    assert reopened(store).sessions == [SavedSession(second, "c", 7, None, "")]
    assert second != first


def test_what_belongs_to_no_session_is_swept_and_never_given_to_another(store: JournalStore) -> None:
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


def test_messages_that_nobody_waits_for_are_swept(store: JournalStore) -> None:
    row = session(store)
    delivery = Delivery(message(), 1)
    store.save_delivery(row, delivery)
    store.commit()
    store._changes.append((DELETE, DELIVERY, 0, delivery.row))
    store.commit()
    snapshot = reopened(store)
    assert snapshot.sessions[0].deliveries == []
    store.commit()
    assert counts(store) == {"session": 1}


def test_numbers_go_on_where_they_were(store: JournalStore) -> None:
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


# One block


def test_nothing_is_there_before_the_commit_and_all_of_it_behind(store: JournalStore) -> None:
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
    """The files as they are at that moment are enough."""
    store = JournalStore(tmp_path / "first")
    session(store, "committed")
    store.commit()
    session(store, "not committed")
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    store.close()
    after = JournalStore(tmp_path / "second")
    assert [saved.client_id for saved in after.load().sessions] == ["committed"]
    after.close()


def test_a_copy_is_read_where_it_is(store: JournalStore, tmp_path: Path) -> None:
    """By somebody who may take over: nothing is locked or changed."""
    row = session(store)
    store.save_delivery(row, Delivery(message(), 1))
    store.commit()
    copy = shutil.copytree(store.path, tmp_path / "copy")
    for path in copy.iterdir():
        path.chmod(0o400)
    (saved,) = read_copy(copy).sessions
    assert [one.delivery.message.payload for one in saved.deliveries] == [b"x"]
    (copy / file_name(0, "segment")).chmod(0o600)
    (copy / file_name(0, "segment")).write_bytes(b"BMQ-SEG\n" + bytes(range(100)))
    with pytest.raises(StoreError, match="copy"):
        read_copy(copy)


@pytest.mark.parametrize("sync", ["normal", "full"])
def test_the_disk_is_waited_for_if_that_is_wanted(
    tmp_path: Path, sync: Literal["normal", "full"], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = JournalStore(tmp_path, sync)
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    session(store)
    store.commit()
    assert len(synced) == (sync == "full")
    store.close()


# Failures


def fill(store: JournalStore, count: int) -> None:
    row = session(store)
    for number in range(count):
        store.save_delivery(row, Delivery(message("t", b"%d" % number + bytes(3000)), 1))


def short_disk(monkeypatch: pytest.MonkeyPatch, room: int, error: int = errno.ENOSPC) -> list[int]:
    """The disk takes so many bytes more; returns what is left of them, to be changed."""
    write, left = os.pwrite, [room]

    def pwrite(file: int, data: bytes, at: int) -> int:
        if not left[0]:
            raise OSError(error, os.strerror(error))
        written = write(file, bytes(data)[: left[0]], at)
        left[0] -= written
        return written

    monkeypatch.setattr(os, "pwrite", pwrite)
    return left


def test_a_full_disk_keeps_the_changes_for_the_next_try(store: JournalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    session(store, "before")
    store.commit()
    left = short_disk(monkeypatch, 0)
    fill(store, 50)
    for room in (5000, 1, 0):
        left[0] = room
        with pytest.raises(StoreError, match=r"the disk is full.*make room"):
            store.commit()
        assert store.dirty
        assert counts(store) == {"session": 1}, "all of it or nothing"
    store.save_retained(message("r"))
    left[0] = 1_000_000
    store.commit()
    assert not store.dirty
    assert counts(store) == {"session": 2, "delivery": 50, "message": 50, "retained": 1}
    saved = reopened(store).sessions[1]
    assert [int(one.delivery.message.payload.split(b"\0")[0]) for one in saved.deliveries] == list(range(50))


def test_what_cannot_be_written_says_so(store: JournalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    left = short_disk(monkeypatch, 0, errno.EROFS)
    session(store)
    with pytest.raises(StoreError, match=f"{FOLDER_NAME} cannot be used: Read-only file system; check the folder"):
        store.commit()
    left[0] = 1_000_000
    store.commit()
    assert counts(store) == {"session": 1}


def test_two_brokers_cannot_have_one_folder(tmp_path: Path) -> None:
    first = JournalStore(tmp_path)
    with pytest.raises(StoreError, match=r"in use by another broker.*--data"):
        JournalStore(tmp_path)
    first.close()
    JournalStore(tmp_path).close()


def segment(folder: Path) -> Path:
    """The file of a store that was never sealed."""
    return folder / FOLDER_NAME / file_name(0, "segment")


def test_another_format_is_refused_each_time_with_the_same_words(store: JournalStore, tmp_path: Path) -> None:
    store.close()
    data = bytearray(segment(tmp_path).read_bytes())
    data[8] = VERSION + 1
    segment(tmp_path).write_bytes(data)
    for _ in range(2):
        words = f"another version \\(format {VERSION + 1}, this one reads {VERSION}\\).*--data"
        with pytest.raises(StoreError, match=words):
            JournalStore(tmp_path)
    data[8] = VERSION
    segment(tmp_path).write_bytes(data)
    store.__init__(tmp_path)  # type: ignore[misc]


@pytest.mark.parametrize(
    "rubbish", [b"not a journal at all, but long enough to be one" * 100, b"BMQ-SEG\n" + b"?" * 90]
)
def test_a_damaged_file_is_refused_with_a_way_out(tmp_path: Path, rubbish: bytes) -> None:
    segment(tmp_path).parent.mkdir()
    segment(tmp_path).write_bytes(rubbish)
    for _ in range(2):
        with pytest.raises(StoreError, match=r"segment (is damaged.*restore.*move it away|was written by another)"):
            JournalStore(tmp_path)
    assert segment(tmp_path).read_bytes() == rubbish, "nothing of it is thrown away"


@pytest.mark.parametrize(
    "harm",
    [
        (PUT, SUBSCRIPTION, 1, "t", None),
        (PUT, SUBSCRIPTION, 1, "t", (1, 2, 3, 4)),
        (PUT, WILL, 0, "c", (b"\xc1\xff", None, None)),
        (PUT, DELIVERY, 0, 1, ()),
        (PUT, DELIVERY, 0, 1, (1, 4711, 1, False, (), "")),
        (DELETE, MESSAGE, 0, 1),
        (PUT, RETAINED, 0, "t", b""),
        (99, RETAINED),
        ("PUT",),
    ],
)
def test_rows_that_make_no_sense_are_reported(store: JournalStore, harm: tuple[Any, ...]) -> None:
    row = session(store)
    assert row == 1
    store.save_subscription(row, "t", Subscribed(1))
    store.save_delivery(row, Delivery(message(), 1))
    store.save_will("c", Will("w", b"x"), None, "")
    store._changes.append(harm)
    store.commit()
    with pytest.raises(StoreError, match=f"{FOLDER_NAME}.* is damaged.*restore.*move it away"):
        read_copy(store.path)


def test_a_folder_that_cannot_be_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match=r"the data folder .*file cannot be used"):
        JournalStore(tmp_path / "file")
    JournalStore(tmp_path / "new" / "and" / "deep").close()
    assert (tmp_path / "new" / "and" / "deep" / FOLDER_NAME).is_dir()
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / FOLDER_NAME).write_bytes(b"")
    with pytest.raises(StoreError, match=f"{FOLDER_NAME} cannot be used: .*; check the folder"):
        JournalStore(tmp_path / "taken")


def test_what_is_kept_is_nobody_elses_to_read(tmp_path: Path) -> None:
    """Messages are their clients' own: other users of the machine cannot open the files."""
    store = JournalStore(tmp_path / "data")
    session(store)
    store.commit()
    for path in (tmp_path / "data", *(tmp_path / "data").rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path.name
    store.close()
