"""A broker as a process of its own: started, ready once it answers CONNECT, and stopped by its pid."""

from __future__ import annotations

import contextlib
import subprocess
import time
from pathlib import Path
from types import TracebackType

from bench import client
from bench.peers import Peer, config_path

START_TIMEOUT_S = 15.0
STOP_TIMEOUT_S = 10.0
LOG_TAIL_BYTES = 2000


class StartError(Exception):
    """The broker ended, or did not answer in time; carries the end of what it printed."""


class Broker:
    """`with Broker(peer, folder) as broker:` has it running on `broker.port`, with its files in `folder`."""

    def __init__(self, peer: Peer, folder: Path) -> None:
        self.peer = peer
        self.folder = folder
        self.port = 0
        self.command: list[str] = []
        self.config: str | None = None
        self._log = folder / "output"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError(f"{self.peer.name} has not been started")
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = client.free_port()
        self.command = self.peer.command(self.port, self.folder)
        self.config = self.peer.config(self.port, self.folder)
        if self.config is not None:
            config_path(self.folder).write_text(self.config)
        with self._log.open("wb") as log:
            # A session of its own: Ctrl-C reaches the bench alone, which then stops its brokers in order.
            self._process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, start_new_session=True
            )
        self._wait_until_it_answers()

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self.exit_code is not None:
                raise StartError(f"{self.peer.name} ended with exit code {self.exit_code}: {self.last_words()}")
            with contextlib.suppress(OSError, client.RefusedError):
                probe = client.send_connect(self.port, "bench-probe", keep_alive_s=60, timeout_s=2.0)
                with probe:
                    client.read_connack(probe)
                    return
            time.sleep(0.05)
        self.stop()
        raise StartError(f"{self.peer.name} did not answer within {START_TIMEOUT_S:.0f} s: {self.last_words()}")

    def restart_if_dead(self) -> None:
        if self.exit_code is not None:
            self.start()

    def last_words(self) -> str:
        text = self._log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip()
        return text or "it printed nothing"

    def stop(self) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Broker:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
