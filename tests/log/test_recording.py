"""Brokers that keep a log: real ones, with real clients, killed and asked again."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from braidmq.broker.recorder import LOST
from braidmq.log.errors import LogError
from braidmq.log.opening import open_log
from braidmq.log.reader import LogReader
from braidmq.log.remote import RemoteLog
from braidmq.log.run import Run
from braidmq.log.shared_memory import REGION_BYTES
from braidmq.log.writer_messages import WriterSettings
from braidmq.log.writer_process import WriterProcess
from braidmq.server import log_recorder
from braidmq.server.log_recorder import WAITING_BYTES_MAX, WRITE_BYTES_MAX, WRITE_S, LogRecorder
from tests.conformance.wire import V3, V5, Will, props
from tests.log.rows import EVER, START_US, read_all
from tests.patience import PATIENCE_S
from tests.raw import Client, crash, metrics, opened, wait_until

if TYPE_CHECKING:
    from tests.conftest import Broker, StartBroker

LOG = """
[log]
topics = ["telemetry/#", "other/+/kept"]
partitions = 4
[admin]
port = 0
"""


def folder_of(broker: Broker) -> Path:
    return broker.data / "log"


def rows_of(broker: Broker, count: int, read: Callable[[], Any] | None = None) -> list[dict[str, Any]]:
    """The rows in the log, once there are so many."""
    source = LogReader(folder_of(broker)) if read is None else read()
    wait_until(lambda: len(read_all(source)) >= count, f"{count} rows in the log")
    return read_all(source)


def essence(rows: list[dict[str, Any]]) -> list[tuple[str, bytes, int, bool, str | None]]:
    return [(one["topic"], one["payload"], one["qos"], one["retain"], one["client"]) for one in rows]


@pytest.mark.parametrize("version", [V3, V5])
def test_what_is_published_is_kept(start_broker: StartBroker, version: int) -> None:
    broker = start_broker(LOG)
    before = datetime.now(UTC)
    with opened(broker, "writer", version) as writer:
        for qos in (0, 1, 2):
            writer.publish("telemetry/1", b"first %d" % qos, qos)
            writer.publish("telemetry/1", b"again %d" % qos, qos)  # by the fast path now
            writer.publish("unkept/1", b"not this", qos)
            writer.publish("other/x/kept", b"", qos, retain=True)
        writer.send(*[writer.packet("telemetry/run", b"same %03d" % number) for number in range(100)])
        writer.send(*[writer.packet("telemetry/run", b"x" * (number % 7)) for number in range(100)])
        writer.publish("telemetry/end", b"", 1)
    rows = rows_of(broker, 210)
    single = [("telemetry/1", b"first", False), ("telemetry/1", b"again", False), ("other/x/kept", b"", True)]
    expected = [
        (topic, text + b" %d" % qos if text else b"", qos, retain, "writer")
        for qos in (0, 1, 2)
        for topic, text, retain in single
    ]
    expected += [("telemetry/run", b"same %03d" % number, 0, False, "writer") for number in range(100)]
    expected += [("telemetry/run", b"x" * (number % 7), 0, False, "writer") for number in range(100)]
    assert essence(rows) == [*expected, ("telemetry/end", b"", 1, False, "writer")]
    assert {one["origin"] for one in rows} == {"braidmq"}
    times = [one["received_at"] for one in rows]
    assert before <= times[0]
    assert times == sorted(times)
    assert times[-1] <= datetime.now(UTC)
    counted = metrics(broker)
    assert counted["log_rows_total"] == counted["log_next_offset"] == 210
    assert counted["log_rows_dropped_total"] == counted["log_corrupt_batches_total"] == 0


def test_properties_and_the_time_that_a_device_says(start_broker: StartBroker) -> None:
    broker = start_broker(LOG)
    said = ["2026-01-31T12:00:00.5+01:00", "1800000000000001", "yesterday", "9" * 30]
    with opened(broker, "writer") as writer:
        for text in said:
            properties = props(
                user=[("b", "1"), ("published_at", text), ("b", "2")],
                content_type="application/json",
                response_topic="answers",
                correlation_data=b"\x00\xff",
                payload_format=1,
            )
            writer.publish("telemetry/1", b"{}", 1, properties=properties)
    rows = rows_of(broker, 4)
    assert [(one["name"], one["value"]) for one in rows[0]["properties"]] == [
        ("b", "1"),
        ("published_at", said[0]),
        ("b", "2"),
        ("content-type", "application/json"),
        ("response-topic", "answers"),
        ("correlation-data", "AP8="),
        ("payload-format-indicator", "1"),
    ]
    assert rows[0]["published_at"] == datetime(2026, 1, 31, 11, 0, 0, 500_000, UTC)
    assert rows[1]["published_at"] == datetime.fromtimestamp(1_800_000_000, UTC).replace(microsecond=1)
    for one in rows[2:]:
        assert one["published_at"] == one["received_at"]


def test_a_will_is_kept(start_broker: StartBroker) -> None:
    broker = start_broker(LOG)
    client = Client(broker, "mortal", will=Will("telemetry/wills", b"gone", qos=1))
    client.socket.close()
    assert essence(rows_of(broker, 1)) == [("telemetry/wills", b"gone", 1, False, "mortal")]


class Writers:
    """Clients that publish numbers with QoS 1 and 2, and know which of them were acknowledged."""

    def __init__(self, broker: Broker, life: int) -> None:
        self.acknowledged: set[bytes] = set()
        self._threads = [
            threading.Thread(target=self._publish, args=(broker, f"{life}-{number}", 1 + number % 2))
            for number in range(4)
        ]
        for thread in self._threads:
            thread.start()

    def _publish(self, broker: Broker, name: str, qos: int) -> None:
        try:
            with opened(broker, name) as client:
                for number in range(1_000_000):
                    payload = f"{name} {number}".encode()
                    client.publish(f"telemetry/{name}", payload, qos)
                    self.acknowledged.add(payload)
        except (OSError, AssertionError):
            pass  # the broker is dead

    def wait(self) -> set[bytes]:
        for thread in self._threads:
            thread.join()
        return self.acknowledged


@pytest.mark.parametrize("sync", ["normal", "full"])
def test_what_was_acknowledged_survives_kill_9(start_broker: StartBroker, sync: str) -> None:
    broker = start_broker(LOG + f'[store]\nsync = "{sync}"\n')
    acknowledged: set[bytes] = set()
    highest = -1
    for life in range(3):
        writers = Writers(broker, life)
        wait_until(lambda: len(writers.acknowledged) >= 150, "150 acknowledgements")  # noqa: B023
        broker.kill9()
        acknowledged |= writers.wait()
        reader = LogReader(folder_of(broker))
        end = reader.state().next_offset  # the rest may still be written
        seen = read_all(reader, until=end)
        broker.restart()
        assert read_all(reader, until=end) == seen, "the same rows under the same offsets"
        rows = read_all(reader)
        assert acknowledged <= {one["payload"] for one in rows}
        new = [one["offset"] for one in rows if one["payload"].startswith(f"{life}-".encode())]
        assert min(new) > highest
        highest = max(one["offset"] for one in rows)
        assert reader.state().next_offset > highest
    assert "Traceback" not in broker.log


def test_rows_of_qos_0_are_there_soon(start_broker: StartBroker) -> None:
    broker = start_broker(LOG)
    with opened(broker, "writer") as writer:
        for number in range(20):
            writer.publish("telemetry/1", b"%d" % number)
            rows_of(broker, number + 1)
        writer.publish("telemetry/1", b"last")
        rows_of(broker, 21)
        crash(broker)
    assert len(rows_of(broker, 21)) == 21


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


def answer_of(broker: Broker, path: str) -> tuple[int, Any]:
    try:
        with urlopen(broker.address("http") + path) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        return error.code, json.load(error)


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


def test_topics_can_change_while_it_runs(start_broker: StartBroker, tmp_path: Path) -> None:
    config = tmp_path / "braidmq.toml"
    config.write_text("[admin]\nport = 0\n")
    broker = start_broker(arguments=["--config", str(config)])
    writer = Client(broker, "writer")
    writer.publish("a/1", b"before", 1)
    for topics in (["a/#"], ["b/#"], []):
        config.write_text(f"[admin]\nport = 0\n[log]\ntopics = {json.dumps(topics)}\n")
        told = broker.log.count("reloaded:")
        broker.signal(signal.SIGHUP)
        wait_until(lambda: broker.log.count("reloaded:") > told, "the reload")  # noqa: B023
        for _ in range(2):
            writer.publish("a/1", json.dumps(topics).encode(), 1)
            writer.publish("b/1", json.dumps(topics).encode(), 0)
            writer.publish("b/1", json.dumps(topics).encode(), 1)
    rows = rows_of(broker, 6)
    assert [(one["topic"], one["payload"]) for one in rows] == [("a/1", b'["a/#"]')] * 2 + [("b/1", b'["b/#"]')] * 4


def test_each_publication_is_kept_once_in_a_braid(start_broker: StartBroker) -> None:
    """At the broker where its client is, and not where it is subscribed to."""
    arguments = ["--set", 'log.topics=["telemetry/#"]', "--brokers", "2", "--admin-port", "0", "--port", "0"]
    broker = start_broker(arguments=arguments)
    ports = [int(one.rpartition(":")[2]) for one in broker.addresses if one.startswith("mqtt:")]
    import socket

    clients = []
    for number, port in enumerate(ports):
        over = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        clients.append(Client(broker, f"client{number}", over=over))
        clients[-1].subscribe("telemetry/#", 1)
    for number, client in enumerate(clients):
        for qos in (0, 1, 1, 0):
            client.publish(f"telemetry/{number}", b"from %d" % number, qos)
    for client in clients:
        assert len(client.messages(8)) == 8
    for number in range(2):
        reader = LogReader(broker.data / f"site{number + 1}" / "log")
        wait_until(lambda: len(read_all(reader)) >= 4, "4 rows")  # noqa: B023
        rows = read_all(reader)
        assert [(one["payload"], one["origin"]) for one in rows] == [(b"from %d" % number, f"site{number + 1}")] * 4


def test_a_broker_without_a_log_does_without_pyarrow(start_broker: StartBroker, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text("import sys\nsys.modules['pyarrow'] = sys.modules['numpy'] = None\n")
    env = {"PYTHONPATH": str(hidden)}
    broker = start_broker(env=env)
    with opened(broker, "writer") as writer:
        writer.publish("telemetry/1", b"x", 1)
    command = [sys.executable, "-m", "braidmq", "up", "--port", "0", "--data", str(tmp_path / "data")]
    done = subprocess.run(
        [*command, "--set", 'log.topics=["a"]'], capture_output=True, text=True, env=env, timeout=60, check=False
    )
    assert done.returncode == 2
    assert 'pip install "braidmq[log]"' in done.stderr


def test_the_process_that_writes_may_die(start_broker: StartBroker) -> None:
    broker = start_broker(LOG)
    written: set[bytes] = set()
    for life in range(3):
        if life:
            os.kill(writer_of(broker), signal.SIGKILL)
        with opened(broker, "writer") as client:
            for number in range(20):
                payload = b"%d %d" % (life, number)
                client.publish("telemetry/1", payload, 0)
                if number == 10:
                    broker_rows = LogReader(folder_of(broker))
                    wait_until(
                        lambda: payload in {one["payload"] for one in read_all(broker_rows)},  # noqa: B023
                        "the row of a new writer",
                    )
                written.add(payload)
            assert client.publish("telemetry/1", b"%d end" % life, 1) in (0, 0x10)
            written.add(b"%d end" % life)
        wait_until(lambda: written <= {one["payload"] for one in read_all(LogReader(folder_of(broker)))}, "all rows")
    assert "has died; it is started again" in broker.log
    crash(broker)
    assert written <= {one["payload"] for one in rows_of(broker, len(written))}


def writer_of(broker: Broker) -> int:
    """The process that writes the log of a broker."""
    found = subprocess.run(["ps", "--ppid", str(broker.pid), "-o", "pid=,args="], capture_output=True, text=True)
    (pid,) = [line.split()[0] for line in found.stdout.splitlines() if "braidmq.log.writer" in line]
    return int(pid)


def test_a_log_that_cannot_be_written(start_broker: StartBroker) -> None:
    """A file in the place of a partition's folder stands in for a disk that fails."""
    broker = start_broker(LOG.replace("partitions = 4", "partitions = 1"))
    blocker = folder_of(broker) / "partition-000"
    blocker.write_text("")
    client = Client(broker, "writer")
    client.publish("telemetry/1", b"noted", 1)
    broker.wait_for_log("cannot be written")
    client.send(client.packet("telemetry/1", b"unacknowledged", 1, 7))
    client.expect_end()
    broker.wait_for_log("QoS 1 and 2 are refused")
    with opened(broker, "reader") as other:
        assert other.publish("telemetry/1", b"refused", 1) == 0x97
        other.publish("telemetry/1", b"kept for later", 0)
    blocker.unlink()
    broker.wait_for_log("can be written again")
    with opened(broker, "writer") as again:
        again.publish("telemetry/1", b"after", 1)
    payloads = [one["payload"] for one in rows_of(broker, 4)]
    assert payloads == [b"noted", b"unacknowledged", b"kept for later", b"after"]


def test_portions_come_whole_whatever_their_size(tmp_path: Path) -> None:
    """A buffer is used again and again; what has no room in the shared memory goes beside it, in its order."""
    writer = WriterProcess(WriterSettings(str(tmp_path / "log"), "b", 2, 1 << 20, 0, 0.0, "normal"))
    payloads: list[bytes] = []

    def write(number: int, *sizes: int) -> None:
        buffer = writer.buffers[number]
        for size in sizes:
            payloads.append(b"%d " % len(payloads) + bytes([len(payloads) % 256]) * size)
            buffer.add_run(
                Run.of(f"t/{len(payloads) % 3}", payloads[-1], START_US, client=None)._replace(first=len(payloads) - 1)
            )
        writer.append(buffer)
        buffer.clear()

    assert resident(writer) < 1 << 20
    for time_over in range(3):
        write(time_over % 2, *[3 * size for size in range(500)])
    write(0, 100, REGION_BYTES - 1000, 100, 3000, 0, 100, REGION_BYTES + 1, 100)
    assert resident(writer) > REGION_BYTES
    write(0, 1)
    assert resident(writer) < REGION_BYTES, "what was seldom needed is given back"
    write(1, 5, 6)
    write(0, 7)
    writer.close()
    assert [one["payload"] for one in read_all(LogReader(tmp_path / "log"))] == payloads


def resident(writer: WriterProcess) -> int:
    """Bytes of shared memory that are in use."""
    return os.fstat(writer._memory.file).st_blocks * 512


MEGABYTE = b"m" * (1 << 20)


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LogRecorder]:
    """One that rests for an hour before it writes, if nothing else makes it."""
    monkeypatch.setattr(log_recorder, "WRITE_EVERY_S", 3600.0)
    monkeypatch.setattr(log_recorder, "RETRY_S", 0.01)
    settings = WriterSettings(str(tmp_path / "log"), "b", 1, 1 << 26, 0, 0.0, "normal")
    made = LogRecorder(WriterProcess(settings), ["#"])
    yield made
    made.close()


def test_a_whole_portion_waits_for_no_more(recorder: LogRecorder) -> None:
    buffer = WRITE_BYTES_MAX // len(MEGABYTE)
    for _ in range(buffer + 1):  # the last one finds that a buffer waits
        recorder.take_plain(b"t", "c", 1.0, MEGABYTE, 0)
    wait_until(lambda: recorder.is_written(buffer), "a buffer is written")
    recorder.take_plain(b"t", "c", 1.0, b"after it", 0)
    assert not recorder.is_written(recorder.next_offset)


def test_portions_are_smaller_where_writing_takes_long(recorder: LogRecorder) -> None:
    assert recorder.log.pid is not None
    os.kill(recorder.log.pid, signal.SIGSTOP)
    try:
        buffer = WRITE_BYTES_MAX // len(MEGABYTE)
        for _ in range(buffer + 1):
            recorder.take_plain(b"t", "c", 1.0, MEGABYTE, 0)
        time.sleep(5 * WRITE_S)
    finally:
        os.kill(recorder.log.pid, signal.SIGCONT)
    wait_until(lambda: recorder.is_written(buffer), "a large buffer is written")
    for _ in range(buffer // 4):
        recorder.take_plain(b"t", "c", 1.0, MEGABYTE, 0)
    wait_until(lambda: recorder.is_written(buffer + buffer // 8), "less waits for no more")


def test_publishers_are_held_up_and_nothing_is_lost(recorder: LogRecorder) -> None:
    """While the writer stands still, two buffers are taken and no third."""
    assert recorder.log.pid is not None
    buffer = WRITE_BYTES_MAX // len(MEGABYTE)
    taken = 0

    def publish() -> None:
        nonlocal taken
        for number in range(4 * buffer):
            recorder.take_plain(b"t/%d" % (number % 3), "c", 1.0, b"%d " % number + MEGABYTE, 0)
            taken += 1

    publisher = threading.Thread(target=publish)
    os.kill(recorder.log.pid, signal.SIGSTOP)
    try:
        publisher.start()
        wait_until(lambda: taken >= 2 * buffer, "two buffers")
        time.sleep(0.5)
        assert publisher.is_alive()
        assert taken <= 2 * buffer + 2
    finally:
        os.kill(recorder.log.pid, signal.SIGCONT)
    publisher.join(60)
    recorder._write()
    numbers = [int(one["payload"].split()[0]) for one in read_all(LogReader(recorder.log.folder))]
    assert numbers == list(range(4 * buffer))
    assert recorder.dropped == 0


def test_what_waits_for_a_log_that_cannot_be_written_has_a_bound(recorder: LogRecorder) -> None:
    blocker = recorder.log.folder / "partition-000"
    blocker.write_text("")
    most = WAITING_BYTES_MAX // len(MEGABYTE)
    for _ in range(most + 5):
        recorder.take_plain(b"t", "c", 1.0, MEGABYTE, 0)
    wait_until(lambda: recorder.failures > 1, "it is tried again")
    for _ in range(2):
        recorder.take_plain(b"t", "c", 1.0, b"one too many", 0)
    assert recorder.last == LOST
    assert recorder.dropped >= 2
    kept = most + 7 - recorder.dropped
    assert most <= kept <= most + 1
    blocker.unlink()
    wait_until(lambda: recorder.is_written(kept), "it can be written again")
    recorder.take_plain(b"t", "c", 1.0, b"there is room", 0)
    assert recorder.last == kept
