"""The broker with clients that are no Python: mosquitto_pub and mosquitto_sub, and MQTT.js, where they can be had."""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.brokers import AllListeners, running
from tests.raw import TIMEOUT_S, Client

both_versions = pytest.mark.parametrize("version", [4, 5], ids=["3.1.1", "5.0"])

INSTALL_TIMEOUT_S = 60


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AllListeners]:
    with running(tmp_path_factory.mktemp("tools")) as found:
        yield found


# mosquitto_pub and mosquitto_sub

with_mosquitto = pytest.mark.skipif(
    not (shutil.which("mosquitto_pub") and shutil.which("mosquitto_sub")),
    reason="mosquitto_pub and mosquitto_sub are not installed",
)


class Mosquitto:
    """The two programs, towards one broker over one transport and in one version."""

    def __init__(self, served: AllListeners, version: int, transport: str = "tcp") -> None:
        self.options = ["-V", "mqttv5" if version == 5 else "mqttv311"]
        if transport == "unix":
            self.options += ["--unix", str(served.unix_path)]
        else:
            self.options += ["-h", "localhost", "-p", str(served.port_of(transport))]
        if transport == "tls":
            self.options += ["--cafile", str(served.ca_file)]
        self.kept = ["-c", "-x", "60"] if version == 5 else ["-c"]

    def publish(self, *arguments: str) -> None:
        command = ["mosquitto_pub", *self.options, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        assert done.returncode == 0, done.stderr

    def subscribe(self, client_id: str, *arguments: str) -> None:
        """Makes a session with the subscription, and leaves."""
        command = ["mosquitto_sub", *self.options, *self.kept, "-i", client_id, "-E", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        assert done.returncode == 0, done.stderr

    def read(self, count: int, *arguments: str) -> list[dict[str, Any]]:
        command = ["mosquitto_sub", *self.options, "-C", str(count), "-F", "%j", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def resume(self, client_id: str, count: int, *arguments: str) -> list[dict[str, Any]]:
        return self.read(count, *self.kept, "-i", client_id, *arguments)


@with_mosquitto
@both_versions
@pytest.mark.parametrize("transport", ["tcp", "tls", "unix"])
def test_mosquitto_over_every_transport(served: AllListeners, transport: str, version: int) -> None:
    """A session is made, filled while its client is away, and resumed."""
    name = f"mosquitto-{transport}-{version}"
    mosquitto = Mosquitto(served, version, transport)
    mosquitto.subscribe(name, "-q", "2", "-t", f"{name}/#")
    for qos in ("1", "2"):
        mosquitto.publish("-q", qos, "-t", f"{name}/{qos}", "-m", f"message {qos}")
    mosquitto.publish("-q", "0", "-r", "-t", f"{name}/kept", "-m", "retained")
    got = mosquitto.resume(name, 2, "-q", "2", "-t", f"{name}/none")
    assert sorted((one["topic"], one["qos"], one["payload"]) for one in got) == [
        (f"{name}/1", 1, "message 1"),
        (f"{name}/2", 2, "message 2"),
    ]
    (kept,) = mosquitto.read(1, "-t", f"{name}/+")
    assert (kept["payload"], kept["retain"]) == ("retained", 1)
    mosquitto.publish("-r", "-n", "-q", "1", "-t", f"{name}/kept")
    with Client(served.broker, f"{name}-late") as late:
        late.subscribe(f"{name}/#")
        assert late.so_far() == []


@with_mosquitto
@both_versions
def test_mosquitto_live_and_will(served: AllListeners, version: int) -> None:
    name = f"mosquitto-will-{version}"
    mosquitto = Mosquitto(served, version)
    with Client(served.broker, f"{name}-watcher") as watcher:
        watcher.subscribe(f"{name}/#")
        will = ["--will-topic", f"{name}/will", "--will-payload", "gone", "--will-qos", "1"]
        command = ["mosquitto_pub", *mosquitto.options, "-q", "2", "-t", f"{name}/line", "-l", *will]
        with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as program:
            assert program.stdin is not None
            for number in range(3):
                program.stdin.write(f"line {number}\n")
                program.stdin.flush()
                assert watcher.next_message().payload == b"line %d" % number
            program.kill()
        message = watcher.next_message()
        assert (message.topic, message.payload, message.qos) == (f"{name}/will", b"gone", 1)


@with_mosquitto
def test_mosquitto_properties_and_shares(served: AllListeners) -> None:
    name = "mosquitto-properties"
    mosquitto = Mosquitto(served, 5)
    filters = ["-q", "1", "-t", f"$share/group/{name}/#", "-D", "subscribe", "subscription-identifier", "12"]
    mosquitto.subscribe(name, *filters)
    properties = {
        "content-type": "text/plain",
        "response-topic": f"{name}-answer",
        "correlation-data": "42",
        "message-expiry-interval": "100",
        "payload-format-indicator": "1",
        "topic-alias": "4",
    }
    options = [word for key, value in properties.items() for word in ("-D", "publish", key, value)]
    options += ["-D", "publish", "user-property", "a", "1", "-D", "publish", "user-property", "a", "2"]
    mosquitto.publish("-q", "1", "-t", f"{name}/1", "-m", "x", "--repeat", "3", *options)
    template = "%t|%p|%C|%R|%D|%F|%S|%P|%E"
    command = ["mosquitto_sub", *mosquitto.options, *mosquitto.kept, "-i", name, "-C", "3", "-F", template, *filters]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    for line in lines:
        *fields, expiry = line.split("|")
        assert fields == [f"{name}/1", "x", "text/plain", f"{name}-answer", "42", "1", "12", "a:1 a:2"]
        assert 90 <= int(expiry) <= 100


# MQTT.js


@pytest.fixture(scope="module")
def mqttjs(pytestconfig: pytest.Config) -> Path:
    """A folder with MQTT.js in it, installed once and kept in pytest's cache."""
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("node and npm are not installed")
    assert pytestconfig.cache is not None
    folder = pytestconfig.cache.mkdir("mqttjs")
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several workers share the cache
        if not (folder / "node_modules" / "mqtt" / "package.json").exists():
            command = ["npm", "install", "--no-audit", "--no-fund", "--no-save", "--prefix", str(folder), "mqtt@5"]
            try:
                subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S)
            except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
                words = (error.stderr or "").strip() if isinstance(error.stderr, str) else ""
                pytest.skip(f"npm could not install MQTT.js: {words.splitlines()[-1] if words else error}")
    return folder


@both_versions
@pytest.mark.parametrize("scheme", ["mqtt", "ws"])
def test_mqttjs(served: AllListeners, mqttjs: Path, version: int, scheme: str) -> None:
    script = Path(__file__).with_name("mqttjs.mjs")
    command = ["node", str(script), str(mqttjs), served.broker.address(scheme), str(version)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    name = f"mqttjs-{version}-{scheme}"

    def brief(messages: list[dict[str, Any]]) -> list[tuple[str, str, int, bool]]:
        return [(one["topic"], one["payload"], one["qos"], one["retain"]) for one in messages]

    assert seen["granted"] == [2]
    assert brief(seen["retained"]) == [(f"{name}/kept", "kept", 1, True)]
    assert brief(seen["live"]) == [(f"{name}/{qos}", f"{qos}", qos, False) for qos in (0, 1, 2)]
    assert seen["large"] == 300_000
    assert brief(seen["will"]) == [(f"{name}/will", "gone", 1, False)]
    assert seen["present"] is True
    assert seen["session"] == ["0", "1", "2", "3"]
    assert seen["shared"] == list(range(20))
    assert seen["members"] == 2
    if version == 5:
        properties = seen["properties"]
        assert 90 <= properties.pop("messageExpiryInterval") <= 100
        assert properties == {
            "userProperties": {"a": ["1", "2"], "b": "3"},
            "responseTopic": f"{name}-answer",
            "correlationData": "42",
            "contentType": "text/plain",
            "payloadFormatIndicator": True,
        }
        assert seen["aliased"] == [[f"{name}/alias", payload] for payload in ("1", "2", "3")]
