"""Commands of `braidmq`, run as people and scripts do."""

from __future__ import annotations

import io
import logging
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

import pytest

from braidmq.cli.main import build
from tests.patience import PATIENCE_S

Argument = str | Path | int | float

COMMAND = [sys.executable, "-m", "braidmq"]
TIMEOUT_S = PATIENCE_S
WAIT_S = 5.0
"""Long enough for a message that is there to come."""


def environment(extra: dict[str, str] | None = None) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("BRAIDMQ_")}
    return clean | (extra or {})


def braidmq(
    *arguments: Argument, stdin: bytes = b"", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end."""
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)], input=stdin, capture_output=True, env=environment(env), timeout=TIMEOUT_S
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def on_terminal(*arguments: Argument) -> tuple[subprocess.Popen[bytes], bytes]:
    """Runs a command whose standard error is a terminal: the process, which has ended, and what was shown there."""
    terminal, child = pty.openpty()
    command = [*COMMAND, *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=child, env=environment())
    os.close(child)
    shown = b""
    try:
        while data := os.read(terminal, 65536):
            shown += data
    except OSError:
        pass  # the process has ended, and its terminal with it
    os.close(terminal)
    return process, shown


@contextmanager
def logging_as_it_was() -> Iterator[None]:
    """A broker that starts in this process tells the logger where its lines go: no other test shall notice."""
    logger = logging.getLogger("braidmq")
    level, propagate, handlers = logger.level, logger.propagate, logger.handlers[:]
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.propagate = propagate
        logger.handlers[:] = handlers


def in_process(*arguments: Argument, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The same without a process of its own: as real, but for signals and standard input, and much quicker."""
    words = [str(argument) for argument in arguments]
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.dict(os.environ, environment(env), clear=True),
        redirect_stdout(out),
        redirect_stderr(err),
        logging_as_it_was(),
        pytest.raises(SystemExit) as end,
    ):
        build(completion=True)(words, prog_name="braidmq")
    return subprocess.CompletedProcess(words, int(end.value.code or 0), out.getvalue(), err.getvalue())
