"""What ties the process of a demonstration to that of its brokers: a socket, which is its standard input.

The plan comes first, and when the socket is closed, the process ends with all that it has started.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from typing import Final, TypeVar

import msgspec

from braidmq.system.framing import read_frame

END_S: Final = 15.0
"""How long an orderly end may take before the process is ended at once."""

Plan = TypeVar("Plan", bound=msgspec.Struct)


class BrokersEnded(Exception):
    """The brokers end."""


def open_channel() -> socket.socket:
    return socket.socket(fileno=os.dup(sys.stdin.fileno()))


def read_plan(channel: socket.socket, kind: type[Plan]) -> Plan:
    body = read_frame(channel.fileno())
    if body is None:
        raise BrokersEnded
    return msgspec.msgpack.decode(body, type=kind)


def watch(channel: socket.socket) -> threading.Event:
    """Set when the other end is closed; if this process has not ended a while later, it is ended."""
    ending = threading.Event()
    threading.Thread(target=_wait, args=(channel, ending), daemon=True).start()
    return ending


def _wait(channel: socket.socket, ending: threading.Event) -> None:
    try:
        while channel.recv(4096):
            pass
    except OSError:
        pass
    ending.set()
    time.sleep(END_S)
    os._exit(1)
