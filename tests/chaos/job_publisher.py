"""A publisher of jobs that never gives up: what its broker has not acknowledged it sends again, as MQTT has it."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Iterator

from tests.conformance import wire
from tests.conformance.wire import Received, Type

AGAIN_S = 0.1
ANSWER_S = 10.0
SESSION_S = 3600


class JobPublisher(threading.Thread):
    """Publishes a job of QoS 1 and one of QoS 2 in turn, each once the one before it is acknowledged."""

    def __init__(self, port: int, name: str, rate: float) -> None:
        super().__init__(daemon=True)
        self.name = name
        self.acknowledged: dict[str, int] = {}
        """The jobs that its broker has taken, and their QoS."""
        self.repeated: set[str] = set()
        """Jobs that it had to send again."""
        self.failure = ""
        """Why it has ended before it was told to."""
        self.is_over = False
        self._port = port
        self._rate = rate
        self._numbers = itertools.count(1)
        self._connection: socket.socket | None = None
        self._rest = b""
        self._waiting: list[Received] = []

    def run(self) -> None:
        try:
            self._run()
        except AssertionError as error:
            self.failure = str(error)

    def _run(self) -> None:
        while not self.is_over:
            number = next(self._numbers)
            job, qos = f"{self.name}-{number}", 1 + number % 2
            self._publish(job, qos, number % 60_000 + 1)
            self.acknowledged[job] = qos
            time.sleep(1.0 / self._rate)

    def _publish(self, job: str, qos: int, packet_id: int) -> None:
        packets = self._steps(job, qos, packet_id)
        packet, awaited = next(packets)
        is_again = False
        while True:
            try:
                connection = self._connected()
                if is_again and awaited is not Type.PUBCOMP:
                    self.repeated.add(job)
                    packet = wire.publish("jobs/a", job.encode(), qos=qos, packet_id=packet_id, dup=True)
                connection.sendall(packet)
                self._await(connection, awaited, packet_id)
            except OSError:
                self._connection, is_again = None, True
                time.sleep(AGAIN_S)
                continue
            following = next(packets, None)
            if following is None:
                return
            packet, awaited = following
            is_again = False

    def _steps(self, job: str, qos: int, packet_id: int) -> Iterator[tuple[bytes, Type]]:
        """What is sent, and what answers it."""
        publish = wire.publish("jobs/a", job.encode(), qos=qos, packet_id=packet_id)
        if qos == 1:
            yield publish, Type.PUBACK
        else:
            yield publish, Type.PUBREC
            yield wire.ack(Type.PUBREL, packet_id), Type.PUBCOMP

    def _connected(self) -> socket.socket:
        if self._connection is None:
            self._rest, self._waiting = b"", []
            connection = socket.create_connection(("127.0.0.1", self._port), ANSWER_S)
            properties = wire.props(session_expiry=SESSION_S)
            connection.sendall(wire.connect(self.name, clean=False, properties=properties))
            self._await(connection, Type.CONNACK, None)
            self._connection = connection
        return self._connection

    def _await(self, connection: socket.socket, kind: Type, packet_id: int | None) -> None:
        while True:
            for one in self._waiting:
                if one.type is kind and one.packet_id == packet_id:
                    if kind is Type.CONNACK and one.reason:
                        raise ConnectionRefusedError(f"CONNACK with reason {one.reason:#x}")
                    is_over = kind is Type.PUBCOMP and one.reason == 0x92  # an answer before this one was lost
                    assert is_over or one.reason in (0, 0x10), f"{kind.name} with reason {one.reason:#x}"
                    self._waiting.remove(one)
                    return
            data = connection.recv(65_536)
            if not data:
                raise ConnectionResetError("closed by the broker")
            packets, self._rest = wire.split(self._rest + data)
            self._waiting += [wire.decode(raw, wire.V5) for raw in packets]
