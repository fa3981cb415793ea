"""A member of a shared subscription as a process of its own: `python -m tests.chaos.member_process`.

It writes down what it does, a line each: that it has a job, before it acknowledges it, and that it has acknowledged it,
once that is on its way. Lines are there after a `kill -9`, too, and the next process goes on from them: it knows which
exchanges of QoS 2 it has begun, as a client that wants each job once has to.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tests.conformance import wire
from tests.conformance.wire import Received, Type

SESSION_S = 3600
AGAIN_S = 0.1
SILENCE_S = 5.0
SHARED = "$share/workers/jobs/#"

What = Literal["started", "has", "acknowledged", "over"]


class Line(NamedTuple):
    """`packet_id` is that of the exchange; a process that starts has none, and no job."""

    what: What
    at: float
    job: str = ""
    packet_id: int = 0


def lines_of(path: Path) -> list[Line]:
    """What a member has written, whole lines only: a process may have been killed within one."""
    text = path.read_text() if path.exists() else ""
    return [Line(*json.loads(one)) for one in text.split("\n")[:-1]]


class Member:
    def __init__(self, port: int, name: str, window: int, work_s: float, path: Path) -> None:
        self._port = port
        self._name = name
        self._window = window
        self._work_s = work_s
        self._begun: dict[int, str] = {}
        for one in lines_of(path):
            if one.what == "has":
                self._begun[one.packet_id] = one.job
            elif one.what == "over":
                self._begun.pop(one.packet_id, None)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        if path.stat().st_size and not path.read_bytes().endswith(b"\n"):
            os.write(self._file, b"\n")
        self._note("started")

    def _note(self, what: What, job: str = "", packet_id: int = 0) -> None:
        os.write(self._file, json.dumps(Line(what, time.time(), job, packet_id)).encode() + b"\n")

    def run(self) -> None:
        while True:
            with contextlib.suppress(OSError):
                self._work()
            time.sleep(AGAIN_S)

    def _work(self) -> None:
        with socket.create_connection(("127.0.0.1", self._port), SILENCE_S) as connection:
            properties = wire.props(session_expiry=SESSION_S, receive_maximum=self._window)
            connection.sendall(wire.connect(self._name, clean=False, properties=properties))
            connection.settimeout(None)
            rest = b""
            while data := connection.recv(65_536):
                packets, rest = wire.split(rest + data)
                for raw in packets:
                    self._handle(connection, wire.decode(raw, wire.V5))

    def _handle(self, connection: socket.socket, packet: Received) -> None:
        packet_id = packet.packet_id or 0
        if packet.type is Type.CONNACK and not packet.session_present:
            self._begun.clear()
            connection.sendall(wire.subscribe(1, (SHARED, 2)))
        elif packet.type is Type.PUBREL:
            self._begun.pop(packet_id, None)
            self._note("over", packet_id=packet_id)
            connection.sendall(wire.ack(Type.PUBCOMP, packet_id))
        elif packet.type is Type.PUBLISH:
            self._take(connection, packet, packet_id)

    def _take(self, connection: socket.socket, packet: Received, packet_id: int) -> None:
        job = packet.payload.decode()
        if packet.qos == 1 or self._begun.get(packet_id) != job:
            self._note("has", job, packet_id)
            time.sleep(self._work_s)
        if packet.qos == 2:
            self._begun[packet_id] = job
        connection.sendall(wire.ack(Type.PUBREC if packet.qos == 2 else Type.PUBACK, packet_id))
        self._note("acknowledged", job, packet_id)
        if packet.qos == 1:
            self._begun.pop(packet_id, None)


def arguments_of(port: int, name: str, window: int, work_s: float, path: Path) -> list[str]:
    return [sys.executable, "-m", "tests.chaos.member_process", json.dumps([port, name, window, work_s, str(path)])]


def main() -> None:
    given: list[Any] = json.loads(sys.argv[1])
    port, name, window, work_s, path = given
    Member(port, name, window, work_s, Path(path)).run()


if __name__ == "__main__":
    main()
