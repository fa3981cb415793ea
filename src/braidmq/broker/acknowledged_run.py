"""A run of QoS 1 or 2: publications to one topic of one size, alike but for packet ids and payloads.

What has to be changed in them for a receiver (its own packet ids, at most the QoS) are columns of bytes with equal
distances. They are replaced in one copy of the run, whatever the number of publications; acknowledgements are made in
the same way.
"""

from __future__ import annotations

from braidmq.broker.packet_ids import IdRange, ids_of
from braidmq.mqtt.packets import V5
from braidmq.mqtt.wire import varint

RUN_MAX = 1024
"""Publications that are handled as one run."""

_ACKNOWLEDGED = (b"", b"\x40\x02\0\0", b"\x50\x02\0\0")
_NOBODY = (b"", b"\x40\x03\0\0\x10", b"\x50\x03\0\0\x10")
"""PUBACK and PUBREC, plain and with a reason code (0x10: no matching subscribers)."""


class AcknowledgedRun:
    """`packets` are PUBLISH packets of `size` bytes each, without DUP, RETAIN or properties."""

    __slots__ = ("count", "high", "ids_at", "low", "name", "packets", "payload_at", "qos", "size", "version")

    def __init__(self, packets: bytes, size: int, version: int, name: bytes, ids_at: int) -> None:
        """`name` is the topic as it stands on the wire; `ids_at` is where the packet id stands in each packet."""
        self.packets = packets
        self.size = size
        self.version = version
        self.name = name
        self.ids_at = ids_at
        self.payload_at = ids_at + 2 + (version == V5)
        self.qos = packets[0] >> 1 & 3
        self.count = len(packets) // size
        self.high = packets[ids_at::size]
        self.low = packets[ids_at + 1 :: size]

    @property
    def ids(self) -> tuple[int, ...]:
        return ids_of(self.high, self.low)

    @property
    def topic(self) -> str:
        return self.name[2:].decode()

    def payloads(self) -> list[bytes]:
        packets, size, payload_at = self.packets, self.size, self.payload_at
        return [packets[at + payload_at : at + size] for at in range(0, len(packets), size)]

    def first(self, count: int) -> AcknowledgedRun:
        """The first ones of it."""
        return AcknowledgedRun(self.packets[: count * self.size], self.size, self.version, self.name, self.ids_at)

    def plain_count(self) -> int:
        """How many, from the first on, have a packet id and no properties."""
        count = self.count
        if self.version == V5:
            lengths = self.packets[self.payload_at - 1 :: self.size]
            count -= len(lengths.lstrip(b"\0"))
        if 0 in self.low and 0 in self.high and 0 in self.ids:
            count = min(count, self.ids.index(0))
        return count

    def in_version(self, version: int) -> AcknowledgedRun:
        """The same for receivers of another version: the empty property block comes in, or goes."""
        name = self.name
        behind = b"\0\0\0" if version == V5 else b"\0\0"
        length = len(name) + len(behind) + self.size - self.payload_at
        head = b"%c%b%b%b" % (0x30 | self.qos << 1, varint(length), name, behind)
        packets = b"".join([head + payload for payload in self.payloads()])
        ids_at = len(head) - len(behind)
        return AcknowledgedRun(packets, len(packets) // self.count, version, name, ids_at)

    def with_ids(self, ids: IdRange, qos: int) -> bytes:
        """The packets for one receiver: the first ones, as many as it has ids for."""
        size = self.size
        packets = bytearray(self.packets[: ids.count * size])
        packets[self.ids_at :: size], packets[self.ids_at + 1 :: size] = ids.bytes
        if qos != self.qos:
            packets[::size] = bytes((0x30 | qos << 1,)) * ids.count
        return bytes(packets)

    def acknowledgements(self, reached: bool) -> bytes:
        """PUBACKs or PUBRECs for all of it; MQTT 5 can say that it has reached nobody (§3.4.2.1)."""
        pattern = (_ACKNOWLEDGED if reached or self.version != V5 else _NOBODY)[self.qos]
        if self.count == 1:
            return b"%b%b%b%b" % (pattern[:2], self.high, self.low, pattern[4:])
        packets = bytearray(pattern * self.count)
        packets[2 :: len(pattern)] = self.high
        packets[3 :: len(pattern)] = self.low
        return bytes(packets)
