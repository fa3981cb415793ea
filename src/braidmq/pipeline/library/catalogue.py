"""The list of ready-made pipelines: what each is for, and what it needs of the log. Nothing here needs Spark."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

_TIMES: Final = ("published_at", "received_at")


@dataclass(frozen=True)
class Pipeline:
    name: str
    about: str
    columns: tuple[str, ...]
    """Of the log, which it reads; none are all."""
    options: tuple[str, ...] = ()
    """The keywords of its function."""
    key: tuple[str, ...] = ("topic",)
    """The first of these that its rows have is what they are about; by all of them, rows are sorted for people."""
    partitions: tuple[str, ...] = ()
    """Columns that are folders in a table of Parquet files."""
    is_streaming: bool = True
    has_timers: bool = False
    """Whether Spark's clock makes rows, too: then there is always something that may come."""
    needs_out: bool = False
    """Whether it is only good for files."""
    blank: str = ""
    """What a key that is null means to people."""
    topics: tuple[str, ...] = ()
    """That it reads beside those it is asked to look at."""

    @property
    def function(self) -> Callable[..., Any]:
        """DataFrame → DataFrame. Needs the extra `spark`."""
        found: Callable[..., Any] = getattr(importlib.import_module(f"{__package__}.{self.name}"), self.name)
        return found


PIPELINES: Final = {
    one.name: one
    for one in (
        Pipeline(
            "windows",
            "messages, bytes and numbers of each topic in windows of time",
            ("topic", "payload", *_TIMES),
            ("every_s", "slide_s", "value", "delay_s"),
            ("topic", "starts_at"),
        ),
        Pipeline(
            "sessions",
            "when clients, or topics, were at work",
            ("topic", "client", "payload", *_TIMES),
            ("gap_s", "by", "delay_s"),
            ("client", "topic", "began_at"),
        ),
        Pipeline(
            "alarms",
            "topics that are late by their own pace, missing, or back",
            ("topic", *_TIMES),
            ("interval_s", "late", "missing", "forget_s"),
            ("topic", "at"),
            has_timers=True,
        ),
        Pipeline(
            "exhaust",
            "bytes published, wanted and unwanted, of each site and topic",
            ("topic", "payload", "origin", "offset"),
            key=("site", "topic"),
            is_streaming=False,
            blank="all",
            topics=("exhaust/demand",),
        ),
        Pipeline(
            "archive",
            "the log as Parquet files, a folder a day and site",
            (),
            partitions=("day", "site"),
            needs_out=True,
        ),
    )
}
