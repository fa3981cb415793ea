"""A processor's worker process and the socket to it, from start to end. Its frames are passed on as they arrive."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import Callable
from typing import Final, cast

import msgspec

from braidmq.processors.worker_messages import FromWorker, Setup, decode_from_worker
from braidmq.system.framing import BrokenFrame, FrameSplitter, frame

COMMAND: Final = ("-m", "braidmq.processors.worker")
STDERR: Final = 2
"""What a processor prints goes where the broker writes its log."""

DRAIN_S: Final = 1.0
"""How long the socket of a process that has ended may stay open, in the hands of its children."""


class WorkerProcess(asyncio.Protocol):
    def __init__(self, on_frame: Callable[[FromWorker], None], begin_read: Callable[[], Callable[[], None]]) -> None:
        self._on_frame = on_frame
        self._begin_read = begin_read
        self._splitter = FrameSplitter()
        self._transport: asyncio.Transport | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._closed = asyncio.Event()
        self.fault = ""
        """Why it was killed; empty if it ended by itself."""

    async def begin(self, setup: Setup) -> None:
        """Starts the process; an OSError says why it cannot be."""
        ours, theirs = socket.socketpair()
        try:
            ours.setblocking(False)
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, *COMMAND, stdin=theirs.fileno(), stdout=STDERR, stderr=STDERR
            )
            loop = asyncio.get_running_loop()
            await loop.create_unix_connection(lambda: self, sock=ours)
        except BaseException:
            ours.close()
            self.kill("")
            raise
        finally:
            theirs.close()
        self.write(frame(setup))

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def kill(self, fault: str) -> None:
        """Kills the process, whatever it is doing."""
        self.fault = self.fault or fault
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def wait(self) -> int:
        """Its exit code, once it has ended and its last frame has been read."""
        assert self._process is not None
        code = await self._process.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                await self._closed.wait()
        if self._transport is not None:
            self._transport.abort()
        return code

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        flush = self._begin_read()
        try:
            for body in self._splitter.split(data):
                self._on_frame(decode_from_worker(body))
        except (msgspec.MsgspecError, BrokenFrame) as error:
            self.kill(f"it said something that no worker says: {error}")
        finally:
            flush()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._closed.set()
        self.kill("")
