"""A plan of home servers on real brokers with distances between them: `python -m tests.chaos.homes`.

A field with brokers in it, and the clients of each topic scattered around a point; each is connected to any broker.
Distances are real: a proxy between brokers, and connections of clients, hold everything back for as long as the way is.
A processor answers each message with a notification, and how long that takes from publisher to subscriber is measured,
before and after `braidmq place plan`, `approve` and `apply`. With `--kill` a broker is killed while clients move. In
the end each subscriber must have got each message once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from statistics import mean
from typing import Any

from tests.chaos.brokers import TOKEN, Brokers, environment
from tests.chaos.judge import missing
from tests.chaos.load import Publisher, Subscriber
from tests.chaos.network import Site
from tests.chaos.proxy import Proxy

SIDE_KM = 25.0
PROCESSOR = """
from braidmq.processors import Message, Notification, Spool, processor


@processor(topic="field/+/said", spool=20)
def notices(spool: Spool, message: Message) -> Notification:
    return Notification(message.payload, topic=message.topic.replace("said", "noticed"), qos=1)
"""
SETTLE_S = 15.0
"""How long clients publish before anything is measured, and how long what is under way may take in the end."""


class DelayedWriter:
    """Writes later, in order; the rest is the writer's own."""

    def __init__(self, writer: asyncio.StreamWriter, delay_s: float) -> None:
        self._writer = writer
        self._delay_s = delay_s

    def write(self, data: bytes) -> None:
        asyncio.get_running_loop().call_later(self._delay_s, self._write, data)

    def _write(self, data: bytes) -> None:
        if not self._writer.is_closing():
            self._writer.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)


class FarClient:
    """Connections that take as long as the way is; it goes where it is sent, and nowhere else."""

    delays_s: list[float]

    def next_broker(self, sent_to: int | None) -> int:
        broker: int = self.broker if sent_to is None else sent_to  # type: ignore[attr-defined]
        return broker

    async def dial(self, site: Site) -> tuple[asyncio.StreamReader, Any]:
        delay_s = self.delays_s[self._sites.index(site)]  # type: ignore[attr-defined]
        await asyncio.sleep(2 * delay_s)
        far, writer = await asyncio.open_connection(site.host, site.port)
        near = asyncio.StreamReader()
        loop = asyncio.get_running_loop()

        async def pump() -> None:
            with suppress(OSError):
                while data := await far.read(65_536):
                    loop.call_later(delay_s, near.feed_data, data)
            loop.call_later(delay_s, near.feed_eof)

        self._pump = loop.create_task(pump())
        return near, DelayedWriter(writer, delay_s)


class FarPublisher(FarClient, Publisher):
    pass


class FarSubscriber(FarClient, Subscriber):
    pass


class Field:
    """Where brokers and clients are, and how long the ways take."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.chance = random.Random(options.seed)
        self._ms_per_km = options.ms_per_km
        columns = math.ceil(math.sqrt(options.brokers))
        step = SIDE_KM / columns
        grid = [((x + 0.5) * step, (y + 0.5) * step) for y in range(columns) for x in range(columns)]
        self.brokers = grid[: options.brokers]

    def delay_s(self, one: tuple[float, float], other: tuple[float, float]) -> float:
        return float(self._ms_per_km * math.dist(one, other)) / 1000

    def scatter(self, count: int, sigma_km: float) -> list[tuple[float, float]]:
        """So many clients around a point that is anywhere."""
        centre = (self.chance.uniform(0, SIDE_KM), self.chance.uniform(0, SIDE_KM))
        return [
            (_within(self.chance.gauss(centre[0], sigma_km)), _within(self.chance.gauss(centre[1], sigma_km)))
            for _ in range(count)
        ]


def _within(value: float) -> float:
    return min(max(value, 0.0), SIDE_KM)


class Trial:
    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options = options
        self.folder = folder
        self.field = Field(options)
        self.publishers: list[FarPublisher] = []
        self.subscribers: list[FarSubscriber] = []
        processor = folder / "notices.py"
        processor.write_text(PROCESSOR)
        settings = ('log.topics=["field/+/said"]', f'processor=[{{file="{processor}"}}]')
        self.brokers = Brokers(options.brokers, folder, "covers", "none", options.copies, None, settings)

    async def run(self) -> dict[str, Any]:
        try:
            await self.brokers.start()
            assert isinstance(self.brokers.network, Proxy)
            for one, here in enumerate(self.field.brokers):
                for other, there in enumerate(self.field.brokers):
                    if one != other:
                        self.brokers.network.set_delay((one, other), self.field.delay_s(here, there))
            return await self._play()
        finally:
            await self.brokers.stop()

    async def _play(self) -> dict[str, Any]:
        tasks = [*self._clients()]
        while not all(one.subscribed_at for one in self.subscribers):  # noqa: ASYNC110 - they connect
            await asyncio.sleep(0.2)
        speaking = [asyncio.create_task(one.publish_regularly(self.options.rate)) for one in self.publishers]
        await asyncio.sleep(SETTLE_S)
        before = await self._measure()
        plan = await self._place("plan", "--latencies", self._latencies(), "-o", self.folder / "plan.json", "--json")
        await self._place("approve", self.folder / "plan.json", is_asked=False)
        moving = asyncio.create_task(self._place("apply", self.folder / "plan.json", "--rate", "20", "--json"))
        if self.options.kill:
            await asyncio.sleep(3)
            victim = self.brokers.all[self.options.brokers // 2]
            await victim.kill()
            await asyncio.sleep(1)
            await victim.start()
        moved = await moving
        await asyncio.sleep(SETTLE_S)
        after = await self._measure()
        for one in speaking:
            one.cancel()
        await asyncio.sleep(SETTLE_S)
        for one in tasks:
            one.cancel()
        return self._result(before, after, json.loads(plan), json.loads(moved))

    def _clients(self) -> Iterator[asyncio.Task[None]]:
        sites = [broker.site for broker in self.brokers.all]
        each = self.options.clients // self.options.topics
        for topic in range(self.options.topics):
            for number, place in enumerate(self.field.scatter(each, self.options.sigma)):
                broker = self.field.chance.randrange(len(sites))
                chance = random.Random(self.field.chance.random())
                client: FarPublisher | FarSubscriber
                if number % 2:
                    name = f"sub{topic}-{number}"
                    client = FarSubscriber(name, sites, broker, 5, chance, [f"field/{topic}/#"], 2)
                    self.subscribers.append(client)
                else:
                    name = f"pub{topic}-{number}"
                    client = FarPublisher(name, sites, broker, 5, chance, [f"field/{topic}/said"], 2)
                    self.publishers.append(client)
                client.delays_s = [self.field.delay_s(place, one) for one in self.field.brokers]
                yield asyncio.create_task(client.run())

    def _latencies(self) -> Path:
        path = self.folder / "ms.csv"
        rows = [(one.name, at, 1000 * delay) for one in self._all() for at, delay in enumerate(one.delays_s)]
        path.write_text("client,site,ms\n" + "".join(f"{name},b{at},{ms:.3f}\n" for name, at, ms in rows))
        return path

    async def _measure(self) -> float:
        """The mean delay of the notifications of some seconds, in ms."""
        since = time.time()
        await asyncio.sleep(self.options.seconds)
        sent_at = {one.name: one.begun_at for publisher in self.publishers for one in publisher.sent}
        found = []
        for subscriber in self.subscribers:
            for (publisher, topic, number), at in subscriber.got.first.items():
                begun_at = sent_at.get((publisher, topic.replace("noticed", "said"), number))
                if topic.endswith("noticed") and begun_at is not None and begun_at >= since:
                    found.append(at.time - begun_at)
        return 1000 * mean(found)

    async def _place(self, verb: str, *words: Any, is_asked: bool = True) -> bytes:
        urls = ",".join(f"http://{one.site.host}:{one.site.admin_port}" for one in self.brokers.all)
        command = [sys.executable, "-m", "braidmq", "place", verb, *map(str, words)]
        command += ["--brokers", urls] if is_asked else []
        process = await asyncio.create_subprocess_exec(
            *command,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment() | {"BRAIDMQ_TOKEN": TOKEN},
        )
        out, err = await process.communicate()
        if process.returncode:
            raise RuntimeError(f"braidmq place {verb}: {err.decode()}")
        return out

    def _result(self, before: float, after: float, plan: Any, moved: Any) -> dict[str, Any]:
        predicted = plan["now"]["delay_ms"] - plan["planned"]["delay_ms"]
        fall = before - after
        lost = missing(self.publishers, self.subscribers)
        return {
            "measured_before_ms": round(before, 2),
            "measured_after_ms": round(after, 2),
            "predicted_before_ms": round(plan["now"]["delay_ms"], 2),
            "predicted_after_ms": round(plan["planned"]["delay_ms"], 2),
            "bound_ms": round(plan["bound_ms"], 2),
            "fall_to_predicted": round(fall / predicted, 3),
            "moves": moved["moves"],
            "outcomes": moved["outcomes"],
            "arrived": moved["arrived"],
            "published": sum(len(one.sent) for one in self.publishers),
            "deliveries": sum(len(one.got.first) for one in self.subscribers),
            "lost": len(lost),
            "twice_at_qos_2": sum(len(one.got.twice) for one in self.subscribers),
            "late": sum(len(one.got.late) for one in self.subscribers),
            "sessions_anew": sum(visit.is_anew for one in self._all() for visit in one.visits),
        }

    def _all(self) -> list[FarPublisher | FarSubscriber]:
        return [*self.publishers, *self.subscribers]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--brokers", type=int, default=8)
    parser.add_argument("--clients", type=int, default=400)
    parser.add_argument("--topics", type=int, default=32)
    parser.add_argument("--rate", type=float, default=0.2, help="publications of a publisher in a second")
    parser.add_argument("--sigma", type=float, default=3.0, help="how far clients of a topic are scattered, in km")
    parser.add_argument("--ms-per-km", type=float, default=2.0)
    parser.add_argument("--seconds", type=float, default=30.0, help="how long delays are measured")
    parser.add_argument("--copies", type=int, default=1, help="of what is acknowledged; more make deliveries wait")
    parser.add_argument("--kill", action="store_true", help="kill a broker while clients move")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(Trial(options, Path(folder)).run())
    print(json.dumps(result, indent=1))
    is_good = not (result["lost"] or result["twice_at_qos_2"] or result["late"])
    sys.exit(0 if is_good and 0.8 <= result["fall_to_predicted"] <= 1.2 else 1)


if __name__ == "__main__":
    main()
