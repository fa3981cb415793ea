"""A broker's log, read over its admin port: the same questions and answers as `LogReader` has.

A stream that breaks off is taken up again behind the last row that came, a few times; nothing comes twice.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlencode

import pyarrow as pa

from braidmq.log.errors import LogError
from braidmq.log.filters import TopicFilters
from braidmq.log.reader import BATCH_BYTES, together
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


class RemoteLog:
    """`url` is the admin port's, such as http://edge1:9883; `token` that of [admin] in the broker's configuration."""

    def __init__(self, url: str, token: str | None = None, timeout_s: float = TIMEOUT_S) -> None:
        self.url = url.rstrip("/")
        self.damaged_batches = 0
        self.damaged_rows = 0
        """What is damaged is counted where the files are: see the broker's metrics."""
        self._token = token
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
        self, partition: int, start: int, until: int, filters: Sequence[str] = (), batch_bytes: int = BATCH_BYTES
    ) -> Iterator[pa.RecordBatch]:
        wanted = TopicFilters(filters)
        if partition < 0:
            raise ValueError(f"there is no partition {partition}")
        if start < until:
            yield from together(self._rows(partition, max(0, start), until, wanted.filters), batch_bytes)

    def _rows(self, partition: int, start: int, until: int, filters: Sequence[str]) -> Iterator[pa.RecordBatch]:
        tries = 0
        while True:
            query = {"from": start, "until": min(until, 2**63 - 1), "filter": list(filters)}
            try:
                with self._open(f"/log/{partition}", query) as response:
                    for piece in read_stream(response):
                        if isinstance(piece, int):
                            return
                        tries = 0
                        start = piece.column("offset")[-1].as_py() + 1
                        yield piece
            except (CutShortError, ConnectionError, TimeoutError, http.client.HTTPException) as error:
                tries += 1
                if tries >= TRIES_MAX:
                    raise LogError(f"{self.url} stopped answering at offset {start}: {error}") from None
                time.sleep(PAUSE_S * 2 ** (tries - 1))

    def _ask(self, path: str, query: dict[str, Any]) -> dict[str, Any]:
        try:
            with self._open(path, query) as response:
                answer = json.loads(response.read(ANSWER_BYTES_MAX))
        except (ValueError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
            raise LogError(f"{self.url}{path} gave no answer: {error}; is that the admin port of a broker?") from None
        if not isinstance(answer, dict):
            raise LogError(f"{self.url}{path} gave no answer; is that the admin port of a broker?")
        return answer

    def _open(self, path: str, query: dict[str, Any]) -> http.client.HTTPResponse:
        request = urllib.request.Request(f"{self.url}{path}?{urlencode(query, doseq=True)}")  # noqa: S310
        if self._token is not None:
            request.add_header("Authorization", f"Bearer {self._token}")
        try:
            response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=self._timeout_s)  # noqa: S310
        except urllib.error.HTTPError as error:
            raise self._refusal(error.code, error.read(ANSWER_BYTES_MAX)) from None
        except urllib.error.URLError as error:
            reason = getattr(error.reason, "strerror", None) or error.reason
            raise LogError(f"there is no admin port at {self.url}: {reason}") from None
        return response

    def _refusal(self, status: int, body: bytes) -> Exception:
        if status == 401:
            return LogError(f"{self.url} asks for the right token: that of [admin] in the broker's configuration")
        try:
            text = str(json.loads(body)["error"])
        except (ValueError, KeyError, TypeError):
            text = f"it answered {status}: is that the admin port of a broker?"
        return ValueError(text) if status == 400 else LogError(f"{self.url}: {text}")
