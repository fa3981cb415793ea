"""`python -m bench.reservations`: how long a reservation takes, beside a round trip of QoS 1, across two brokers.

The device is at one broker. At the other are the component that it reserves, and a client that answers each of its
publications with one: both are timed at the device, in turn, from the request to the answer. A lease of up to 18 s
takes one exchange between the brokers, a longer one is confirmed by a second. A stream that goes on at another instance
stands still for as long as that takes: from one broker to the other and back, with 1 KiB that the old instance knows.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from bench.client import HOST
from bench.fleet.brokers import fleet
from braidmq.mqtt.wire import string, varint

ANSWER_S: Final = 10.0
READY_S: Final = 20.0
RATIO_MAX: Final = 3.0
"""What a reservation may take, in round trips."""

SHORT_LEASE_S, LONG_LEASE_S = 10, 60
GOING_ON: Final = "a stream goes on at another instance"
STATE_BYTES: Final = 1024

console = Console(width=max(100, Console().width))


class Client:
    """A client of MQTT 5 that knows one conversation: it sends at QoS 1, and waits for what comes. Its packets leave at
    once, which those of a client library may not."""

    def __init__(self, port: int, name: str, *filters: str) -> None:
        self._socket = socket.create_connection((HOST, port), ANSWER_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = b""
        self._last_id = 0
        self._send(0x10, string("MQTT") + b"\x05\x02\x00\x00\x00" + string(name))
        self._expect(0x20)
        for one in filters:
            self._send(0x82, self._next_id() + b"\x00" + string(one) + b"\x01")
            self._expect(0x90)

    def send(self, topic: str, payload: bytes, response_topic: str = "") -> None:
        properties = b"\x08" + string(response_topic) if response_topic else b""
        self._send(0x32, string(topic) + self._next_id() + varint(len(properties)) + properties + payload)

    def receive(self) -> bytes:
        """The payload of the next publication, which is acknowledged."""
        return self.receive_all()[1]

    def receive_all(self) -> tuple[str, bytes]:
        """Its topic and its payload."""
        first, body = self._expect(0x30)
        topic_end = 2 + int.from_bytes(body[:2])
        start = topic_end + (2 if first & 0x06 else 0)
        if first & 0x06:
            self._send(0x40, body[topic_end:start])
        size, used = _read_length(body[start:]) or (0, 1)
        return body[2:topic_end].decode(), body[start + used + size :]

    def close(self) -> None:
        self._socket.close()

    def _next_id(self) -> bytes:
        self._last_id = self._last_id % 60_000 + 1
        return self._last_id.to_bytes(2)

    def _send(self, first: int, body: bytes) -> None:
        self._socket.sendall(bytes((first,)) + varint(len(body)) + body)

    def _expect(self, kind: int) -> tuple[int, bytes]:
        """The next packet of a type; acknowledgements that come before it are not looked at."""
        while True:
            found = _read_length(self._rest[1:]) if self._rest else None
            if found is not None and len(self._rest) >= 1 + found[1] + found[0]:
                size, used = found
                first, body = self._rest[0], self._rest[1 + used : 1 + used + size]
                self._rest = self._rest[1 + used + size :]
                if first & 0xF0 == kind & 0xF0:
                    return first, body
                continue
            data = self._socket.recv(65_536)
            if not data:
                raise ConnectionError("the broker has closed the connection")
            self._rest += data


def _read_length(data: bytes) -> tuple[int, int] | None:
    """A number of variable length, and how many bytes it takes; None if it is not all there."""
    value = 0
    for place, byte in enumerate(data[:4]):
        value |= (byte & 0x7F) << (7 * place)
        if not byte & 0x80:
            return value, place + 1
    return None


class Echo(threading.Thread):
    """Answers each publication with one."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._client = Client(port, "echo", "there")

    def run(self) -> None:
        with contextlib.suppress(OSError):  # that is how it ends
            while True:
                self._client.send("back", self._client.receive())


class KnowingInstance(threading.Thread):
    """Hands over what it knows of its stream."""

    def __init__(self, port: int, name: str) -> None:
        super().__init__(daemon=True)
        self._client = Client(port, name, "$share/knowing/frames", "$reservation/knowing", "$state/knowing/+")

    def run(self) -> None:
        with contextlib.suppress(OSError):  # that is how it ends
            while True:
                topic, payload = self._client.receive_all()
                if topic.startswith("$reservation/"):
                    event = json.loads(payload)
                    if event["event"] == "handing-over":
                        self._client.send(f"$state/{event['id']}", bytes(STATE_BYTES))


class Device:
    def __init__(self, port: int) -> None:
        self._client = Client(port, "device", "back", "answers")
        self._held = ""

    def round_trip(self) -> float:
        began = time.perf_counter()
        self._client.send("there", b"x" * 100)
        self._client.receive()
        return time.perf_counter() - began

    def reservation(self, lease_s: int) -> float:
        """What it reserves it gives back, which is not timed."""
        began = time.perf_counter()
        answer = self._ask("$reserve/detector", {"lease": lease_s})
        took_s = time.perf_counter() - began
        if not answer["ok"]:
            raise SystemExit(f"nothing was reserved: {answer['text']}")
        self._ask(f"$release/{answer['id']}", {})
        return took_s

    def going_on(self) -> float:
        """Its stream goes on at the other instance."""
        began = time.perf_counter()
        answer = self._ask("$reserve/knowing", {"lease": SHORT_LEASE_S, "from": self._held})
        took_s = time.perf_counter() - began
        if not answer["ok"] or not answer["state"]:
            raise SystemExit(f"a stream did not go on with its state: {answer}")
        self._held = answer["id"]
        return took_s

    def wait_for_components(self) -> None:
        self._ask(f"$release/{self._wait_for('detector')}", {})
        both = [self._wait_for("knowing"), self._wait_for("knowing")]
        self._held = both[0]
        self._ask(f"$release/{both[1]}", {})

    def _wait_for(self, component: str) -> str:
        ends_at = time.monotonic() + READY_S
        while not (answer := self._ask(f"$reserve/{component}", {"lease": LONG_LEASE_S}))["ok"]:
            if time.monotonic() > ends_at:
                raise SystemExit(f"nothing can be reserved: {answer['text']}")
            time.sleep(0.1)
        return str(answer["id"])

    def _ask(self, topic: str, asked: dict[str, Any]) -> dict[str, Any]:
        self._client.send(topic, json.dumps(asked).encode(), "answers")
        answer: dict[str, Any] = json.loads(self._client.receive())
        return answer

    def close(self) -> None:
        self._client.close()


def main(
    count: Annotated[int, typer.Option(min=10, help="How many of each.")] = 500,
    warm_up: Annotated[int, typer.Option(min=0, help="How many of each before that.")] = 50,
) -> None:
    """Times reservations and round trips in turn; ends with 1 if reservations take too long."""
    times: dict[str, list[float]] = {
        "round trip of QoS 1": [],
        f"reservation for {SHORT_LEASE_S} s": [],
        f"reservation for {LONG_LEASE_S} s": [],
        GOING_ON: [],
    }
    folder = Path(tempfile.mkdtemp(prefix="braidmq-bench-"))
    try:
        with fleet(folder, 2, "covers") as (here, there):
            component = Client(there.port, "cam", "$share/detector/frames")
            echo, device = Echo(there.port), Device(here.port)
            echo.start()
            for site, name in ((here, "near"), (there, "far")):
                KnowingInstance(site.port, name).start()
            device.wait_for_components()
            ways: tuple[Callable[[], float], ...] = (
                device.round_trip,
                partial(device.reservation, SHORT_LEASE_S),
                partial(device.reservation, LONG_LEASE_S),
                device.going_on,
            )
            for number in range(warm_up + count):
                for found, way in zip(times.values(), ways, strict=True):
                    took_s = way()
                    if number >= warm_up:
                        found.append(took_s)
            component.close()
            device.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    base = statistics.median(times["round trip of QoS 1"])
    table = Table("what", "p50", "p99", "in round trips", title=f"{count} of each, across two brokers")
    ratios = []
    for name, found in times.items():
        ratio = statistics.median(found) / base
        if name != GOING_ON:
            ratios.append(ratio)
        p99 = statistics.quantiles(found, n=100)[98]
        table.add_row(name, f"{1e3 * statistics.median(found):.2f} ms", f"{1e3 * p99:.2f} ms", f"{ratio:.2f}")
    console.print(table)
    if max(ratios) > RATIO_MAX:
        raise SystemExit(f"a reservation takes {max(ratios):.2f} round trips, more than {RATIO_MAX:g}")


if __name__ == "__main__":
    typer.run(main)
