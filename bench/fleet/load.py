"""`fleetload.c` as a process that is told what to do and answers in figures; one holds up to CLIENTS_MAX clients."""

from __future__ import annotations

import select
import subprocess
import time
from types import TracebackType
from typing import Any, TypeVar

import msgspec

from bench import loader
from bench.loader import LoadError

SOURCE = loader.FOLDER / "fleetload.c"
CLIENTS_MAX = 10_000
"""Clients of one process, well below the usual limit of open files."""
ANSWER_SPARE_S = 30.0
"""An answer may take so long beyond the time that the command itself was given."""


class Times(msgspec.Struct, frozen=True):
    count: int
    p50_us: int
    p99_us: int
    max_us: int

    @property
    def shown(self) -> str:
        return f"{milliseconds(self.p50_us)} / {milliseconds(self.p99_us)}" if self.count else "–"


class Connected(msgspec.Struct, frozen=True):
    connected: int
    subscribed: int
    refused: int
    closed: int
    seconds: float
    connects: Times
    subacks: Times


class Subscribed(msgspec.Struct, frozen=True):
    subscribed: int
    refused: int
    seconds: float
    subacks: Times


class Published(msgspec.Struct, frozen=True):
    sent: int
    unacked: int
    closed: int
    began_ns: int
    seconds: float


class Received(msgspec.Struct, frozen=True):
    """Since the last `expect`; `deliveries` since the last answer."""

    received: int
    """Different ones."""
    twice: int
    wrong: int
    """At a client that they are not for, or that nobody counted on."""
    disordered: int
    late: int
    """More than a second under way."""
    closed: int
    first_ns: int
    last_ns: int
    deliveries: Times


class Churned(msgspec.Struct, frozen=True):
    cycles: int
    failed: int
    """Cut off, refused, or not done in time."""
    refused: int
    seconds: float
    latency: Times
    """Of a whole cycle."""
    subacks: Times
    connects: Times


class Closed(msgspec.Struct, frozen=True):
    hung_up: int


class Nothing(msgspec.Struct, frozen=True):
    pass


Answer = TypeVar("Answer", bound=msgspec.Struct)


class Clients:
    """`with Clients() as clients:`; an answer can be asked for later, so that several processes work at once."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [loader.build(SOURCE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        self._ends_at = 0.0

    def send(self, verb: str, limit_s: float, **words: Any) -> None:
        """`limit_s`: how long the command may take."""
        assert self._process.stdin is not None
        line = " ".join([verb, *(f"{name}={value}" for name, value in words.items())])
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()
        self._ends_at = time.monotonic() + limit_s + ANSWER_SPARE_S

    def answer(self, kind: type[Answer]) -> Answer:
        """To the command that was sent last."""
        assert self._process.stdout is not None
        left_s = max(0.0, self._ends_at - time.monotonic())
        if not select.select([self._process.stdout], [], [], left_s)[0]:
            raise LoadError("fleetload did not answer in time")
        line = self._process.stdout.readline()
        if not line:
            raise LoadError(f"fleetload ended with exit code {self._process.wait()}")
        found = msgspec.json.decode(line)
        if "error" in found:
            raise LoadError(f"fleetload: {found['error']}")
        return msgspec.convert(found, kind)

    def connect(self, port: int, count: int, group: str = "", limit_s: float = 120.0, **words: Any) -> Connected:
        """Clients that may subscribe at once (`filter`, `qos`)."""
        self.send("connect", limit_s, port=port, count=count, group=group, timeout=limit_s, **words)
        made = self.answer(Connected)
        if made.connected < count:
            raise LoadError(f"{made.connected:,} of {count:,} clients could connect; {made.closed:,} were cut off")
        return made

    def subscribe(self, group: str, filter_: str, count: int, limit_s: float = 120.0, **words: Any) -> Subscribed:
        self.send("subscribe", limit_s, group=group, filter=filter_, count=count, timeout=limit_s, **words)
        return self.answer(Subscribed)

    def expect(self, count: int, topics: int = 0, own: bool = False) -> None:
        """What was received is forgotten; messages numbered below `count` are waited for."""
        self.send("expect", 0.0, count=count, topics=topics, own=int(own))
        self.answer(Nothing)

    def publish(self, group: str, topic: str, count: int, limit_s: float = 600.0, **words: Any) -> Published:
        self.send("publish", limit_s, group=group, topic=topic, count=count, timeout=limit_s, **words)
        return self.answer(Published)

    def wait_for(self, count: int, limit_s: float, quiet_s: float) -> Received:
        """Until so many different messages have come, or the time is over, or nothing comes any more."""
        self.send("await", limit_s, count=count, timeout=limit_s, quiet=quiet_s)
        return self.answer(Received)

    def hang_up(self, group: str) -> None:
        self.send("close", 0.0, group=group)
        self.answer(Closed)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Clients:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def milliseconds(value_us: float) -> str:
    return f"{value_us / 1000:,.1f} ms" if value_us >= 1000 else f"{value_us:.0f} µs"
