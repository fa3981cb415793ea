"""Windowed aggregates: of each topic and each minute (or what you like), how much came and what its numbers were.

    windows(rows, every_s=300, value="state.celsius")

In a stream a window comes out once, when no row for it can come any more: when some topic is `delay_s` past its end.
"""

from __future__ import annotations

from braidmq.pipeline.errors import MissingExtra
from braidmq.pipeline.library.columns import DELAY_S, duration, event_time, number

try:
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as f
except ImportError as error:
    raise MissingExtra(error.name) from None


def windows(
    rows: DataFrame,
    *,
    every_s: float = 60.0,
    slide_s: float | None = None,
    value: str | None = None,
    delay_s: float = DELAY_S,
) -> DataFrame:
    """A row for each topic and window in which something of it came.

    Windows are `every_s` long and begin every `slide_s`; if that is not given, where the last one ended. Payloads that
    are no numbers count among the messages, and not in minimum, mean and maximum; `numbers` says how many are.
    """
    slide = None if slide_s is None else duration(slide_s, "the slide of a window")
    span = f.window("at", duration(every_s, "the length of a window"), slide)
    timed = rows.select(
        "topic", event_time().alias("at"), f.octet_length("payload").alias("size"), number(value).alias("number")
    )
    found = timed.withWatermark("at", duration(delay_s, "the delay")).groupBy("topic", span)
    return found.agg(
        f.count("*").alias("messages"),
        f.sum("size").alias("bytes"),
        f.count("number").alias("numbers"),
        f.min("number").alias("minimum"),
        f.avg("number").alias("mean"),
        f.max("number").alias("maximum"),
    ).select(
        "topic",
        f.col("window.start").alias("starts_at"),
        f.col("window.end").alias("ends_at"),
        *("messages", "bytes", "numbers", "minimum", "mean", "maximum"),
    )
