"""The few bytes of MQTT 3.1.1 that the bench speaks itself: one CONNECT, one CONNACK.

Written out here, and not taken from the broker's codec, so that one mistake cannot hide on both ends.
"""

from __future__ import annotations

import socket
import struct

HOST = "127.0.0.1"
CLEAN_SESSION = 0x02
IP_BIND_ADDRESS_NO_PORT = 24
"""Linux: the source port is chosen at connect, so ports that wait out an earlier broker's connections do not count."""


class RefusedError(Exception):
    """The broker closed the connection, or answered CONNECT with something other than success."""


def connect_packet(client_id: str, keep_alive_s: int) -> bytes:
    name = client_id.encode()
    body = b"\x00\x04MQTT\x04" + struct.pack("!BHH", CLEAN_SESSION, keep_alive_s, len(name)) + name
    if len(body) > 127:
        raise ValueError(f"client id {client_id!r} is too long: a CONNECT of the bench fits a one-byte length")
    return bytes((0x10, len(body))) + body


def send_connect(
    port: int, client_id: str, *, keep_alive_s: int, timeout_s: float, source: str = HOST
) -> socket.socket:
    """A connected socket on which CONNECT has been sent; `read_connack` completes it."""
    connection = socket.socket()
    try:
        connection.settimeout(timeout_s)
        connection.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
        connection.bind((source, 0))
        connection.connect((HOST, port))
        connection.sendall(connect_packet(client_id, keep_alive_s))
    except BaseException:
        connection.close()
        raise
    return connection


def read_connack(connection: socket.socket) -> None:
    answer = b""
    while len(answer) < 4:
        chunk = connection.recv(4 - len(answer))
        if not chunk:
            raise RefusedError("the broker closed the connection instead of answering CONNECT")
        answer += chunk
    if answer[:2] != b"\x20\x02" or answer[3] != 0:
        raise RefusedError(f"the broker answered CONNECT with {answer.hex(' ')}, not with a CONNACK of success")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
