"""Which logs a query reads and from where to where: found, asked and refused, without Spark."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from braidmq.log.log import Log
from braidmq.log.reader import LogReader
from braidmq.log.schema import schema_of
from braidmq.pipeline.source.format import BatchReader
from braidmq.pipeline.source.logs import LogLocation, Logs, RowsLost, SourceError, folders, with_starting_offsets
from braidmq.pipeline.source.options import OptionError, ReadOptions
from braidmq.pipeline.source.plan import TASK_ROWS_MAX, Piece, Range, ReadTask, tasks
from braidmq.pipeline.source.reading import rows
from braidmq.pipeline.source.stream import StreamReader
from tests.pipeline.logs import fill, written

NOWHERE = LogLocation("/nowhere", None, 0.0)


def offsets(reader: BatchReader) -> list[int]:
    """What a reader reads, in the tasks that it plans."""
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    return sorted(offset for batch in batches for offset in batch["offset"].to_pylist())


def batch(folder: Path, **options: str) -> BatchReader:
    return BatchReader(ReadOptions.parse({"path": str(folder), **options}), schema_of(["offset"]))


def stream(folder: Path, **options: str) -> StreamReader:
    return StreamReader(ReadOptions.parse({"path": str(folder), **options}), schema_of(["offset"]))


def retained(folder: Path) -> int:
    """A log whose beginning is gone; gives where it begins now."""
    log = Log(folder, "site1", partitions=1, segment_bytes=8_000, retain_bytes=40_000)
    fill(log, 2000)
    log.retain(0)
    log.close()
    first = LogReader(folder).state().first_offset
    assert 0 < first < 2000
    return first


def test_where_a_stream_begins_is_said_once(tmp_path: Path) -> None:
    """Spark asks for it twice; rows come between the two."""
    log = Log(tmp_path, "site1", partitions=4)
    fill(log, 10)
    reader = stream(tmp_path)
    first = reader.initialOffset()
    assert first["brokers"]["site1"]["offset"] == 10
    end = reader.latestOffset(first, ReadAllAvailable())
    fill(log, 5, 10)
    assert reader.initialOffset() == first
    assert reader.partitions(reader.initialOffset(), end) == []
    log.close()


def test_what_latest_means_can_be_settled_before_spark_is_there(tmp_path: Path) -> None:
    log = Log(tmp_path, "site1", partitions=4)
    fill(log, 10)
    for options in ({}, {"startingOffsets": "latest"}, {"startingoffsets": '{"site1": "latest"}'}):
        found = with_starting_offsets({"path": str(tmp_path), "topics": "a/#", **options})
        fill(log, 1)
        assert found["topics"] == "a/#"
        begun = StreamReader(ReadOptions.parse(found), schema_of(["offset"])).initialOffset()
        assert begun["brokers"]["site1"]["offset"] == log.next_offset - 1
    for options in ({"startingOffsets": "earliest"}, {"startingTime": "2026-11-16T08:30:00Z"}):
        given = {"path": str(tmp_path), **options}
        assert with_starting_offsets(given) == given
    log.close()


def test_a_log_is_found_in_all_its_places(tmp_path: Path) -> None:
    for folder in ("site1/log", "site2/log", "alone"):
        written(tmp_path / folder, 1, broker=folder)
    assert folders(str(tmp_path / "alone")) == (str(tmp_path / "alone"),)
    assert folders(str(tmp_path / "site1")) == (str(tmp_path / "site1" / "log"),)
    assert folders(str(tmp_path)) == (str(tmp_path / "site1" / "log"), str(tmp_path / "site2" / "log"))


def test_a_folder_that_is_no_log_is_told(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="is no log, and there is none below it"):
        folders(str(tmp_path))
    with pytest.raises(SourceError, match="there is no folder"):
        folders(str(tmp_path / "nothing"))


def test_two_logs_of_one_name_are_refused(tmp_path: Path) -> None:
    written(tmp_path / "a" / "log", 1, "same")
    written(tmp_path / "b" / "log", 1, "same")
    with pytest.raises(SourceError, match="are both logs of a broker named 'same'"):
        Logs(ReadOptions(path=str(tmp_path)))


def test_offsets_that_are_not_there(tmp_path: Path) -> None:
    written(tmp_path, 100)
    with pytest.raises(OptionError, match=r"'site9', which is none of the brokers\. There are site1"):
        offsets(batch(tmp_path, startingOffsets='{"site9": 1}'))
    with pytest.raises(RowsLost, match="'site1' has no offset 5000 yet: its next one is 100"):
        offsets(batch(tmp_path, endingOffsets='{"site1": 5000}'))
    assert len(offsets(batch(tmp_path, endingOffsets='{"site1": 5000}', failOnDataLoss="false"))) == 100


def test_offsets_that_retention_has_removed(tmp_path: Path) -> None:
    first = retained(tmp_path)
    assert offsets(batch(tmp_path)) == list(range(first, 2000))
    with pytest.raises(RowsLost, match=f"retention has removed the offsets 0 to {first - 1} of 'site1'"):
        offsets(batch(tmp_path, startingOffsets='{"site1": 0}'))
    rest = batch(tmp_path, startingOffsets='{"site1": 0}', failOnDataLoss="false")
    assert offsets(rest) == list(range(first, 2000))


def test_rows_that_are_lost_between_planning_and_reading(tmp_path: Path) -> None:
    options = ReadOptions.parse({"path": str(tmp_path)})
    first = retained(tmp_path)
    log_id = LogReader(tmp_path).state().id
    location = LogLocation(str(tmp_path), None, 0.0)

    def read(log_id: str, start: int, until: int) -> None:
        for _ in rows(
            ReadTask((Piece("site1", location, log_id, 0, start, until),)), options, (), schema_of(["offset"])
        ):
            pass

    read(log_id, first, 2000)
    with pytest.raises(RowsLost, match=f"retention removed offsets 0 to {first - 1}"):
        read(log_id, 0, 2000)
    with pytest.raises(RowsLost, match="has lost the offsets from 2000 to 2999"):
        read(log_id, first, 3000)
    with pytest.raises(RowsLost, match="was made anew while it was read"):
        read("another", first, 2000)


def test_a_broker_that_is_down_is_asked_again_for_a_while_and_then_named() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(SourceError, match=f"the broker at {url} is down: it did not answer for 1 s"):
            Logs(ReadOptions(brokers=(url,), retry_s=1.0))
        assert time.monotonic() - began >= 0.2


@contextmanager
def server(*answers: tuple[int, bytes]) -> Iterator[str]:
    """Gives these answers one after the other, the last one to all that is left."""
    left = deque(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = left.popleft() if len(left) > 1 else left[0]
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that it has
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{made.server_port}"
        made.shutdown()
        thread.join()


STATE = b'{"broker": "site1", "id": "x", "partitions": 2, "first_offset": 0, "next_offset": 5, "format": 1}'


def test_a_broker_with_too_much_to_do_is_asked_again() -> None:
    busy = (503, b'{"error": "8 reads are under way already"}')
    with server(busy, busy, (200, STATE)) as url:
        assert Logs(ReadOptions(brokers=(url,))).states()["site1"].next_offset == 5


@pytest.mark.parametrize("answer", [(404, b""), (401, b""), (200, b"<html>"), (500, b'{"error": "broken"}')])
def test_what_waiting_cannot_mend_is_told_at_once(answer: tuple[int, bytes]) -> None:
    with server(answer) as url, pytest.raises(SourceError, match=url):
        Logs(ReadOptions(brokers=(url,), retry_s=3600.0))


def test_few_rows_are_one_task_and_many_are_several() -> None:
    few = [Range(f"site{number}", NOWHERE, "id", 8, 0, 100) for number in range(10)]
    found = tasks(few, (), task_each=False)
    assert [len(task.pieces) for task in found] == [80]
    each = tasks(few, (), task_each=True)
    assert [(task.pieces[0].broker, task.pieces[0].partition) for task in each] == [
        (f"site{number}", partition) for number in range(10) for partition in range(8)
    ]
    many = tasks([Range("site1", NOWHERE, "id", 2, 10, 10 + 5 * TASK_ROWS_MAX)], (), task_each=False)
    assert sorted((task.pieces[0].partition, task.pieces[0].until - task.pieces[0].start) for task in many) == [
        (partition, size) for partition in (0, 1) for size in (TASK_ROWS_MAX, 2 * TASK_ROWS_MAX, 2 * TASK_ROWS_MAX)
    ]
    assert tasks([Range("site1", NOWHERE, "id", 8, 5, 5)], (), task_each=True) == []
    assert len(tasks(few[:1], ("a/b",), task_each=True)) == 1


@pytest.mark.parametrize(
    ("rows", "cores", "expected"), [(50_000, 2, 2), (160_000, 2, 4), (1_600_000, 2, 7), (1_600_000, 64, 64)]
)
def test_tasks_are_as_many_as_cores_can_do_and_not_too_small(
    monkeypatch: pytest.MonkeyPatch, rows: int, cores: int, expected: int
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    found = tasks([Range("site1", NOWHERE, "id", 64, 0, rows)], (), task_each=False)
    assert len(found) == expected
    assert sum(len(task.pieces) for task in found) == 64


def test_a_stream_shares_its_rows_among_brokers_and_reaches_the_end(tmp_path: Path) -> None:
    for number, count in ((1, 1000), (2, 10), (3, 0)):
        written(tmp_path / f"site{number}" / "log", count, f"site{number}")
    reader = stream(tmp_path, startingOffsets="earliest", maxRowsPerTrigger="101")
    assert reader.getDefaultReadLimit() == ReadMaxRows(101)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(101))
    assert {name: one["offset"] for name, one in end["brokers"].items()} == {"site1": 100, "site2": 1, "site3": 0}
    steps = 0
    while (following := reader.latestOffset(end, ReadMaxRows(101))) != end:
        end = following
        steps += 1
    assert end == reader.latestOffset(start, ReadAllAvailable()) == reader.reportLatestOffset()
    assert steps < 20
    assert reader.partitions(end, end) == []


def test_available_now_does_not_run_after_what_comes_later(tmp_path: Path) -> None:
    log = Log(tmp_path, "site1")
    fill(log, 50)
    reader = stream(tmp_path, startingOffsets="earliest")
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    fill(log, 50, 50)
    assert reader.latestOffset(start, ReadAllAvailable())["brokers"]["site1"]["offset"] == 50
    log.close()


def test_a_checkpoint_is_held_against_the_logs(tmp_path: Path) -> None:
    written(tmp_path / "site1" / "log", 10, "site1")
    old = stream(tmp_path, startingOffsets="earliest").initialOffset()
    written(tmp_path / "site2" / "log", 20, "site2")

    joined = stream(tmp_path).latestOffset(old, ReadAllAvailable())
    assert joined["brokers"]["site2"]["offset"] == 20
    planned = stream(tmp_path).partitions(old, joined)
    assert {piece.broker for task in planned for piece in task.pieces} == {"site1", "site2"}  # type: ignore[attr-defined]

    with pytest.raises(SourceError, match="another set of brokers: site2 of it is not read here"):
        stream(tmp_path / "site1").latestOffset(joined, ReadAllAvailable())
    with pytest.raises(SourceError, match=r"another version \(format 0, this one reads 1\)"):
        stream(tmp_path).latestOffset(old | {"format": 0}, ReadAllAvailable())

    shutil.rmtree(tmp_path / "site1" / "log")
    written(tmp_path / "site1" / "log", 10, "site1")
    with pytest.raises(RowsLost, match="the log of 'site1' is another one than that of the checkpoint"):
        stream(tmp_path).latestOffset(old, ReadAllAvailable())
    anew = stream(tmp_path, failOnDataLoss="false").latestOffset(old, ReadAllAvailable())
    assert anew["brokers"]["site1"]["offset"] == 10


def test_a_stream_has_no_end(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="a stream has no end"):
        stream(tmp_path, endingOffsets="latest")
