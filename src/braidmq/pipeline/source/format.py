"""The format "braidmq" of Spark, and its batch reader.

    spark.read.format("braidmq").load("data").where("topic = 'plant1/line2/temperature'").show()
    spark.read.format("braidmq").option("brokers", "http://127.0.0.1:9883").option("topics", "plant1/#").load()

`session` registers the format; `register(spark)` does so for a session from elsewhere. The options are those of
`options.ReadOptions`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from braidmq.pipeline.errors import MissingExtra

try:
    import pyarrow as pa
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
        InputPartition,
    )
    from pyspark.sql.types import StructType
except ImportError as error:
    raise MissingExtra("pyspark") from error

from braidmq.log.schema import COLUMNS, SCHEMA
from braidmq.pipeline.source import plan, reading
from braidmq.pipeline.source.logs import Logs
from braidmq.pipeline.source.options import EARLIEST, LATEST, OptionError, ReadOptions

TYPES: Final = {
    "topic": "string NOT NULL",
    "payload": "binary NOT NULL",
    "qos": "int NOT NULL",
    "retain": "boolean NOT NULL",
    "published_at": "timestamp NOT NULL",
    "received_at": "timestamp NOT NULL",
    "origin": "string NOT NULL",
    "client": "string",
    "properties": "array<struct<name: string, value: string>>",
    "offset": "bigint NOT NULL",
}
"""The columns as Spark knows them; as Arrow does: `braidmq.log.schema`."""


class BraidSource(DataSource):
    """What brokers logged, and a way to publish."""

    @classmethod
    def name(cls) -> str:
        return "braidmq"

    def schema(self) -> StructType | str:
        columns = ReadOptions.parse(self.options).columns
        return ", ".join(f"{name} {TYPES[name]}" for name in columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(ReadOptions.parse(self.options), _arrow(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from braidmq.pipeline.source.stream import StreamReader

        return StreamReader(ReadOptions.parse(self.options), _arrow(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from braidmq.pipeline.sink.writers import BatchSink

        return BatchSink(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        from braidmq.pipeline.sink.writers import StreamSink

        return StreamSink(self.options, schema, overwrite)


def _arrow(schema: StructType) -> pa.Schema:
    """The same for Arrow, of a schema that was given with `.schema(…)`, or is ours."""
    for each in schema.fields:
        if each.name not in COLUMNS:
            raise OptionError(f"there is no column {each.name!r}", f"There are {', '.join(COLUMNS)}")
    return pa.schema([SCHEMA.field(each.name).with_nullable(each.nullable) for each in schema.fields])


class BatchReader(DataSourceReader):
    """From `startingOffsets`, or the beginning, to `endingOffsets`, or what is there when the query is planned."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        logs = Logs(self._options)
        states = logs.states()
        starts = logs.offsets(self._options.starting or EARLIEST, states, EARLIEST)
        ends = logs.offsets(self._options.ending or LATEST, states, LATEST)
        ranges = [
            plan.Range(broker, logs.location(broker), state.id, state.partitions, starts[broker], ends[broker])
            for broker, state in states.items()
        ]
        found = plan.tasks(ranges, self._options.topics, task_each=self._options.task_each)
        return [*(found or [plan.ReadTask(())])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, plan.ReadTask)
        return reading.rows(partition, self._options, self._options.topics, self._schema)
