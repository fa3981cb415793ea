"""Spools after a crash: what a clean end would have left is made from the log, where it has the topics."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import TYPE_CHECKING, Final

import msgspec

from braidmq.processors.frames import Ready
from braidmq.processors.restoring import Found, Order, Wanted

if TYPE_CHECKING:
    from braidmq.server.log_recorder import LogRecorder

LIMIT_S: Final = 10.0
"""How long the start of the broker waits for them; without them, processors begin with empty spools."""
ROWS_MAX: Final = 200_000
"""The last rows of the log, in which they are looked for."""
COMMAND: Final = ("-m", "braidmq.processors.restorer")

_log = logging.getLogger("braidmq.processing")


class RestoreError(Exception):
    """Spools cannot be made from the log; it says why."""


async def restored(
    log: LogRecorder, processors: list[Ready], bytes_max: int, since: float
) -> list[tuple[Ready, list[Found]]]:
    """The spools of processors, as far as something came `since`; of each no more than `bytes_max`."""
    longer = [one for one in processors if one.spool > 1]  # in one of 1 is the message that comes, and no other
    if not longer or not log.next_offset:
        return []
    wanted = [Wanted(one.topic, one.spool) for one in longer]
    try:
        found = await _ask(Order(str(log.log.folder), wanted, ROWS_MAX, bytes_max, since))
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


async def _ask(order: Order) -> list[list[Found]]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, *COMMAND, stdin=pipe, stdout=pipe, stderr=pipe)
    try:
        async with asyncio.timeout(LIMIT_S):
            said, complaint = await process.communicate(msgspec.msgpack.encode(order))
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        lines = complaint.decode(errors="replace").split("\n")
        raise RestoreError(next((line for line in reversed(lines) if line), f"exit code {process.returncode}"))
    return msgspec.msgpack.decode(said, type=list[list[Found]])
