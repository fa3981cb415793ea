"""Brokers that keep a log: real ones, with real clients, killed and asked again."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from braidmq.log.reader import LogReader
from tests.conformance.wire import V3, V5, Will, props
from tests.log.brokers import LOG, essence, folder_of, rows_of
from tests.log.rows import read_all
from tests.patience import PATIENCE_S
from tests.raw import Client, crash, metrics, opened, wait_until

if TYPE_CHECKING:
    from tests.conftest import Broker, StartBroker


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

    def __init__(self, broker: Broker, round_number: int) -> None:
        self.acknowledged: set[bytes] = set()
        self._threads = [
            threading.Thread(target=self._publish, args=(broker, f"{round_number}-{number}", 1 + number % 2))
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
    for round_number in range(3):
        writers = Writers(broker, round_number)
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
        new = [one["offset"] for one in rows if one["payload"].startswith(f"{round_number}-".encode())]
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
    for round_number in range(3):
        if round_number:
            os.kill(writer_of(broker), signal.SIGKILL)
        with opened(broker, "writer") as client:
            for number in range(20):
                payload = b"%d %d" % (round_number, number)
                client.publish("telemetry/1", payload, 0)
                if number == 10:
                    broker_rows = LogReader(folder_of(broker))
                    wait_until(
                        lambda: payload in {one["payload"] for one in read_all(broker_rows)},  # noqa: B023
                        "the row of a new writer",
                    )
                written.add(payload)
            assert client.publish("telemetry/1", b"%d end" % round_number, 1) in (0, 0x10)
            written.add(b"%d end" % round_number)
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
