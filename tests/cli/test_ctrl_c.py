"""Ctrl-C for commands that a script's shell has started in the background: it has them ignore SIGINT, and they end all
the same. Those that need Spark are in tests/pipeline/test_ctrl_c.py."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.commands import COMMAND, TIMEOUT_S, environment
from tests.conftest import Broker
from tests.processors.site import ECHO
from tests.raw import wait_until

IGNORING = ["sh", "-c", 'trap "" INT; exec "$@"', "sh"]

COMMANDS: dict[str, tuple[list[str], str, int]] = {
    "sub": (["sub", "-v", "-p", "{port}", "ctrl-c/x"], "Subscribed to", 0),
    "pub": (
        ["pub", "-p", "{port}", "ctrl-c/x", "tick", "-q", "1", "--json", "--repeat", "1000000", "--interval", "0.1"],
        "qos",
        130,
    ),
    "bench": (["bench", "-p", "{port}", "--connections", "5", "-t", "600"], "connections are open", 130),
    "process": (["process", "run", "{folder}/echo.py", "-p", "{port}"], "takes in/+", 0),
    "up": (["up", "--port", "0", "--data", "{folder}/data", "--json"], '"ready"', 0),
    "demo": (["demo", "--port", "0", "--admin-port", "0", "--data", "{folder}/demo", "--no-spark"], "crowded", 0),
    "sim": (["sim", "-n", "100", "--seeds", "1-100000", "--out", "{folder}/trials"], "", 130),
}
"""What is started, what it says when it is at work (a file tells it of the simulator), and how it ends."""


@contextmanager
def started(words: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Its output and its errors come together."""
    process = subprocess.Popen(
        [*IGNORING, *COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment()
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def read_until(process: subprocess.Popen[bytes], text: str) -> None:
    assert process.stdout is not None
    said = b""
    ends_at = time.monotonic() + TIMEOUT_S
    while text.encode() not in said:
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, ends_at - time.monotonic()))
        assert ready, f"{text!r} did not come: {said.decode()}"
        piece = os.read(process.stdout.fileno(), 65536)
        assert piece, f"it ended with {process.wait()}: {said.decode()}"
        said += piece


@pytest.mark.parametrize("name", COMMANDS)
def test_ctrl_c_ends_what_was_told_to_ignore_it(broker: Broker, tmp_path: Path, name: str) -> None:
    (tmp_path / "echo.py").write_text(ECHO)
    words, ready, code = COMMANDS[name]
    with started([word.format(port=broker.port, folder=tmp_path) for word in words]) as process:
        read_until(process, ready)
        if not ready:
            wait_until(lambda: any((tmp_path / "trials").glob("[!.]*.parquet")), "some trials are done", TIMEOUT_S)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == code, said.decode()
        assert b"Traceback" not in said
