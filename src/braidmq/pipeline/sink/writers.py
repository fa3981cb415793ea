"""The sinks of the format "braidmq": rows of Spark become publications, once each.

    alerts.writeStream.format("braidmq").option("brokers", "http://127.0.0.1:9883") \\
        .option("checkpointLocation", "state/alerts").start()

Columns: `topic` (or the option of that name, for all rows) and `payload`, and if they are there `qos` (1 otherwise),
`retain` and `properties`. Every partition of every micro-batch is a batch of a writer of its own (`batches`), named by
the query and the partition: one that Spark runs again, after whatever failure, is the same batch, and the broker does
not publish it again. The same holds for `df.write` within one job, and over several jobs that name their
`writer`.

With several brokers a partition always goes to the same one of them, so their order must stay as it is.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from braidmq.pipeline.errors import MissingExtra, PipelineError
from braidmq.pipeline.sink.batches import RETRY_S, PublishBatch
from braidmq.pipeline.source.options import RETRY_S_MAX, Given, admin_url

try:
    from pyspark import TaskContext
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
    from pyspark.sql.types import (
        ArrayType,
        BinaryType,
        BooleanType,
        DataType,
        IntegralType,
        MapType,
        StringType,
        StructType,
    )
except ImportError as error:
    raise MissingExtra(error.name) from None

NAMES: Final = ("brokers", "token", "topic", "qos", "writer", "retrySeconds", "checkpointLocation", "queryName", "path")
COLUMNS: Final = ("topic", "payload", "qos", "retain", "properties")
QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
"""The properties in which a task finds its query and batch."""

Pairs = list[tuple[str, str]]


class SinkError(PipelineError):
    """Rows that cannot be published as they are."""


@dataclass(frozen=True)
class SinkOptions:
    """Where rows go, and what they are if their columns do not say."""

    brokers: tuple[str, ...]
    token: str | None = field(repr=False)
    topic: str | None
    qos: int
    writer: str | None
    retry_s: float

    @staticmethod
    def parse(options: Mapping[str, str], schema: StructType) -> SinkOptions:
        given = Given(options, NAMES)
        brokers = tuple(map(admin_url, given.words("brokers")))
        if not brokers:
            raise SinkError(
                "rows are published through the admin port of a broker",
                'Name it, or several: .option("brokers", "http://127.0.0.1:9883")',
            )
        found = SinkOptions(
            brokers=brokers,
            token=given.token(),
            topic=given.text("topic"),
            qos=int(given.choice("qos", ("0", "1", "2")) or "1"),
            writer=given.text("writer"),
            retry_s=given.seconds("retrySeconds", RETRY_S, RETRY_S_MAX),
        )
        _check(schema, found)
        return found


def _check(schema: StructType, options: SinkOptions) -> None:
    """Whether the columns are those of a publication."""
    kinds: dict[str, DataType] = {each.name: each.dataType for each in schema.fields}
    unknown = [name for name in kinds if name not in COLUMNS]
    if unknown:
        raise SinkError(
            f"a publication has no {', '.join(map(repr, unknown))}", f"Select from {', '.join(COLUMNS)} what is there"
        )
    if "topic" not in kinds and options.topic is None:
        raise SinkError("there is no column topic", 'Add it, or .option("topic", …) for all rows')
    if "payload" not in kinds:
        raise SinkError("there is no column payload", "Its type is binary or string")
    allowed: dict[str, tuple[type[DataType], ...]] = {
        "topic": (StringType,),
        "payload": (BinaryType, StringType),
        "qos": (IntegralType,),
        "retain": (BooleanType,),
        "properties": (ArrayType, MapType),
    }
    for name, kind in kinds.items():
        if not isinstance(kind, allowed[name]):
            raise SinkError(f"the column {name} is of type {kind.simpleString()}", f"It has to be {_words(name)}")


def _words(name: str) -> str:
    return {
        "topic": "a string",
        "payload": "binary or a string",
        "qos": "a whole number",
        "retain": "boolean",
        "properties": "map<string, string> or array<struct<name: string, value: string>>",
    }[name]


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task did."""

    rows: int
    is_repeated: bool


class BatchSink(DataSourceArrowWriter):
    """`df.write`: each partition is one batch."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise SinkError("what is published cannot be overwritten", 'Use .mode("append")')
        self._options = SinkOptions.parse(options, schema)
        self._writer = self._options.writer or uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return _write(self._options, f"{self._writer}/{_task().partitionId()}", 0, iterator)


class StreamSink(DataSourceStreamArrowWriter):
    """`df.writeStream`: each partition of each micro-batch is one batch."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise SinkError("what is published cannot be overwritten", 'Use .outputMode("append") or "update"')
        self._options = SinkOptions.parse(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        query, batch = query_and_batch()
        return _write(self._options, f"{self._options.writer or query}/{_task().partitionId()}", batch, iterator)


def query_and_batch() -> tuple[str, int]:
    """What this task of a streaming query belongs to."""
    task = _task()
    query, batch = task.getLocalProperty(QUERY_ID), task.getLocalProperty(BATCH_ID)
    if query is None or batch is None:
        raise SinkError("Spark did not say to which query and batch these rows belong")
    return query, int(batch)


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise SinkError("rows are published by Spark's tasks, and this is none")
    return task


def _write(options: SinkOptions, writer: str, number: int, parts: Iterable[pa.RecordBatch]) -> Written:
    broker = options.brokers[_task().partitionId() % len(options.brokers)]
    batch = PublishBatch(broker, options.token, writer, number, options.retry_s)
    count = 0
    try:
        for part in parts:
            for row in _rows(part, options):
                batch.add(row)
                count += 1
        if count:
            batch.finish()
    finally:
        batch.close()
    return Written(count, batch.is_repeated)


def _rows(part: pa.RecordBatch, options: SinkOptions) -> Iterator[tuple[str, bytes, int, bool, Pairs]]:
    columns: dict[str, list[Any]] = part.to_pydict()
    none = [None] * part.num_rows
    rows = zip(*(columns.get(name, none) for name in COLUMNS), strict=True)
    for topic, payload, qos, retain, properties in rows:
        name = topic if topic is not None else options.topic
        if name is None:
            raise SinkError("a row has no topic", "Leave out rows whose topic is null, or set the option topic")
        body = payload.encode() if isinstance(payload, str) else payload or b""
        level = options.qos if qos is None else int(qos)
        if not 0 <= level <= 2:
            raise SinkError(f"a row has QoS {level}", "It is 0, 1 or 2")
        yield name, body, level, bool(retain), _pairs(properties)


def _pairs(properties: Any) -> Pairs:
    """A map comes as pairs, an array of structs as dictionaries of two."""
    if not properties:
        return []
    pairs = [tuple(one.values()) if isinstance(one, dict) else one for one in properties]
    return [(str(name), "" if value is None else str(value)) for name, value in pairs]
