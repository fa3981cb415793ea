"""Brokers that keep a log, and what is in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import urlopen

from braidmq.log.reader import LogReader
from tests.log.rows import read_all
from tests.raw import wait_until

if TYPE_CHECKING:
    from tests.conftest import Broker


LOG = """
[log]
topics = ["telemetry/#", "other/+/kept"]
partitions = 4
[admin]
port = 0
"""


def folder_of(broker: Broker) -> Path:
    return broker.data / "log"


def rows_of(broker: Broker, count: int, read: Callable[[], Any] | None = None) -> list[dict[str, Any]]:
    """The rows in the log, once there are so many."""
    source = LogReader(folder_of(broker)) if read is None else read()
    wait_until(lambda: len(read_all(source)) >= count, f"{count} rows in the log")
    return read_all(source)


def essence(rows: list[dict[str, Any]]) -> list[tuple[str, bytes, int, bool, str | None]]:
    return [(one["topic"], one["payload"], one["qos"], one["retain"], one["client"]) for one in rows]


def answer_of(broker: Broker, path: str) -> tuple[int, Any]:
    try:
        with urlopen(broker.address("http") + path) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        return error.code, json.load(error)
