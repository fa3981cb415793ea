"""`python -m bench.stateful`: message processors on Spark: events a second, and from a device to a subscriber.

Events: messages of 100 B over 1,000 topics, from a log through a processor with a spool of 20, 10,000 events a batch.
That is done until Java has compiled what it needs, and then again to be measured. In the middle of it Spark's Python
workers are killed with `kill -9`; the batch in which that is mended counts.

Latency: a device publishes at a broker, the query reads the broker's log over its admin port and answers each message
(at 10,000 a second one in a hundred); the time is from the device to a subscriber of the answers.

The load of the machine is shown beside the figures: what else it does shows in all of them but the CPU time.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.table import Table

from bench import client, cpu
from bench.braid import process, wait_for_mqtt
from bench.peers import BraidMQ
from bench.pipeline import write_log
from bench.processors import Subscriber
from braidmq.pipeline.portable import PortableProcessor
from braidmq.pipeline.session import session
from braidmq.pipeline.stateful import answers, start

EVENTS_TARGET = 50_000
LATENCY_TARGET_MS = 200.0
BATCH_ROWS = 10_000
WARM_BATCHES = 5
"""The first batches of a query, in which its processes start, do not count."""
WARM_UP_BATCHES = 100
"""Before events are measured: until then Java is still slow."""
WARM_ANSWERED_BATCHES = 150
"""The same before latency is measured."""
WARM_S_MAX = 120.0
START_TIMEOUT_S = 150.0
"""How long the first answers may take."""
SPOOL = 20
ONE_IN = 100
"""At the high rate one message of so many is answered."""

PROCESSOR = f"""
from braidmq.processors import Message, Notification, Spool, processor


@processor(topic="+/+/temperature", spool={SPOOL}, output="alerts")
def levels(spool: Spool, message: Message) -> Notification | None:
    sizes = [len(one.payload) for one in spool]
    if message.offset % 1000 == 0:
        return Notification({{"topic": message.topic, "mean": sum(sizes) / len(sizes)}})
    return None
"""
ECHO = f"""
from braidmq.processors import Message, Notification, Spool, processor


@processor(topic="bench/+/in", spool={SPOOL}, output="bench/out")
def echo(spool: Spool, message: Message) -> Notification | None:
    return Notification(message.payload, qos=0) if message.payload[:1] == b"!" else None
"""

console = Console(width=max(120, Console().width))


class Figures(msgspec.Struct):
    events_per_s: float
    cpu_us_per_event: float
    slowest_batch_ms: float
    """The one in which workers were killed."""
    worker_mib: float
    """The largest Python worker at the end."""
    latency_ms: dict[str, float]
    """Medians by messages a second."""
    latency_high_ms: dict[str, float]
    """What 95 of 100 stay below."""
    load: float
    """Processes that wanted to run, on average over the last minute, when the events were done."""


def workers(java: int) -> list[int]:
    """Spark's Python workers; not the daemons that fork them, nor the planner."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "cmdline").read_text().endswith("braidmq.pipeline.launch.daemon\0pyspark.worker\0"):
                stat = (folder / "stat").read_text()
                parents[int(folder.name)] = int(stat.rpartition(")")[2].split()[1])
        except OSError:
            continue
    return [pid for pid, parent in parents.items() if parents.get(parent) == java]


def resident_mib(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except OSError:
        return 0.0


def drain(spark: SparkSession, log: Path, folder: Path, kill: bool) -> tuple[list[tuple[int, int]], float]:
    """(rows, milliseconds) of each batch, and the CPU seconds that all took, its start included."""
    java = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    (folder / "levels.py").write_text(PROCESSOR)
    checkpoint = tempfile.mkdtemp(dir=folder)
    options = {"path": str(log), "startingOffsets": "earliest", "maxRowsPerTrigger": str(BATCH_ROWS)}
    table = answers(spark, PortableProcessor.of(str(folder / "levels.py")), options, folder=f"{checkpoint}/spools")
    began = cpu.with_children_s(java)
    writer = table.writeStream.format("noop").option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start()
    killed = 0
    while query.isActive:
        last = query.lastProgress
        if kill and not killed and last is not None and last["batchId"] > 2 * WARM_BATCHES:
            for pid in workers(java):
                os.kill(pid, signal.SIGKILL)
                killed += 1
        time.sleep(0.2)
    if (error := query.exception()) is not None:
        raise error
    if kill and not killed:
        raise SystemExit("there was no worker to kill: take more events")
    shutil.rmtree(checkpoint)
    batches = [
        (sum(map(rows_of, each["sources"])), each["durationMs"]["triggerExecution"]) for each in query.recentProgress
    ]
    return batches, cpu.with_children_s(java) - began


def rows_of(source: dict[str, Any]) -> int:
    """How far a batch went in the logs."""
    end, start = offsets(source["endOffset"]), offsets(source["startOffset"])
    return sum(max(0, offset - start.get(broker, offset)) for broker, offset in end.items())


def offsets(written: Any) -> dict[str, int]:
    """As Spark shows them: before the first batch there are none."""
    found = json.loads(written) if isinstance(written, str) else written
    return {} if found is None else {broker: one["offset"] for broker, one in found["brokers"].items()}


@contextmanager
def echoing(spark: SparkSession, folder: Path) -> Iterator[tuple[int, StreamingQuery]]:
    """A broker with a log, and a query over it: (the broker's port, the query)."""
    (folder / "echo.py").write_text(ECHO)
    port, admin = client.free_port(), client.free_port()
    (folder / "config.toml").write_text(f'[admin]\nport = {admin}\n[log]\ntopics = ["bench/+/in"]\n')
    command = [str(BraidMQ.executable), "up", "--port", str(port), "--data", "data", "--log-level", "warning"]
    with process([*command, "--config", "config.toml"], folder):
        wait_for_mqtt(port)
        options = {"brokers": f"http://127.0.0.1:{admin}", "startingOffsets": "earliest"}
        query = start(spark, PortableProcessor.of(str(folder / "echo.py")), options, str(folder / "checkpoint"))
        try:
            yield port, query
        finally:
            query.stop()


def latencies(port: int, rate: int, seconds: float) -> list[float]:
    """Milliseconds from the device to the subscriber of the answers, at so many messages a second."""
    device, listener = Subscriber(port, f"device{rate}", ""), Subscriber(port, f"listener{rate}", "bench/out")
    step = max(1, rate // 100)
    every = 1 if step == 1 else ONE_IN
    sent: list[float] = []
    taken: list[float] = []
    listener.socket.setblocking(True)
    began = time.perf_counter()
    number = 0

    def read(wait_s: float) -> bool:
        listener.socket.settimeout(wait_s)
        try:
            listener.read_one()
        except TimeoutError:
            return False
        taken.append((time.perf_counter() - sent[len(taken)]) * 1e3)
        return True

    while number < rate * seconds:
        for _ in range(step):
            is_asked = number % every == 0
            if is_asked:
                sent.append(time.perf_counter())
            device.publish("bench/1/in" if is_asked else f"bench/{number % 1000}/in", b"!" if is_asked else b"x" * 90)
            number += 1
        while (left_s := began + number / rate - time.perf_counter()) > 0:
            read(left_s)
    while len(taken) < len(sent):
        if not read(START_TIMEOUT_S):
            raise SystemExit(f"only {len(taken)} of {len(sent)} answers came")
    for each in (device, listener):
        each.socket.close()
    return taken


def warm_up(port: int, query: StreamingQuery) -> None:
    ends_at = time.monotonic() + WARM_S_MAX
    while time.monotonic() < ends_at:
        latencies(port, 50, 5.0)
        last = query.lastProgress
        if last is not None and last["batchId"] >= WARM_ANSWERED_BATCHES:
            break


def measure(spark: SparkSession, folder: Path, events: int, seconds: float) -> Figures:
    java = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    console.print(f"Writing {events:,} rows …", style="dim")
    write_log(folder / "log", events, 8)
    for _ in range(math.ceil(WARM_UP_BATCHES * BATCH_ROWS / events)):
        _, cpu_s = drain(spark, folder / "log", folder, kill=False)  # that of killed processes is not known
    batches, _ = drain(spark, folder / "log", folder, kill=True)
    warm = batches[WARM_BATCHES:]
    rate = sum(rows for rows, _ in warm) / sum(took_ms for _, took_ms in warm) * 1e3
    mib = max([resident_mib(pid) for pid in workers(java)], default=0.0)
    found = Figures(rate, cpu_s / events * 1e6, max(took_ms for _, took_ms in warm), mib, {}, {}, os.getloadavg()[0])
    console.print(f"{rate:,.0f} events a second; batches took {[took_ms for _, took_ms in warm]} ms", style="dim")
    with echoing(spark, folder) as (port, query):
        warm_up(port, query)
        for each in (50, 10_000):
            taken = latencies(port, each, seconds)
            found.latency_ms[str(each)] = statistics.median(taken)
            found.latency_high_ms[str(each)] = statistics.quantiles(taken, n=20)[18]
        if (error := query.exception()) is not None:
            raise error
    return found


def show(found: Figures) -> None:
    table = Table("figure", "value", "target", title=f"Processors on Spark: 1,000 topics, spool {SPOOL}, 100 bytes")

    def add(name: str, value: str, target: str = "", is_reached: bool | None = None) -> None:
        mark = "" if is_reached is None else " [green]reached[/]" if is_reached else " [red]missed[/]"
        table.add_row(name, value, target + mark)

    events = found.events_per_s
    add(f"{BATCH_ROWS:,} events a batch", f"{events:,.0f} a second", f"≥ {EVENTS_TARGET:,}", events >= EVENTS_TARGET)
    add("CPU time of Java and its workers", f"{found.cpu_us_per_event:.1f} µs an event")
    add("the batch in which workers were killed", f"{found.slowest_batch_ms:,.0f} ms")
    add("largest Python worker", f"{found.worker_mib:,.0f} MiB")
    for rate, value in found.latency_ms.items():
        is_reached = value < LATENCY_TARGET_MS if rate == "50" else None
        high = found.latency_high_ms[rate]
        target = f"< {LATENCY_TARGET_MS:g} ms" if rate == "50" else ""
        add(
            f"device to subscriber at {int(rate):,} a second",
            f"median {value:.0f} ms, p95 {high:.0f}",
            target,
            is_reached,
        )
    add("load of the machine", f"{found.load:.1f}")
    console.print(table)


def main(
    events: Annotated[int, typer.Option(min=300_000, help="Messages in the log.")] = 500_000,
    seconds: Annotated[float, typer.Option(min=2.0, help="How long latency is measured at each rate.")] = 20.0,
    master: Annotated[str, typer.Option(help="Where Spark runs.")] = "local[2,4]",
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Message processors on Spark: throughput with a crash in it, memory, and latency."""
    remembered = {"spark.sql.streaming.numRecentProgressUpdates": "1000"}
    spark = session("bench", master, quick=True, own_group=True, **remembered)
    folder = Path(tempfile.mkdtemp(prefix="braidmq-bench-"))
    try:
        found = measure(spark, folder, events, seconds)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        print(msgspec.json.encode(found).decode())
    else:
        show(found)


if __name__ == "__main__":
    typer.run(main)
