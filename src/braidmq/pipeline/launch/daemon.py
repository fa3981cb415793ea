"""Spark's daemon, which forks its Python workers, replaced by this module (see `worker_python`).

It is quiet when Java hangs up on a worker; and it imports what workers need before it forks them, so that they start at
once, the first ones as well as those that come after a crash, and share that memory.
"""

from __future__ import annotations

import gc
import importlib
import os
import socket
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from braidmq.pipeline.launch.installed_pyspark import prefer_installed

prefer_installed()

from pyspark import daemon  # noqa: E402 - from where it is installed

NEEDED: Final = ("pyspark.worker", "pandas", "pyarrow.compute", "braidmq.pipeline.stateful")

_spark_worker = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    try:
        return _spark_worker(sock, authenticated)
    except BrokenPipeError:
        return 1


def serve(needed: Iterable[str]) -> None:
    """A process that forks may have no threads, and numpy would start some."""
    daemon.worker = worker
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for name in needed:
        with suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    daemon.manager()


if __name__ == "__main__":
    serve(NEEDED)
