"""The log on the admin port: where it begins and ends, and its rows as an Arrow IPC stream.

    GET /log                                 the broker, the log's id, its partitions, first and next offset
    GET /log/offsets?at=TIME                 the offset of the first row received then (ISO 8601) or later
    GET /log/offsets?from=N&rows=M           where to stop so that at most M rows are read from N
    GET /log/P?from=N&until=M&filter=F       the rows of a partition, with any number of filters, up to max_bytes; and
                                             column=C for some columns only, any number of times

The stream ends with an empty batch whose metadata say at which offset to go on (`next`): without it, it was cut short.
Files are read by threads, so that the broker's loop goes on meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from braidmq.admin.contract import ROWS, LogOffset, LogStatus
from braidmq.server.admin.responses import answer, refusal

if TYPE_CHECKING:
    from braidmq.server.log_recorder import LogRecorder

READS_MAX: Final = 8
"""Answers that are under way at a time."""

OFFSET_MAX: Final = 2**63 - 1
NO_LOG: Final = 'this broker keeps no log: name topics in its configuration, as [log] topics = ["telemetry/#"]'


class LogRoutes:
    def __init__(self, recorder: Callable[[], LogRecorder | None]) -> None:
        self._recorder = recorder
        self._under_way = 0

    def add_to(self, router: web.UrlDispatcher) -> None:
        router.add_get("/log", self._handler(self._on_state))
        router.add_get("/log/offsets", self._handler(self._on_offsets))
        router.add_get(r"/log/{partition:\d+}", self._handler(self._on_rows))

    def _handler(self, respond: Callable[[LogRecorder, web.Request], Any]) -> Any:
        async def handle(request: web.Request) -> web.StreamResponse:
            recorder = self._recorder()
            if recorder is None:
                return refusal(404, NO_LOG)
            if self._under_way >= READS_MAX:
                return refusal(503, f"{READS_MAX} reads are under way already")
            self._under_way += 1
            try:
                await asyncio.to_thread(getattr, recorder, "reader")  # the first time, that imports much
                response: web.StreamResponse = await respond(recorder, request)
                return response
            except ValueError as error:
                return refusal(400, str(error))
            except OSError as error:
                return refusal(500, str(error))
            finally:
                self._under_way -= 1

        return handle

    async def _on_state(self, recorder: LogRecorder, _request: web.Request) -> web.Response:
        state = await asyncio.to_thread(recorder.reader.state)
        fields = {name: getattr(state, name) for name in state.__slots__}
        return answer(LogStatus(**fields, bytes=recorder.log.bytes, rows=recorder.log.rows))

    async def _on_offsets(self, recorder: LogRecorder, request: web.Request) -> web.Response:
        reader = recorder.reader
        if "at" in request.query:
            text = request.query["at"]
            try:
                at = datetime.fromisoformat(text)
            except ValueError:
                raise ValueError(f"at={text}: expected a time such as 2026-01-31T12:00:00Z") from None
            offset = await asyncio.to_thread(reader.offset_at, at)
        elif "from" in request.query:
            start, rows = _number(request, "from", 0), _number(request, "rows", 1)
            offset = await asyncio.to_thread(reader.offset_after, start, rows)
        else:
            raise ValueError("expected ?at=TIME, or ?from=N&rows=M")
        return answer(LogOffset(offset))

    async def _on_rows(self, recorder: LogRecorder, request: web.Request) -> web.StreamResponse:
        partition = int(request.match_info["partition"])
        start = _number(request, "from", 0)
        until = min(_number(request, "until", OFFSET_MAX), recorder.log.next_offset)
        from braidmq.log.schema import COLUMNS, in_order
        from braidmq.log.stream import rows_stream

        columns = in_order([*request.query.getall("column", COLUMNS), "offset"])
        filters = request.query.getall("filter", [])
        rows = recorder.reader.read(partition, start, until, filters, columns=columns)
        pieces = rows_stream(rows, until, _number(request, "max_bytes", OFFSET_MAX), columns)
        first = await asyncio.to_thread(next, pieces)  # what is wrong with the question shows here
        response = web.StreamResponse(headers={"Content-Type": ROWS})
        with contextlib.suppress(ConnectionError):  # a reader may hang up when it has enough
            await response.prepare(request)
            piece: bytes | None = first
            while piece is not None:
                await response.write(piece)
                piece = await asyncio.to_thread(next, pieces, None)
            await response.write_eof()
        return response


def _number(request: web.Request, name: str, default: int) -> int:
    text = request.query.get(name, str(default))
    if not text.isascii() or not text.isdigit() or int(text) > OFFSET_MAX:
        raise ValueError(f"{name}={text}: expected a number from 0 to {OFFSET_MAX}")
    return int(text)
