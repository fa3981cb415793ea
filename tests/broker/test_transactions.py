"""Batches that are published once: through the admin port of real brokers that are killed in between."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from braidmq.admin.contract import PART_ROWS_MAX, BatchPart, BatchRow, Receipt
from braidmq.broker.journal_store import JournalStore
from braidmq.broker.transactions import SLICE_ROWS, WRITER_AGE_S, WRITERS_MAX, RefusedPart
from braidmq.pipeline.sink.batches import PART_ROWS, BatchError, PublishBatch
from tests.conformance.pair import World
from tests.conformance.wire import props
from tests.patience import PATIENCE_S
from tests.raw import crash, payloads, subscriber

if TYPE_CHECKING:
    from tests.conftest import Broker, StartBroker

ADMIN = "[admin]\nport = 0\n"


def batch(broker: Broker, number: int, count: int, writer: str = "query/0", topic: str = "out") -> PublishBatch:
    """A batch with all its rows, not finished."""
    made = PublishBatch(broker.address("http"), None, writer, number)
    for row in range(count):
        made.add((topic, b"%d.%d" % (number, row), 1, False, []))
    return made


def numbered(number: int, count: int) -> list[bytes]:
    return [b"%d.%d" % (number, row) for row in range(count)]


def post(broker: Broker, body: Any, content_type: str = "application/json") -> tuple[int, str]:
    headers = {"Content-Type": content_type}
    request = Request(broker.address("http") + "/publish", json.dumps(body).encode(), headers)
    try:
        with urlopen(request, timeout=PATIENCE_S) as response:
            return response.status, response.read().decode()
    except HTTPError as refused:
        return refused.code, json.loads(refused.read())["error"]


@pytest.mark.parametrize("count", [0, 1, SLICE_ROWS, 2 * SLICE_ROWS + 1, 2 * PART_ROWS + 7])
def test_a_batch_is_published_once_however_often_it_is_sent(start_broker: StartBroker, count: int) -> None:
    broker = start_broker(ADMIN)
    reader = subscriber(broker, "reader", "out")
    for _ in range(3):
        again = batch(broker, 0, count)
        again.finish()
    batch(broker, 1, 1).finish()
    assert payloads(reader.messages(count + 1)) == [*numbered(0, count), b"1.0"]
    assert reader.so_far() == []
    assert again.is_repeated


def test_a_broker_that_is_killed_knows_what_it_has_published(start_broker: StartBroker) -> None:
    broker = start_broker(ADMIN)
    subscriber(broker, "reader", "out").drop()
    batch(broker, 0, 3).finish()
    batch(broker, 1, SLICE_ROWS + 1).finish()
    crash(broker)
    for number, rows in ((0, 3), (1, SLICE_ROWS + 1)):
        again = batch(broker, number, rows)
        again.finish()
        assert again.is_repeated
    batch(broker, 2, 1).finish()
    reader = subscriber(broker, "reader", "out")
    assert payloads(reader.messages(SLICE_ROWS + 5)) == [*numbered(0, 3), *numbered(1, SLICE_ROWS + 1), b"2.0"]
    assert reader.so_far() == []


@pytest.mark.parametrize("slices", [0, 1, 2])
def test_a_broker_that_ends_between_two_slices_goes_on_with_the_next(tmp_path: Path, slices: int) -> None:
    rows = tuple(BatchRow("out", payload) for payload in numbered(0, 2 * SLICE_ROWS + 1))
    part = BatchPart("query/0", 0, 0, True, rows)
    store = JournalStore(tmp_path)
    world = World(store=store)
    reader = world.client("reader", clean=False, properties=props(session_expiry=3600))
    reader.subscribe("out", 1)
    reader.disconnect()
    assert world.broker.transactions.accept(part) is Receipt.KEPT
    world.settle()
    for _ in range(slices):
        world.broker.run_timers()
        world.broker.flush()
    store.close()
    world = World(store=JournalStore(tmp_path))
    world.advance(1)
    assert world.broker.transactions.accept(part) is Receipt.REPEATED
    last = BatchPart("query/0", 1, 0, True, (BatchRow("out", b"last"),))
    assert world.broker.transactions.accept(last) is Receipt.PUBLISHED
    reader = world.client("reader", clean=False, properties=props(session_expiry=3600))
    got: list[bytes] = []
    while not got or got[-1] != b"last":
        arrived = reader.take()
        assert arrived, f"only {len(got)} came"
        got += payloads(arrived)
        for one in arrived:
            reader.acknowledge(one)
        world.settle()
    assert got == [*(row.payload for row in rows), b"last"]


def test_a_batch_that_broke_off_counts_for_nothing(start_broker: StartBroker) -> None:
    broker = start_broker(ADMIN)
    reader = subscriber(broker, "reader", "out")
    batch(broker, 5, PART_ROWS + 1).close()  # its first part was sent
    crash(broker)
    reader = subscriber(broker, "reader", "out")
    batch(broker, 5, 2).finish()
    assert payloads(reader.messages(2)) == numbered(5, 2)
    assert reader.so_far() == []


def test_writers_at_the_same_time_have_batches_of_their_own(start_broker: StartBroker) -> None:
    broker = start_broker(ADMIN)
    reader = subscriber(broker, "reader", "out/#")
    writers = [
        threading.Thread(target=lambda n=n: batch(broker, 0, PART_ROWS + n, f"query/{n}", f"out/{n}").finish())
        for n in range(4)
    ]
    for one in writers:
        one.start()
    for one in writers:
        one.join()
    got = reader.messages(4 * PART_ROWS + 6)
    for n in range(4):
        assert [one.payload for one in got if one.topic == f"out/{n}"] == numbered(0, PART_ROWS + n)


def test_properties_and_retained_rows_arrive(start_broker: StartBroker) -> None:
    broker = start_broker(ADMIN)
    made = PublishBatch(broker.address("http"), None, "query/0", 0)
    made.add(("out", b"kept", 1, True, [("unit", "C"), ("unit", "K")]))
    made.finish()
    (message,) = subscriber(broker, "reader", "out").messages(1)
    assert message.payload == b"kept"
    assert message.properties["user"] == [("unit", "C"), ("unit", "K")]


def test_what_is_wrong_is_said(start_broker: StartBroker) -> None:
    broker = start_broker(ADMIN)
    good = {"writer": "w", "batch": 0, "part": 0, "is_last": True, "rows": [["a", "eA==", 1]]}
    wrong: list[tuple[Any, int, str]] = [
        ([], 400, "no part of a batch"),
        (good | {"rows": [["a/#", "eA=="]]}, 422, "row 0: topic 'a/#': a wildcard"),
        (good | {"rows": [["a", "eA=="], ["$SYS/x", "eA=="]]}, 422, "row 1: '$SYS/x' is the broker's own"),
        (good | {"rows": [["a", "eA==", 3]]}, 400, "<= 2"),
        (good | {"rows": [["a", "eA=="]] * (PART_ROWS_MAX + 1)}, 400, f"length <= {PART_ROWS_MAX}"),
        (good | {"part": 3}, 422, "part 3 of batch 0 came where part 0 was expected"),
    ]
    for body, status, text in wrong:
        answer = post(broker, body)
        assert answer[0] == status, answer
        assert text in answer[1]
    assert post(broker, good, "text/plain")[0] == 415  # as the page of another web site could send it
    assert post(broker, good)[0] == 200


def test_a_writer_without_the_token_or_without_a_broker_is_told_so(start_broker: StartBroker) -> None:
    broker = start_broker("[admin]\nport = 0\ntoken = 'a-secret-of-some-length'\n")
    with pytest.raises(BatchError, match="token"):
        batch(broker, 0, 1).finish()
    allowed = PublishBatch(broker.address("http"), "a-secret-of-some-length", "query/0", 0)
    allowed.finish()
    broker.kill9()
    with pytest.raises(BatchError, match="does not answer"):
        PublishBatch(broker.address("http"), None, "query/0", 0, retry_s=0.0).finish()


def test_a_batch_outlives_a_restart_of_its_broker(start_broker: StartBroker) -> None:
    """The writer waits while the broker is away; the reader's session is there before the broker is."""
    broker = start_broker(ADMIN)
    subscriber(broker, "reader", "out").drop()
    url = broker.address("http")
    port = int(url.rpartition(":")[2])
    data = broker.data
    broker.kill9()
    made = PublishBatch(url, None, "query/0", 0)
    made.add(("out", b"late", 1, False, []))
    writer = threading.Thread(target=made.finish)
    writer.start()
    again = start_broker(f"[admin]\nport = {port}\n", data=data)
    reader = subscriber(again, "reader", "out")
    writer.join(30)
    assert payloads(reader.messages(1)) == [b"late"]


def test_old_writers_make_room_and_young_ones_do_not() -> None:
    broker = World().broker
    rows = (BatchRow("out", b"x"),)

    def accept(name: str) -> Receipt:
        return broker.transactions.accept(BatchPart(name, 0, 0, True, rows))

    for number in range(WRITERS_MAX):
        assert accept(f"writer {number}") is Receipt.PUBLISHED
    with pytest.raises(RefusedPart, match="use one writer's name again"):
        accept("one more")
    assert accept("writer 0") is Receipt.REPEATED  # it stands last now
    broker.tick._epoch += WRITER_AGE_S
    assert accept("one more") is Receipt.PUBLISHED
    assert accept("writer 0") is Receipt.REPEATED
    assert accept("writer 1") is Receipt.PUBLISHED  # it was forgotten
