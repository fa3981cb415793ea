"""`braidmq drain`, and SIGTERM with `braid.drain_s`, of real brokers."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from braidmq.braid.roaming.drain import NOTICE_S
from tests.cli.commands import COMMAND, braidmq, environment, in_process, on_terminal
from tests.conformance.wire import V3, V5, Type
from tests.raw import Client, opened, persistent, readiness, subscriber, wait_until

if TYPE_CHECKING:
    from tests.conftest import Broker, StartBroker

VERSIONS = pytest.mark.parametrize("version", [V3, V5])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def braid_of(start_broker: StartBroker, folder: Path, count: int, drain_s: float = 0.0, tells: bool = True) -> Any:
    """Brokers of one braid; if `tells`, each advertises its listener."""
    brokers: list[Broker] = []
    for number in range(count):
        port = free_port()
        advertise = f'advertise = "127.0.0.1:{port}"' if tells else ""
        join = f'join = ["{brokers[0].address("braid").removeprefix("braid://")}"]' if brokers else ""
        config = f"""
            [admin]
            port = 0
            [[listeners]]
            host = "127.0.0.1"
            port = {port}
            {advertise}
            [braid]
            listen = "127.0.0.1:0"
            name = "b{number}"
            drain_s = {drain_s}
            {join}
        """
        brokers.append(start_broker(config, data=folder / f"b{number}"))
    for broker in brokers:
        wait_until(lambda broker=broker: readiness(broker)[0] == 200, "it is in")  # type: ignore[misc]
    return brokers


def drained(broker: Broker, *options: str) -> list[dict[str, Any]]:
    """What the command says, line by line, when it has ended well."""
    done = braidmq("drain", "--admin", broker.address("http"), "--json", *options)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def at(brokers: list[Broker], reference: str) -> Broker:
    return next(broker for broker in brokers if reference == f"127.0.0.1:{broker.port}")


def test_sessions_clients_and_retained_messages_go_elsewhere(start_broker: StartBroker, tmp_path: Path) -> None:
    brokers = braid_of(start_broker, tmp_path, 3)
    leaving, others = brokers[1], [brokers[0], brokers[2]]
    told = subscriber(leaving, "told", "tide/#")
    old = subscriber(leaving, "old", "tide/#", version=V3)
    subscriber(leaving, "away", "tide/#").socket.close()
    with opened(leaving, "pub") as publisher:
        publisher.publish("tide/level", b"high", 1, retain=True)
        publisher.publish("tide/gone", b"low", 1, retain=True)
        publisher.publish("tide/gone", b"", 1, retain=True)
    lines = drained(leaving)
    assert lines[0]["event"] == "draining"
    assert sorted(lines[0]["takers"]) == ["b0", "b2"]
    last = lines[-1]
    assert (last["event"], last["outcome"], last["state"]) == ("drained", "empty", "leaving")
    assert (last["sessions"], last["clients"], last["retained"]) == (0, 0, 0)
    assert (last["sessions_moved"], last["clients_moved"], last["retained_moved"]) == (3, 2, 2)
    assert leaving.wait() == 0
    ended = told.expect_end()
    assert ended is not None
    assert ended.reason == 0x9C
    with Client(at(others, ended.properties["server_reference"]), "told", V5, **persistent(V5)) as there:
        assert there.present
        assert [one.payload for one in there.messages(3)] == [b"high", b"low", b""]
    assert old.expect_end() is None, "MQTT 3.1.1 has no word for it"
    for client_id in ("old", "away"):
        version = V3 if client_id == "old" else V5
        with Client(others[0], client_id, version, **persistent(version)) as there:
            assert there.present
            assert [one.payload for one in there.messages(3)] == [b"high", b"low", b""]
    for broker in others:
        with opened(broker, "late") as late:
            late.subscribe("tide/#", 1)
            assert late.next_message().payload == b"high"
    leaving.restart()
    wait_until(lambda: readiness(leaving)[0] == 200, "it is back")
    with opened(others[0], "pub") as publisher:
        publisher.publish("tide/level", b"", 1, retain=True)
    with opened(leaving, "late") as late:
        late.subscribe("tide/#", 1)
        with pytest.raises(TimeoutError):
            late.next_message(timeout_s=1.0)


@VERSIONS
def test_without_references_clients_are_not_told_of_any(
    start_broker: StartBroker, tmp_path: Path, version: int
) -> None:
    brokers = braid_of(start_broker, tmp_path, 2, tells=False)
    client = subscriber(brokers[1], "told", "tide", version=version)
    drained(brokers[1])
    ended = client.expect_end()
    if version == V3:
        assert ended is None
    else:
        assert ended is not None
        assert ended.reason == 0x8B
        assert "server_reference" not in ended.properties
    with Client(brokers[0], "told", version, **persistent(version)) as there:
        assert there.present


def test_load_balancers_are_told_before_clients_are_sent_away(start_broker: StartBroker, tmp_path: Path) -> None:
    brokers = braid_of(start_broker, tmp_path, 2)
    leaving = brokers[1]
    client = subscriber(leaving, "ada", "tide")
    ended_at: list[float] = []

    def watch() -> None:
        client.expect_end()
        ended_at.append(time.monotonic())

    watcher = threading.Thread(target=watch)
    watcher.start()
    command = [*COMMAND, "drain", "--admin", leaving.address("http")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment()) as process:
        wait_until(lambda: readiness(leaving)[0] == 503, "it is not ready")
        told_at = time.monotonic()
        assert readiness(leaving)[1]["reasons"] == {"drain": "draining"}
        assert not ended_at
        out = process.stdout.read().decode() if process.stdout is not None else ""
    watcher.join()
    assert process.returncode == 0
    assert ended_at[0] - told_at > NOTICE_S / 2
    assert out.startswith("Draining 1 session, 1 client and 0 retained messages, to b0.")
    assert "1 session, 1 client and 0 retained messages have gone to other brokers" in out


def test_a_drain_is_taken_back(start_broker: StartBroker, tmp_path: Path) -> None:
    brokers = braid_of(start_broker, tmp_path, 2)
    url = brokers[1].address("http")
    process = subprocess.Popen([*COMMAND, "drain", "--admin", url], stderr=subprocess.PIPE, env=environment())
    wait_until(lambda: readiness(brokers[1])[0] == 503, "it is not ready")
    done = in_process("drain", "--cancel", "--admin", url)
    assert (done.returncode, done.stdout) == (
        0,
        "Taken back: 0 sessions, 0 clients and 0 retained messages are here.\n",
    )
    _, error = process.communicate()
    assert process.returncode == 1
    assert b"taken back" in error
    assert readiness(brokers[1])[0] == 200
    again = in_process("drain", "--cancel", "--admin", url)
    assert again.returncode == 1
    assert "this broker is not being drained" in again.stderr


def test_progress_is_shown_on_a_terminal(start_broker: StartBroker, tmp_path: Path) -> None:
    brokers = braid_of(start_broker, tmp_path, 2)
    subscriber(brokers[1], "ada", "tide").socket.close()
    process, shown = on_terminal("drain", "--admin", brokers[1].address("http"))
    assert process.wait() == 0
    assert b"Draining" in shown
    assert b"left" in shown


def test_a_broker_alone_is_not_drained(start_broker: StartBroker, tmp_path: Path) -> None:
    (alone,) = braid_of(start_broker, tmp_path, 1)
    done = in_process("drain", "--admin", alone.address("http"))
    assert done.returncode == 1
    assert "no other broker of the braid can take anything" in done.stderr
    assert readiness(alone)[0] == 200
    in_none = start_broker("[admin]\nport = 0\n")
    done = in_process("drain", "--admin", in_none.address("http"))
    assert done.returncode == 1
    assert "in no braid" in done.stderr


@pytest.mark.parametrize("seconds", ["0", "-1", "86401"])
def test_a_time_that_is_none_is_refused(seconds: str) -> None:
    done = in_process("drain", "--timeout", seconds)
    assert done.returncode == 2
    assert "Give seconds, above 0 and up to 86400." in done.stderr


def test_help_has_examples() -> None:
    done = in_process("drain", "--help")
    assert "braidmq drain --json && sudo reboot" in done.stdout
    assert "braidmq drain --cancel" in done.stdout


# SIGTERM


def test_sigterm_drains_where_that_is_configured(start_broker: StartBroker, tmp_path: Path) -> None:
    brokers = braid_of(start_broker, tmp_path, 2, drain_s=30.0)
    client = subscriber(brokers[1], "ada", "tide")
    with opened(brokers[1], "pub") as publisher:
        publisher.publish("tide", b"high", 1, retain=True)
    brokers[1].signal(signal.SIGTERM)
    wait_until(lambda: readiness(brokers[1])[0] == 503, "it is not ready")
    assert brokers[1].wait() == 0
    ended = client.expect_end()
    assert ended is not None
    assert ended.reason == 0x9C
    with Client(brokers[0], "ada", V5, **persistent(V5)) as there:
        assert there.present
    with opened(brokers[0], "late") as late:
        late.subscribe("tide", 1)
        assert late.next_message().payload == b"high"
    assert "drained (empty)" in brokers[1].log


def test_a_second_sigterm_ends_at_once(start_broker: StartBroker, tmp_path: Path) -> None:
    brokers = braid_of(start_broker, tmp_path, 2, drain_s=60.0)
    client = subscriber(brokers[1], "ada", "tide")
    brokers[0].signal(signal.SIGSTOP)  # nobody takes anything
    try:
        brokers[1].signal(signal.SIGTERM)
        brokers[1].wait_for_log("draining, for at most 60 s")
        began_at = time.monotonic()
        brokers[1].signal(signal.SIGTERM)
        ended = client.expect_end()
        assert ended is not None
        assert ended.reason == 0x8B
        assert time.monotonic() - began_at < 3.0
    finally:
        brokers[0].signal(signal.SIGCONT)
    assert brokers[1].wait() == 0
    assert "drained (" not in brokers[1].log
    brokers[1].restart()
    with Client(brokers[1], "ada", V5, **persistent(V5)) as there:
        assert there.present, "it waits in its store"


def test_without_drain_s_sigterm_ends_at_once(start_broker: StartBroker, tmp_path: Path) -> None:
    brokers = braid_of(start_broker, tmp_path, 2)
    client = subscriber(brokers[1], "ada", "tide")
    brokers[1].signal(signal.SIGTERM)
    ended = client.expect(Type.DISCONNECT)
    assert ended.reason == 0x8B
    assert brokers[1].wait() == 0
    assert "draining" not in brokers[1].log


# The configuration


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[braid]\ndrain_s = -1", "braid.drain_s"),
        ('[[listeners]]\nkind = "unix"\npath = "/run/b.sock"\nadvertise = "a:1"', "cannot reach a unix listener"),
        ('[[listeners]]\nport = 1883\nadvertise = "a b:1"', "without spaces"),
        ('[[listeners]]\nport = 1883\nadvertise = ""', "advertise"),
    ],
)
def test_what_cannot_be_meant_is_found_by_the_check(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "braidmq.toml"
    path.write_text(text)
    done = in_process("up", "--config", path)
    assert done.returncode == 2
    assert complaint in done.stderr
