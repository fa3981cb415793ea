"""An archive: the log as Parquet for good, a folder a day and site, for when the broker's retention has removed it.

    to = archive(rows).writeStream.partitionBy(*PARTITIONS).format("parquet")
    to.option("checkpointLocation", "state/archive").start("archive")

Spark's file sink writes each row once, also over failures; readers with Spark see only what is committed.
"""

from __future__ import annotations

from typing import Final

from braidmq.pipeline.errors import MissingExtra
from braidmq.pipeline.library.columns import event_time

try:
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as f
except ImportError as error:
    raise MissingExtra(error.name) from None

PARTITIONS: Final = ("day", "site")
"""The columns that are folders: day=2026-11-16/site=site1."""


def archive(rows: DataFrame) -> DataFrame:
    """The rows with all their columns, the day on which each was published (as the session's time zone has it), and the
    site."""
    return rows.withColumn("day", f.to_date(event_time())).withColumn("site", f.col("origin"))
