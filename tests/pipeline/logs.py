"""Logs for the tests: real ones, written by the broker's own log."""

from __future__ import annotations

from pathlib import Path

from braidmq.log.log import Log
from braidmq.log.run import Run

BEGAN_US = 1_794_800_000_000_000
"""When the first row was received; each next one comes a second later."""
SECOND_US = 1_000_000
TOPICS = tuple(f"plant{number % 2}/line{number}/temperature" for number in range(10))


def fill(log: Log, count: int, first: int = 0, commit: int = 100) -> None:
    """Rows `first` … with their number as payload, over all topics in turn."""
    for start in range(first, first + count, commit):
        log.append([row(number) for number in range(start, min(start + commit, first + count))])


def row(number: int) -> Run:
    properties = (("number", str(number)),) if number % 3 == 0 else ()
    return Run.of(
        TOPICS[number % len(TOPICS)],
        str(number).encode(),
        BEGAN_US + number * SECOND_US,
        client=None if number % 5 == 0 else f"device{number % 4}",
        qos=number % 3,
        retain=number % 7 == 0,
        properties=properties,
    )


def written(folder: Path, count: int, broker: str = "site1", partitions: int = 4) -> Path:
    """A log of `count` rows, closed."""
    log = Log(folder, broker, partitions=partitions)
    fill(log, count)
    log.close()
    return folder
