"""`python -m bench.pipeline`: how fast Spark reads the brokers' log, beside its own Parquet source on the same rows.

One log of 1,000,000 messages of 100 B over 1,000 topics, with the commits of a broker that gets 100,000 a second: one
each 10 ms. The same rows as Parquet: a few large files for the batch; for the stream, as many files as it takes
to be as fresh, one each 10 ms, or one each 25 or 100 ms. Both are read in turn, warm, into a
sink that does nothing. A stream's rate is that of its micro-batches, without its start. Ratios of one run are what
counts; the CPU time is that of Java and its Python workers together, the start of a stream included.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table

from bench import cpu
from braidmq.log.log import Log
from braidmq.log.run import Run
from braidmq.pipeline.session import session

TOPICS = 1000
PAYLOAD_BYTES = 100
COMMIT_ROWS = 1000
"""What a broker writes at once when 100,000 messages a second come in."""
FILE_ROWS = (1000, 2500, 10_000)
"""Of the Parquet files of a stream: as fresh as the log, and up to ten times as old."""
WARM_UP_ROUNDS = 5
"""In which Java compiles, for both."""
BATCHES_SKIPPED = 2
"""Of a stream, at its start."""
BATCH_TARGET = 0.6
STREAM_TARGET = 1.5
BEGAN_US = 1_794_800_000_000_000

console = Console(width=max(120, Console().width))


class Rate(msgspec.Struct, frozen=True):
    """Rows a second, by the wall clock and by the CPU time that was used."""

    wall: float
    cpu: float


class Figure(msgspec.Struct, frozen=True):
    name: str
    braidmq: Rate
    parquet: Rate
    target: float

    @property
    def ratio(self) -> float:
        return self.braidmq.wall / self.parquet.wall

    @property
    def cpu_ratio(self) -> float:
        return self.braidmq.cpu / self.parquet.cpu


def write_log(folder: Path, rows: int, partitions: int) -> None:
    log = Log(folder, "bench", partitions=partitions)
    names = [f"plant{number % 10}/line{number}/temperature" for number in range(TOPICS)]
    for start in range(0, rows, COMMIT_ROWS):
        numbers = range(start, min(start + COMMIT_ROWS, rows))
        log.append(
            [
                Run.of(
                    names[number * 7919 % TOPICS],
                    str(number).encode().rjust(PAYLOAD_BYTES, b"."),
                    BEGAN_US + number,
                    client=f"device{number % 100}",
                    qos=1,
                )
                for number in numbers
            ]
        )
    log.close()


def measured(java: int, rows: int, work: Callable[[], float | None]) -> Rate:
    """`work` may return its own rate, by the wall clock."""
    before_s, began = cpu.with_children_s(java), time.monotonic()
    told = work()
    took_s = time.monotonic() - began
    return Rate(told or rows / took_s, rows / max(cpu.with_children_s(java) - before_s, 0.01))


def median(rates: list[Rate]) -> Rate:
    return Rate(statistics.median(rate.wall for rate in rates), statistics.median(rate.cpu for rate in rates))


def drain(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def drain_stream(frame: DataFrame, folder: Path) -> float:
    """Rows a second over all micro-batches but the first ones."""
    checkpoint = tempfile.mkdtemp(dir=folder)
    query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    shutil.rmtree(checkpoint)
    batches = [each for each in query.recentProgress if each["numInputRows"]][BATCHES_SKIPPED:]
    took_ms: int = sum(each["durationMs"]["triggerExecution"] for each in batches)
    rows: int = sum(each["numInputRows"] for each in batches)
    return rows / took_ms * 1000


def compare(
    name: str,
    target: float,
    rounds: int,
    rows: int,
    java: int,
    ours: Callable[[], float | None],
    theirs: Callable[[], float | None],
) -> Figure:
    """The first rounds warm up; they take turns."""
    found: tuple[list[Rate], list[Rate]] = ([], [])
    for number in range(rounds + WARM_UP_ROUNDS):
        for rates, work in zip(found, (ours, theirs), strict=True):
            rate = measured(java, rows, work)
            if number >= WARM_UP_ROUNDS:
                rates.append(rate)
    figure = Figure(name, median(found[0]), median(found[1]), target)
    console.print(f"{name}: {figure.ratio:.2f} (of CPU time {figure.cpu_ratio:.2f})", style="dim")
    return figure


def figures(
    spark: SparkSession, folder: Path, rows: int, batch_rows: int, rounds: int, partitions: int
) -> list[Figure]:
    java = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    log, parquet = folder / "log", folder / "parquet"
    console.print(f"Writing {rows:,} rows …", style="dim")
    write_log(log, rows, partitions)
    source = spark.read.format("braidmq").load(str(log))
    source.write.parquet(str(parquet))
    few = ["topic", "payload", "offset"]
    found = [
        compare(
            "batch, all columns",
            BATCH_TARGET,
            rounds,
            rows,
            java,
            lambda: drain(spark.read.format("braidmq").load(str(log))),
            lambda: drain(spark.read.parquet(str(parquet))),
        ),
        compare(
            f"batch, {', '.join(few)}",
            BATCH_TARGET,
            rounds,
            rows,
            java,
            lambda: drain(spark.read.format("braidmq").option("columns", ",".join(few)).load(str(log))),
            lambda: drain(spark.read.parquet(str(parquet)).select(*few)),
        ),
    ]

    def stream_ours() -> float:
        reader = spark.readStream.format("braidmq").options(startingOffsets="earliest", maxRowsPerTrigger=batch_rows)
        return drain_stream(reader.load(str(log)), folder)

    for file_rows in FILE_ROWS:
        files = folder / f"files{file_rows}"
        source.repartitionByRange(-(-rows // file_rows), "offset").write.parquet(str(files))
        reader = spark.readStream.schema(source.schema).option("maxFilesPerTrigger", max(1, batch_rows // file_rows))
        frame = reader.parquet(str(files))
        name = f"stream, {batch_rows:,} a batch, files of {file_rows:,}"
        theirs = partial(drain_stream, frame, folder)
        found.append(compare(name, STREAM_TARGET, rounds, rows, java, stream_ours, theirs))
    return found


def bench(
    rows: Annotated[int, typer.Option(min=1000, help="Messages in the log.")] = 1_000_000,
    batch_rows: Annotated[int, typer.Option("--batch-rows", min=100, help="Messages in a micro-batch.")] = 50_000,
    partitions: Annotated[int, typer.Option(min=1, max=256, help="Partitions of the log.")] = 8,
    rounds: Annotated[int, typer.Option(min=1, help="How often each runs; medians are printed.")] = 5,
    master: Annotated[str, typer.Option(help="Where Spark runs.")] = "local[2]",
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write all figures here.")
    ] = None,
) -> None:
    """Measures the source "braidmq" beside Spark's Parquet source.

    Examples:

      python -m bench.pipeline

      python -m bench.pipeline --rows 100000 --rounds 1      a first look
    """
    spark = session("bench", master)
    folder = Path(tempfile.mkdtemp(prefix="braidmq-bench-"))
    try:
        found = figures(spark, folder, rows, batch_rows, rounds, partitions)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
    table = Table(title=f"{rows:,} messages of {PAYLOAD_BYTES} B, {master}", title_justify="left")
    for name in ("read as", "braidmq rows/s", "Parquet rows/s", "ratio", "of CPU time", "target", ""):
        table.add_column(name, justify="left" if name == "read as" else "right")
    for figure in found:
        table.add_row(
            figure.name,
            f"{figure.braidmq.wall:,.0f}",
            f"{figure.parquet.wall:,.0f}",
            f"{figure.ratio:.2f}",
            f"{figure.cpu_ratio:.2f}",
            f"{figure.target:.2f}",
            "reached" if figure.ratio >= figure.target else "missed",
        )
    console.print(table)
    if json_file is not None:
        json_file.write_bytes(msgspec.json.encode(found))


if __name__ == "__main__":
    typer.run(bench)
