"""Faults as they are carried out: processes are killed, stopped and drained, paths are broken, and all is mended again.

A broker is destroyed only when nothing else is wrong with any broker and all have their copies; and until all have them
again, and all clients are connected, no other broker is put out of reach. With one more copy that is what may be lost.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from tests.chaos.brokers import BrokerProcess, Brokers
from tests.chaos.chronicle import OUT, Chronicle
from tests.chaos.client import Client
from tests.chaos.faults import OF_BROKERS, Fault, out_max
from tests.chaos.network import Way, pair_of, ways_of

WHOLE_S = 60.0
"""How long it may take until all brokers have their copies and all clients are connected."""

LOOK_S = 0.2


class Breaker:
    def __init__(
        self,
        brokers: Brokers,
        subscribers: Sequence[Client],
        clients: Sequence[Client],
        chronicle: Chronicle,
        say: Callable[[str], None],
    ) -> None:
        self._brokers = brokers
        self._subscribers = subscribers
        self._clients = clients
        self._chronicle = chronicle
        self._say = say
        self._breaking: Counter[Way] = Counter()
        """By way: how many faults break it now."""
        self._out: set[int] = set()
        """Brokers that a fault has put out of reach."""
        self._is_destroying = False
        self.carried_out: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()
        self.not_whole: list[str] = []
        """What was still missing so long after a broker was destroyed."""

    async def run(self, faults: list[Fault], seconds: float) -> None:
        began_at = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for fault in faults:
                await asyncio.sleep(max(0.0, began_at + fault.at_s - time.monotonic()))
                group.create_task(self._break(fault))
            await asyncio.sleep(max(0.0, began_at + seconds - time.monotonic()))

    async def _break(self, fault: Fault) -> None:
        if fault.kind in OF_BROKERS:
            (number,) = fault.targets
            if self._is_destroying or number in self._out or self._is_too_much(number, fault.kind):
                self.skipped[fault.kind] += 1
                return
        self.carried_out[fault.kind] += 1
        self._say(str(fault))
        procedures: dict[str, Callable[[Fault], Coroutine[Any, Any, None]]] = {
            "kill": self._kill,
            "freeze": self._freeze,
            "drain": self._drain,
            "destroy": self._destroy,
            "isolate": self._isolate,
            "nap": self._nap,
        }
        await procedures.get(fault.kind, self._part)(fault)

    def _is_too_much(self, number: int, kind: str) -> bool:
        """Whether too many others are out of reach: one is until it is in the braid again, which is for longer than was
        planned. One that is just being started again may be killed once more, and nothing else."""
        out = {target for one in self._chronicle.under_way if one.kind in (*OUT, "drain") for target in one.targets}
        return (number in out and kind != "kill") or len(out - {number}) >= out_max(len(self._brokers.all))

    # Clients

    async def _nap(self, fault: Fault) -> None:
        client = self._subscribers[fault.targets[0]]
        client.nap()
        await asyncio.sleep(fault.lasts_s)
        client.wake()

    # Paths

    async def _part(self, fault: Fault) -> None:
        one, other = fault.targets
        happening = self._chronicle.begin(fault.kind, fault.targets)
        ways: Sequence[Way] = ((one, other),) if fault.kind == "mute" else ways_of(pair_of(one, other))
        self._break_ways(fault.kind, ways)
        await asyncio.sleep(fault.lasts_s)
        self._heal_ways(ways)
        self._chronicle.end(happening)

    async def _isolate(self, fault: Fault) -> None:
        (number,) = fault.targets
        self._out.add(number)
        happening = self._chronicle.begin(fault.kind, fault.targets)
        others = [other for other in range(len(self._brokers.all)) if other != number]
        ways = [way for other in others for way in ways_of((number, other))]
        self._break_ways("cut", ways)
        await asyncio.sleep(fault.lasts_s)
        self._heal_ways(ways)
        self._chronicle.end(happening)
        self._out.discard(number)

    def _break_ways(self, kind: str, ways: Sequence[Way]) -> None:
        network = self._brokers.network
        for way in ways:
            self._breaking[way] += 1
            if kind == "cut":
                network.cut(pair_of(*way))
            else:
                network.mute(way)

    def _heal_ways(self, ways: Sequence[Way]) -> None:
        for way in ways:
            self._breaking[way] -= 1
            if not self._breaking[way]:
                self._brokers.network.heal(way)

    # Brokers

    async def _kill(self, fault: Fault) -> None:
        broker = self._brokers.all[fault.targets[0]]
        self._out.add(broker.number)
        happening = self._chronicle.begin("kill", fault.targets)
        await broker.kill()
        await asyncio.sleep(fault.lasts_s)
        self._out.discard(broker.number)
        await self._start(broker)
        self._chronicle.end(happening)

    async def _start(self, broker: BrokerProcess) -> None:
        """It may be killed meanwhile, by the next fault; then that starts it again."""
        times, kills = broker.times_in, broker.kills
        if not broker.is_up:
            await broker.start()
            await broker.wait_until_in(times + 1)
        self._say(f"b{broker.number} {'is up again' if broker.kills == kills else 'was killed while it started'}")

    async def _freeze(self, fault: Fault) -> None:
        broker = self._brokers.all[fault.targets[0]]
        self._out.add(broker.number)
        happening = self._chronicle.begin("freeze", fault.targets)
        broker.freeze()
        await asyncio.sleep(fault.lasts_s)
        broker.thaw()
        self._chronicle.end(happening)
        self._out.discard(broker.number)

    async def _drain(self, fault: Fault) -> None:
        """By the command, or by a signal, in turn."""
        broker = self._brokers.all[fault.targets[0]]
        self._out.add(broker.number)
        draining = self._chronicle.begin("drain", fault.targets)
        if broker.is_up:
            if self.carried_out["drain"] % 2:
                told = await broker.drain()
                self._say(f"b{broker.number} is drained: {told.get('outcome', told)}")
            else:
                broker.terminate()
            await broker.wait_until_ended()
        self._chronicle.end(draining)
        down = self._chronicle.begin("down", fault.targets)
        self._say(f"b{broker.number} has ended")
        await asyncio.sleep(fault.lasts_s)
        await self._start(broker)
        self._chronicle.end(down)
        self._out.discard(broker.number)

    async def _destroy(self, fault: Fault) -> None:
        self._is_destroying = True
        try:
            broker = self._brokers.all[fault.targets[0]]
            if not await self._is_whole(since=0.0):
                self.carried_out["destroy"] -= 1
                self.skipped["destroy"] += 1
                return
            self._say(f"b{broker.number} is destroyed")
            happening = self._chronicle.begin("destroy", fault.targets)
            await broker.destroy()
            await asyncio.sleep(fault.lasts_s)
            await self._start(broker)
            self._chronicle.end(happening)
            began_at = time.monotonic()
            if await self._is_whole(happening.began_at):
                self._say(f"all brokers have their copies again, after {time.monotonic() - began_at:.1f} s")
            else:
                self.not_whole += [
                    f"{WHOLE_S:g} s after b{broker.number} was destroyed: {await self._faulty(happening.began_at)}"
                ]
                self._say(self.not_whole[-1])
        finally:
            self._is_destroying = False

    async def _is_whole(self, since: float) -> bool:
        """Waits until nothing is wrong with any broker, and every client was connected since."""
        ends_at = time.monotonic() + WHOLE_S
        while time.monotonic() < ends_at:
            if not self._out and not await self._faulty(since):
                return True
            await asyncio.sleep(LOOK_S)
        return False

    async def _faulty(self, since: float) -> list[str]:
        away = [f"{one.name} was not connected since" for one in self._clients if not one.was_connected(since)]
        return [*(await self._brokers.lacks()), *away]
