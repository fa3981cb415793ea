"""Templates of the frames that bring one publication of a topic to another broker (`net.frame_template`).

They are alike but for the number of the delivery, the number of the publication in its topic's stream, its bytes behind
a beginning that all have, and for QoS 1 its offset in the origin's history: in this order, these are the holes.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from braidmq.braid.transfer.batch import PublicationBatch, pack
from braidmq.host import Message
from braidmq.mqtt.packets import V5
from braidmq.net.frame_template import FrameTemplate
from braidmq.net.frames import Envelope, Tell
from braidmq.overlay.ranges import Deliver
from braidmq.pubsub.covers.multicast_messages import MulticastCopy

TELL_BYTES = 48
"""Bytes behind the number of a range delivery by which a frame is known before it is compared: those of its range."""

Carrier = Deliver | MulticastCopy
"""What brings publications to a broker: (root, number) names it, and its body ends with a batch."""

NUMBER_BYTES = 8
"""In which the number of a carrier is written."""

_NUMBERS = (0x1111111111111111, 0x2222222222222222)
_WIDTHS = (
    (0x7F, 1, 0x01, 0x02),
    (0xFF, 1, 0x81, 0x82),
    (0xFFFF, 2, 0x1111, 0x2222),
    (0xFFFFFFFF, 4, 0x11111111, 0x22222222),
)
"""Whole numbers up to here take so many bytes that can differ; two of them of which each byte does."""

FIELD_MAX = _WIDTHS[-1][0]
"""The highest number of a publication, and the highest offset, for which there are templates."""


def template_of(
    frame_of: Callable[[Envelope], bytes], told: Tell[Message], batch: PublicationBatch, head: bytes
) -> FrameTemplate | None:
    """The template of frames like one that carries this batch, in which all runs begin with `head`."""
    body = pack(batch)
    message = told.body
    if (
        not isinstance(message, Carrier)
        or not message.body.endswith(body)
        or max(batch.first, batch.offset) > FIELD_MAX
    ):
        return None
    carried = message.body
    around = carried[: len(carried) - len(body)]
    rest = len(batch.run) - len(head)
    samples = []
    for which, byte in enumerate((b"\0", b"\xff")):
        kept = batch.kept and msgspec.structs.replace(batch.kept, offset=_samples(batch.offset)[which])
        first = _samples(batch.first)[which]
        sample = msgspec.structs.replace(batch, first=first, run=head + byte * rest, kept=kept)
        carrier = msgspec.structs.replace(message, number=_NUMBERS[which], body=around + pack(sample))
        samples.append(frame_of(Tell(told.hops, carrier)))
    template = FrameTemplate(*samples)
    sizes = [NUMBER_BYTES, field_bytes(batch.first), rest]
    if batch.kept is not None:
        sizes.append(field_bytes(batch.offset))
    return template if [end - begin for begin, end in template.holes] == sizes else None


def tell_of(frame: bytes, at: int) -> bytes:
    """What a frame is known by before it is compared, behind its number: all of a copy's topic, or some of a range.

    A topic is a string of msgpack, with its length before it; what is behind the number in a range delivery is none.
    """
    if len(frame) < at + 2:
        return b""
    kind = frame[at]
    if 0xA0 <= kind <= 0xBF:
        return frame[at : at + 1 + kind - 0xA0]
    return frame[at : at + (2 + frame[at + 1] if kind == 0xD9 else TELL_BYTES)]


def field_bytes(value: int) -> int:
    """The bytes in which a number or an offset can differ from another one that takes as many."""
    return next(size for last, size, _, _ in _WIDTHS if value <= last)


def field_max(value: int) -> int:
    """The highest one that is written in the same way."""
    return next(last for last, _, _, _ in _WIDTHS if value <= last)


def head_of(run: bytes, topic: str, version: int) -> bytes:
    """A plain publication of QoS 0 up to its payload."""
    begin = 2
    while run[begin - 1] > 127:
        begin += 1
    return run[: begin + 2 + len(topic.encode()) + (version == V5)]


def _samples(value: int) -> tuple[int, int]:
    """Two numbers that are written in as many bytes, and differ in each of these."""
    return next((one, other) for last, _, one, other in _WIDTHS if value <= last)
