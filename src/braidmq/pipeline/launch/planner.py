"""Starts a process of Spark that plans a stream in time: it is run in place of Spark's module (see `worker_python`).

Java gives such a process ten seconds to connect. Spark's module connects after its imports, which take longer than that
on a small or busy machine; so the connection is made here first, and Spark's module then finds it.
"""

from __future__ import annotations

import importlib
import os
import runpy
import socket
import sys
from contextlib import suppress
from typing import Any

from braidmq.pipeline.launch.installed_pyspark import prefer_installed

PATH_VARIABLE = "PYTHON_WORKER_FACTORY_SOCK_PATH"
BUFFER_BYTES = 65536


def connect(path: str) -> None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(path)

    worker_util: Any = importlib.import_module("pyspark.worker_util")
    connect_now = worker_util.local_connect_and_auth

    def connect_once(info: object, secret: object) -> Any:
        if info != path:
            return connect_now(info, secret)
        return connection.makefile("rwb", BUFFER_BYTES), connection

    worker_util.local_connect_and_auth = connect_once


if __name__ == "__main__":
    prefer_installed()
    if PATH_VARIABLE in os.environ:
        connect(os.environ[PATH_VARIABLE])
    del sys.argv[0]
    with suppress(ConnectionError):  # Java hangs up when a query is stopped
        runpy.run_module(sys.argv[0], run_name="__main__")
