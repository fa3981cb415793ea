"""A broker's log, read over its admin port: the same questions and answers as `LogReader` has.

A stream that breaks off is taken up again behind the last row that came, a few times; nothing comes twice. Connections
are kept for the next question: a stream of small batches asks many.
"""

from __future__ import annotations

import http.client
import json
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import pyarrow as pa

from braidmq.log.batches import BATCH_BYTES, together
from braidmq.log.errors import LogError
from braidmq.log.filters import TopicFilters
from braidmq.log.schema import in_order
from braidmq.log.source import LogState, microseconds
from braidmq.log.stream import CutShortError, read_stream

TIMEOUT_S: Final = 30.0
"""How long an answer, or the next piece of it, may take."""

TRIES_MAX: Final = 4
"""How often in a row a read is tried without a row coming of it."""

PAUSE_S: Final = 0.2
"""Before the second try; each later one waits twice as long."""

ANSWER_BYTES_MAX: Final = 1 << 20
"""Of an answer that is not rows."""

REST_BYTES_MAX: Final = 1 << 16
"""What may stand behind the last batch of a stream; a connection with more to read is not used again."""

IDLE_MAX: Final = 4
"""Connections to one broker that wait for the next question."""

BROKERS_MAX: Final = 64
"""Brokers to which connections are kept."""


class AwayError(LogError):
    """There is no answer, or one that says: later. Asked again, the broker may have one."""


class RemoteLog:
    """`url` is the admin port's, such as http://edge1:9883; `token` that of [admin] in the broker's configuration."""

    def __init__(self, url: str, token: str | None = None, timeout_s: float = TIMEOUT_S) -> None:
        self.url = url.rstrip("/")
        self.damaged_batches = 0
        self.damaged_rows = 0
        """What is damaged is counted where the files are: see the broker's metrics."""
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._timeout_s = timeout_s

    def state(self) -> LogState:
        answer = self._ask("/log", {})
        return LogState(*(answer[name] for name in LogState.__slots__))

    def offset_at(self, at: datetime) -> int:
        time_us = microseconds(at)
        exact = datetime.fromtimestamp(time_us // 1_000_000, UTC).replace(microsecond=time_us % 1_000_000)
        return int(self._ask("/log/offsets", {"at": exact.isoformat()})["offset"])

    def offset_after(self, start: int, rows: int) -> int:
        return int(self._ask("/log/offsets", {"from": start, "rows": max(1, rows)})["offset"])

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
        some = {} if columns is None else {"column": in_order([*columns, "offset"])}
        if partition < 0:
            raise ValueError(f"there is no partition {partition}")
        if start < until:
            rows = self._rows(partition, max(0, start), until, {"filter": wanted.filters, **some})
            yield from together(rows, batch_bytes)

    def _rows(
        self, partition: int, start: int, until: int, wanted: dict[str, tuple[str, ...]]
    ) -> Iterator[pa.RecordBatch]:
        tries = 0
        while True:
            query = {"from": start, "until": min(until, 2**63 - 1), **wanted}
            try:
                with self._answer(f"/log/{partition}", query) as response:
                    for piece in read_stream(response):
                        if isinstance(piece, int):
                            return
                        tries = 0
                        start = piece.column("offset")[-1].as_py() + 1
                        yield piece
            except (CutShortError, ConnectionError, TimeoutError, http.client.HTTPException) as error:
                tries += 1
                if tries >= TRIES_MAX:
                    raise AwayError(f"{self.url} stopped answering at offset {start}: {error}") from None
                time.sleep(PAUSE_S * 2 ** (tries - 1))

    def _ask(self, path: str, query: dict[str, Any]) -> dict[str, Any]:
        no_answer = f"{self.url}{path} gave no answer"
        try:
            with self._answer(path, query) as response:
                answer = json.loads(response.read(ANSWER_BYTES_MAX))
        except (http.client.HTTPException, ConnectionError, TimeoutError) as error:
            raise AwayError(f"{no_answer}: {error}; is that the admin port of a broker?") from None
        except ValueError as error:
            raise LogError(f"{no_answer}: {error}; is that the admin port of a broker?") from None
        if not isinstance(answer, dict):
            raise LogError(f"{no_answer}; is that the admin port of a broker?")
        return answer

    @contextmanager
    def _answer(self, path: str, query: dict[str, Any]) -> Iterator[http.client.HTTPResponse]:
        """An answer of the broker; once all of it was read, the connection is there for the next one."""
        connection, response = self._asked(f"{urlsplit(self.url).path}{path}?{urlencode(query, doseq=True)}")
        is_whole = False
        try:
            if response.status != HTTPStatus.OK:
                raise self._refusal(response.status, response.read(ANSWER_BYTES_MAX))
            yield response
            response.read(REST_BYTES_MAX)
            is_whole = response.isclosed() and not response.will_close
        finally:
            if is_whole:
                _idle(self.url).append(connection)
            else:
                connection.close()

    def _asked(self, target: str) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        for connection in self._idle_ones():
            try:
                connection.request("GET", target, headers=self._headers)
                return connection, connection.getresponse()
            except (ConnectionError, http.client.HTTPException):
                connection.close()  # the broker did so before
        connection = self._connection()
        try:
            connection.request("GET", target, headers=self._headers)
        except OSError as error:
            connection.close()
            raise AwayError(f"there is no admin port at {self.url}: {error.strerror or error}") from None
        try:
            return connection, connection.getresponse()
        except BaseException:
            connection.close()
            raise

    def _idle_ones(self) -> Iterator[http.client.HTTPConnection]:
        with suppress(IndexError):
            while True:
                yield _idle(self.url).pop()

    def _connection(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        make = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        return make(parts.hostname or "", parts.port, timeout=self._timeout_s)

    def _refusal(self, status: int, body: bytes) -> Exception:
        if status == HTTPStatus.UNAUTHORIZED:
            return LogError(f"{self.url} asks for the right token: that of [admin] in the broker's configuration")
        try:
            text = str(json.loads(body)["error"])
        except (ValueError, KeyError, TypeError):
            text = f"it answered {status}: is that the admin port of a broker?"
        if status == HTTPStatus.BAD_REQUEST:
            return ValueError(text)
        return (AwayError if status == HTTPStatus.SERVICE_UNAVAILABLE else LogError)(f"{self.url}: {text}")


@lru_cache(BROKERS_MAX)
def _idle(_url: str) -> deque[http.client.HTTPConnection]:
    """The connections of this process that wait; the latest ones stay."""
    return deque(maxlen=IDLE_MAX)
