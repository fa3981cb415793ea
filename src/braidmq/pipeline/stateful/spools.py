"""The spools of one partition of a log, as they are before an offset.

They are a function of the log alone: the last messages of each topic below `at`. So they can be kept anywhere, or
nowhere, and be made again from the log; keeping them only saves the reading. Where an edge delegates its topics, those
of Spark begin with the spool that the edge handed over, at the offset in `begun`.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Final

import msgspec
import pyarrow as pa

from braidmq.processors.processor import Message, Spool, SpoolState
from braidmq.processors.rows import latest_of, messages_of

FORMAT: Final = 1
"""Of a snapshot."""
WHOLE: Final = -1
"""`begun` of a topic that has been Spark's from the first row of the log on."""
_CRC_BYTES: Final = 4


class SnapshotError(ValueError):
    """A snapshot that cannot be used: the text says why."""


class SpoolsKey(msgspec.Struct, frozen=True):
    """What spools are of. The function does not matter: spools hold messages, and nothing of it."""

    topic: str
    spool: int
    log: str
    partition: int
    is_delegated: bool


class _Content(msgspec.Struct, frozen=True, array_like=True):
    format: int
    key: SpoolsKey
    at: int
    spools: list[tuple[str, int, SpoolState]]
    ats: dict[str, int] = {}


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Content).decode


class Spools:
    """`at`: all rows of the partition below this offset are in."""

    def __init__(self, key: SpoolsKey, at: int) -> None:
        self.key = key
        self.at = at
        self.by_topic: dict[str, Spool] = {}
        self.begun: dict[str, int] = {}
        self.ats: dict[str, int] = {}
        """Of spools over several logs (`merging`): that offset of each; `at` is then their sum, which only grows."""
        self.rows_since = 0
        """Rows that came since these spools were written to a file."""

    @property
    def messages(self) -> int:
        return sum(map(len, self.by_topic.values()))

    def put(self, batch: pa.RecordBatch, firsts: Mapping[str, int] | None) -> None:
        """Rows that were processed before: only the last ones of each topic matter."""
        self.rows_since += batch.num_rows
        known = self.by_topic
        for message in messages_of(latest_of(batch, self.key.spool)):
            spool = known.get(message.topic) if firsts is None else None
            if spool is None:
                spool = self.spool_of(message, firsts)
            if spool is not None:
                spool.put(message)

    def spool_of(self, message: Message, firsts: Mapping[str, int] | None) -> Spool | None:
        """The spool of a message's topic; None if the message is not Spark's."""
        spool = self.by_topic.get(message.topic)
        if firsts is None:
            if spool is None:
                spool = self.by_topic[message.topic] = Spool(self.key.spool)
                self.begun[message.topic] = WHOLE
            return spool
        return spool if message.offset >= firsts.get(message.topic, message.offset + 1) else None

    def enter(self, topic: str, first: int, state: SpoolState) -> None:
        """A topic becomes Spark's, with this spool."""
        self.by_topic[topic] = Spool(self.key.spool, state)
        self.begun[topic] = first

    def keep(self, firsts: Mapping[str, int]) -> None:
        """Forgets topics that are not Spark's any more, or have left and come again."""
        for topic in [one for one, first in self.begun.items() if firsts.get(one) != first]:
            del self.by_topic[topic], self.begun[topic]

    def bound(self, topics_max: int) -> int:
        """Forgets the topics that were silent for longest; returns how many."""
        surplus = len(self.by_topic) - topics_max
        if surplus > 0:
            for topic in sorted(self.by_topic, key=self._used)[:surplus]:
                del self.by_topic[topic], self.begun[topic]
        return max(0, surplus)

    def _used(self, topic: str) -> float:
        """When its last message came: by offset or, where there are several logs, by time."""
        spool = self.by_topic[topic]
        return spool[-1].received_at if self.ats and len(spool) else spool.last

    # As a file

    def encode(self) -> bytes:
        spools = [(topic, self.begun[topic], spool.state) for topic, spool in self.by_topic.items()]
        body = _encode(_Content(FORMAT, self.key, self.at, spools, self.ats))
        return zlib.crc32(body).to_bytes(_CRC_BYTES) + body

    @staticmethod
    def decode(data: bytes, key: SpoolsKey) -> Spools:
        """A SnapshotError says why not."""
        body = data[_CRC_BYTES:]
        if zlib.crc32(body).to_bytes(_CRC_BYTES) != data[:_CRC_BYTES]:
            raise SnapshotError("it is damaged")
        try:
            content = _decode(body)
        except msgspec.MsgspecError as error:
            raise SnapshotError(f"it was written by another version ({error})") from None
        if content.format != FORMAT:
            raise SnapshotError(f"it was written by another version (format {content.format}, this one is {FORMAT})")
        if content.key != key:
            raise SnapshotError(f"it is of {_words(content.key)}, and {_words(key)} is asked for")
        found = Spools(key, content.at)
        found.ats = content.ats
        for topic, first, state in content.spools:
            found.enter(topic, first, state)
        return found


def _words(key: SpoolsKey) -> str:
    part = ", as far as it was delegated" if key.is_delegated else ""
    return f"{key.topic} with a spool of {key.spool}, partition {key.partition} of log {key.log}{part}"
