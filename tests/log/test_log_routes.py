"""A broker's log over its admin port: read, bounded, and refused in words."""

from __future__ import annotations

import socket
import struct
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from braidmq.log.errors import LogError
from braidmq.log.opening import open_log
from braidmq.log.reader import LogReader
from braidmq.log.remote import RemoteLog
from tests.log.brokers import LOG, answer_of, folder_of, rows_of
from tests.log.rows import EVER, read_all
from tests.raw import metrics, opened

if TYPE_CHECKING:
    from tests.conftest import StartBroker


def test_over_the_admin_port(start_broker: StartBroker) -> None:
    broker = start_broker(LOG.replace("port = 0", 'port = 0\ntoken = "a long token"'))
    with opened(broker, "writer") as writer:
        for number in range(500):
            writer.publish(f"telemetry/{number % 10}", b"x" * 2000, number % 2)
        writer.publish("telemetry/1", b"last", 1)
    rows_of(broker, 501)
    url = broker.address("http")
    local = LogReader(folder_of(broker))
    remote = open_log(url, "a long token")
    assert isinstance(remote, RemoteLog)
    assert remote.state() == local.state()
    rows = read_all(local)
    assert read_all(remote) == rows
    assert read_all(remote, 20, 400, ("telemetry/3", "telemetry/+/x")) == [
        one for one in rows if 20 <= one["offset"] < 400 and one["topic"] == "telemetry/3"
    ]
    (some,) = remote.read(0, 0, EVER, ["telemetry/#"], columns=["client"])
    assert some.equals(next(local.read(0, 0, EVER)).select(["client", "offset"]))
    assert read_all(remote, 400, 400) == read_all(remote, 600) == []
    at = rows[123]["received_at"]
    assert remote.offset_at(at) == local.offset_at(at) <= 123
    assert remote.offset_at(datetime.now(UTC)) == 501
    assert remote.offset_after(100, 50) == 150
    with pytest.raises(LogError, match="asks for the right token"):
        RemoteLog(url).state()
    with pytest.raises(ValueError, match="there is no partition 9"):
        next(remote.read(9, 0, EVER))
    with pytest.raises(ValueError, match="is no topic filter"):
        next(remote.read(0, 0, EVER, ["a#"]))
    broker.terminate()
    with pytest.raises(LogError, match="there is no admin port"):
        remote.state()


def test_a_limit_on_the_bytes_of_an_answer(start_broker: StartBroker) -> None:
    import pyarrow as pa

    broker = start_broker(LOG.replace("partitions = 4", "partitions = 1"))
    with opened(broker, "writer") as writer:
        for number in range(30):
            writer.publish("telemetry/1", bytes([number]) * 300_000, 1)
    rows_of(broker, 30)
    start, got = 0, 0
    while start < 30:
        with urlopen(f"{broker.address('http')}/log/0?from={start}&max_bytes=1000000") as answer:
            reader = pa.ipc.open_stream(answer.read())
            batches = [reader.read_next_batch_with_custom_metadata() for _ in range(2)]
        (rows, none), (end, metadata) = batches
        assert none is None
        assert end.num_rows == 0
        got += rows.num_rows
        start = int(metadata[b"next"])
        assert start == got
    assert got == 30


def test_a_reader_that_hangs_up_is_no_error(start_broker: StartBroker) -> None:
    broker = start_broker(LOG)
    with opened(broker, "writer") as writer:
        for _ in range(40):
            writer.publish("telemetry/1", bytes(200_000), 1)
    rows_of(broker, 40)
    where = urlsplit(broker.address("http"))
    for partition in range(4):
        with socket.create_connection((str(where.hostname), where.port or 0)) as reader:
            reader.sendall(b"GET /log/%d HTTP/1.1\r\nHost: here\r\n\r\n" % partition)
            assert reader.recv(100).startswith(b"HTTP/1.1 200")
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, in its middle
    assert len(read_all(RemoteLog(broker.address("http")))) == 40
    assert broker.terminate() == 0
    assert "Traceback" not in broker.log


def test_questions_that_cannot_be_answered(start_broker: StartBroker) -> None:
    broker = start_broker(LOG)
    for path, words in (
        ("/log/offsets", "expected ?at=TIME"),
        ("/log/offsets?at=noon", "at=noon: expected a time"),
        ("/log/0?from=-1", "from=-1: expected a number"),
        ("/log/4", "there is no partition 4"),
        ("/log/0?column=topic&column=colour", "there is no column 'colour'"),
    ):
        status, answer = answer_of(broker, path)
        assert status == 400
        assert words in answer["error"]
    without = start_broker("[admin]\nport = 0\n")
    status, answer = answer_of(without, "/log")
    assert (status, "keeps no log" in answer["error"]) == (404, True)


def test_damage_is_counted_and_told(start_broker: StartBroker) -> None:
    broker = start_broker(LOG)
    with opened(broker, "writer") as writer:
        for number in range(3):
            writer.publish("telemetry/1", b"number %d" % number, 1)
            rows_of(broker, number + 1)
    (data,) = [path for path in folder_of(broker).glob("*/*.arrow") if b"number 1" in path.read_bytes()]
    content = data.read_bytes()
    with data.open("r+b") as file:
        file.seek(content.index(b"number 1"))
        file.write(b"rubbish!")
    rows = read_all(RemoteLog(broker.address("http")))
    assert [one["payload"] for one in rows] == [b"number 0", b"number 2"]
    assert "offsets 1 to 1 (1 rows" in broker.log
    counted = metrics(broker)
    assert (counted["log_corrupt_batches_total"], counted["log_corrupt_rows_total"]) == (1, 1)
    with opened(broker, "writer") as writer:
        writer.publish("telemetry/1", b"number 3", 1)
    assert len(rows_of(broker, 3)) == 3
