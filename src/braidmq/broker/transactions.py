"""Publications that come in transactions, each published once however often it is sent.

A program that writes batches, such as a Spark query, may die after a batch was published and before it knows: then it
writes the batch again. So a batch carries the writer's name and a number that only grows, and the broker remembers the
last number of every writer in the same commit as what was published: a batch up to that number is a repetition.

A batch comes in parts. It is kept, part by part, and counts only when its last part is there; what was kept of an
attempt that broke off makes way for the next attempt. A whole batch is published slice by slice, a tick each, and how
far that is stands in the commit of the slice: a broker that dies goes on where it was. A small batch, which is nearly
every one, is published in the tick in which it comes, and is never kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

import msgspec

from braidmq.admin.contract import BatchPart, BatchRow, Receipt
from braidmq.broker.limits import Limits
from braidmq.broker.local_topics import is_brokers_own
from braidmq.broker.message import Message, message_of
from braidmq.broker.tick import STORE_RETRY_S, Tick
from braidmq.mqtt.errors import PacketError
from braidmq.mqtt.packets import Publish
from braidmq.mqtt.properties import Properties
from braidmq.mqtt.topics import check_topic

KEPT_BYTES_MAX: Final = 256 * 2**20
"""What all batches that are not published yet may take up."""

SLICE_ROWS: Final = 500
"""How much of a batch is published in one tick: between two slices clients have their turn."""

WRITERS_MAX: Final = 4096
"""Writers that are remembered."""

WRITER_AGE_S: Final = 30 * 86_400.0
"""A writer that was silent for so long is forgotten if room is needed; otherwise a new one is refused."""


class RefusedPart(Exception):
    """A part that is not accepted; the text says why. `is_lasting` if it would be refused again."""

    def __init__(self, text: str, *, is_lasting: bool) -> None:
        super().__init__(text)
        self.is_lasting = is_lasting


class WriterProgress(msgspec.Struct):
    """How far a writer is."""

    batch: int = -1
    """The last batch that is whole."""
    published: int | None = None
    """How many of its rows are published; None when all are."""
    at: float = 0.0


class _Kept(msgspec.Struct):
    """Parts of a batch that is not published yet."""

    batch: int
    parts: list[bytes]

    @property
    def size(self) -> int:
        return sum(map(len, self.parts))


class TransactionBroker(Protocol):
    """What transactions need of their broker."""

    limits: Limits
    tick: Tick

    def publish(self, message: Message) -> object: ...


class Transactions:
    """The writers of one broker."""

    def __init__(self, broker: TransactionBroker) -> None:
        self._broker = broker
        self._tick = broker.tick
        self._store = broker.tick.store
        self._writers: dict[str, WriterProgress] = {}
        self._kept: dict[str, _Kept] = {}
        self._kept_bytes = 0
        self._publishing: dict[str, list[BatchRow]] = {}
        """By writer: the rows of a whole batch that are still to be published."""
        self._encode = msgspec.msgpack.Encoder().encode

    def restore(self, writers: Iterable[tuple[str, bytes]], parts: Iterable[tuple[str, int, int, bytes]]) -> None:
        """Goes on where an earlier process was."""
        for name, row in writers:
            self._writers[name] = msgspec.msgpack.decode(row, type=WriterProgress)
        for name, batch, _, part in parts:
            kept = self._kept.setdefault(name, _Kept(batch, []))
            kept.parts.append(part)
            self._kept_bytes += len(part)
        for name, writer in self._writers.items():
            if writer.published is not None:
                self._publish_kept(name, writer)

    def accept(self, part: BatchPart) -> Receipt:
        """Accepts a part of a batch. What it did is durable after the next commit, and not before."""
        if self._tick.refusal:
            raise RefusedPart(self._tick.refusal, is_lasting=False)
        writer = self._writer(part.writer)
        if part.batch <= writer.batch:
            return Receipt.REPEATED
        if part.writer in self._publishing:
            raise RefusedPart(f"batch {writer.batch} is still being published", is_lasting=False)
        self._check(part)
        writer.at = self._tick.now()
        if part.part == 0:
            self._drop_kept(part.writer)
            if part.is_last and len(part.rows) <= SLICE_ROWS:
                self._publish(part.writer, part.rows)
                writer.batch = part.batch
                self._save(part.writer, writer)
                return Receipt.PUBLISHED
        self._keep(part)
        if part.is_last:
            writer.batch, writer.published = part.batch, 0
            self._save(part.writer, writer)
            self._publish_kept(part.writer, writer)
        return Receipt.KEPT

    def _writer(self, name: str) -> WriterProgress:
        writer = self._writers.pop(name, None) or self._new_writer()
        self._writers[name] = writer  # the one that was heard last stands last
        return writer

    def _new_writer(self) -> WriterProgress:
        if len(self._writers) >= WRITERS_MAX:
            oldest = next(iter(self._writers))
            if oldest in self._publishing or self._tick.now() - self._writers[oldest].at < WRITER_AGE_S:
                text = f"{WRITERS_MAX} writers are known, and none was silent for {WRITER_AGE_S / 86_400:.0f} days"
                raise RefusedPart(f"{text}: use one writer's name again", is_lasting=True)
            del self._writers[oldest]
            self._drop_kept(oldest)
            self._store.drop_writer(oldest)
        return WriterProgress()

    def _check(self, part: BatchPart) -> None:
        limits = self._broker.limits
        for number, row in enumerate(part.rows):
            try:
                check_topic(row.topic, limits.topic_levels_max)
            except PacketError as error:
                raise RefusedPart(f"row {number}: topic {row.topic!r}: {error}", is_lasting=True) from error
            if is_brokers_own(row.topic):
                raise RefusedPart(f"row {number}: {row.topic!r} is the broker's own", is_lasting=True)

    # What cannot be published at once

    def _keep(self, part: BatchPart) -> None:
        kept = self._kept.get(part.writer)
        expected = len(kept.parts) if kept is not None and kept.batch == part.batch else 0
        if part.part != expected:
            text = f"part {part.part} of batch {part.batch} came where part {expected} was expected"
            raise RefusedPart(f"{text}: send the batch again from part 0", is_lasting=True)
        body = self._encode(part.rows)
        if self._kept_bytes + len(body) > KEPT_BYTES_MAX:
            text = f"batches of more than {KEPT_BYTES_MAX // 2**20} MiB wait to be published"
            raise RefusedPart(text, is_lasting=False)
        if kept is None or kept.batch != part.batch:
            kept = self._kept[part.writer] = _Kept(part.batch, [])
        kept.parts.append(body)
        self._kept_bytes += len(body)
        self._store.save_part(part.writer, part.batch, part.part, body)

    def _drop_kept(self, name: str) -> None:
        kept = self._kept.pop(name, None)
        if kept is not None:
            self._kept_bytes -= kept.size
            self._store.drop_parts(name)

    def _publish_kept(self, name: str, writer: WriterProgress) -> None:
        """Begins with, or goes on with, a batch that is whole."""
        rows = [
            row for part in self._kept[name].parts for row in msgspec.msgpack.decode(part, type=tuple[BatchRow, ...])
        ]
        self._publishing[name] = rows[writer.published or 0 :]
        self._tick.timers.at(self._tick.now(), lambda: self._publish_slice(name, writer))

    def _publish_slice(self, name: str, writer: WriterProgress) -> None:
        rows = self._publishing[name]
        if self._tick.degraded:
            self._tick.timers.at(self._tick.now() + STORE_RETRY_S, lambda: self._publish_slice(name, writer))
            return
        self._publish(name, rows[:SLICE_ROWS])
        if len(rows) > SLICE_ROWS:
            self._publishing[name] = rows[SLICE_ROWS:]
            writer.published = (writer.published or 0) + SLICE_ROWS
            self._tick.timers.at(self._tick.now(), lambda: self._publish_slice(name, writer))
        else:
            del self._publishing[name]
            writer.published = None
            self._drop_kept(name)
        self._save(name, writer)

    def _publish(self, name: str, rows: Iterable[BatchRow]) -> None:
        now, expiry_max_s = self._tick.now(), self._broker.limits.message_expiry_max_s
        for row in rows:
            properties = Properties(user_properties=list(row.properties)) if row.properties else Properties()
            packet = Publish(row.topic, row.payload, row.qos, row.retain, properties=properties)
            self._broker.publish(message_of(packet, name, now, expiry_max_s))

    def _save(self, name: str, writer: WriterProgress) -> None:
        self._store.save_writer(name, self._encode(writer))
        self._tick.request_flush()
