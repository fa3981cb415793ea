"""A pipeline at work: from the logs, through its function, to where its rows are to go.

job = Job(PIPELINES["windows"], {"path": "data"}, {"every_s": 300.0})
job.batch(spark).show()
job.start(spark, ToFolder("tables/windows"), "state/windows")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from braidmq.pipeline.errors import MissingExtra, PipelineError
from braidmq.pipeline.library.catalogue import Pipeline
from braidmq.pipeline.source.logs import with_starting_offsets

try:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import functions as f
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.utils import is_remote
except ImportError as error:
    raise MissingExtra(error.name) from None

PREFIX: Final = "pipeline"
"""What is published begins with it, and the pipeline's name: pipeline/alarms/plant1/line2/temperature."""
CLOCK_BATCHES: Final = "spark.sql.streaming.noDataMicroBatches.enabled"
"""Whether there are micro-batches without rows, for the clock alone."""
TRIGGER_S: Final = 1.0
"""How often a stream looks for new rows."""


@dataclass(frozen=True)
class ToFolder:
    """A table of Parquet files."""

    folder: str


@dataclass(frozen=True)
class ToBrokers:
    """Publications, a row each, as JSON."""

    brokers: str
    token: str | None = None


@dataclass(frozen=True)
class ToFunction:
    """A function in this process that gets the rows of each micro-batch."""

    take: Callable[[DataFrame], None]


@dataclass(frozen=True)
class Job:
    pipeline: Pipeline
    source: Mapping[str, str]
    """Options of the format "braidmq"."""
    options: Mapping[str, Any]
    """Of the pipeline."""

    def starting_now(self) -> Job:
        """The same job as a stream that begins with what is latest now (see `logs.with_starting_offsets`)."""
        return replace(self, source=with_starting_offsets(self.source))

    def batch(self, spark: SparkSession) -> DataFrame:
        """What the pipeline makes of all that is in the logs now."""
        reader = spark.read.format("braidmq")
        for name, value in self._source().items():
            reader = reader.option(name, value)
        return self._made(reader.load())

    def write(self, found: DataFrame, to: ToFolder | ToBrokers) -> None:
        """Puts a batch where it is to go. A folder that is there already is left alone."""
        if isinstance(to, ToFolder):
            found.write.partitionBy(*self.pipeline.partitions).mode("error").parquet(to.folder)
            return
        writer = self.publications(found).write.format("braidmq").option("brokers", to.brokers)
        (writer if to.token is None else writer.option("token", to.token)).mode("append").save()

    def start(
        self,
        spark: SparkSession,
        to: ToFolder | ToBrokers | ToFunction,
        checkpoint: str | None,
        *,
        is_once: bool = False,
        trigger_s: float = TRIGGER_S,
    ) -> StreamingQuery:
        """A query that goes on until it is stopped; `is_once`: until it has read what is there."""
        if not self.pipeline.is_streaming:
            raise PipelineError(f"{self.pipeline.name} is a report of what is there, not a stream")
        reader = spark.readStream.format("braidmq")
        for name, value in self._source().items():
            reader = reader.option(name, value)
        writer = self._writer(self._made(reader.load()), to)
        if checkpoint is not None:
            writer = writer.option("checkpointLocation", checkpoint)
        if is_once and self.pipeline.has_timers:
            if checkpoint is not None:
                _read_all(spark, writer)
            return writer.trigger(once=True).start()  # the clock fires once: a stream with timers would never end
        if is_once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{round(trigger_s * 1000)} milliseconds").start()

    def publications(self, found: DataFrame) -> DataFrame:
        """Rows as they are published: what they are about is in the topic, the whole row in the payload."""
        about = [name for name in self.pipeline.key if name in ("site", "client", "topic") and name in found.columns]
        levels = [f.translate(name, "+#", "__") for name in about]
        topic = f.concat_ws("/", f.lit(PREFIX), f.lit(self.pipeline.name), *levels)
        return found.select(topic.alias("topic"), f.to_json(f.struct("*")).alias("payload"))

    def _source(self) -> dict[str, str]:
        options = dict(self.source)
        if self.pipeline.columns:
            options["columns"] = ",".join(self.pipeline.columns)
        if options.get("topics") and self.pipeline.topics:
            options["topics"] = ",".join((options["topics"], *self.pipeline.topics))
        return options

    def _made(self, rows: DataFrame) -> DataFrame:
        if not self.pipeline.needs_out:  # what pipelines have published is not looked at again: one would answer itself
            rows = rows.where(~f.col("topic").startswith(f"{PREFIX}/"))
        found: DataFrame = self.pipeline.function(rows, **self.options)
        return found

    def _writer(self, found: DataFrame, to: ToFolder | ToBrokers | ToFunction) -> DataStreamWriter:
        if isinstance(to, ToFolder):
            writer = found.writeStream.partitionBy(*self.pipeline.partitions).format("parquet")
            return writer.option("path", to.folder)
        if isinstance(to, ToBrokers):
            writer = self.publications(found).writeStream.format("braidmq").option("brokers", to.brokers)
            return writer if to.token is None else writer.option("token", to.token)
        if is_remote():
            raise PipelineError(
                "a stream of Spark Connect cannot be shown here", "Let its rows go to a folder, or be published"
            )
        take = to.take
        return found.writeStream.foreachBatch(lambda rows, _number: take(rows))


def _read_all(spark: SparkSession, writer: DataStreamWriter) -> None:
    """Reads what is there, and waits for it. A batch that an earlier query left unfinished is run first; a query of one
    batch would be that one and no other."""
    before = spark.conf.get(CLOCK_BATCHES)
    spark.conf.set(CLOCK_BATCHES, "false")  # a query keeps the settings that it was started with
    try:
        query = writer.trigger(availableNow=True).start()
    finally:
        spark.conf.set(CLOCK_BATCHES, before or "true")
    query.awaitTermination()
