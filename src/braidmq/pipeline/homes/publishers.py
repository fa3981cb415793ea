"""Who has published how much to which topic, from the logs of a braid: what a plan of home servers is made from."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from braidmq.pipeline.errors import MissingExtra, PipelineError
from braidmq.placement.observed import ObservedPublisher

try:
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as f
except ImportError as error:
    raise MissingExtra(error.name) from None

PERIOD_MIN_S = 1.0
"""The shortest time that a rate is measured over."""


@dataclass(frozen=True, slots=True)
class PublishedRates:
    publishers: list[ObservedPublisher]
    period_s: float
    """From the first row to the last."""


def publishers(rows: DataFrame, since: datetime | None = None) -> DataFrame:
    """A row for each topic and client: messages, their mean size, and when the first and the last came."""
    known = rows.where(f.col("client").isNotNull() & (f.col("client") != ""))
    if since is not None:
        known = known.where(f.col("received_at") >= f.lit(since))
    return known.groupBy("topic", "client").agg(
        f.count("*").alias("messages"),
        f.avg(f.octet_length("payload")).alias("size"),
        f.min("received_at").alias("first_at"),
        f.max("received_at").alias("last_at"),
    )


def published_rates(rows: DataFrame, since: datetime | None = None) -> PublishedRates:
    """A PipelineError if there is nothing to count."""
    found = publishers(rows, since).orderBy("topic", "client").collect()
    if not found:
        raise PipelineError(
            "the logs have no publication whose client is known",
            "Log the topics that matter ([log] topics), and let clients publish for a while",
        )
    period_s = (max(one.last_at for one in found) - min(one.first_at for one in found)).total_seconds()
    seen = [ObservedPublisher(one.topic, one.client, one.messages, float(one["size"])) for one in found]
    return PublishedRates(seen, max(period_s, PERIOD_MIN_S))
