"""The streaming query of a message processor, and how a driver starts it.

A topic has one partition of its broker's log, and its rows come in the order of their offsets; so the state of a query,
the spools, is kept by partition, and no row is ever shuffled. `running` says what a task does and where spools come
from; `publishing` publishes the answers, once each. With `delegated` the query takes only what edges leave to it, and
gives topics back on request (`delegation`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import urlsplit

import msgspec
import pyarrow as pa

from braidmq.log.filters import TopicFilters
from braidmq.log.partition import partition_of
from braidmq.log.schema import COLUMNS
from braidmq.log.source import LogState
from braidmq.pipeline.errors import MissingExtra, PipelineError
from braidmq.pipeline.portable import PortableProcessor
from braidmq.pipeline.source.logs import LogLocation, Logs, with_starting_offsets
from braidmq.pipeline.source.options import OptionError, ReadOptions
from braidmq.pipeline.source.plan import Piece
from braidmq.pipeline.source.stream import Offsets, StreamReader
from braidmq.pipeline.stateful.delegation import BrokerClient, Delegated
from braidmq.pipeline.stateful.publishing import AnswerPublisher
from braidmq.pipeline.stateful.running import ANSWERS, PartitionBatch, TaskRunner
from braidmq.processors.processor import SpoolState

try:
    from pyspark.sql import functions as f
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
    from pyspark.sql.types import StructType
except ImportError as error:
    raise MissingExtra(error.name) from None

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

FORMAT: Final = "braidmq-processor"
SCHEMA: Final = (
    "topic string, payload binary, qos int, retain boolean, properties array<struct<name: string, value: string>>, "
    "of string, offset bigint, broker string, partition int, error string"
)
"""`running.ANSWERS`, as Spark knows it."""
SETUP: Final = "setup"
"""The option with the processor; all other options are those of the format "braidmq"."""
SNAPSHOTS: Final = "spools"
"""The folder of snapshots below a checkpoint."""
ORIGIN: Final = "origin"
SINK: Final = "noop"
"""Answers are published by the tasks; what reaches Spark is only counted."""
PROCESSED: Final = "processed"
"""The `error` of a row that is no answer: its `offset` is how many rows a task has processed. It is also the name of
the count in the progress of a query."""
TRIGGER_MS: Final = 50
TASK_ROWS_MIN: Final = 4_000
"""Rows from which another task is worth what it costs."""


SpoolScope = Literal["braid", "site"]


class QuerySetup(msgspec.Struct, frozen=True):
    """`folder`: of snapshots; empty if none are kept."""

    portable: PortableProcessor
    folder: str
    is_delegated: bool
    spool_scope: SpoolScope = "braid"
    """Whether spools have the messages of all logs that are read (`merging`), or of each log alone (`site`)."""
    publish: str | None = None
    """Whether answers are published, and where: at this admin port, or at the broker that they came from (`ORIGIN`)."""


@dataclass(frozen=True)
class ProcessorTask(InputPartition):
    """What one task of Spark does, part after part."""

    parts: tuple[PartitionBatch, ...]


class ProcessorSource(DataSource):
    """The answers of a processor to what brokers have logged."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType | str:
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        options = dict(self.options)
        setup = msgspec.json.decode(options.pop(SETUP), type=QuerySetup)
        return ProcessorStream(setup, replace(ReadOptions.parse(options), topics=(setup.portable.topic,)))


class ProcessorStream(StreamReader):
    """Offsets and checkpoints are those of the format "braidmq"; tasks give answers in place of rows."""

    def __init__(self, setup: QuerySetup, options: ReadOptions) -> None:
        super().__init__(options, COLUMNS)
        self._setup = setup
        self._clients: dict[str, BrokerClient] = {}

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_clients": {}}

    def _first_offsets(self) -> Offsets:
        """As the options say; what is delegated begins with the first offset that is Spark's."""
        found = super()._first_offsets()
        if self._setup.is_delegated:
            for broker, at in found["brokers"].items():
                at["offset"] = min([at["offset"], *self._client(broker).delegated().firsts.values()])
        return found

    def partitions(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        states = self._states_for(end)
        starts, ends = self._resumed(start, states), self._resumed(end, states)
        parts: list[PartitionBatch] = []
        known = {broker: state for broker, state in states.items() if broker in end["brokers"]}
        if self._is_merged(known):
            parts = self._merged_parts(known, starts, ends)
            known = {}
        for broker, state in known.items():
            if starts[broker] < ends[broker]:
                parts += self._parts(broker, state, starts[broker], ends[broker])
        return [
            *tasks_of(parts, {broker: state.partitions for broker, state in states.items()}, self._options.task_each)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ProcessorTask)
        runner = self._runner()
        found = runner.answers_of(partition.parts)
        publish = self._setup.publish
        if publish is None:
            return found
        locations = {piece.broker: piece.location.where for part in partition.parts for piece in part.pieces}
        urls = {broker: where if publish == ORIGIN else publish for broker, where in locations.items()}
        return _counted(runner, AnswerPublisher(self._setup.portable.name, urls, self._options.token).passed_on(found))

    def _parts(self, broker: str, state: LogState, start: int, until: int) -> list[PartitionBatch]:
        location = self.logs.location(broker)
        found = self._client(broker).delegated() if self._setup.is_delegated else None
        parts = []
        for number in TopicFilters((self._setup.portable.topic,)).partitions(state.partitions):
            piece = Piece(broker, location, state.id, number, start, until)
            part = PartitionBatch(piece) if found is None else _delegated_part(piece, found, state.partitions)
            if part.firsts is None or part.firsts:
                parts.append(part)
        return parts

    def _is_merged(self, states: Mapping[str, LogState]) -> bool:
        """Whether topics have one spool over all logs. What edges leave to Spark has one for each edge."""
        if self._setup.is_delegated or self._setup.spool_scope == "site" or len(states) < 2:
            return False
        _check_partitions(states)
        return True

    def _merged_parts(
        self, states: Mapping[str, LogState], starts: Mapping[str, int], ends: Mapping[str, int]
    ) -> list[PartitionBatch]:
        """Each partition of all logs, also of those that have nothing new: their rows are in the spools."""
        if all(starts[broker] >= ends[broker] for broker in states):
            return []
        count = next(iter(states.values())).partitions
        parts = []
        for number in TopicFilters((self._setup.portable.topic,)).partitions(count):
            first, *others = [
                Piece(broker, self.logs.location(broker), state.id, number, starts[broker], ends[broker])
                for broker, state in states.items()
            ]
            parts.append(PartitionBatch(first, beside=tuple(others)))
        return parts

    def _end(self, broker: str, start: int, state: LogState) -> int:
        """No further than it is final what is Spark's. All below `start` is processed and published."""
        end = super()._end(broker, start, state)
        if not self._setup.is_delegated:
            return end
        client = self._client(broker)
        found = client.delegated()
        due = [topic for topic, at in found.returns.items() if at == start]
        if due:
            self._give_back(broker, state, start, found, due)
            found = client.delegated()
        return min(end, max(start, min([found.final_below, *found.returns.values()])))

    def _give_back(self, broker: str, state: LogState, at: int, found: Delegated, topics: list[str]) -> None:
        runner = self._runner()
        for number in {partition_of(topic, state.partitions) for topic in topics}:
            piece = Piece(broker, self.logs.location(broker), state.id, number, at, at)
            part = _delegated_part(piece, found, state.partitions)
            spools = runner.spools_at(part, at)
            for topic in topics:
                if partition_of(topic, state.partitions) == number:
                    self._client(broker).give_back(topic, at, spools.by_topic[topic].state)

    def _runner(self) -> TaskRunner:
        return TaskRunner(self._setup.portable.load(), self._options, self._setup.folder, self._fetch)

    def _fetch(self, piece: Piece, topic: str) -> SpoolState:
        return BrokerClient(piece.location, self._setup.portable.name).handed(topic)

    def _client(self, broker: str) -> BrokerClient:
        if broker not in self._clients:
            self._clients[broker] = BrokerClient(self.logs.location(broker), self._setup.portable.name)
        return self._clients[broker]


def _counted(runner: TaskRunner, answers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same, followed by the number of rows that were processed."""
    yield from answers
    yield pa.RecordBatch.from_pylist([{"error": PROCESSED, "offset": runner.processed}], ANSWERS)


def _delegated_part(piece: Piece, found: Delegated, partitions: int) -> PartitionBatch:
    """Spark's topics of a partition, except those that become Spark's only after the piece."""
    firsts = {
        topic: first
        for topic, first in found.firsts.items()
        if first <= piece.until and partition_of(topic, partitions) == piece.partition
    }
    return PartitionBatch(piece, firsts, found.handed & firsts.keys())


def _check_partitions(states: Mapping[str, LogState]) -> None:
    """Refuses logs in which a topic has not the same partition."""
    if len({state.partitions for state in states.values()}) > 1:
        counts = ", ".join(f"{broker} {state.partitions}" for broker, state in states.items())
        raise PipelineError(
            f"spools over several logs need the same number of partitions in each, and they have: {counts}",
            "Give log.partitions the same value at all brokers, or choose the spool scope site",
        )


def tasks_of(parts: list[PartitionBatch], partitions: Mapping[str, int], task_each: bool) -> list[ProcessorTask]:
    """A task costs some milliseconds, so small parts are put together. Any task can do any part."""
    found: list[ProcessorTask] = []
    gathered: list[PartitionBatch] = []
    rows = 0.0
    for part in parts:
        gathered.append(part)
        rows += sum((piece.until - piece.start) / partitions[piece.broker] for piece in part.pieces)
        if task_each or rows >= TASK_ROWS_MIN:
            found.append(ProcessorTask(tuple(gathered)))
            gathered, rows = [], 0.0
    return [*found, ProcessorTask(tuple(gathered))] if gathered else found


# For drivers


def answers(
    spark: SparkSession,
    portable: PortableProcessor,
    options: Mapping[str, str],
    *,
    folder: str = "",
    delegated: bool = False,
    spool_scope: SpoolScope = "braid",
) -> DataFrame:
    """What a processor says, as a streaming table (`running.ANSWERS`). `options` are those of the format "braidmq"."""
    return _table(spark, QuerySetup(portable, folder, delegated, spool_scope), options)


def _table(spark: SparkSession, setup: QuerySetup, options: Mapping[str, str]) -> DataFrame:
    read = ReadOptions.parse(options)  # mistakes in them are reported now
    if setup.is_delegated and not read.brokers:
        raise OptionError("what edges delegate is asked of their brokers", "Name their admin ports with `brokers`")
    spark.dataSource.register(ProcessorSource)
    text = msgspec.json.encode(setup).decode()
    return spark.readStream.format(FORMAT).options(**options).option(SETUP, text).load()


def start(
    spark: SparkSession,
    portable: PortableProcessor,
    options: Mapping[str, str],
    checkpoint: str,
    *,
    delegated: bool = False,
    publish: str | None = None,
    trigger_ms: int = TRIGGER_MS,
    spool_scope: SpoolScope = "braid",
) -> StreamingQuery:
    """Runs a processor on Spark; what it says is published at the broker where the message came from.

    `delegated`: only what the brokers leave to Spark of their processor of this name, with its topic, spool and output.
    With `spool_scope` "braid" the spool of a topic has the messages of all logs, with "site" those of one.
    `publish` is the admin port to publish at where the logs are read from files. A query that starts again with the
    same checkpoint goes on where it was.
    """
    read = ReadOptions.parse(options)
    if publish is None and not read.brokers:
        raise OptionError("logs are read from files, so it is not known where to publish", "Say it with `publish`")
    logs = Logs(read)  # brokers that do not answer are reported now
    if delegated:
        portable = _at_edges(portable, {broker: logs.location(broker) for broker in logs.states()})
    elif spool_scope == "braid":
        _check_partitions(logs.states())
    setup = QuerySetup(portable, snapshot_folder(checkpoint), delegated, spool_scope, publish or ORIGIN)
    options = with_starting_offsets(options)
    return (
        _table(spark, setup, options)
        .observe(PROCESSED, *BatchCounts.columns())
        .writeStream.format(SINK)
        .queryName(f"processor {portable.name}")
        .option("checkpointLocation", checkpoint)
        .outputMode("append")
        .trigger(processingTime=f"{trigger_ms} milliseconds")
        .start()
    )


@dataclass(frozen=True)
class BatchCounts:
    """What some micro-batches did, in numbers."""

    rows: int = 0
    """Rows that the function has processed."""
    answers: int = 0

    @classmethod
    def of(cls, progress: StreamingQueryProgress) -> BatchCounts:
        """One micro-batch, as Spark tells of it."""
        told = progress["observedMetrics"].get(PROCESSED)
        counts = {} if told is None else told.asDict()
        return cls(counts.get("rows") or 0, counts.get("answers") or 0)

    @staticmethod
    def columns() -> tuple[Column, ...]:
        """What Spark has to count."""
        return (
            f.sum(f.when(f.col("error") == PROCESSED, f.col("offset"))).alias("rows"),
            f.count_if(f.col("error").isNull()).alias("answers"),
        )

    def __add__(self, other: BatchCounts) -> BatchCounts:
        return BatchCounts(self.rows + other.rows, self.answers + other.answers)


def _at_edges(portable: PortableProcessor, locations: Mapping[str, LogLocation]) -> PortableProcessor:
    found = {broker: BrokerClient(location, portable.name).at_edge(portable) for broker, location in locations.items()}
    first, *others = found
    for other in others:
        if found[other] != found[first]:
            raise PipelineError(
                f"{portable.name} is not the same at {first!r} and {other!r}: another topic, spool or output",
                "Give it the same settings at both, or run a query for each",
            )
    return found[first]


def snapshot_folder(checkpoint: str) -> str:
    """Beside a checkpoint of files. One that lies elsewhere has none: spools are then made from the log."""
    parts = urlsplit(checkpoint)
    if parts.scheme not in ("", "file"):
        return ""
    if not parts.path:
        raise PipelineError("the checkpoint has no path")
    return os.path.join(os.path.abspath(parts.path), SNAPSHOTS)
