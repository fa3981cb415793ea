"""What a streaming query has done, micro-batch by micro-batch: each is returned once, however seldom one asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery


class MicroBatches:
    """The micro-batches of one query. Spark remembers the last hundred."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self.last: StreamingQueryProgress | None = None

    def new(self) -> list[StreamingQueryProgress]:
        """Those that have ended since the last time."""
        seen = -1 if self.last is None else self.last.batchId
        last = self._query.lastProgress
        if last is None or last.batchId <= seen:
            return []
        self.last = last
        if last.batchId == seen + 1:
            return [last]
        found = [one for one in self._query.recentProgress if one.batchId > seen]
        self.last = found[-1]
        return found
