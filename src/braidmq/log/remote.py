"""A broker's log, read over its admin port: the same questions and answers as `LogReader` has.

A stream that breaks off is taken up again behind the last row that came, a few times; nothing comes twice. Connections
are kept for the next question: a stream of small batches asks many.
"""

from __future__ import annotations

import http.client
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from http import HTTPStatus
from typing import Final

import pyarrow as pa

from braidmq.admin.client import TIMEOUT_S, AdminClient, Connections
from braidmq.admin.errors import AdminError, AnswerRefused, Unanswered, Unreachable, WrongToken
from braidmq.log.batches import BATCH_BYTES, together
from braidmq.log.errors import LogError
from braidmq.log.filters import TopicFilters
from braidmq.log.schema import in_order
from braidmq.log.source import LogState, microseconds
from braidmq.log.stream import CutShortError, read_stream

TRIES_MAX: Final = 4
"""How often in a row a read is tried without a row coming of it."""

PAUSE_S: Final = 0.2
"""Before the second try; each later one waits twice as long."""

IDLE_MAX: Final = 4
"""Connections to one broker that wait for the next question."""

BROKERS_MAX: Final = 64
"""Brokers to which connections are kept."""


class AwayError(LogError):
    """There is no answer, or one that says: later. Asked again, the broker may have one."""


class BrokenOffError(AwayError):
    """The broker was reached, and its answer did not come."""


class RemoteLog:
    """`url` is the admin port's, such as http://edge1:9883; `token` that of [admin] in the broker's configuration."""

    def __init__(self, url: str, token: str | None = None, timeout_s: float = TIMEOUT_S) -> None:
        self.url = url.rstrip("/")
        self.damaged_batches = 0
        self.damaged_rows = 0
        """What is damaged is counted where the files are: see the broker's metrics."""
        self._client = AdminClient(self.url, token, timeout_s, idle_connections(self.url))

    def state(self) -> LogState:
        with _told_as_log_errors():
            log = self._client.log()
        return LogState(*(getattr(log, name) for name in LogState.__slots__))

    def offset_at(self, at: datetime) -> int:
        time_us = microseconds(at)
        exact = datetime.fromtimestamp(time_us // 1_000_000, UTC).replace(microsecond=time_us % 1_000_000)
        with _told_as_log_errors():
            return self._client.log_offset_at(exact.isoformat())

    def offset_after(self, start: int, rows: int) -> int:
        with _told_as_log_errors():
            return self._client.log_offset_after(start, max(1, rows))

    def read(
        self,
        partition: int,
        start: int,
        until: int,
        filters: Sequence[str] = (),
        *,
        columns: Sequence[str] | None = None,
        batch_bytes: int = BATCH_BYTES,
    ) -> Iterator[pa.RecordBatch]:
        wanted = TopicFilters(filters)
        some = None if columns is None else in_order([*columns, "offset"])
        if partition < 0:
            raise ValueError(f"there is no partition {partition}")
        if start < until:
            rows = self._rows(partition, max(0, start), until, wanted.filters, some)
            yield from together(rows, batch_bytes)

    def _rows(
        self, partition: int, start: int, until: int, filters: Sequence[str], columns: Sequence[str] | None
    ) -> Iterator[pa.RecordBatch]:
        tries = 0
        while True:
            try:
                with (
                    _told_as_log_errors(),
                    self._client.log_rows(partition, start, min(until, 2**63 - 1), filters, columns) as response,
                ):
                    for piece in read_stream(response):
                        if isinstance(piece, int):
                            return
                        tries = 0
                        start = piece.column("offset")[-1].as_py() + 1
                        yield piece
            except (CutShortError, BrokenOffError, ConnectionError, TimeoutError, http.client.HTTPException) as error:
                tries += 1
                if tries >= TRIES_MAX:
                    raise AwayError(f"{self.url} stopped answering at offset {start}: {error}") from None
                time.sleep(PAUSE_S * 2 ** (tries - 1))


@contextmanager
def _told_as_log_errors() -> Iterator[None]:
    """What the admin port could not answer, as an error of the log; a ValueError if the question was wrong."""
    try:
        yield
    except WrongToken as error:
        raise LogError(f"{error}: that of [admin] in the broker's configuration") from None
    except Unanswered as error:
        raise BrokenOffError(str(error)) from None
    except Unreachable as error:
        raise AwayError(str(error)) from None
    except AnswerRefused as error:
        if error.status == HTTPStatus.BAD_REQUEST:
            raise ValueError(error.reason) from None
        raise (AwayError if error.is_for_now else LogError)(str(error)) from None
    except AdminError as error:
        raise LogError(str(error)) from None


@lru_cache(BROKERS_MAX)
def idle_connections(_url: str) -> Connections:
    """The connections of this process to one broker that wait for the next question; the latest ones stay."""
    return deque(maxlen=IDLE_MAX)
