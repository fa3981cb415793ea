"""What the pipelines read out of a row: when it happened, and the number in it."""

from __future__ import annotations

from typing import Final

from braidmq.pipeline.errors import MissingExtra, PipelineError

try:
    from pyspark.sql import Column
    from pyspark.sql import functions as f
except ImportError as error:
    raise MissingExtra(error.name) from None

DELAY_S: Final = 60.0
"""How much later than others a row may come and still count in a stream."""


def event_time() -> Column:
    """When a row was published, as its device says; at the latest when it was received.

    A device whose clock is years ahead would otherwise move a stream's watermark there, and the rows of all
    other devices would count as late.
    """
    return f.least("published_at", "received_at")


def number(path: str | None = None) -> Column:
    """The payload as a number; null if it is none. `path` says where in a JSON payload it stands: `state.celsius`."""
    text = f.col("payload").cast("string")
    if path is not None:
        text = f.get_json_object(text, path if path.startswith("$") else f"$.{path}")
    value = text.try_cast("double")
    return f.when(f.abs(value) < float("inf"), value)  # one NaN would make a NaN of every mean


def duration(seconds: float, what: str) -> str:
    """As Spark wants it; an error names what cannot be."""
    if not seconds >= 0.001:
        raise PipelineError(f"{what} is {seconds:g} s", "It has to be a millisecond at least")
    return f"{round(seconds * 1000)} milliseconds"
