"""The rows that are written to the log together, laid out so that no row has to be handled by itself.

A buffer has a region for each partition: the data of its runs, one behind the other, and a record of fixed size for
each run. The broker puts runs into it as they come; the process that writes the log finds each partition's rows in one
piece, and makes columns of them in bulk.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from mmap import mmap
from typing import Final

import msgspec

from braidmq.log.partition import partition_of
from braidmq.log.run import Property, Run
from braidmq.log.shared_memory import REGION_BYTES, SharedMemory

RECORD_FIELDS: Final = {
    "first": "q",
    "at_us": "q",
    "published_us": "q",
    "rows": "i",
    "head": "i",
    "size": "i",
    "length": "i",
    "topic": "i",
    "client": "i",
    "qos": "i",
    "retain": "i",
}
"""What is known of a run: as a `Run` has it, but `length` is that of its data, and `topic` and `client` are numbers."""

RECORD: Final = struct.Struct("<" + "".join(RECORD_FIELDS.values()))
UNSAID: Final = -1
"""The value of `published_us` and `client` where there is none."""

KEPT_BYTES: Final = 32 * 1024 * 1024
KEPT_TIMES: Final = 8
"""Memory that an empty buffer keeps: so many bytes, or so many times what it held last; more is given back."""

BUFFERS: Final = 2
"""One is filled while the other is written."""

NO_MEMORY: Final = memoryview(b"")
"""The memory of a buffer that holds its data itself."""

_pack = RECORD.pack


class PartitionRegion(msgspec.Struct):
    """The part of a buffer for one partition."""

    partition: int
    begin: int
    """Its address in the memory."""
    end: int
    """How far it is filled."""
    limit: int
    records: bytearray
    apart: list[tuple[int, bytes]]
    """Data for which there was no room, with the addresses where it belongs."""
    properties: list[tuple[int, tuple[Property, ...]]]
    """MQTT properties of the runs that have some, with the number of the run."""

    def data(self, memory: memoryview) -> memoryview:
        """The data of all its runs."""
        if not self.apart:
            return memory[self.begin : self.end]
        pieces: list[bytes | memoryview] = []
        at = self.begin
        for position, piece in self.apart:
            pieces += (memory[at:position], piece)
            at = position
        return memoryview(b"".join([*pieces, memory[at : self.end]]))


class BufferContents(msgspec.Struct):
    """What a buffer holds, as it is sent to the process that writes the log."""

    regions: list[PartitionRegion]
    topics: list[bytes]
    clients: list[bytes]


class WriteBuffer:
    """Is filled, written, cleared and filled again. Without shared memory it holds the data itself."""

    def __init__(self, partitions: int, memory: SharedMemory | None = None, number: int = 0) -> None:
        self.rows = 0
        self.bytes = 0
        """About the size of its rows, with topic and client for each."""
        self._memory = memory
        self._map: mmap | bytearray = bytearray() if memory is None else memory.map
        first = number * partitions * REGION_BYTES
        room = REGION_BYTES if memory is not None else 0
        self._regions = [
            PartitionRegion(partition, begin, begin, begin + room, bytearray(), [], [])
            for partition, begin in enumerate(range(first, first + partitions * REGION_BYTES, REGION_BYTES))
        ]
        self._reached = [region.begin for region in self._regions]
        """How far the memory of each region has been in use since it was given back."""
        self._topics: dict[bytes, tuple[PartitionRegion, int, int]] = {}
        self._clients: dict[str | None, tuple[int, int]] = {}

    @classmethod
    def of(cls, runs: Sequence[Run], following: int, partitions: int) -> WriteBuffer:
        """A buffer of some runs. Those without an offset get the next one from `following` on."""
        buffer = cls(partitions)
        for run in runs:
            first = following if run.first is None else max(run.first, following)
            following = first + run.rows
            buffer.add_run(run._replace(first=first))
        return buffer

    def add_run(self, run: Run) -> None:
        client = None if run.client is None else run.client.decode()
        published_us = UNSAID if run.published_us is None else run.published_us
        what = (run.topic, client, run.at_us, run.qos, run.retain, run.rows, run.data, run.head, run.size)
        self.add(*what, run.first or 0, published_us, run.properties)

    def add(
        self,
        topic: bytes,
        client: str | None,
        at_us: int,
        qos: int,
        retain: bool,
        rows: int,
        data: bytes,
        head: int,
        size: int,
        first: int,
        published_us: int = UNSAID,
        properties: tuple[Property, ...] = (),
    ) -> None:
        """The fields of a run. Its offset must be above those of the runs before it."""
        region, topic_number, topic_bytes = self._topics.get(topic) or self._met_topic(topic)
        client_number, client_bytes = self._clients.get(client) or self._met_client(client)
        length = len(data)
        position = region.end
        end = position + length
        if end <= region.limit:
            self._map[position:end] = data
            region.end = end
        else:
            region.apart.append((position, data))
        region.records.extend(
            _pack(first, at_us, published_us, rows, head, size, length, topic_number, client_number, qos, retain)
        )
        if properties:
            region.properties.append((len(region.records) // RECORD.size - 1, properties))
        self.rows += rows
        self.bytes += length + rows * (topic_bytes + client_bytes)

    def _met_topic(self, topic: bytes) -> tuple[PartitionRegion, int, int]:
        region = self._regions[partition_of(topic, len(self._regions))]
        met = self._topics[topic] = (region, len(self._topics), len(topic))
        return met

    def _met_client(self, client: str | None) -> tuple[int, int]:
        name = b"" if client is None else client.encode()
        number = UNSAID if client is None else len(self._clients)
        met = self._clients[client] = (number, len(name))
        return met

    @property
    def contents(self) -> BufferContents:
        regions = [region for region in self._regions if region.records]
        return BufferContents(regions, list(self._topics), [(client or "").encode() for client in self._clients])

    def clear(self) -> None:
        """Its contents are written: it can be filled again."""
        used = sum([region.end - region.begin for region in self._regions])
        self._reached = [max(region.end, reached) for region, reached in zip(self._regions, self._reached, strict=True)]
        for region in self._regions:
            region.end = region.begin
            region.records.clear()
            region.apart.clear()
            region.properties.clear()
        self._topics.clear()
        self._clients.clear()
        self.rows = self.bytes = 0
        reached = sum([end - region.begin for region, end in zip(self._regions, self._reached, strict=True)])
        if self._memory is not None and reached > min(KEPT_BYTES, KEPT_TIMES * used):
            for region, end in zip(self._regions, self._reached, strict=True):
                self._memory.give_back(region.begin, end)
            self._reached = [region.begin for region in self._regions]
