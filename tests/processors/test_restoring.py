"""Spools that are made from the log: which there are, and what is left out."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from braidmq.log.log import Log
from braidmq.log.run import Run
from braidmq.processing import restoring
from braidmq.processing.restoring import RestoreError
from braidmq.processors.restore_messages import RestoreRequest, SpoolQuery
from braidmq.processors.restorer import restored
from braidmq.processors.worker_messages import decode_message

BEGAN_US = 1_794_800_000_000_000
SECOND_US = 1_000_000
EVERYTHING = 1 << 40


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Topics t/0 to t/2 in turn, ten messages each, one a second; then one of `other`."""
    log = Log(tmp_path / "log", "site", partitions=3)
    for number in range(30):
        log.append([Run.of(f"t/{number % 3}", b"%d" % number, BEGAN_US + number * SECOND_US, client="device")])
    log.append([Run.of("other", b"x", BEGAN_US + 30 * SECOND_US)])
    log.close()
    return log.folder


def found(
    folder: Path, *queries: SpoolQuery, rows_max: int = EVERYTHING, bytes_max: int = EVERYTHING, since: float = 0.0
) -> list[dict[str, list[bytes]]]:
    request = RestoreRequest(str(folder), list(queries), rows_max, bytes_max, since)
    return [
        {one.topic: [decode_message(raw).payload for raw in one.messages] for one in spools}
        for spools in restored(request)
    ]


def test_the_last_messages_of_each_topic(folder: Path) -> None:
    first, second = found(folder, SpoolQuery("t/+", 3), SpoolQuery("other", 5))
    assert first == {"t/0": [b"21", b"24", b"27"], "t/1": [b"22", b"25", b"28"], "t/2": [b"23", b"26", b"29"]}
    assert second == {"other": [b"x"]}
    [[one]] = restored(RestoreRequest(str(folder), [SpoolQuery("t/1", 2)], EVERYTHING, EVERYTHING, 0.0))
    message = decode_message(one.messages[-1])
    assert (one.last, message.offset, message.client, message.origin) == (28, 28, "device", "site")
    assert one.used_at == message.received_at == BEGAN_US / 1e6 + 28


def test_what_is_too_far_back_is_left_out(folder: Path) -> None:
    assert found(folder, SpoolQuery("t/#", 3), rows_max=5) == [{"t/0": [b"27"], "t/1": [b"28"], "t/2": [b"26", b"29"]}]
    assert found(folder, SpoolQuery("t/#", 1), since=BEGAN_US / 1e6 + 28) == [{"t/1": [b"28"], "t/2": [b"29"]}]


def test_no_more_than_there_is_room_for(folder: Path) -> None:
    [[newest, *_]] = restored(RestoreRequest(str(folder), [SpoolQuery("t/#", 2)], EVERYTHING, EVERYTHING, 0.0))
    size = sum(map(len, newest.messages))
    assert found(folder, SpoolQuery("t/#", 2), bytes_max=2 * size) == [{"t/1": [b"25", b"28"], "t/2": [b"26", b"29"]}]
    assert found(folder, SpoolQuery("t/#", 2), bytes_max=size - 1) == [{}]


async def test_the_process_gives_the_same_and_says_what_is_wrong(folder: Path, tmp_path: Path) -> None:
    request = RestoreRequest(str(folder), [SpoolQuery("t/+", 3)], EVERYTHING, EVERYTHING, 0.0)
    assert await restoring._ask(request) == await asyncio.to_thread(restored, request)
    with pytest.raises(RestoreError, match="nowhere"):
        await restoring._ask(RestoreRequest(str(tmp_path / "nowhere"), [], EVERYTHING, EVERYTHING, 0.0))
