"""What an idle connection costs: a broker's resident memory before and after N clients have connected and said nothing.

The kernel's own buffers are in no process's resident memory, so they are not in the figure; they are the same for all.
"""

from __future__ import annotations

import contextlib
import resource
import socket
import time
from pathlib import Path

import msgspec

from bench import client
from bench.process import Broker

NAME = "idle connections"
TARGET_BYTES = 12 * 1024
BATCH = 50
"""Connects under way at once: fewer than the shortest accept queue among the brokers (100)."""
CONNECTIONS_PER_ADDRESS_MAX = 20_000
"""One source address has about 28,000 ports towards one listener; the next addresses of loopback take the rest."""
KEEP_ALIVE_S = 1200
"""Long enough that no client needs to ping, and not 0, so that the broker's keep-alive bookkeeping is in the figure."""
CONNACK_TIMEOUT_S = 20.0
SETTLE_S = 2.0
SPARE_FILES = 256
"""Open files that a broker or the bench needs besides the connections."""


class IdleError(Exception):
    """The connections could not be made, or did not stay."""


class Memory(msgspec.Struct, frozen=True):
    peer: str
    connections: int
    before_bytes: int
    after_bytes: int
    seconds: float
    """How long the connects took."""
    bytes_each: int


def allow_connections(wanted: int) -> int:
    """Raises the limit of open files, for the bench and for what it starts; returns how many connections it allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if soft == resource.RLIM_INFINITY else min(wanted, soft - SPARE_FILES)


def resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Rss:"):
            return int(line.split()[1]) * 1024
    raise IdleError(f"/proc/{pid}/smaps_rollup has no line Rss")


def measure(broker: Broker, connections: int) -> Memory:
    """`broker` is freshly started, so that nothing that it freed earlier hides what it takes now."""
    time.sleep(SETTLE_S)
    before = resident_bytes(broker.pid)
    with contextlib.ExitStack() as stack:
        began = time.monotonic()
        opened: list[socket.socket] = []
        try:
            while len(opened) < connections:
                opened += _connect_batch(broker.port, len(opened), min(BATCH, connections - len(opened)), stack)
        except (OSError, client.RefusedError) as error:
            raise IdleError(f"after {len(opened):,} connections: {error}") from None
        took_s = time.monotonic() - began
        time.sleep(SETTLE_S)
        after = resident_bytes(broker.pid)
        if closed := sum(_is_closed(connection) for connection in opened):
            raise IdleError(f"the broker closed {closed:,} of {connections:,} idle connections")
    each = round((after - before) / connections)
    return Memory(broker.peer.name, connections, before, after, round(took_s, 2), each)


def _connect_batch(port: int, first: int, count: int, stack: contextlib.ExitStack) -> list[socket.socket]:
    batch = []
    for number in range(first, first + count):
        source = f"127.0.0.{1 + number // CONNECTIONS_PER_ADDRESS_MAX}"
        connection = client.send_connect(
            port, f"idle-{number}", keep_alive_s=KEEP_ALIVE_S, timeout_s=CONNACK_TIMEOUT_S, source=source
        )
        batch.append(stack.enter_context(connection))
    for connection in batch:
        client.read_connack(connection)
    return batch


def _is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
