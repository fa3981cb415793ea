"""Spools after a crash: what a clean end would have saved is made from the log, as far as it has the topics."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Final

import msgspec

from braidmq.processing.context import PublicationLog
from braidmq.processors.restore_messages import RestoredSpool, RestoreRequest, SpoolQuery
from braidmq.processors.worker_messages import Ready
from braidmq.system.framing import FrameSplitter, frame

LIMIT_S: Final = 10.0
"""How long the start of the broker waits for them; without them, processors begin with empty spools."""
ROWS_MAX: Final = 200_000
"""How many of the log's last rows are searched."""
COMMAND: Final = ("-m", "braidmq.processors.restorer")

_log = logging.getLogger("braidmq.processing")


class RestoreError(Exception):
    """Spools cannot be made from the log; the text says why."""


async def restored(
    log: PublicationLog, processors: list[Ready], bytes_max: int, since: float
) -> list[tuple[Ready, list[RestoredSpool]]]:
    """The spools of processors, of topics with a message `since` then; of each processor at most `bytes_max`."""
    longer = [one for one in processors if one.spool > 1]  # a spool of 1 holds only the message that arrives
    if not longer or not log.next_offset:
        return []
    queries = [SpoolQuery(one.topic, one.spool) for one in longer]
    try:
        found = await _ask(RestoreRequest(str(log.folder), queries, ROWS_MAX, bytes_max, since))
    except TimeoutError:
        _log.warning("processors begin with empty spools: to read the log took more than %g s", LIMIT_S)
        return []
    except (OSError, RestoreError) as error:
        _log.warning("processors begin with empty spools, for the log could not be read: %s", error)
        return []
    for one, spools in zip(longer, found, strict=True):
        if spools:
            _log.info("processor %s has the spools of %d topics from the log", one.name, len(spools))
    return list(zip(longer, found, strict=True))


async def _ask(request: RestoreRequest) -> list[list[RestoredSpool]]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, *COMMAND, stdin=pipe, stdout=pipe, stderr=pipe)
    try:
        async with asyncio.timeout(LIMIT_S):
            answer, complaint = await process.communicate(frame(request))
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        lines = complaint.decode(errors="replace").split("\n")
        raise RestoreError(next((line for line in reversed(lines) if line), f"exit code {process.returncode}"))
    body = next(FrameSplitter().split(answer), None)
    if body is None:
        raise RestoreError("the process that reads it gave no answer")
    return msgspec.msgpack.decode(body, type=list[list[RestoredSpool]])
