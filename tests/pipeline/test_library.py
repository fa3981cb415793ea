"""The ready-made pipelines over real logs: what they say of rows whose answers are known."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from braidmq.cli.mqtt_client.messages import Received, as_json
from braidmq.log.log import Log
from braidmq.log.run import Run
from braidmq.pipeline.errors import PipelineError
from braidmq.pipeline.library.alarms import Rules, Watch, alarms
from braidmq.pipeline.library.archive import PARTITIONS, archive
from braidmq.pipeline.library.catalogue import PIPELINES
from braidmq.pipeline.library.exhaust import DEMAND_TOPIC, exhaust
from braidmq.pipeline.library.job import Job, ToFolder, ToFunction
from braidmq.pipeline.library.sessions import sessions
from braidmq.pipeline.library.windows import windows
from tests.cli.commands import in_process
from tests.raw import wait_until

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
SECOND_US = 1_000_000
END_S = 300


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def row(topic: str, payload: str | bytes, seconds: float, **more: Any) -> Run:
    """A publication so many seconds after noon."""
    body = payload.encode() if isinstance(payload, str) else payload
    return Run.of(topic, body, us(seconds), **more)


def us(seconds: float) -> int:
    return round(at(seconds).timestamp() * SECOND_US)


def write(folder: Path, rows: Iterable[Run], broker: str = "site1") -> str:
    log = Log(folder, broker, partitions=2)
    log.append(list(rows))
    log.close()
    return str(folder)


def read(spark: SparkSession, path: str) -> DataFrame:
    return spark.read.format("braidmq").load(path)


def tuples(found: DataFrame, *names: str) -> list[tuple[Any, ...]]:
    """The rows, sorted, with times as whole moments."""
    rows = found.select(*names).collect()
    return sorted(tuple(_moment(value) for value in row) for row in rows)


def _moment(value: Any) -> Any:
    return value.astimezone(UTC) if isinstance(value, datetime) else value


WEATHER = (
    row("weather/1", "20.5", 0),
    row("weather/1", " 21.5", 59),
    row("weather/1", "ice", 30),
    row("weather/1", "NaN", 31),
    row("weather/1", b"\xff\xfe", 32),
    row("weather/1", "-4", 60),
    row("weather/2", '{"state": {"celsius": 7}}', 61),
    row("weather/2", '{"state": {"celsius": "8.5"}}', 62),
    row("weather/2", "{", 63),
    # A clock that is years ahead: what was received at noon was not published in 2099.
    row("weather/2", '{"state": {"celsius": 1}}', 64, published_us=4_100_000_000 * SECOND_US),
)


def test_windows_count_messages_and_take_numbers_where_there_are_some(spark: SparkSession, tmp_path: Path) -> None:
    path = write(tmp_path / "log", WEATHER)
    rows = read(spark, path)
    names = ("topic", "starts_at", "ends_at", "messages", "bytes", "numbers", "minimum", "mean", "maximum")
    assert tuples(windows(rows), *names) == [
        ("weather/1", at(0), at(60), 5, 17, 2, 20.5, 21.0, 21.5),
        ("weather/1", at(60), at(120), 1, 2, 1, -4.0, -4.0, -4.0),
        ("weather/2", at(60), at(120), 4, 80, 0, None, None, None),
    ]
    assert tuples(windows(rows, every_s=3600, value="state.celsius"), *names) == [
        ("weather/1", at(0), at(3600), 6, 19, 0, None, None, None),
        ("weather/2", at(0), at(3600), 4, 80, 3, 1.0, 5.5, 8.5),
    ]
    sliding = windows(read(spark, path).where("offset = 0"), every_s=60, slide_s=30)
    assert tuples(sliding, "starts_at", "messages") == [(at(-30), 1), (at(0), 1)]
    with pytest.raises(PipelineError, match="the length of a window is 0 s"):
        windows(rows, every_s=0)


def test_sessions_end_with_a_pause(spark: SparkSession, tmp_path: Path) -> None:
    write(
        tmp_path / "site1" / "log",
        [row("a", "12", 0, client="bus7"), row("b", "3", 40, client="bus7"), row("b", "3", 200, client="bus7")],
    )
    # It has moved to another site; the session goes on. And somebody else is nobody's client.
    write(tmp_path / "site2" / "log", [row("a", "4567", 90, client="bus7"), row("a", "x", 10)], "site2")
    rows = read(spark, str(tmp_path))
    assert tuples(sessions(rows, gap_s=60), "client", "began_at", "ended_at", "seconds", "messages", "bytes") == [
        ("bus7", at(0), at(90), 90.0, 3, 7),
        ("bus7", at(200), at(200), 0.0, 1, 1),
    ]
    assert tuples(sessions(rows, gap_s=3600, by="topic"), "topic", "messages") == [("a", 3), ("b", 2)]
    with pytest.raises(PipelineError, match="no sessions by 'qos'"):
        sessions(rows, by="qos")


RULES = Rules(None, 3.0, 10.0, 100 * SECOND_US)


def kinds(watch: Watch, seconds: Iterable[float]) -> list[tuple[str, float]]:
    return [(one.kind, (one.at_us - us(0)) / SECOND_US) for second in seconds for one in watch.see(us(second))]


def test_a_watch_learns_the_pace_and_forgets() -> None:
    watch = Watch(RULES, "t")
    assert kinds(watch, (0, 1)) == []
    assert list(watch.check(us(10_000))) == [], "nobody knows its pace yet"
    assert watch.patience_us == RULES.forget_us
    assert kinds(watch, (2, 3)) == []
    assert (watch.usual_us, watch.patience_us) == (SECOND_US, 10 * SECOND_US)
    assert kinds(watch, (2.5, 6)) == [], "older than the last says nothing, three intervals are not too late"
    assert kinds(watch, (9.1,)) == [("late", 9.1)]
    assert kinds(watch, (19.1,)) == [("missing", 19.1), ("back", 19.1)]
    again = Watch(RULES, "t", *watch.state)
    assert again.usual_us == SECOND_US, "odd pauses do not change what is usual"
    assert [one.at_us for one in again.check()] == [us(29.1)]
    assert list(again.check()) == [], "it is told once"
    assert again.patience_us == RULES.forget_us
    assert kinds(again, (19.1 + 110,)) == [], "after so long it is new"
    assert again.usual_us is None
    slower = Watch(RULES, "t", us(0), [SECOND_US] * 15)
    assert [kind for kind, _ in kinds(slower, range(5, 60, 5))] == ["late"] * 8, "then that is its pace"


PULSE = [row("pulse", "x", number) for number in range(6)]
SENSORS = (*PULSE, row("pulse", "x", 9), row("pulse", "x", 30), row("other", "x", 3))


def test_alarms_of_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    rows = read(spark, write(tmp_path / "log", SENSORS))
    names = ("at", "topic", "kind", "last_at", "usual_s", "pause_s")
    assert tuples(alarms(rows, now=at(40)), *names) == [
        (at(9), "pulse", "late", at(5), 1.0, 4.0),
        (at(19), "pulse", "missing", at(9), 1.0, 10.0),
        (at(30), "pulse", "back", at(9), 1.0, 21.0),
        (at(40), "pulse", "missing", at(30), 1.0, 10.0),
    ]
    found = alarms(rows, interval_s=5, missing=5, now=at(30))
    assert tuples(found, *names) == [
        (at(28), "other", "missing", at(3), 5.0, 25.0),
        (at(30), "pulse", "late", at(9), 5.0, 21.0),
    ]
    with pytest.raises(PipelineError, match="late after 5 and missing after 2 intervals"):
        alarms(rows, late=5, missing=2)


PULSES = [row("pulse", "x", number / 20) for number in range(6)]


def test_alarms_of_a_stream_come_when_nothing_does(spark: SparkSession, tmp_path: Path) -> None:
    """A topic that sends twenty times a second, and then no more."""
    folder = tmp_path / "log"
    write(folder, PULSES)
    found: list[tuple[Any, ...]] = []
    job = Job(PIPELINES["alarms"], {"path": str(folder), "startingOffsets": "earliest"}, {})
    take = ToFunction(lambda rows: found.extend(tuples(rows, "at", "topic", "kind", "pause_s")))
    query = job.start(spark, take, str(tmp_path / "state"), trigger_s=0.1)
    try:
        wait_until(lambda: bool(found) or not query.isActive, "the alarm comes", END_S)
        assert found == [(at(0.75), "pulse", "missing", 0.5)], query.exception()
        write(folder, [row("pulse", "x", 5)])
        wait_until(lambda: len(found) > 1 or not query.isActive, "it is back", END_S)
        assert found[1] == (at(5), "pulse", "back", 4.75), query.exception()
    finally:
        query.stop()
    write(folder, [row("pulse", "x", 5.05)])
    query = job.start(spark, take, str(tmp_path / "state"), is_once=True)
    assert query.awaitTermination(END_S), "it ends, though the clock goes on"
    assert query.lastProgress is not None
    read_to = json.loads(query.lastProgress["sources"][0]["endOffset"])["brokers"]["site1"]["offset"]
    assert read_to == len(PULSES) + 2, "the new row was read, whatever the last query left unfinished"


def said(topic: str, wanted: str, seconds: float) -> Run:
    """What `braidmq sub '$demand/#' --json | braidmq pub exhaust/demand --stdin-lines` publishes."""
    told = Received(f"$demand/{topic}", wanted.encode(), 1, False, False, at(seconds), {}, [])
    return row(DEMAND_TOPIC, json.dumps(as_json(told)), seconds)


def test_exhaust_tells_what_was_wanted_from_what_was_not(spark: SparkSession, tmp_path: Path) -> None:
    first = [row("a", "1", 0), said("a", "0", 1), row("a", "22", 2), row("a", "333", 3), row("b", "7777777", 3)]
    then = [said("a", "1", 4), row("a", "4444", 5), row(DEMAND_TOPIC, "no line of sub", 6), said("a", "0", 7)]
    write(tmp_path / "site1" / "log", [*first, *then, row("a", "55555", 8)])
    write(tmp_path / "site2" / "log", [said("a", "1", 0), row("a", "666666", 1)], "site2")
    rows = read(spark, str(tmp_path))
    names = ("messages", "bytes", "wanted_bytes", "unwanted_bytes", "unknown_bytes")
    found = exhaust(rows).na.fill("all", ["site", "topic"])
    assert tuples(found, "site", "topic", *names) == [
        ("all", "all", 7, 28, 10, 10, 8),
        ("site1", "a", 5, 15, 4, 10, 1),
        ("site1", "all", 6, 22, 4, 10, 8),
        ("site1", "b", 1, 7, 0, 0, 7),
        ("site2", "a", 1, 6, 6, 0, 0),
        ("site2", "all", 1, 6, 6, 0, 0),
    ]
    assert exhaust(rows.where("offset < 0")).collect() == []
    asked = Job(PIPELINES["exhaust"], {"path": str(tmp_path), "topics": "a"}, {}).batch(spark)
    assert tuples(asked.where("site IS NULL"), *names) == [(6, 21, 10, 10, 1)], "what was said is read as well"


def test_an_archive_grows_once_by_what_is_new(spark: SparkSession, tmp_path: Path) -> None:
    logs, out, state = tmp_path / "logs", str(tmp_path / "archive"), str(tmp_path / "state")
    job = Job(PIPELINES["archive"], {"path": str(logs), "startingOffsets": "earliest"}, {})

    def run() -> list[tuple[Any, ...]]:
        query = job.start(spark, ToFolder(out), state, is_once=True)
        assert query.awaitTermination(END_S), "it ends by itself"
        return tuples(spark.read.parquet(out), "topic", "payload", "origin", "offset", "day", "site")

    day = NOON.date()
    write(logs / "site1" / "log", [row("a", "1", 0), row("a", "2", -43_201)])
    before = run()
    assert before == [
        ("a", b"1", "site1", 0, day, "site1"),
        ("a", b"2", "site1", 1, day - timedelta(days=1), "site1"),
    ]
    write(logs / "site2" / "log", [row("b", "3", 1)], "host:8")
    assert run() == [*before, ("b", b"3", "host:8", 0, day, "host:8")], "nothing is written twice"
    assert sorted(os.listdir(tmp_path / "archive" / f"day={day}")) == ["site=host%3A8", "site=site1"]
    assert PIPELINES["archive"].partitions == PARTITIONS
    assert set(spark.read.parquet(out).columns) == set(archive(read(spark, str(logs))).columns)


def test_windows_of_a_stream_come_once_when_they_are_over(spark: SparkSession, tmp_path: Path) -> None:
    folder, out, state = tmp_path / "log", str(tmp_path / "windows"), str(tmp_path / "state")
    job = Job(
        PIPELINES["windows"], {"path": str(folder), "startingOffsets": "earliest"}, {"every_s": 60, "delay_s": 30}
    )

    def run(*rows: Run) -> list[tuple[Any, ...]]:
        write(folder, rows)
        query = job.start(spark, ToFolder(out), state, is_once=True)
        assert query.awaitTermination(END_S)
        return tuples(spark.read.parquet(out), "topic", "starts_at", "messages", "mean")

    assert run(row("t", "1", 0), row("t", "2", 70)) == [], "something for the first minute may still come"
    assert run(row("t", "3", 50), row("t", "4", 95)) == [("t", at(0), 2, 2.0)]


def test_rows_are_published_about_what_they_are(spark: SparkSession, tmp_path: Path) -> None:
    path = write(
        tmp_path / "log", [row("a/b", "1", 0, client="c#1+"), row("pipeline/windows/a/b", "{}", 1, client="me")]
    )
    made = Job(PIPELINES["windows"], {"path": path}, {})
    ((topic, payload),) = made.publications(made.batch(spark)).collect()
    assert topic == "pipeline/windows/a/b", "and what a pipeline has published is not looked at again"
    assert json.loads(payload) == {
        "topic": "a/b",
        "starts_at": "2026-11-16T12:00:00.000Z",
        "ends_at": "2026-11-16T12:01:00.000Z",
        "messages": 1,
        "bytes": 1,
        "numbers": 1,
        "minimum": 1.0,
        "mean": 1.0,
        "maximum": 1.0,
    }
    by_client = Job(PIPELINES["sessions"], {"path": path}, {})
    assert [one.topic for one in by_client.publications(by_client.batch(spark)).collect()] == ["pipeline/sessions/c_1_"]


def test_the_command_shows_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    path = write(tmp_path / "log", SENSORS)
    done = in_process(
        "pipeline", "run", "sessions", "--path", path, "--once", "--by", "topic", "--gap", "10s", "--json"
    )
    assert (done.returncode, done.stderr) == (0, "")
    shown = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(one["topic"], one["began_at"][14:19], one["seconds"], one["messages"]) for one in shown] == [
        ("other", "00:03", 0.0, 1),
        ("pulse", "00:00", 9.0, 7),
        ("pulse", "00:30", 0.0, 1),
    ]
    table = in_process("pipeline", "run", "exhaust", "--path", path, "-n", "1").stdout
    assert [word for word in table.splitlines()[-2].split() if word.isalnum()] == [
        "all",
        "all",
        "9",
        "9",
        "0",
        "0",
        "9",
    ]
    nowhere = in_process("pipeline", "run", "windows", "--path", tmp_path / "none", "--once")
    assert nowhere.returncode == 3
    assert nowhere.stderr.startswith(f"Error: there is no folder {tmp_path / 'none'}")


WRONG = {
    "there is no pipeline window": ["window", "--path", "x"],
    "either --brokers or --path": ["windows"],
    "--gap is not for windows": ["windows", "--path", "x", "--gap", "5min"],
    "--every 5 weeks is no duration": ["windows", "--path", "x", "--every", "5 weeks"],
    "--from noon is no time": ["windows", "--path", "x", "--from", "noon"],
    "archive is made of files": ["archive", "--path", "x"],
    "both --out and --publish": ["windows", "--path", "x", "--out", "y", "--publish", "http://127.0.0.1:9883"],
    "it has no checkpoint": ["exhaust", "--path", "x", "--checkpoint", "y"],
    "without a checkpoint": ["alarms", "--path", "x", "--publish", "http://127.0.0.1:9883"],
    ". is there already": ["archive", "--path", "x", "--out", ".", "--once"],
}


@pytest.mark.parametrize("words", WRONG, ids=lambda words: words.strip(". "))
def test_what_cannot_be_meant_is_told_before_spark_starts(words: str) -> None:
    done = in_process("pipeline", "run", *WRONG[words])
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr


def test_the_list_has_the_options_that_the_functions_take() -> None:
    shown = [json.loads(line) for line in in_process("pipeline", "list", "--json").stdout.splitlines()]
    assert [one["name"] for one in shown] == ["windows", "sessions", "alarms", "exhaust", "archive"]
    assert all(one["name"] in in_process("pipeline", "list").stdout for one in shown)
    for one in PIPELINES.values():
        taken = inspect.signature(one.function).parameters
        assert set(one.options) == {name for name in taken if name not in ("rows", "now")}
    assert set(PIPELINES["exhaust"].topics) == {DEMAND_TOPIC}
