"""A rolling restart: brokers are drained and started again, one after the other, under clients that roam.

MQTT 5 clients follow the Server Reference that they are given; others, and those that are given none, go to any other
broker. Publishers and subscribers do the same. `python -m tests.chaos --rolling` runs it.
"""

from __future__ import annotations

import asyncio
import time

from tests.chaos.soak import Soak

PAUSE_S = 1.0


class RollingRestart(Soak):
    async def break_things(self) -> None:
        await asyncio.sleep(PAUSE_S)
        for broker in self.brokers.all:
            began_at = time.monotonic()
            times = broker.times_in
            draining = self.chronicle.begin("drain", [broker.number])
            told = await broker.drain()
            assert told["outcome"] == "empty", f"b{broker.number}: {told}\n{broker.log[-2000:]}"
            assert await broker.wait_until_ended() == 0
            self.chronicle.end(draining)
            down = self.chronicle.begin("down", [broker.number])
            self.say(f"b{broker.number} is drained after {time.monotonic() - began_at:.1f} s: {told}")
            await broker.start()
            await broker.wait_until_in(times + 1)
            self.chronicle.end(down)
        await asyncio.sleep(PAUSE_S)
