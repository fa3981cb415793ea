"""Spark's daemon, which forks its Python workers, made quiet: `braidmq.pipeline.python` puts it in its place."""

from __future__ import annotations

import socket

from pyspark import daemon

_spark_worker = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    try:
        return _spark_worker(sock, authenticated)
    except BrokenPipeError:
        return 1


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
