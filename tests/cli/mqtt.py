"""`braidmq pub` and `sub` against a broker, and a server that is none."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import paho.mqtt.publish as paho_publish

from tests.cli.commands import COMMAND, TIMEOUT_S, Argument, environment, in_process
from tests.conftest import Broker


def send(broker: Broker, topic: str, *payloads: str | bytes, qos: int = 1) -> None:
    """Publishes without `braidmq pub`, where that is not what is tested."""
    messages: list[Any] = [(topic, payload, qos, False) for payload in payloads]
    paho_publish.multiple(messages, broker.host, broker.port)


def pub(broker: Broker, *arguments: Argument) -> subprocess.CompletedProcess[str]:
    return in_process("pub", "-p", broker.port, *arguments)


class Sub:
    """A `braidmq sub` that runs; it is subscribed once this object is made."""

    def __init__(self, *arguments: Argument, env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, "sub", "-v", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(env),
        )
        self.stderr = ""
        self.wait_for("Subscribed to")

    def wait_for(self, text: str) -> None:
        assert self.process.stderr is not None
        while text not in self.stderr:
            ready, _, _ = select.select([self.process.stderr], [], [], TIMEOUT_S)
            assert ready, f"{text!r} did not come: {self.stderr}"
            data = os.read(self.process.stderr.fileno(), 65536)
            assert data, f"it ended with {self.process.wait()}: {self.stderr}"
            self.stderr += data.decode()

    def line(self) -> str:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], TIMEOUT_S)
        assert ready, "no line came"
        return self.process.stdout.readline().decode()

    def end(self, number: int | None = None) -> tuple[int, str]:
        """The exit code and the rest of the output, after a signal if one is given."""
        if number is not None:
            self.process.send_signal(number)
        out, err = self.process.communicate(timeout=TIMEOUT_S)
        self.stderr += err.decode()
        return self.process.returncode, out.decode()


@contextmanager
def subscriber(broker: Broker, *arguments: Argument) -> Iterator[Sub]:
    sub = Sub("-p", broker.port, *arguments)
    try:
        yield sub
    finally:
        if sub.process.poll() is None:
            sub.process.kill()
        sub.process.communicate()


@contextmanager
def served(talk: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server on a free port that talks to each connection on a thread of its own."""
    listener = socket.create_server(("127.0.0.1", 0))
    connections: list[socket.socket] = []

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connections.append(connection)
            threading.Thread(target=talk, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
        for connection in connections:
            connection.close()


@contextmanager
def silent_server(answer: Callable[[bytes], bytes]) -> Iterator[int]:
    """A server on a free port that gives `answer(first bytes)` to each connection, then says nothing more."""
    with served(lambda connection: connection.sendall(answer(connection.recv(65536)))) as port:
        yield port
