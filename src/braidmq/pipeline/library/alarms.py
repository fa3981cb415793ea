"""Alarms about sensors that are late or silent, each measured by its own pace.

    alarms(rows, late=3, missing=10)

What a topic's usual interval is, its last messages say: the median of the pauses between them. A pause of more than
`late` intervals makes its next message late. After `missing` intervals without one the topic is missing, and the next
one says that it is back.

In a stream Spark's clock raises the alarm about a topic that is missing, so it comes even if nothing at all is
published any more; the query needs a trigger by processing time for that. The times in an alarm are those that the
messages and the pace give, so a stream and a batch over the same log say the same. State is a few numbers a topic, and
is dropped `forget_s` after the alarm.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median_low
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from braidmq.pipeline.errors import MissingExtra, PipelineError
from braidmq.pipeline.library.columns import event_time

try:
    import pandas as pd  # type: ignore[import-untyped]
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as f
    from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
except ImportError as error:
    raise MissingExtra(error.name) from None

if TYPE_CHECKING:
    from pyspark.sql.pandas._typing import PandasGroupedMapFunctionWithState

PAUSES_MAX: Final = 15
"""The last pauses of a topic, whose median is its usual interval: so many that a few odd ones do not count."""
PAUSES_MIN: Final = 3
"""Before a topic has so many, its usual pace is unknown."""
SECOND_US: Final = 1_000_000

_ALARM: Final = "topic string, kind string, at_us bigint, last_us bigint, usual_us bigint"
_STATE: Final = "last_us bigint, pauses string, is_missing boolean"  # Spark cannot read back an array here


class Alarm(NamedTuple):
    """Times are microseconds of Unix time."""

    topic: str
    kind: str
    """late, missing or back"""
    at_us: int
    last_us: int
    """When the message before it was published."""
    usual_us: int


@dataclass(frozen=True)
class Rules:
    interval_us: int | None
    late: float
    missing: float
    forget_us: int


class Watch:
    """One topic."""

    def __init__(
        self, rules: Rules, topic: str, last_us: int | None = None, pauses: Iterable[int] = (), is_missing: bool = False
    ) -> None:
        self._rules = rules
        self._topic = topic
        self._last_us = last_us
        self._pauses = list(pauses)
        self._is_missing = is_missing

    @property
    def state(self) -> tuple[int | None, list[int], bool]:
        return self._last_us, self._pauses, self._is_missing

    @property
    def usual_us(self) -> int | None:
        if self._rules.interval_us is not None:
            return self._rules.interval_us
        return median_low(self._pauses) if len(self._pauses) >= PAUSES_MIN else None

    @property
    def patience_us(self) -> int:
        """How long it may be silent from now on before something is to be done."""
        usual_us = self.usual_us
        if usual_us is None or self._is_missing:
            return self._rules.forget_us
        return round(self._rules.missing * usual_us)

    def see(self, at_us: int) -> Iterator[Alarm]:
        """A message. One that is older than the last is a late arrival, and says nothing about the pace."""
        last_us = self._last_us
        if last_us is None:
            self._last_us = at_us
            return
        pause_us = at_us - last_us
        if pause_us <= 0:
            return
        usual_us = self.usual_us
        if usual_us is not None:
            yield from self.check(at_us)
            if self._is_missing and pause_us >= self._rules.missing * usual_us + self._rules.forget_us:
                self._last_us, self._pauses, self._is_missing = at_us, [], False  # forgotten meanwhile: it is new
                return
            if self._is_missing:
                self._is_missing = False
                yield Alarm(self._topic, "back", at_us, last_us, usual_us)
            elif pause_us > self._rules.late * usual_us:
                yield Alarm(self._topic, "late", at_us, last_us, usual_us)
        self._last_us = at_us
        self._pauses = [*self._pauses, pause_us][-PAUSES_MAX:]

    def check(self, now_us: int | None = None) -> Iterator[Alarm]:
        """Nothing came until now; None: for as long as it takes to be missing."""
        usual_us = self.usual_us
        if self._last_us is None or usual_us is None or self._is_missing:
            return
        due_us = self._last_us + round(self._rules.missing * usual_us)
        if now_us is None or now_us >= due_us:
            self._is_missing = True
            yield Alarm(self._topic, "missing", due_us, self._last_us, usual_us)


def alarms(
    rows: DataFrame,
    *,
    interval_s: float | None = None,
    late: float = 3.0,
    missing: float = 10.0,
    forget_s: float = 86_400.0,
    now: datetime | None = None,
) -> DataFrame:
    """A row for each alarm: topic, kind (late, missing, back), when, the message before, the usual interval, the pause.

    `interval_s` is the interval of all topics, if it need not be found out. A batch looks at what is missing `now`; by
    default that is the time of the call. A stream does not take it: it has its clock.
    """
    if not 1 <= late <= missing:
        raise PipelineError(
            f"late after {late:g} and missing after {missing:g} intervals", "Needed: 1 <= late <= missing"
        )
    if forget_s <= 0 or (interval_s is not None and interval_s <= 0):
        raise PipelineError("an interval, or the time to forget, is not above 0", "Give seconds")
    interval_us = None if interval_s is None else round(interval_s * SECOND_US)
    rules = Rules(interval_us, late, missing, round(forget_s * SECOND_US))
    timed = rows.select("topic", f.unix_micros(event_time()).alias("at_us"))
    found = _of_stream(timed, rules) if rows.isStreaming else _of_batch(timed, rules, now or datetime.now(UTC))
    return found.select(
        "topic",
        "kind",
        f.timestamp_micros("at_us").alias("at"),
        f.timestamp_micros("last_us").alias("last_at"),
        (f.col("usual_us") / SECOND_US).alias("usual_s"),
        ((f.col("at_us") - f.col("last_us")) / SECOND_US).alias("pause_s"),
    )


def _of_batch(timed: DataFrame, rules: Rules, now: datetime) -> DataFrame:
    """Each topic in one task, one after the other, in the order of its messages."""
    now_us = round(now.timestamp() * SECOND_US)

    def look(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        topic, watch = None, Watch(rules, "")
        for batch in batches:
            found: list[Alarm] = []
            for name, at_us in zip(batch["topic"].to_pylist(), batch["at_us"].to_pylist(), strict=True):
                if name != topic:
                    found += watch.check(now_us)
                    topic, watch = name, Watch(rules, name)
                found += watch.see(at_us)
            yield _as_batch(found)
        yield _as_batch(list(watch.check(now_us)))

    return timed.repartition("topic").sortWithinPartitions("topic", "at_us").mapInArrow(look, _ALARM)


def _of_stream(timed: DataFrame, rules: Rules) -> DataFrame:
    def look(key: Any, parts: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        watch = _restored(rules, key[0], state.get) if state.exists else Watch(rules, key[0])
        if state.hasTimedOut:
            found = list(watch.check())
            if not found:  # it was missing already, or nothing is known of it: it is forgotten
                state.remove()
                return
        else:
            times = sorted(int(at_us) for part in parts for at_us in part["at_us"])
            found = [alarm for at_us in times for alarm in watch.see(at_us)]
        last_us, pauses, is_missing = watch.state
        state.update((last_us, " ".join(map(str, pauses)), is_missing))
        state.setTimeoutDuration(max(1, watch.patience_us // 1000))
        if found:
            yield pd.DataFrame(found)

    function: PandasGroupedMapFunctionWithState = look
    return timed.groupBy("topic").applyInPandasWithState(
        function, _ALARM, _STATE, "append", GroupStateTimeout.ProcessingTimeTimeout
    )


def _restored(rules: Rules, topic: str, saved: tuple[Any, ...]) -> Watch:
    last_us, pauses, is_missing = saved
    return Watch(rules, topic, int(last_us), map(int, pauses.split()), bool(is_missing))


def _as_batch(found: list[Alarm]) -> pa.RecordBatch:
    types = (pa.string(), pa.string(), pa.int64(), pa.int64(), pa.int64())
    columns = zip(*found, strict=True) if found else ((),) * len(types)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=list(Alarm._fields))
