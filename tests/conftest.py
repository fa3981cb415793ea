"""Real brokers for the tests: each a `braidmq up` process of its own, on a free port of loopback, with its own store.

- `broker`: one for all tests of a worker. It has the default configuration; use topics and client ids of your own.
- `start_broker(...)`: as many as the test wants, with any configuration; all of them end with the test.

Both come as `Broker` and `StartBroker`, for type annotations: `from tests.conftest import Broker, StartBroker`.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Protocol
from urllib.parse import urlsplit

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

from braidmq.pipeline.session import QUICK_JVM
from tests.patience import PATIENCE_S

os.environ.setdefault("SPARK_SUBMIT_OPTS", QUICK_JVM)  # also where commands start Java: a start costs half

READY_TIMEOUT_S = END_TIMEOUT_S = PATIENCE_S


class OneSpark(LoadScopeScheduling):  # type: ignore[misc]
    """Deals tests to the workers of xdist one by one, but all of tests/pipeline to one: Spark is one Java for them."""

    def _split_scope(self, nodeid: str) -> str:
        return "spark" if nodeid.startswith("tests/pipeline/") else nodeid


LONG = ("tests/docs/", "tests/chaos/", "tests/sim/", "tests/cli/")
"""Where the longest tests are: they come first, so that no worker is left with one of them at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))


def pytest_configure() -> None:
    """A shell without job control has what it starts in the background ignore Ctrl-C, and all that this starts in turn:
    tests send it, and some of the programs are not ours."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneSpark:
    return OneSpark(config, log)


class BrokerStartError(RuntimeError):
    """The process ended, or said nothing in time: then `exit_code` is None. Tests catch it as RuntimeError."""

    def __init__(self, exit_code: int | None, log: str) -> None:
        super().__init__(f"the broker did not start (exit code {exit_code}); its log:\n{log}")
        self.exit_code = exit_code
        self.log = log


class Broker:
    """One broker process. After `terminate()` or `kill9()`, `restart()` brings it back: same store and settings."""

    def __init__(
        self, folder: Path, data: Path, arguments: list[str], port: int | None, env: Mapping[str, str]
    ) -> None:
        self.data = data
        self.addresses: list[str] = []
        """Where it listens, as URLs: mqtt://127.0.0.1:1883, wss://…, unix:///…, http://… for the admin port."""
        self._arguments = arguments
        self._port = port
        self._env = {name: value for name, value in os.environ.items() if not name.startswith("BRAIDMQ_")} | dict(env)
        self._log_path = folder / "broker.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def host(self) -> str:
        return urlsplit(self.address("mqtt")).hostname or ""

    @property
    def port(self) -> int:
        """The port of its first plain TCP listener."""
        return self.port_of("mqtt")

    @property
    def url(self) -> str:
        return self.address("mqtt")

    def address(self, scheme: str) -> str:
        """Its first address of a scheme: mqtt, mqtts, ws, wss, unix, http."""
        for address in self.addresses:
            if urlsplit(address).scheme == scheme:
                return address
        raise LookupError(f"no {scheme} listener among {self.addresses}")

    def port_of(self, scheme: str) -> int:
        port = urlsplit(self.address(scheme)).port
        assert port is not None
        return port

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """All that it wrote so far, over all its restarts."""
        return self._log_path.read_text(errors="replace") if self._log_path.exists() else ""

    def wait_for_log(self, text: str, timeout_s: float = PATIENCE_S) -> str:
        """Returns once the log has `text` in it; an assertion fails if it does not come."""
        deadline = time.monotonic() + timeout_s
        while text not in self.log:
            assert time.monotonic() < deadline, f"{text!r} did not appear in the log:\n{self.log}"
            time.sleep(0.01)
        return self.log

    def start(self) -> None:
        assert not self.running, "it runs already"
        command = [sys.executable, "-m", "braidmq", "up", "--json", "--data", str(self.data), *self._arguments]
        if self._port is not None:
            command += ["--port", str(self._port)]
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, env=self._env
            )
        self.addresses = self._wait_until_ready(self._process)
        if self._port == 0:
            self._port = self.port  # a restart comes back where its clients look for it

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self, timeout_s: float = END_TIMEOUT_S) -> int:
        """Its exit code, once it has ended by itself."""
        assert self._process is not None
        return self._process.wait(timeout_s)

    def terminate(self) -> int:
        """SIGTERM, as a service manager would; returns the exit code."""
        if self.running:
            self.signal(signal.SIGTERM)
        try:
            return self.wait()
        except subprocess.TimeoutExpired:
            self.kill9()
            raise AssertionError(f"SIGTERM did not end the broker; its log:\n{self.log}") from None

    def kill9(self) -> None:
        """Ends it as a crash would: nothing is flushed, nobody is told."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def restart(self) -> None:
        if self.running:
            self.terminate()
        self.start()

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> list[str]:
        assert process.stdout is not None
        line = _first_line(process.stdout, READY_TIMEOUT_S)
        try:
            ready: dict[str, Any] = json.loads(line)
            addresses: list[str] = ready["addresses"]
        except (ValueError, KeyError):
            exit_code = None
            try:
                exit_code = process.wait(END_TIMEOUT_S if line == b"" else 0)
            except subprocess.TimeoutExpired:
                self.kill9()
            raise BrokerStartError(exit_code, f"{line.decode(errors='replace')}{self.log}") from None
        threading.Thread(target=_drain, args=(process.stdout,), daemon=True).start()
        return addresses


def _first_line(stream: IO[bytes], timeout_s: float) -> bytes:
    """The first line, or what there is of it when the stream ends or the time is up."""
    deadline = time.monotonic() + timeout_s
    line = b""
    while not line.endswith(b"\n"):
        left_s = deadline - time.monotonic()
        if left_s <= 0 or not select.select([stream], [], [], left_s)[0]:
            break
        byte = os.read(stream.fileno(), 1)
        if not byte:
            break
        line += byte
    return line


def _drain(stream: IO[bytes]) -> None:
    with stream:
        while os.read(stream.fileno(), 65536):
            pass


class StartBroker(Protocol):
    def __call__(
        self,
        config_text: str | None = None,
        *,
        data: Path | None = None,
        env: Mapping[str, str] | None = None,
        arguments: list[str] | None = None,
    ) -> Broker:
        """Starts a broker and returns when it is ready.

        `config_text` is the TOML of its `--config` file. If that names listeners, they are all there is; if not, the
        broker listens on a free port of 127.0.0.1. `data` is the folder of the store (a fresh one if None), `env` goes
        over the environment and `arguments` behind `braidmq up`.
        """
        ...


@pytest.fixture
def start_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartBroker]:
    started: list[Broker] = []

    def start(
        config_text: str | None = None,
        *,
        data: Path | None = None,
        env: Mapping[str, str] | None = None,
        arguments: list[str] | None = None,
    ) -> Broker:
        folder = tmp_path_factory.mktemp("broker")
        options = list(arguments or [])
        port: int | None = 0
        if config_text is not None:
            config = folder / "braidmq.toml"
            config.write_text(config_text)
            options += ["--config", str(config)]
            if "[[listener" in config_text:
                port = None
        if "--port" in options:
            port = None
        broker = Broker(folder, data or folder / "data", options, port, env or {})
        started.append(broker)
        return broker

    yield start
    for broker in started:
        if broker.running:
            broker.kill9()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("shared-broker")
    shared = Broker(folder, folder / "data", [], 0, {})
    yield shared
    if shared.running:
        assert shared.terminate() == 0, shared.log
