"""`python -m bench.homes`: what spools that several brokers share cost between them.

Brokers of one braid, each a process of its own, with the same processor. One topic is published at one of them, at two,
and so on: each is then a home of it, and each message goes to all others. Measured are the bytes of publications
between brokers, as all of them count, for each message; beside them is what must be sent at least, the message to each
other home. One message at a time has a frame for each; in a burst, several share one.
"""

from __future__ import annotations

import contextlib
import re
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final
from urllib.request import urlopen

import typer
from rich.console import Console
from rich.table import Table

from bench import client
from bench.braid import SETTLE_S, process, wait_for_mqtt
from bench.peers import BraidMQ
from braidmq.mqtt.codec import encode
from braidmq.mqtt.packets import V3, Publish

PROCESSOR: Final = """
from braidmq.processors import Message, Spool, processor

@processor(topic="homes/+", spool=20)
def quiet(spool: Spool, message: Message) -> None:
    return None
"""
QUIET_S: Final = 2.0
"""How long nothing is published before bytes are read."""
PUBACK_BYTES: Final = 4
LINK_BYTES: Final = re.compile(
    r'^braidmq_braid_link_bytes_total\{.*direction="out",kind="publications".*\} (\S+)$', re.M
)

console = Console(width=max(100, Console().width))


@contextlib.contextmanager
def braid(folder: Path, count: int) -> Iterator[tuple[list[int], list[int]]]:
    """The MQTT and admin ports of the brokers of one braid."""
    ports, links, admin = ([client.free_port() for _ in range(count)] for _ in range(3))
    file = folder / "quiet.py"
    file.write_text(PROCESSOR)
    config = folder / "processors.toml"
    config.write_text(f'[[processor]]\nfile = "{file}"\n')
    with contextlib.ExitStack() as stack:
        for number in range(count):
            own = folder / f"b{number}"
            own.mkdir()
            command = [str(BraidMQ.executable), "up", "--config", str(config), "--port", str(ports[number])]
            command += ["--data", str(own / "data"), "--braid", f"127.0.0.1:{links[number]}", "--log-level", "warning"]
            command += ["--set", "braid.copies=1", "--admin-port", str(admin[number])]
            command += ["--join", f"127.0.0.1:{links[0]}"] if number else []
            stack.enter_context(process(command, own))
        for port in ports:
            wait_for_mqtt(port)
        time.sleep(SETTLE_S)
        yield ports, admin


def sent(admin: list[int]) -> float:
    """Bytes of publications that all brokers have sent to others."""
    total = 0.0
    for port in admin:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
            total += sum(map(float, LINK_BYTES.findall(response.read().decode())))
    return total


def publish(connection: socket.socket, topic: str, payload: bytes, count: int) -> None:
    """Publishes so many at once, at QoS 1; returns when all are acknowledged."""
    packets = [encode(Publish(topic, payload, 1, packet_id=number), V3) for number in range(1, count + 1)]
    connection.sendall(b"".join(packets))
    left = PUBACK_BYTES * count
    while left:
        data = connection.recv(left)
        if not data:
            raise SystemExit("a broker closed the connection")
        left -= len(data)


def measure(ports: list[int], admin: list[int], homes: int, messages: int, burst: int, payload: bytes) -> float:
    """Bytes between brokers for each message, with so many homes."""
    topic = f"homes/{homes}x{burst}x{len(payload)}"
    with contextlib.ExitStack() as stack:
        devices = [
            stack.enter_context(client.send_connect(port, f"device{port}", keep_alive_s=60, timeout_s=10.0))
            for port in ports[:homes]
        ]
        for device in devices:
            client.read_connack(device)
            publish(device, topic, payload, 1)
            time.sleep(1.0)
        time.sleep(QUIET_S)
        before = sent(admin)
        for number in range(messages // burst):
            publish(devices[number % homes], topic, payload, burst)
        time.sleep(QUIET_S)
        return (sent(admin) - before) / (messages // burst * burst)


def main(
    brokers: Annotated[int, typer.Option(min=2, max=8, help="Brokers in the braid.")] = 4,
    messages: Annotated[int, typer.Option(min=100, help="Messages of each run.")] = 1_000,
    size: Annotated[int, typer.Option(min=1, help="Bytes of a payload.")] = 200,
    burst: Annotated[int, typer.Option(min=1, max=100, help="Messages of a burst, beside one at a time.")] = 20,
) -> None:
    """Bytes of a message between brokers, by the number of homes of its topic."""
    table = Table("homes", "least", "one at a time", "in bursts", title=f"Bytes of a message of {size} bytes, QoS 1")
    with tempfile.TemporaryDirectory(prefix="braidmq-bench-") as folder, braid(Path(folder), brokers) as (ports, admin):
        for homes in range(1, brokers + 1):
            least = (homes - 1) * size
            row = [str(homes), f"{least:,}"]
            for count in (1, burst):
                found = measure(ports, admin, homes, messages, count, bytes(size))
                row.append(f"{found:,.0f} ({found / least:.2f})" if least else f"{found:,.0f}")
            console.print(", ".join(row), markup=False, highlight=False)
            table.add_row(*row)
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
