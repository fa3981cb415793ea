"""The process with the buses, as the process with the brokers sees it.

It has a session of its own, so that Ctrl-C comes to the brokers alone; a socket between the two, which is its standard
input, tells it that they end, even if they were killed. Java is in its group of processes, and waited for as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from typing import Final

import msgspec

from braidmq.cli.demo.plan import ROOM_WORD
from braidmq.system.framing import frame

END_S: Final = 20.0
"""How long it may take to end by itself, Spark included."""
ORPHANS_S: Final = 2.0
"""How long a Java that was just starting has to end before it is killed."""
POLL_S: Final = 0.05
WORDS_BYTES_MAX: Final = 4096


class DemoProcess:
    """From `start`, called in the brokers' loop, to `end`, when that has ended."""

    def __init__(self, module: str, *, once: bool) -> None:
        """`module` is run as the process."""
        self._module = module
        self.has_room = False
        """Whether the edge is to have room for all topics from now on."""
        self._once = once
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def start(self, plan: msgspec.Struct) -> None:
        own, other = socket.socketpair()
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._module], stdin=other.fileno(), start_new_session=True
            )
        with contextlib.suppress(BrokenPipeError):  # a Ctrl-C at this moment ends it before it has its own session
            own.sendall(frame(plan))
        own.setblocking(False)
        self._socket = own
        asyncio.get_running_loop().add_reader(own, self._on_words, own)

    def _on_words(self, own: socket.socket) -> None:
        try:
            words = own.recv(WORDS_BYTES_MAX)
        except BlockingIOError:
            return
        except OSError:
            words = b""
        if ROOM_WORD in words:
            self.has_room = True
            os.kill(os.getpid(), signal.SIGHUP)  # the brokers read their configuration again
        if not words:
            asyncio.get_running_loop().remove_reader(own)
            if self._once:
                os.kill(os.getpid(), signal.SIGTERM)

    def end(self) -> int:
        """Ends it, if it has not ended, with all that it started; returns its exit code."""
        if self._socket is not None:
            self._socket.close()
        if self._process is None:
            return 0
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S)
            ends_at = time.monotonic() + ORPHANS_S
            while _is_there(self._process.pid) and time.monotonic() < ends_at:
                time.sleep(POLL_S)
        finally:
            if _is_there(self._process.pid):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        return self._process.returncode


def _is_there(group: int) -> bool:
    """Whether a process of the group is still running."""
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True
