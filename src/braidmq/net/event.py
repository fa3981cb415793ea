"""Something that procedures of a NetHost wait for."""

from __future__ import annotations

import asyncio
from math import inf


class NetEvent:
    """`host.Event` on asyncio; it may be made and set before a loop runs."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = asyncio.Event()

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        self._event.set()

    async def wait(self, timeout_s: float | None = None) -> bool:
        if timeout_s is not None and not 0 <= timeout_s < inf:
            raise ValueError(f"a wait has a time-out of 0 s or more, or none, not {timeout_s}")
        try:
            async with asyncio.timeout(timeout_s):
                return await self._event.wait()
        except TimeoutError:
            return self.is_set
