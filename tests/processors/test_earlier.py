"""The files that processing kept in an earlier version are read (`earlier/processing.zip`)."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from braidmq.processing.assignment_store import AssignmentStore
from braidmq.processors.placement import Interval
from braidmq.processors.worker_messages import decode_message

EARLIER = Path(__file__).parent / "earlier" / "processing.zip"


@pytest.fixture
def store(tmp_path: Path) -> AssignmentStore:
    with zipfile.ZipFile(EARLIER) as archive:
        archive.extractall(tmp_path)
    return AssignmentStore(tmp_path)


def test_where_topics_were_processed(store: AssignmentStore) -> None:
    assert store.intervals(("digest", "in/1")) == (Interval(0, "edge"), Interval(7, "spark"))
    assert store.intervals(("digest", "in/ü")) == (Interval(3, "edge"),)
    assert store.take_offsets(1) == 5


def test_a_spool_that_went_to_spark(store: AssignmentStore) -> None:
    state = store.handed(("digest", "in/1"))
    assert state is not None
    assert (state.last, [one.payload for one in state.messages]) == (6, [b"5", b"6"])
    assert state.messages[0].properties == (("unit", "K"),)


def test_what_a_clean_end_saved(store: AssignmentStore) -> None:
    saved = store.take_saved()["digest"]
    [spool] = saved.spools
    assert (spool.topic, spool.is_logged, spool.last, spool.used_at) == ("in/ü", True, 4, 2.5)
    assert [decode_message(raw).payload for raw in spool.messages] == [b"4"]
    [(message, is_logged)] = saved.queue
    assert (message.topic, message.offset, message.qos, message.hops, message.tries) == ("in/ü", 8, 1, 2, 1)
    assert is_logged
    assert decode_message(message.raw).offset == 8
