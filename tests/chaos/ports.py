"""Ports for brokers that are stopped and started again."""

from __future__ import annotations

import contextlib
import random
import socket

PORT_MIN = 20_000


def free_ports(count: int, chance: random.Random) -> list[int]:
    """Ports that are free, and below those that the system gives to connections: nobody takes one while its broker is
    down."""
    with contextlib.suppress(OSError, ValueError), open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        return _free_ports(count, chance, int(file.read().split()[0]))
    return _free_ports(count, chance, 32_768)


def _free_ports(count: int, chance: random.Random, below: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        port = chance.randrange(min(PORT_MIN, below // 2), below)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found
