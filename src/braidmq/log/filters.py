"""Topic filters over columns: which rows of a batch a reader wants."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from braidmq.log.partition import partition_of
from braidmq.mqtt.errors import PacketError
from braidmq.mqtt.topics import check_filter, has_wildcard, matches

REMEMBERED_MAX = 100_000
"""Topics whose verdict is remembered."""


class TopicFilters:
    """Rows whose topic matches any of some MQTT filters; without any filter, all rows."""

    def __init__(self, filters: Iterable[str] = ()) -> None:
        self.filters = tuple(dict.fromkeys(filters))
        for one in self.filters:
            try:
                check_filter(one)
            except PacketError as error:
                raise ValueError(f"{one!r} is no topic filter: {error.text}") from None
        self._takes_all = not self.filters or "#" in self.filters
        self._verdicts: dict[str, bool] = {}

    def partitions(self, count: int) -> list[int]:
        """The partitions, out of so many, that can have such rows."""
        if self._takes_all or any(has_wildcard(one) for one in self.filters):
            return list(range(count))
        return sorted({partition_of(one, count) for one in self.filters})

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a batch that are wanted."""
        if self._takes_all:
            return batch
        topics = batch.column("topic")
        unique = topics.unique()
        wanted = [topic for topic in unique.to_pylist() if self._wants(topic)]
        if len(wanted) == len(unique):
            return batch
        if not wanted:
            return batch.slice(0, 0)
        return batch.filter(pc.is_in(topics, value_set=pa.array(wanted, pa.string())))

    def _wants(self, topic: str) -> bool:
        verdict = self._verdicts.get(topic)
        if verdict is None:
            if len(self._verdicts) >= REMEMBERED_MAX:
                self._verdicts.clear()
            verdict = self._verdicts[topic] = any(matches(one, topic) for one in self.filters)
        return verdict
