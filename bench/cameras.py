"""`python -m bench.cameras`: jobs of cameras for detectors of unequal speed at three sites, near the limit of what they
can do.

Each site has a broker, a camera and some detectors. A detector works on one job at a time, and acknowledges it when it
is done. Jobs come by chance, all cameras alike, at a rate of 90 % of what all detectors can do together; so the slow
site has far more jobs than it can do, and the fast one fewer. Two ways, one after the other in each round:

- *bound late*: one shared subscription in the whole braid, and detectors with a Receive Maximum of 1. A job waits at
  its broker until a detector can take it.
- *in turn*: each job is given to the next detector, busy or not, and waits in its queue. That is what brokers do that
  know nothing of their members' load.
"""

from __future__ import annotations

import random
import shutil
import statistics
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import typer
from paho.mqtt.client import MQTTMessage
from paho.mqtt.subscribeoptions import SubscribeOptions
from rich.console import Console
from rich.table import Table

from bench.fleet.brokers import Site, fleet
from braidmq.cli.mqtt_client.client import MqttClient, PublishAnswered, SubscribeAnswered
from braidmq.cli.mqtt_client.options import ConnectionOptions

DETECTORS: Final = ((0.02, 3), (0.05, 3), (0.2, 2))
"""By site: how long a detector works on a job, and how many there are."""
GROUP: Final = "detect"
ANSWER_S: Final = 10.0
END_S: Final = 60.0
"""How long what waits in the end may take."""
IN_TURN_SLOTS: Final = 1_000

console = Console(width=max(120, Console().width))


@dataclass
class Round:
    """What happened to the jobs of one way."""

    sent_at: dict[int, float] = field(default_factory=dict)
    begun_at: dict[int, list[float]] = field(default_factory=dict)
    refused: int = 0
    by_site: list[int] = field(default_factory=lambda: [0] * len(DETECTORS))
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def waits_s(self) -> list[float]:
        return sorted(begun[0] - self.sent_at[job] for job, begun in self.begun_at.items())

    @property
    def missing(self) -> int:
        return len(self.sent_at) - self.refused - len(self.begun_at)

    @property
    def repeated(self) -> int:
        return sum(len(begun) - 1 for begun in self.begun_at.values())


class Detector(threading.Thread):
    def __init__(self, site: Site, number: int, topic_filter: str, slots: int, result: Round, site_number: int) -> None:
        super().__init__(daemon=True)
        self._work_s = DETECTORS[site_number][0]
        self._site_number = site_number
        self._result = result
        self.ending = threading.Event()
        options = ConnectionOptions(port=site.port, client_id=f"detector-{site_number}-{number}-{slots}")
        self._client = MqttClient(options, "bench", receive_max=slots)
        self._client.open()
        self._client.subscribe([topic_filter], SubscribeOptions(1), None)
        event = self._client.next_event(ANSWER_S)
        if not isinstance(event, SubscribeAnswered) or event.reasons[0] >= 0x80:
            raise SystemExit(f"the broker did not accept a subscription to {topic_filter}")

    def run(self) -> None:
        while not self.ending.is_set():
            event = self._client.next_event(0.1)
            if isinstance(event, MQTTMessage):
                with self._result.lock:
                    self._result.begun_at.setdefault(int(event.payload), []).append(time.monotonic())
                    self._result.by_site[self._site_number] += 1
                time.sleep(self._work_s)
                self._client.ack(event)
        self._client.close()


class Cameras:
    """One at each site."""

    def __init__(self, sites: list[Site], result: Round) -> None:
        self._result = result
        self._clients = [MqttClient(ConnectionOptions(port=site.port), "bench") for site in sites]
        for one in self._clients:
            one.open()

    def run(self, topics: list[str], rate: float, seconds: float, chance: random.Random) -> None:
        """`topics` are used in turn."""
        began = at = time.monotonic()
        number = 0
        while at - began < seconds:
            at += chance.expovariate(rate)
            time.sleep(max(0.0, at - time.monotonic()))
            self._result.sent_at[number] = time.monotonic()
            camera = chance.choice(self._clients)
            camera.publish(topics[number % len(topics)], b"%d" % number, 1, False, None)
            number += 1
            self._read()

    def finish(self) -> None:
        ends_at = time.monotonic() + END_S
        while self._result.missing and time.monotonic() < ends_at:
            self._read()
            time.sleep(0.05)
        for one in self._clients:
            one.close()

    def _read(self) -> None:
        for client in self._clients:
            while (event := client.next_event(0.0)) is not None:
                if isinstance(event, PublishAnswered) and event.reason:
                    self._result.refused += 1


def measure(sites: list[Site], seconds: float, rate: float, seed: int, *, is_late: bool) -> Round:
    result = Round()
    detectors: list[Detector] = []
    topics: list[str] = []
    for site_number, (site, (_, count)) in enumerate(zip(sites, DETECTORS, strict=True)):
        for number in range(count):
            topic = "jobs/any" if is_late else f"jobs/{site_number}/{number}"
            topics.append(topic)
            topic_filter = f"$share/{GROUP}/jobs/any" if is_late else topic
            detectors.append(Detector(site, number, topic_filter, 1 if is_late else IN_TURN_SLOTS, result, site_number))
    for detector in detectors:
        detector.start()
    cameras = Cameras(sites, result)
    cameras.run(topics, rate, seconds, random.Random(seed))
    cameras.finish()
    for detector in detectors:
        detector.ending.set()
    for detector in detectors:
        detector.join()
    return result


def main(
    seconds: Annotated[float, typer.Option(min=1.0, help="How long jobs come, in each round and way.")] = 20.0,
    rounds: Annotated[int, typer.Option(min=1, help="How often both ways are tried.")] = 3,
    load: Annotated[float, typer.Option(min=0.01, max=2.0, help="Jobs, as a part of what detectors can do.")] = 0.9,
) -> None:
    """How long jobs wait: bound late over the whole braid, and given out in turn."""
    capacity = sum(count / work_s for work_s, count in DETECTORS)
    rows: list[tuple[str, Round]] = []
    folder = Path(tempfile.mkdtemp(prefix="braidmq-bench-"))
    try:
        with fleet(folder, len(DETECTORS), "covers") as sites:
            for number in range(rounds):
                for is_late in (True, False):
                    way = "bound late" if is_late else "in turn"
                    result = measure(sites, seconds, load * capacity, number, is_late=is_late)
                    console.print(f"round {number + 1}, {way}: p99 {_p99(result):.2f} s", style="dim")
                    rows.append((way, result))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    columns = ("way", "jobs", "wait p50", "p99", "longest", "refused", "missing", "twice", "by site")
    table = Table(
        *columns, title=f"{load * capacity:.0f} jobs a second for {seconds:g} s, {load:.0%} of what can be done"
    )
    for way, one in rows:
        waits = one.waits_s
        table.add_row(
            way,
            f"{len(one.sent_at):,}",
            f"{1000 * statistics.median(waits):.1f} ms",
            f"{1000 * _p99(one):.0f} ms",
            f"{waits[-1]:.2f} s",
            f"{one.refused}",
            f"{one.missing}",
            f"{one.repeated}",
            " / ".join(map(str, one.by_site)),
        )
    console.print(table)


def _p99(result: Round) -> float:
    return statistics.quantiles(result.waits_s, n=100)[98]


if __name__ == "__main__":
    typer.run(main)
