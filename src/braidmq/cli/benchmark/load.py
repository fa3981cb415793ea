"""Load on a broker, in a closed loop: at most `window` deliveries are outstanding, so the figure is what the broker
sustains, not what it buffers. Or idle connections.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from braidmq.cli.benchmark.clients import (
    CONNECT_TIMEOUT_S,
    LoadConnection,
    LoadPublisher,
    LoadSubscriber,
    LoadTarget,
    open_all,
)
from braidmq.cli.errors import CliError, ExitCode

SAMPLES_MAX: Final = 1_000_000
"""Latencies that are kept; beyond it, every second one is forgotten."""
DRAIN_TIMEOUT_S: Final = 3.0
WARM_UP_S: Final = 0.5
PROGRESS_INTERVAL_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class Workload:
    publishers: int = 1
    subscribers: int = 1
    topics: int = 1
    qos: int = 0
    size: int = 100
    window: int = 1_000
    seconds: float = 5.0
    prefix: str = "bench"


@dataclass(frozen=True, slots=True)
class LoadResult:
    seconds: float
    sent: int
    received: int
    in_per_s: float
    out_per_s: float
    p50_us: float
    p99_us: float
    max_us: float
    lost: int
    unacknowledged: int


@dataclass(frozen=True, slots=True)
class ConnectionsResult:
    connections: int
    seconds: float
    connects_per_s: float
    lost: int
    """Those that the broker closed again."""


Progress = Callable[[float, int, int], None]
"""Told now and then: the part of the time that has passed, the messages sent and received so far."""


class LatencySamples:
    """Latencies in nanoseconds, thinned out evenly when there are too many."""

    def __init__(self) -> None:
        self._values: list[int] = []
        self._step = 1
        self._skip = 0

    def add(self, values: list[int]) -> None:
        self._values += values[self._skip :: self._step]
        self._skip = (self._skip - len(values)) % self._step
        if len(self._values) > SAMPLES_MAX:
            del self._values[::2]
            self._step *= 2

    def clear(self) -> None:
        self._values.clear()

    def quantile_us(self, part: float) -> float:
        ordered = sorted(self._values)
        return ordered[min(int(len(ordered) * part), len(ordered) - 1)] / 1000 if ordered else 0.0


class ClosedLoop:
    """The publishers, the subscribers, and the count of what is between them."""

    def __init__(self, broker: LoadTarget, workload: Workload) -> None:
        self.workload = workload
        self._broker = broker
        self._loop = asyncio.get_running_loop()
        self._lost: asyncio.Future[None] = self._loop.create_future()
        self._samples = LatencySamples()
        self._publishers: list[LoadPublisher] = []
        self._subscribers: list[LoadSubscriber] = []
        self._sent = self._received = self._expected = 0
        self._turn = 0
        self._running = self._woken = False

    async def run(self, progress: Progress) -> LoadResult:
        try:
            await self._open()
            return await self._measure(progress)
        finally:
            for connection in (*self._publishers, *self._subscribers):
                connection.close()

    def on_lost(self) -> None:
        if not self._lost.done():
            self._lost.set_exception(CliError("the broker closed a connection"))

    def on_delivered(self, count: int, times_ns: list[int]) -> None:
        now = time.monotonic_ns()
        self._received += count
        self._samples.add([now - sent_at for sent_at in times_ns])
        self.wake()

    def wake(self) -> None:
        """Publishes what there is room for, once for all that arrives in this turn of the event loop."""
        if self._running and not self._woken:
            self._woken = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._woken = False
        if not self._running:
            return
        budget = self.workload.window - (self._expected - self._received)
        count = len(self._publishers)
        for step in range(count):
            publisher = self._publishers[(self._turn + step) % count]
            fan_out = publisher.fan_out
            messages = publisher.room()
            if fan_out:
                # An equal share of the window for each, but at least one: the window may be smaller than the fan-out.
                messages = min(messages, max(1, budget // (fan_out * (count - step)))) if budget > 0 else 0
            if messages > 0:
                publisher.publish(messages)
                self._sent += messages
                self._expected += messages * fan_out
                budget -= messages * fan_out
                if not fan_out and not self.workload.qos:
                    self.wake()  # nothing comes back for it; its write buffer is the bound
        self._turn = (self._turn + 1) % count

    async def _open(self) -> None:
        work, run_id = self.workload, secrets.token_hex(3)
        topics = [f"{work.prefix}/{run_id}/{number}" for number in range(work.topics)]
        fan_outs = [0] * work.topics
        for number in range(work.subscribers):
            topic = number % work.topics
            fan_outs[topic] += 1
            client_id = f"bench-{run_id}-s{number}"
            self._subscribers.append(LoadSubscriber(self._broker, client_id, self, topics[topic], work.qos, work.size))
        for number in range(work.publishers):
            topic = number % work.topics
            client_id = f"bench-{run_id}-p{number}"
            self._publishers.append(
                LoadPublisher(self._broker, client_id, self, topics[topic], work.qos, work.size, fan_outs[topic])
            )
        await open_all([*self._subscribers, *self._publishers], self._broker)
        for subscriber in self._subscribers:
            subscriber.subscribe()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await asyncio.gather(*(subscriber.subscribed for subscriber in self._subscribers))
        except TimeoutError:
            raise CliError("the broker did not answer the subscriptions in time", ExitCode.TIMEOUT) from None

    async def _measure(self, progress: Progress) -> LoadResult:
        began = time.monotonic()
        end = began + self.workload.seconds
        self._running = True
        self.wake()
        await self._wait(min(WARM_UP_S, self.workload.seconds / 4))
        started, sent, received = time.monotonic(), self._sent, self._received
        self._samples.clear()
        while (left_s := end - time.monotonic()) > 0:
            await self._wait(min(PROGRESS_INTERVAL_S, left_s))
            progress((time.monotonic() - began) / self.workload.seconds, self._sent, self._received)
        self._running = False
        seconds = time.monotonic() - started
        sent_in_time, received_in_time = self._sent - sent, self._received - received
        drained = time.monotonic() + DRAIN_TIMEOUT_S
        while (self._received < self._expected or self._unacknowledged) and time.monotonic() < drained:
            await self._wait(0.01)
        return LoadResult(
            seconds,
            self._sent,
            self._received,
            sent_in_time / seconds,
            received_in_time / seconds,
            self._samples.quantile_us(0.5),
            self._samples.quantile_us(0.99),
            self._samples.quantile_us(1),
            max(0, self._expected - self._received),
            self._unacknowledged,
        )

    @property
    def _unacknowledged(self) -> int:
        return sum(publisher.unacknowledged for publisher in self._publishers)

    async def _wait(self, seconds: float) -> None:
        """Sleeps; a CliError ends it at once if the broker has closed a connection."""
        await asyncio.wait([self._lost], timeout=seconds)
        if self._lost.done():
            self._lost.result()


async def hold_connections(
    broker: LoadTarget, count: int, hold_s: float, progress: Progress, all_open: Callable[[], None]
) -> ConnectionsResult:
    """Opens connections that do nothing, and holds them for a while; tells how fast that went and how many stayed."""
    lost = opened = 0
    all_lost = asyncio.Event()

    def on_lost() -> None:
        nonlocal lost
        lost += 1
        if lost == count:
            all_lost.set()

    def on_opened() -> None:
        nonlocal opened
        opened += 1
        progress(opened / count, opened, lost)

    run_id = secrets.token_hex(3)
    connections = [LoadConnection(broker, f"bench-{run_id}-{number}", on_lost) for number in range(count)]
    began = time.monotonic()
    try:
        await open_all(connections, broker, on_opened)
        seconds = time.monotonic() - began
        all_open()
        with suppress(TimeoutError):
            await asyncio.wait_for(all_lost.wait(), hold_s)
        return ConnectionsResult(count, seconds, count / seconds, lost)
    finally:
        for connection in connections:
            connection.close()
