"""`python -m bench.processors`: what an edge processor adds to plain delivery, in the same broker and the same run.

A device publishes one message at a time. Plain, a subscriber gets the message itself; processed, it gets what a
processor with a spool of 20 makes of it. Both alternate, so that whatever else the machine does falls on both alike.
Then the processor gets as many messages as it can take.
"""

from __future__ import annotations

import shutil
import socket
import statistics
import struct
import tempfile
import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from bench import client
from bench.braid import Ratio, process, wait_for_mqtt
from bench.peers import BraidMQ

ADDED_MS_MAX = 3.0
SPOOL = 20
PAYLOAD_BYTES = 100
TIMEOUT_S = 30.0
WINDOW = 1_000
"""Messages under way when as many as possible are sent."""

PROCESSOR = f"""
from braidmq.processors import Message, Notification, Spool, processor


@processor(topic="bench/+/in", spool={SPOOL}, output="bench/out")
def echo(spool: Spool, message: Message) -> Notification:
    assert len({{one.offset for one in spool}}) == len(spool)
    return Notification(message.payload, qos=0)
"""

console = Console(width=max(120, Console().width))


class Subscriber:
    """A connection that subscribes, publishes and counts what comes back; QoS 0, MQTT 3.1.1."""

    def __init__(self, port: int, name: str, topic: str) -> None:
        self.socket = client.send_connect(port, name, keep_alive_s=600, timeout_s=TIMEOUT_S)
        client.read_connack(self.socket)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if topic:
            filter_bytes = topic.encode()
            body = b"\0\1" + struct.pack("!H", len(filter_bytes)) + filter_bytes + b"\0"
            self.socket.sendall(bytes((0x82, len(body))) + body)
            assert self._read(5)[0] == 0x90

    def publish(self, topic: str, payload: bytes) -> None:
        name = topic.encode()
        body = struct.pack("!H", len(name)) + name + payload
        assert len(body) < 128
        self.socket.sendall(bytes((0x30, len(body))) + body)

    def read_one(self) -> None:
        """Waits for one publication."""
        header = self._read(2)
        assert header[0] & 0xF0 == 0x30
        assert header[1] < 128
        self._read(header[1])

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            if not piece:
                raise SystemExit("the broker closed the connection")
            data += piece
        return data


def latencies(device: Subscriber, listener: Subscriber, topic: str, count: int) -> list[float]:
    """Milliseconds from the device to the subscriber, one message at a time."""
    taken = []
    payload = b"x" * PAYLOAD_BYTES
    for _ in range(count):
        began = time.perf_counter()
        device.publish(topic, payload)
        listener.read_one()
        taken.append((time.perf_counter() - began) * 1e3)
    return taken


def rate(device: Subscriber, listener: Subscriber, topics: list[str], count: int) -> float:
    """Messages a second with WINDOW of them under way."""
    payload = b"x" * PAYLOAD_BYTES
    began = time.perf_counter()
    sent = got = 0
    while got < count:
        while sent < count and sent - got < WINDOW:
            device.publish(topics[sent % len(topics)], payload)
            sent += 1
        listener.read_one()
        got += 1
    return count / (time.perf_counter() - began)


def measure(port: int, rounds: int, messages: int) -> tuple[Ratio, list[tuple[str, str]]]:
    device = Subscriber(port, "device", "")
    plain_listener = Subscriber(port, "plain", "bench/plain")
    listener = Subscriber(port, "listener", "bench/out")
    latencies(device, listener, "bench/1/in", 50)  # the first of each find their routes
    latencies(device, plain_listener, "bench/plain", 50)
    plain: list[float] = []
    processed: list[float] = []
    added: list[float] = []
    for _ in range(rounds):
        one = latencies(device, plain_listener, "bench/plain", messages)
        other = latencies(device, listener, "bench/1/in", messages)
        added.append(statistics.median(other) - statistics.median(one))
        plain += one
        processed += other
    many = [f"bench/{number}/in" for number in range(100)]
    rows = [
        ("plain delivery, median", f"{statistics.median(plain):.3f} ms"),
        ("through the processor, median", f"{statistics.median(processed):.3f} ms"),
        ("plain delivery, 99 of 100", f"{statistics.quantiles(plain, n=100)[98]:.3f} ms"),
        ("through the processor, 99 of 100", f"{statistics.quantiles(processed, n=100)[98]:.3f} ms"),
        ("as many as it takes, 100 topics", f"{rate(device, listener, many, messages * rounds):,.0f} messages/s"),
    ]
    for each in (device, plain_listener, listener):
        each.socket.close()
    value = statistics.median(added)
    is_reached = value <= ADDED_MS_MAX
    return Ratio("added by the processor, ms", value, min(added), max(added), f"≤ {ADDED_MS_MAX:g}", is_reached), rows


def main(
    rounds: Annotated[int, typer.Option(help="How often plain and processed alternate.")] = 10,
    messages: Annotated[int, typer.Option(help="Messages of each in a round.")] = 500,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figure as JSON.")] = False,
) -> None:
    """Latency from a device by way of an edge processor to a subscriber, beside plain delivery."""
    folder = Path(tempfile.mkdtemp(prefix="braidmq-bench-"))
    try:
        (folder / "echo.py").write_text(PROCESSOR)
        (folder / "config.toml").write_text('[[processor]]\nfile = "echo.py"\n')
        port = client.free_port()
        command = [str(BraidMQ.executable), "up", "--port", str(port), "--data", "data", "--log-level", "warning"]
        with process([*command, "--config", "config.toml"], folder):
            wait_for_mqtt(port)
            figure, rows = measure(port, rounds, messages)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        print(msgspec.json.encode(figure).decode())
        return
    table = Table("figure", "value", title=f"Edge processor, spool {SPOOL}, {PAYLOAD_BYTES} bytes, QoS 0")
    for row in rows:
        table.add_row(*row)
    mark = "[green]reached[/]" if figure.is_reached else "[red]missed[/]"
    table.add_row(
        f"{figure.name} ({figure.target})", f"{figure.value:.3f} ({figure.low:.3f} to {figure.high:.3f}) {mark}"
    )
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
