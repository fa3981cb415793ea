"""What a task does in a Python worker of Spark: takes rows of a log through a processor, partition by partition.

    spools before the batch ──▶ each row: into its spool, through the function ──▶ spools after it, and answers

The spools come from this worker's cache if it had the partition last, otherwise from the latest snapshot or from the
log; in any case, the rows up to the batch are put in. So a batch that is run again, here or on another machine, gives
the same answers.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import pyarrow as pa

from braidmq.log.batches import between
from braidmq.log.schema import PROPERTIES
from braidmq.pipeline.source import reading
from braidmq.pipeline.source.options import ReadOptions
from braidmq.pipeline.source.plan import Piece
from braidmq.pipeline.stateful import merging
from braidmq.pipeline.stateful.snapshots import Snapshots
from braidmq.pipeline.stateful.spools import WHOLE, Spools, SpoolsKey
from braidmq.pipeline.stateful.time_limit import TimeLimit, TookTooLong
from braidmq.processors.hops import HOPS, HOPS_MAX, hops_of, loop_words
from braidmq.processors.processor import Failure, Message, Output, Processor, Spool, SpoolState, spool_step
from braidmq.processors.rows import messages_of

CACHED_MESSAGES_MAX: Final = 2_000_000
"""Messages in the spools that a worker keeps in its memory between two batches."""
TOPICS_MAX: Final = 1_000_000
"""Topics of one partition that have a spool; beyond, those that were silent for longest lose it."""
SNAPSHOT_ROWS_MIN: Final = 10_000
SNAPSHOT_SHARE: Final = 4.0
"""A snapshot is written after so many rows, and so many times what it holds: it costs less than the rows do."""
ROLLED_OFFSETS_MAX: Final = 100_000
"""How far cached spools may be behind before a snapshot is looked for."""
ERROR_ROWS_MAX: Final = 20
"""Errors of one partition and batch that are reported one by one."""

PAYLOAD_BYTES_MAX: Final = 16 << 20
"""The largest notification: a broker takes it in one piece."""

ANSWERS: Final = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("payload", pa.binary()),
        pa.field("qos", pa.int32()),
        pa.field("retain", pa.bool_()),
        pa.field("properties", PROPERTIES),
        pa.field("of", pa.string()),
        pa.field("offset", pa.int64()),
        pa.field("broker", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("error", pa.string()),
    ]
)
"""A notification and the message that caused it; or, with `error`, an error whose text is the payload."""

_EMPTY: Final = SpoolState(-1, ())
_log = logging.getLogger("braidmq.pipeline")


@dataclass(frozen=True)
class PartitionBatch:
    """One partition's part of a batch. `firsts`: from which offsets on topics are Spark's; None: all of them are."""

    piece: Piece
    firsts: Mapping[str, int] | None = None
    handed: frozenset[str] = frozenset()
    """Topics that have a spool to begin with: their broker has it."""
    beside: tuple[Piece, ...] = ()
    """The same partition of the logs of other brokers, with which it has its spools in common."""

    @property
    def pieces(self) -> tuple[Piece, ...]:
        return self.piece, *self.beside


class SpoolCache:
    """Spools that a worker keeps between batches. Losing them costs only the time to make them again."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, SpoolsKey], tuple[Spools, int]] = OrderedDict()
        self._messages = 0

    def __len__(self) -> int:
        """Messages in it."""
        return self._messages

    def take(self, folder: str, key: SpoolsKey) -> Spools | None:
        """Removes the spools from the cache: a task that fails leaves nothing half done."""
        found, messages = self._kept.pop((folder, key), (None, 0))
        self._messages -= messages
        return found

    def keep(self, folder: str, spools: Spools, messages: int) -> None:
        """`messages`: how many are in the spools."""
        self.take(folder, spools.key)
        self._kept[folder, spools.key] = (spools, messages)
        self._messages += messages
        while self._messages > CACHED_MESSAGES_MAX:
            _, (_, dropped) = self._kept.popitem(last=False)
            self._messages -= dropped


@cache
def spool_cache() -> SpoolCache:
    """The cache of this worker."""
    return SpoolCache()


class TaskRunner:
    """A processor over the log, for the parts of one task."""

    def __init__(
        self,
        processor: Processor,
        options: ReadOptions,
        folder: str,
        fetch: Callable[[Piece, str], SpoolState],
        topics_max: int = TOPICS_MAX,
    ) -> None:
        self._processor = processor
        self._options = options
        self._folder = folder
        self._fetch = fetch
        self._topics_max = topics_max
        self.processed = 0
        """Rows that the function has processed."""

    def answers_of(self, parts: Sequence[PartitionBatch]) -> Iterator[pa.RecordBatch]:
        """Processes all parts of a task; yields the answers. Then each log is asked whether all rows were there."""
        for part in parts:
            yield from self.answers(part)
        if self._options.fail_on_data_loss:
            for piece in {piece.broker: piece for part in parts for piece in part.pieces}.values():
                reading.check(piece)
        reading.freeze_imports()

    def answers(self, part: PartitionBatch) -> Iterator[pa.RecordBatch]:
        """Processes a part; yields the answers."""
        if part.beside:
            yield from self._merged_answers(part)
            return
        piece = part.piece
        spools, rows = self._begun(part)
        errors = 0
        for batch in rows:
            shown = []
            for message, outcome in self._step_all(messages_of(batch), spools, part.firsts):
                if isinstance(outcome, Failure):
                    errors += 1
                    if errors > ERROR_ROWS_MAX:
                        continue
                shown.append(_row(message, outcome, piece))
            if shown:
                yield pa.RecordBatch.from_pylist(shown, ANSWERS)
            spools.rows_since += batch.num_rows
            self.processed += batch.num_rows
        if errors > ERROR_ROWS_MAX:
            text = f"{errors - ERROR_ROWS_MAX} more errors in this batch"
            yield pa.RecordBatch.from_pylist([_error(piece, "function", text, None, None)], ANSWERS)
        self._finish(spools, piece)

    def _begun(self, part: PartitionBatch) -> tuple[Spools, Iterator[pa.RecordBatch]]:
        """The spools of a part, and its rows."""
        piece = part.piece
        if not piece.location.is_remote:
            return self.spools_at(part, piece.start), self._rows(piece, part, self._options)
        spools = self._known(part, piece.start)
        return spools, self._caught_up(spools, part)

    def _caught_up(self, spools: Spools, part: PartitionBatch) -> Iterator[pa.RecordBatch]:
        """The rows of a part; rows before it that are not in the spools yet are put in on the way. Asking the broker
        twice would take longer than everything else that is done for a small batch."""
        piece = part.piece
        for batch in self._rows(replace(piece, start=spools.at), part, self._options):
            before, rows = between(batch, 0, piece.start), between(batch, piece.start, piece.until)
            if before.num_rows:
                spools.put(before, part.firsts)
            if rows.num_rows:
                yield rows

    def spools_at(self, part: PartitionBatch, offset: int) -> Spools:
        """The spools of a part's partition, as they are before an offset."""
        found = self._known(part, offset)
        if found.at < offset:
            lenient = replace(self._options, fail_on_data_loss=False)
            for batch in self._rows(replace(part.piece, start=found.at, until=offset), part, lenient):
                found.put(batch, part.firsts)
            found.at = offset
        return found

    def _known(self, part: PartitionBatch, offset: int) -> Spools:
        """The same as they are before that offset or an earlier one, from cache or snapshot."""
        piece, firsts = part.piece, part.firsts
        key = SpoolsKey(self._processor.topic, self._processor.spool, piece.log_id, piece.partition, firsts is not None)
        found = spool_cache().take(self._folder, key)
        if found is not None and found.at > offset:
            found = None
        if (found is None or offset - found.at > ROLLED_OFFSETS_MAX) and self._folder:
            kept = Snapshots(self._folder, key).find(offset)
            found = kept if kept is not None and (found is None or kept.at > found.at) else found
        if firsts is not None:
            found = self._entered(found, key, part, offset)
        elif found is None:
            found = Spools(key, self._begin(piece, offset))
        return found

    def _begin(self, piece: Piece, offset: int) -> int:
        """Spools without a snapshot are made from everything that the log has."""
        return min(offset, piece.location.ask(lambda log: log.state()).first_offset)

    def _entered(self, found: Spools | None, key: SpoolsKey, part: PartitionBatch, offset: int) -> Spools:
        """The same with topics that an edge has handed over since; made anew if they became Spark's before."""
        firsts = part.firsts or {}
        if found is not None:
            found.keep(firsts)
        if found is None or any(first < found.at and topic not in found.begun for topic, first in firsts.items()):
            found = Spools(key, min([offset, *firsts.values()]))
        for topic, first in firsts.items():
            if topic not in found.begun:
                found.enter(topic, first, self._fetch(part.piece, topic) if topic in part.handed else _EMPTY)
        return found

    def _rows(self, piece: Piece, part: PartitionBatch, options: ReadOptions) -> Iterator[pa.RecordBatch]:
        return reading.piece_rows(piece, options, filters_of(self._processor.topic, part.firsts))

    # Logs of several brokers

    def _merged_answers(self, part: PartitionBatch) -> Iterator[pa.RecordBatch]:
        spools = self._merged_spools(part)
        errors = 0
        for chunk in merging.chunks(part.pieces, lambda piece: self._rows(piece, part, self._options)):
            rows = iter(chunk)
            shown = []
            messages = iter([message for message, _ in chunk])
            for message, outcome in self._step_all(messages, spools, None, merging.step):
                piece = next(piece for one, piece in rows if one is message)
                if isinstance(outcome, Failure):
                    errors += 1
                    if errors > ERROR_ROWS_MAX:
                        continue
                shown.append(_row(message, outcome, piece))
            if shown:
                yield pa.RecordBatch.from_pylist(shown, ANSWERS)
            spools.rows_since += len(chunk)
            self.processed += len(chunk)
        if errors > ERROR_ROWS_MAX:
            text = f"{errors - ERROR_ROWS_MAX} more errors in this batch"
            yield pa.RecordBatch.from_pylist([_error(part.piece, "function", text, None, None)], ANSWERS)
        spools.ats = {piece.log_id: piece.until for piece in part.pieces}
        starts, ends = (sum(getattr(piece, end) for piece in part.pieces) for end in ("start", "until"))
        self._finish(spools, replace(part.piece, start=starts, until=ends))

    def _merged_spools(self, part: PartitionBatch) -> Spools:
        """The spools of one partition of all logs, as they are before the batch."""
        processor, starts = self._processor, {piece.log_id: piece.start for piece in part.pieces}
        name = merging.name_of(list(starts))
        key = SpoolsKey(processor.topic, processor.spool, name, part.piece.partition, is_delegated=False)
        found = spool_cache().take(self._folder, key)
        if found is not None and not merging.is_reached(found.ats, starts):
            found = None
        if found is None and self._folder:
            found = Snapshots(self._folder, key).find(sum(starts.values()))
            if found is not None and not merging.is_reached(found.ats, starts):
                found = None
        if found is None:
            found = Spools(key, 0)
            found.ats = {piece.log_id: self._begin(piece, piece.start) for piece in part.pieces}
        lenient = replace(self._options, fail_on_data_loss=False)
        for piece in part.pieces:
            before = replace(piece, start=found.ats[piece.log_id], until=piece.start)
            for batch in self._rows(before, part, lenient) if before.start < before.until else ():
                merging.put(batch, found.by_topic, processor.spool)
                found.rows_since += batch.num_rows
        found.begun.update(dict.fromkeys(found.by_topic, WHOLE))
        return found

    def _step_all(
        self,
        messages: Iterator[Message],
        spools: Spools,
        firsts: Mapping[str, int] | None,
        step: Callable[[Processor, Spool, Message], Output | Failure | None] = spool_step,
    ) -> list[tuple[Message, Output | Failure]]:
        """The answers to some rows. Most rows have none, and there are many: so little is done for each."""
        processor = self._processor
        known = spools.by_topic
        found: list[tuple[Message, Output | Failure]] = []
        message: Message | None = None
        with TimeLimit(processor.time_limit_s) as limit:
            while True:
                try:
                    for message in messages:
                        spool = known.get(message.topic) if firsts is None else None
                        if spool is None:
                            spool = spools.spool_of(message, firsts)
                            if spool is None:
                                self.processed -= 1
                                continue
                        limit.running = message.offset
                        outcome = step(processor, spool, message)
                        if outcome is not None:
                            found.append((message, outcome))
                    limit.running = -1
                    return found
                except TookTooLong:
                    limit.running = -1
                    if message is not None and not (found and found[-1][0] is message):
                        text = f"it took more than {processor.time_limit_s:g} s"
                        found.append((message, Failure("function", text)))

    def _finish(self, spools: Spools, piece: Piece) -> None:
        spools.at = piece.until
        if forgotten := spools.bound(self._topics_max):
            _log.warning("%d topics of partition %d had their spools taken: too many", forgotten, piece.partition)
        messages = spools.messages
        if self._folder and spools.rows_since >= max(SNAPSHOT_ROWS_MIN, SNAPSHOT_SHARE * messages):
            Snapshots(self._folder, spools.key).write(spools, piece.start)
        spool_cache().keep(self._folder, spools, messages)


NAMED_TOPICS_MAX: Final = 64
"""Topics up to which a log is asked for them by name, and not by the processor's filter."""


def filters_of(topic_filter: str, firsts: Mapping[str, int] | None) -> tuple[str, ...]:
    """The filters of what has to be read of a log."""
    return tuple(firsts) if firsts is not None and len(firsts) <= NAMED_TOPICS_MAX else (topic_filter,)


def _row(message: Message, outcome: Output | Failure, piece: Piece) -> dict[str, Any]:
    if isinstance(outcome, Failure):
        return _error(piece, outcome.what, outcome.text, message.topic, message.offset)
    hops = hops_of(message.properties) if message.properties else 0
    if hops >= HOPS_MAX:
        return _error(piece, "loop", loop_words(hops), message.topic, message.offset)
    if len(outcome.payload) > PAYLOAD_BYTES_MAX:
        text = f"a notification of {len(outcome.payload):,} bytes, expected at most {PAYLOAD_BYTES_MAX:,}"
        return _error(piece, "result", text, message.topic, message.offset)
    pairs = [{"name": name, "value": value} for name, value in outcome.properties if name != HOPS]
    return {
        "topic": outcome.topic,
        "payload": outcome.payload,
        "qos": outcome.qos,
        "retain": outcome.retain,
        "properties": [*pairs, {"name": HOPS, "value": str(hops + 1)}],
        "of": message.topic,
        "offset": message.offset,
        "broker": piece.broker,
        "partition": piece.partition,
    }


def _error(piece: Piece, what: str, text: str, topic: str | None, offset: int | None) -> dict[str, Any]:
    found: dict[str, Any] = {"payload": text.encode(), "of": topic, "offset": offset, "error": what}
    return found | {"broker": piece.broker, "partition": piece.partition}
