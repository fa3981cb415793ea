"""The exhaust report: of all that sensors publish, how much did anybody want? The rest stayed where it was published.

A broker of a braid says for each topic that is published at it whether anybody anywhere subscribes (`$demand/<topic>`,
1 or 0). To have that in the log, beside the publications, one client at each site writes it down:

    braidmq sub '$demand/#' --json | braidmq pub exhaust/demand --stdin-lines --qos 1

with `[log] topics = [..., "exhaust/demand"]`. Publication and word about demand are then rows of one log, and their
offsets say which was first: a publication was wanted if the last word before it was 1. One that came before any word
about its topic is neither wanted nor unwanted here, but unknown.
"""

from __future__ import annotations

from typing import Final

from braidmq.pipeline.errors import MissingExtra, PipelineError

try:
    from pyspark.sql import DataFrame, Window
    from pyspark.sql import functions as f
except ImportError as error:
    raise MissingExtra(error.name) from None

DEMAND_TOPIC: Final = "exhaust/demand"
"""Where what brokers say about demand is published, as lines of `braidmq sub --json`."""
PREFIX: Final = "$demand/"
TOPIC_MAX: Final = 65_535


def exhaust(rows: DataFrame) -> DataFrame:
    """Messages and payload bytes of each site and topic, told apart by whether anybody wanted them.

    A row without a topic is about a whole site, and the one without a site about all of them. `unwanted_bytes` is what
    suspension saved: nothing of it left its broker.
    """
    if rows.isStreaming:
        raise PipelineError("the exhaust report is made of a batch, not of a stream", "Use spark.read")
    wanted = f.last("wanted", ignorenulls=True).over(
        Window.partitionBy("site", "topic").orderBy("offset").rowsBetween(Window.unboundedPreceding, 0)
    )
    told = _told(rows).withColumn("wanted", wanted).where("size IS NOT NULL")
    found = told.rollup("site", "topic").agg(
        f.count("*").alias("messages"),
        f.sum("size").alias("bytes"),
        *(
            f.sum(f.when(condition, f.col("size")).otherwise(0)).alias(f"{name}_bytes")
            for name, condition in (
                ("wanted", f.col("wanted")),
                ("unwanted", ~f.col("wanted")),
                ("unknown", f.col("wanted").isNull()),
            )
        ),
    )
    return found.where("messages > 0")  # of an empty log, rollup makes a row for all


def _told(rows: DataFrame) -> DataFrame:
    """Publications, which have a size, and words about the topic that they name, which have none; read in one go."""
    is_word = f.col("topic") == DEMAND_TOPIC
    line = f.col("payload").cast("string")
    name, word = f.get_json_object(line, "$.topic"), f.get_json_object(line, "$.payload")
    return rows.select(
        f.col("origin").alias("site"),
        f.when(~is_word, f.col("topic"))
        .when(name.startswith(PREFIX), f.substring(name, len(PREFIX) + 1, TOPIC_MAX))
        .alias("topic"),
        "offset",
        f.when(~is_word, f.octet_length("payload")).alias("size"),
        f.when(is_word & word.isin("0", "1"), word == "1").alias("wanted"),
    )
