"""What a store has committed, as another process would find it; and a disk that is full."""

from __future__ import annotations

import errno
import os
from typing import Any

import msgspec

from braidmq.broker import store_changes
from braidmq.broker.journal_store import JournalStore
from braidmq.journal.contents import read_contents

TABLES = {
    "session": store_changes.SESSION,
    "subscription": store_changes.SUBSCRIPTION,
    "received": store_changes.RECEIVED,
    "message": store_changes.MESSAGE,
    "delivery": store_changes.DELIVERY,
    "in_flight": store_changes.IN_FLIGHT,
    "retained": store_changes.RETAINED,
    "will": store_changes.WILL,
    "sent": store_changes.SENT,
    "cursor": store_changes.CURSOR,
    "writer": store_changes.WRITER,
    "part": store_changes.PART,
}


def rows(store: JournalStore, table: str) -> dict[Any, Any]:
    """Key → value; of a table with groups, (group, key) → value."""
    found = {}
    for group, of_group in read_contents(store.path).tables.groups(TABLES[table]).items():
        for key, value in of_group.items():
            found[(group, key) if group else key] = msgspec.msgpack.decode(value)
    return found


def counts(store: JournalStore) -> dict[str, int]:
    """Rows by table, of those that have some."""
    found = {table: len(rows(store, table)) for table in TABLES}
    return {table: count for table, count in found.items() if count}


def fill_disk(store: JournalStore, error: int = errno.ENOSPC) -> None:
    """From now on the store cannot be written."""

    def refuse(changes: object) -> None:
        raise OSError(error, os.strerror(error))

    store.journal.commit = refuse  # type: ignore[method-assign]


def empty_disk(store: JournalStore) -> None:
    del store.journal.commit
