"""What is appended is read again: whole, in order, whatever became of the process in between."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.log.decoding import STRETCH_ROWS
from braidmq.log.log import Log
from braidmq.log.offsets import RESERVE, read_offsets
from braidmq.log.partition import partition_of
from braidmq.log.payloads import TOGETHER_MIN
from braidmq.log.reader import LogReader
from braidmq.log.run import Run
from braidmq.log.schema import SCHEMA
from braidmq.log.write_buffer import WriteBuffer
from braidmq.mqtt.topics import matches
from braidmq.mqtt.wire import string, varint
from tests.log.rows import EVER, START_US, crashed_copy, numbers_in, read_all, row, write


def packets(topic: str, payloads: list[bytes], is_v5: bool = False) -> Run:
    """A run as the fast path hands it over."""
    name = string(topic) + (b"\0" if is_v5 else b"")
    made = [b"\x30" + varint(len(name) + len(payload)) + name + payload for payload in payloads]
    return Run(
        topic.encode(),
        b"c",
        START_US,
        0,
        False,
        len(made),
        b"".join(made),
        len(made[0]) - len(payloads[0]),
        len(made[0]),
    )


def test_a_row_has_all_that_was_published(tmp_path: Path) -> None:
    log = Log(tmp_path, "edge1")
    log.append(
        [
            Run.of(
                "größe/1",
                b"\x00\xff",
                START_US + 7,
                client="sensor ü",
                qos=2,
                retain=True,
                properties=[("b", "1"), ("a", "2"), ("b", "1"), ("content-type", "x/y")],
                published_us=START_US,
            ),
            Run.of("größe/1", b"", START_US + 8),
        ]
    )
    first, second = read_all(LogReader(tmp_path))
    at = datetime.fromtimestamp(START_US / 1e6, UTC)
    assert first == {
        "topic": "größe/1",
        "payload": b"\x00\xff",
        "qos": 2,
        "retain": True,
        "published_at": at,
        "received_at": at + timedelta(microseconds=7),
        "origin": "edge1",
        "client": "sensor ü",
        "properties": [
            {"name": "b", "value": "1"},
            {"name": "a", "value": "2"},
            {"name": "b", "value": "1"},
            {"name": "content-type", "value": "x/y"},
        ],
        "offset": 0,
    }
    assert (second["payload"], second["client"], second["properties"], second["retain"]) == (b"", None, None, False)
    assert second["published_at"] == second["received_at"] == at + timedelta(microseconds=8)
    log.close()


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b/c", "d" * 200]),
            st.one_of(
                st.lists(st.binary(max_size=300), min_size=1, max_size=9),
                st.tuples(st.binary(max_size=200), st.integers(1, 300)).map(lambda one: [one[0]] * one[1]),
            ),
            st.booleans(),
        ),
        min_size=1,
        max_size=8,
    )
)
@settings(max_examples=40, deadline=None)
def test_runs_of_packets_are_cut_into_their_payloads(runs: list[tuple[str, list[bytes], bool]]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        log = Log(folder, "b", partitions=3)
        log.append([packets(*run) for run in runs])
        rows = read_all(LogReader(folder))
        log.close()
    expected = [(topic, payload) for topic, payloads, _ in runs for payload in payloads]
    assert [(one["topic"], one["payload"]) for one in rows] == expected
    assert [one["offset"] for one in rows] == list(range(len(expected)))


@pytest.mark.parametrize("runs", [TOGETHER_MIN - 1, TOGETHER_MIN, 3 * TOGETHER_MIN])
def test_many_runs_of_several_sizes_at_a_time(tmp_path: Path, runs: int) -> None:
    """Some of them are much longer than the others, some even; lengths have one to three bytes."""
    sizes = (0, 5, 130, 40, 20_000, 126)
    counts = [1 + run * 7 % 23 + (300 if run % 50 == 7 else 0) for run in range(runs)]
    written = [
        [bytes([run & 255]) * (sizes[(run + row * (run % 4)) % 6] if row < 20 else row % 9) for row in range(count)]
        for run, count in enumerate(counts)
    ]
    log = Log(tmp_path, "b", partitions=3)
    log.append([packets(f"t/{run % 20}", payloads, run % 2 == 0) for run, payloads in enumerate(written)])
    found = read_all(LogReader(tmp_path))
    expected = [(f"t/{run % 20}", payload) for run, payloads in enumerate(written) for payload in payloads]
    assert [(one["topic"], one["payload"]) for one in found] == expected
    log.close()


def test_equal_sums_of_sizes_are_not_taken_for_equal_sizes(tmp_path: Path) -> None:
    log = Log(tmp_path, "b")
    log.append([packets("t", [b"aa", b"b", b"ccc"])])
    assert [one["payload"] for one in read_all(LogReader(tmp_path))] == [b"aa", b"b", b"ccc"]
    log.close()


@pytest.mark.parametrize("edge", [1 << 7, 1 << 14, 1 << 21])
def test_lengths_of_one_to_four_bytes(tmp_path: Path, edge: int) -> None:
    sizes = [edge + more for more in range(-6, 4)]
    payloads = [bytes([size & 255]) * size for size in sizes]
    log = Log(tmp_path, "b", partitions=1)
    log.append(
        [packets("t", payloads), *[packets("tt", [payload] * 2) for payload in payloads], packets("t", [b""] * 3)]
    )
    expected = [*payloads, *[payload for payload in payloads for _ in range(2)], b"", b"", b""]
    assert [one["payload"] for one in read_all(LogReader(tmp_path))] == expected
    log.close()


def test_batches_have_the_schema_and_are_put_together(tmp_path: Path) -> None:
    log = Log(tmp_path, "b", partitions=1)
    for number in range(300):
        write(log, number)
    (batch,) = LogReader(tmp_path).read(0, 0, EVER)
    assert batch.schema.equals(SCHEMA)
    assert batch.num_rows == 300
    batch.validate(full=True)
    for first in (300, 300 + STRETCH_ROWS):
        write(log, *range(first, first + STRETCH_ROWS))
    small = list(LogReader(tmp_path).read(0, 0, EVER, batch_bytes=1))
    assert [one.num_rows for one in small] == [300 + STRETCH_ROWS, STRETCH_ROWS]
    large = list(LogReader(tmp_path).read(0, 0, EVER, batch_bytes=1 << 30))
    assert len(large) == 1
    assert pa.Table.from_batches(small).equals(pa.Table.from_batches(large))
    log.close()


@pytest.mark.parametrize("filters", [(), ("t/1", "t/3")])
def test_only_the_columns_that_are_wanted(tmp_path: Path, filters: tuple[str, ...]) -> None:
    log = Log(tmp_path, "b", partitions=1)
    for number in range(10):
        write(log, number)
    whole = pa.Table.from_batches(LogReader(tmp_path).read(0, 0, EVER, filters))
    some = pa.Table.from_batches(LogReader(tmp_path).read(0, 0, EVER, filters, columns=["payload", "client"]))
    assert some.equals(whole.select(["payload", "client", "offset"]))
    assert some.num_rows == (4 if filters else 10)
    with pytest.raises(ValueError, match="there is no column 'colour'; there are topic, payload"):
        list(LogReader(tmp_path).read(0, 0, EVER, columns=["colour"]))
    log.close()


@given(
    start=st.integers(-3, 60),
    until=st.integers(-3, 60),
    filters=st.sets(st.sampled_from(["t/1", "t/+", "#", "x", "+/3", "t"])),
)
@settings(max_examples=60, deadline=None)
def test_ranges_and_filters(
    start: int, until: int, filters: set[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp() / "ranges"
    if not folder.exists():
        log = Log(folder, "b", partitions=3)
        for first in range(0, 50, 7):
            write(log, *range(first, min(50, first + 7)))
        log.close()
    rows = read_all(LogReader(folder), start, until, tuple(filters))
    expected = [
        number
        for number in range(max(0, start), min(50, until))
        if not filters or any(matches(one, f"t/{number % 5}") for one in filters)
    ]
    assert [one["offset"] for one in rows] == expected


def test_a_topic_has_one_partition_for_ever() -> None:
    assert [partition_of(topic, 8) for topic in ("telemetry/1", b"telemetry/1", "a", "größe")] == [2, 2, 3, 1]


def test_offsets_go_on_where_they_were(tmp_path: Path) -> None:
    for round_ in range(3):
        log = Log(tmp_path, "b")
        assert log.next_offset == 10 * round_
        write(log, *range(10 * round_, 10 * round_ + 10))
        log.close()
    assert numbers_in(tmp_path) == list(range(30))
    assert LogReader(tmp_path).state().next_offset == 30


def test_after_a_crash_no_offset_comes_again(tmp_path: Path) -> None:
    log = Log(tmp_path / "0", "b")
    write(log, 0, 1, 2)
    seen = {0, 1, 2}
    for round_number in range(3):
        folder = crashed_copy(tmp_path / str(round_number), tmp_path / str(round_number + 1))
        again = Log(folder, "b")
        assert again.next_offset > max(seen)
        write(again, 100 + round_number)
        (new,) = [one["offset"] for one in read_all(LogReader(folder)) if one["offset"] not in seen]
        assert new > max(seen)
        seen.add(new)
        again.close()
    log.close()
    assert numbers_in(tmp_path / "3") == [0, 1, 2, 100, 101, 102]


def test_even_when_all_but_the_reserve_is_lost(tmp_path: Path) -> None:
    """As after a power cut: what was read may be gone, but nothing else stands under its offset."""
    log = Log(tmp_path / "log", "b")
    early = crashed_copy(tmp_path / "log", tmp_path / "early")
    write(log, *range(50))
    log.close()
    again = Log(early, "b")
    assert again.next_offset >= 50
    again.close()


def test_the_reserve_grows_before_it_is_used(tmp_path: Path) -> None:
    log = Log(tmp_path, "b")
    many = packets("t", [b"x"])._replace(first=RESERVE // 2 + 5)
    log.append([many])
    assert read_offsets(tmp_path).reserved == RESERVE
    log.reserve()
    assert read_offsets(tmp_path).reserved == log.next_offset + RESERVE
    log.append([many._replace(first=3 * RESERVE)])
    assert read_offsets(tmp_path).reserved > log.next_offset > 3 * RESERVE
    log.close()


@given(
    runs=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4), st.integers(0, 3)), min_size=1, max_size=30),
    used=st.integers(0, 60),
)
@settings(max_examples=40, deadline=None)
def test_offsets_that_are_used_by_now_are_replaced_by_higher_ones(
    tmp_path_factory: pytest.TempPathFactory, runs: list[tuple[int, int, int]], used: int
) -> None:
    """Runs of some topics with gaps between their offsets, which other rows may have been given meanwhile."""
    folder = tmp_path_factory.mktemp("log")
    log = Log(folder, "b", partitions=3)
    if used:
        log.append([packets("before", [b""] * used)])
    buffer = WriteBuffer(3)
    promised, following = 0, used
    expected = []
    for number, (topic, rows, gap) in enumerate(runs):
        promised += gap
        run = packets(f"t/{topic}", [b"%d" % number] * rows)._replace(first=promised)
        buffer.add_run(run)
        following = max(promised, following)
        expected += [(following + row, b"%d" % number) for row in range(rows)]
        promised += rows
        following += rows
    log.append_contents(buffer.contents)
    assert log.next_offset == following
    assert [(one["offset"], one["payload"]) for one in read_all(LogReader(folder), start=used)] == expected
    log.close()


def test_offsets_by_time_and_by_number(tmp_path: Path) -> None:
    log = Log(tmp_path / "0", "b", partitions=3)
    for number in range(0, 30, 3):
        write(log, number, number + 1, number + 2)
    folder = crashed_copy(tmp_path / "0", tmp_path / "1")
    log.close()
    log = Log(folder, "b", partitions=3)  # with a gap
    gap_end = log.next_offset
    write(log, 30, 31)
    reader = LogReader(folder)
    start = datetime.fromtimestamp(START_US / 1e6, UTC)
    for number in (0, 1, 17, 29):
        assert reader.offset_at(start + timedelta(seconds=number)) == number
        assert reader.offset_at((start + timedelta(seconds=number - 0.5)).replace(tzinfo=None)) == number
    assert reader.offset_at(start + timedelta(seconds=30)) == gap_end
    assert reader.offset_at(start + timedelta(seconds=31.5)) == gap_end + 2
    assert reader.offset_after(0, 10) == 10
    assert reader.offset_after(25, 5) == 30
    assert reader.offset_after(25, 6) == gap_end + 1
    assert reader.offset_after(25, 1000) == gap_end + 2
    assert reader.offset_after(30, 1) == gap_end + 1
    assert reader.offset_after(gap_end + 2, 10) == gap_end + 2
    log.close()


def test_qos_is_as_it_was(tmp_path: Path) -> None:
    log = Log(tmp_path, "b", sync="full")
    log.append([row(number, qos=number % 3) for number in range(100)])
    assert [one["qos"] for one in read_all(LogReader(tmp_path))] == [number % 3 for number in range(100)]
    log.close()


def test_a_small_commit_stays_small(tmp_path: Path) -> None:
    log = Log(tmp_path, "b", partitions=1)
    write(log, 0)
    before = log.bytes
    write(log, 1)
    assert log.bytes - before < 1500
    log.append([packets("t", [b"x" * 100] * 1000)])
    assert log.bytes - before < 100_000
    log.close()
