"""Sessions: stretches of time in which a client (or a topic) was at work, with no pause longer than a gap.

    sessions(rows, gap_s=300, by="client")

In a stream a session comes out once, when it is over: its gap has passed, and no row for it can come any more. One that
never pauses never comes out.
"""

from __future__ import annotations

from typing import Final

from braidmq.pipeline.errors import MissingExtra, PipelineError
from braidmq.pipeline.library.columns import DELAY_S, duration, event_time

try:
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as f
except ImportError as error:
    raise MissingExtra(error.name) from None

KEYS: Final = ("client", "topic")


def sessions(rows: DataFrame, *, gap_s: float = 300.0, by: str = "client", delay_s: float = DELAY_S) -> DataFrame:
    """A row for each session, from its first message to its last. Rows that no client published have no session of a
    client, and are left out then."""
    if by not in KEYS:
        raise PipelineError(f"there are no sessions by {by!r}", f"There are those by {' and by '.join(KEYS)}")
    timed = rows.where(f.col(by).isNotNull()).select(
        f.col(by).alias("who"), event_time().alias("at"), f.octet_length("payload").alias("size")
    )
    span = f.session_window("at", duration(gap_s, "the gap between sessions"))
    found = timed.withWatermark("at", duration(delay_s, "the delay")).groupBy("who", span)
    return found.agg(
        f.min("at").alias("began_at"),
        f.max("at").alias("ended_at"),
        f.count("*").alias("messages"),
        f.sum("size").alias("bytes"),
    ).select(
        f.col("who").alias(by),
        "began_at",
        "ended_at",
        ((f.unix_micros("ended_at") - f.unix_micros("began_at")) / 1e6).alias("seconds"),
        "messages",
        "bytes",
    )
