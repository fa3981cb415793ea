"""The format "braidmq" as a stream: micro-batches between two offsets of each broker, which always give the same rows.

    spark.readStream.format("braidmq").option("path", "data").option("startingOffsets", "earliest").load()

A checkpoint holds, for each broker, which log it has and the offset up to which all was read. Brokers may join a braid
under a running checkpoint: a new one is read from its beginning. None may be missing, and no log may be another one:
rows would be lost, or read twice, without notice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from braidmq.log.source import LogState
from braidmq.pipeline.errors import MissingExtra
from braidmq.pipeline.source import plan, reading
from braidmq.pipeline.source.logs import Logs, SourceError
from braidmq.pipeline.source.options import EARLIEST, LATEST, OptionError, ReadOptions

try:
    from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError as error:
    raise MissingExtra(error.name) from None

FORMAT: Final = 1
"""The version of what a checkpoint holds for this source."""

Offsets = dict[str, Any]
"""{"format": 1, "brokers": {name: {"log": the log's id, "offset": the next one to read}}}"""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Spark asks it, in a process beside the driver, what there is; tasks read it in the workers."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        if options.ending is not None:
            raise OptionError("a stream has no end", "Read a batch with spark.read, or use trigger(availableNow=True)")
        self._options = options
        self._schema = schema
        self._logs: Logs | None = None
        self._target: dict[str, int] | None = None
        self._initial: Offsets | None = None
        self._states: dict[str, LogState] = {}
        """As they were when the last batch was made; its rows are there."""

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_logs": None, "_states": {}}  # a task has what it needs in its pieces

    @property
    def logs(self) -> Logs:
        if self._logs is None:
            self._logs = Logs(self._options)
        return self._logs

    def initialOffset(self) -> Offsets:  # noqa: N802 - Spark's name
        """Spark asks twice before the first batch: where it ends, and then where it begins. Were the second answer a
        later "latest", what came between the two would be lost, or the beginning lie behind the end."""
        if self._initial is None:
            self._initial = self._first_offsets()
        return self._initial

    def _first_offsets(self) -> Offsets:
        states = self.logs.states()
        return _written(states, self.logs.offsets(self._options.starting or LATEST, states, EARLIEST))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        rows_max = self._options.rows_max
        return ReadAllAvailable() if rows_max is None else ReadMaxRows(rows_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._target = {broker: state.next_offset for broker, state in self.logs.states().items()}

    def reportLatestOffset(self) -> Offsets:  # noqa: N802 - Spark's name
        states = self.logs.states()
        return _written(states, {broker: state.next_offset for broker, state in states.items()})

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802 - Spark's name
        states = self._states = self.logs.states()
        starts = self._resumed(start, states)
        ends = {
            broker: max(starts[broker], self._end(broker, starts[broker], state)) for broker, state in states.items()
        }
        if isinstance(limit, ReadMaxRows):
            ends = self._limited(starts, ends, limit.max_rows)
        return _written(states, ends)

    def partitions(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        states = self._states_for(end)
        starts, ends = self._resumed(start, states), self._resumed(end, states)
        ranges = []
        for broker, state in states.items():
            if broker in end["brokers"]:  # else it joined after this batch was planned
                location = self.logs.location(broker)
                ranges.append(plan.Range(broker, location, state.id, state.partitions, starts[broker], ends[broker]))
        return [*plan.tasks(ranges, self._options.topics, task_each=self._options.task_each)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, plan.ReadTask)
        return reading.rows(partition, self._options, self._options.topics, self._schema)

    def _states_for(self, end: Offsets) -> dict[str, LogState]:
        """The logs of a batch: as `latestOffset` saw them just now, or, for a batch that is run again, as they are."""
        ends, seen = _read(end), self._states
        if ends.keys() == seen.keys() and all(
            at["log"] == seen[broker].id and at["offset"] <= seen[broker].next_offset for broker, at in ends.items()
        ):
            return seen
        return self.logs.states()

    def _end(self, broker: str, start: int, state: LogState) -> int:
        """How far the log of a broker may be read now, by a query that has done all below `start`."""
        return state.next_offset if self._target is None else self._target.get(broker, state.first_offset)

    def _resumed(self, offsets: Offsets, states: Mapping[str, LogState]) -> dict[str, int]:
        """Offsets of a checkpoint, against the logs as they are."""
        brokers = _read(offsets)
        missing = sorted(set(brokers) - set(states))
        if missing and self._options.fail_on_data_loss:
            raise SourceError(
                f"the checkpoint is of another set of brokers: {', '.join(missing)} of it is not read here",
                "Name all brokers of the checkpoint, or use a new checkpoint; with failOnDataLoss = false it goes on "
                "without",
            )
        found = {}
        for broker, state in states.items():
            if broker not in brokers:
                found[broker] = state.first_offset
            elif brokers[broker]["log"] != state.id:
                found[broker] = self.logs.lost_log(broker, state)
            else:
                found[broker] = self.logs.bounded(broker, brokers[broker]["offset"], state)
        return found

    def _limited(self, starts: Mapping[str, int], ends: Mapping[str, int], rows_max: int) -> dict[str, int]:
        """Shares the rows of a micro-batch among the brokers by what each has; one that has some gets at least one."""
        waiting = {broker: ends[broker] - starts[broker] for broker in starts}
        in_all = sum(waiting.values())
        if in_all <= rows_max:
            return dict(ends)
        found = {}
        for broker, start in starts.items():
            share = max(1, rows_max * waiting[broker] // in_all)
            found[broker] = start
            if waiting[broker]:
                found[broker] = min(ends[broker], self.logs.offset_after(broker, start, share))
        return found


def _written(states: Mapping[str, LogState], offsets: Mapping[str, int]) -> Offsets:
    brokers = {broker: {"log": state.id, "offset": offsets[broker]} for broker, state in states.items()}
    return {"format": FORMAT, "brokers": brokers}


def _read(offsets: Offsets) -> dict[str, dict[str, Any]]:
    found = offsets.get("format")
    if found != FORMAT:
        raise SourceError(
            f"the checkpoint was written by another version (format {found}, this one reads {FORMAT})",
            "Use the version that wrote it, or a new checkpoint with `startingOffsets` or `startingTime`",
        )
    brokers: dict[str, dict[str, Any]] = offsets["brokers"]
    return brokers
