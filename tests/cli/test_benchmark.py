"""`braidmq bench` against a real broker, and against one that loses messages."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from paho.mqtt.subscribe import simple as wait_for_message

from braidmq.cli.benchmark.clients import connect_packet, publish_head, split, subscribe_packet
from braidmq.cli.benchmark.load import SAMPLES_MAX, LatencySamples
from braidmq.mqtt.reasons import Reason
from tests.cli.commands import on_terminal
from tests.cli.mqtt import served
from tests.conftest import Broker, StartBroker
from tests.patience import PATIENCE_S

COMMAND = [sys.executable, "-m", "braidmq", "bench"]
TIMEOUT_S = PATIENCE_S


def bench(port: int, *arguments: Any) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, "-p", str(port), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)


def start(broker: Broker, *arguments: str) -> subprocess.Popen[bytes]:
    command = [*COMMAND, "-p", str(broker.port), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_all_messages_arrive(broker: Broker, qos: int) -> None:
    done = bench(broker.port, "-t", 0.5, "-P", 3, "-S", 4, "-T", 2, "-q", qos, "-s", 200, "-w", 100, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["lost"] == result["unacknowledged"] == 0
    assert result["sent"] > 0
    assert result["received"] == 2 * result["sent"]  # two subscribers a topic
    assert 0 < result["p50_us"] <= result["p99_us"] <= result["max_us"]
    assert result["in_per_s"] > 0
    assert (result["publishers"], result["subscribers"], result["topics"], result["qos"]) == (3, 4, 2, qos)
    assert done.stderr == ""


def test_messages_larger_than_a_read_are_counted(broker: Broker) -> None:
    done = bench(broker.port, "-t", 0.4, "-s", 300_000, "-w", 2, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["received"] == result["sent"] > 0


def test_publishers_without_subscribers_are_measured(broker: Broker) -> None:
    result = json.loads(bench(broker.port, "-t", 0.4, "-S", 0, "-q", 1, "--json").stdout)
    assert result["sent"] > 0
    assert result["received"] == result["lost"] == result["unacknowledged"] == 0


def test_idle_connections_are_counted(broker: Broker) -> None:
    done = bench(broker.port, "--connections", 200, "-t", 0.1, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["connections"], result["lost"]) == (200, 0)
    assert result["connects_per_s"] > 0


def test_the_table_is_for_people_and_progress_for_terminals(broker: Broker) -> None:
    done = bench(broker.port, "-t", 0.3)
    for word in ("in/s", "out/s", "p50", "p99", "max", "lost"):
        assert word in done.stdout
    assert done.stderr == ""
    process, shown = on_terminal("bench", "-p", broker.port, "-t", 1, "--json")
    assert b"in/s" in shown
    assert json.loads(process.communicate(timeout=TIMEOUT_S)[0])["lost"] == 0
    assert process.returncode == 0


@pytest.mark.parametrize("window", [1, 10])
def test_lost_messages_are_an_error_and_a_window_is_the_most_that_can_be_lost(window: int) -> None:
    with forgetful_server() as port:
        done = bench(port, "-t", 0.2, "-w", window, "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["lost"] == window
    assert f"{window} of {window} deliveries did not arrive" in done.stderr


def test_a_broker_that_ends_is_an_error(start_broker: StartBroker) -> None:
    broker = start_broker()
    idle = start(broker, "--connections", "20", "-t", "60", "--json")
    busy = start(broker, "-t", "60", "-x", "ending")
    assert idle.stderr is not None
    assert b"20 connections are open" in idle.stderr.readline()
    wait_for_message("ending/#", hostname=broker.host, port=broker.port)  # type: ignore[no-untyped-call]
    broker.kill9()
    assert b"the broker closed a connection" in busy.communicate(timeout=TIMEOUT_S)[1]
    assert busy.returncode == 1
    out, err = idle.communicate(timeout=TIMEOUT_S)
    assert idle.returncode == 1
    assert json.loads(out)["lost"] == 20
    assert b"Traceback" not in err


def test_an_interrupt_ends_it_with_130(broker: Broker) -> None:
    process = start(broker, "--connections", "10", "-t", "60")
    assert process.stderr is not None
    assert b"10 connections are open" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130
    assert b"Traceback" not in err


def test_no_broker_is_exit_code_3() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        done = bench(unused.getsockname()[1])
    assert done.returncode == 3
    assert "nothing listens at" in done.stderr


def test_it_stands_apart_from_the_broker() -> None:
    modules = "braidmq.cli.benchmark.command, braidmq.cli.benchmark.load"
    script = f"import sys, {modules}; print([n for n in sys.modules if 'braidmq.broker' in n])"
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "[]\n"


# The parts


def test_packets_are_split_wherever_the_read_ends() -> None:
    packets = [(0x20, b"\0\0"), (0x30, b"\0\1a" + b"x" * 200), (0xD0, b"")]
    stream = b"\x20\x02\0\0" + b"\x30\xcb\x01\0\1a" + b"x" * 200 + b"\xd0\0"
    for at in range(len(stream)):
        first, rest = split(stream[:at])
        second, rest = split(rest + stream[at:])
        assert first + second == packets
        assert rest == b""


def test_packets_as_the_specification_has_them() -> None:
    assert connect_packet("c", None, None) == b"\x10\x0d\0\4MQTT\4\2\0\0\0\1c"
    assert connect_packet("c", "u", "p") == b"\x10\x13\0\4MQTT\4\xc2\0\0\0\1c\0\1u\0\1p"
    assert subscribe_packet("t", 1) == b"\x82\x06\0\1\0\1t\1"
    assert publish_head("t", 1, 200) == b"\x32\xcd\x01\0\1t"


def test_samples_are_thinned_evenly() -> None:
    samples = LatencySamples()
    for start in range(0, 3 * SAMPLES_MAX, 1000):
        samples.add([value * 1000 for value in range(start, start + 1000)])
    assert samples.quantile_us(0.5) == pytest.approx(1.5 * SAMPLES_MAX, rel=0.01)
    assert samples.quantile_us(1) == pytest.approx(3 * SAMPLES_MAX, rel=0.01)


@contextmanager
def forgetful_server() -> Iterator[int]:
    """A broker that lets everyone in and subscribe, and delivers nothing."""

    def talk(connection: socket.socket) -> None:
        rest = b""
        while data := connection.recv(65536):
            packets, rest = split(rest + data)
            for first, _ in packets:
                if first == 0x10:
                    connection.sendall(b"\x20\x02\0\0")
                elif first == 0x82:
                    connection.sendall(b"\x90\x03\0\1" + bytes([Reason.SUCCESS]))

    with served(talk) as port:
        yield port
