"""The data types of MQTT (§1.5) to and from bytes."""

from __future__ import annotations

from braidmq.mqtt.errors import PacketError, malformed

VARINT_MAX = 268_435_455


def text_of(raw: bytes) -> str:
    """A UTF-8 string. Python's strict decoder refuses surrogates and overlong forms; U+0000 is refused here.

    [MQTT-1.5.4-1], [MQTT-1.5.4-2]; 3.1.1 [MQTT-1.5.3-1], [MQTT-1.5.3-2].
    """
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise malformed(f"ill-formed UTF-8 in a string: {error.reason} at byte {error.start}") from None
    if "\0" in text:
        raise malformed("U+0000 in a string")
    return text


def varint(value: int) -> bytes:
    """A variable byte integer, in the fewest bytes [MQTT-1.5.5-1]."""
    if value < 0x80:
        return bytes((value,))
    if value > VARINT_MAX:
        raise ValueError(f"{value} does not fit a variable byte integer (at most {VARINT_MAX})")
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def packet_starts(packets: bytes) -> list[int]:
    """Where each of these packets begins: they are whole and well-formed, one after another."""
    starts: list[int] = []
    at, end = 0, len(packets)
    while at < end:
        starts.append(at)
        length = packets[at + 1]
        at += 2
        if length > 127:
            shift = 7
            while length >> shift:  # another byte of it follows
                length += (packets[at] - 1) << shift
                at += 1
                shift += 7
        at += length
    return starts


def binary(raw: bytes) -> bytes:
    """Binary data with its two-byte length."""
    if len(raw) > 65535:
        raise ValueError(f"{len(raw)} bytes do not fit a two-byte length (at most 65535)")
    return len(raw).to_bytes(2) + raw


def string(text: str) -> bytes:
    """A UTF-8 string with its two-byte length."""
    return binary(text.encode())


class Reader:
    """Takes data types off a packet's body, one after the other, and refuses to read past its end.

    `repeats_max` is how often a property that may be repeated may come in one block, `filters_max` how many topic
    filters may be in the packet.
    """

    __slots__ = ("data", "end", "filters_max", "pos", "repeats_max")

    def __init__(
        self,
        data: bytes,
        pos: int = 0,
        end: int | None = None,
        repeats_max: int = VARINT_MAX,
        filters_max: int = VARINT_MAX,
    ) -> None:
        self.data = data
        self.pos = pos
        self.end = len(data) if end is None else end
        self.repeats_max = repeats_max
        self.filters_max = filters_max

    def _advance(self, count: int) -> int:
        pos = self.pos
        if pos + count > self.end:
            raise self._truncated()
        self.pos = pos + count
        return pos

    def _truncated(self) -> PacketError:
        return malformed("the packet ends in the middle of a field")

    @property
    def left(self) -> int:
        return self.end - self.pos

    def u8(self) -> int:
        return self.data[self._advance(1)]

    def u16(self) -> int:
        pos = self._advance(2)
        return int.from_bytes(self.data[pos : pos + 2])

    def u32(self) -> int:
        pos = self._advance(4)
        return int.from_bytes(self.data[pos : pos + 4])

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.u8()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if shift and not byte:
                    raise malformed("a variable byte integer in more bytes than it needs")  # [MQTT-1.5.5-1]
                return value
            shift += 7
            if shift > 21:
                raise malformed("a variable byte integer of more than four bytes")

    def take(self, count: int) -> bytes:
        pos = self._advance(count)
        return self.data[pos : pos + count]

    def binary(self) -> bytes:
        return self.take(self.u16())

    def string(self) -> str:
        return text_of(self.binary())

    def rest(self) -> bytes:
        return self.take(self.left)

    def finish(self) -> None:
        """Nothing may follow the last field."""
        if self.pos != self.end:
            raise malformed(f"{self.left} bytes after the end of the packet's last field")
