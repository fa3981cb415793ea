"""Runs: plain QoS 0 publications to one topic, as they stood on the wire, given to their receivers as one piece."""

from __future__ import annotations

from collections.abc import Sequence

from braidmq.broker.client import ConnectedClient
from braidmq.broker.federation import Outbound
from braidmq.broker.flow import Flow
from braidmq.broker.tick import Tick
from braidmq.mqtt.wire import varint

Repeat = tuple[bytes, int, int, list[ConnectedClient], Outbound | None]
"""What a connection published last, alone in its read: first bytes, size, the router's version, the receivers here, and
the way to other brokers."""


def append_run(tick: Tick, receivers: list[ConnectedClient], run: bytes, count: int, publisher: Flow | None) -> None:
    """Adds a run of so many publications to what receivers of its version are sent."""
    touched = tick.touched
    sent = 0
    for receiver in receivers:
        if receiver.writable or receiver.flow.stalls(publisher):
            out = receiver.out
            if not out:
                touched.append(receiver)
            out.append(run)
            sent += 1
    tick.metrics.messages_sent += count * sent
    tick.metrics.messages_dropped += count * (len(receivers) - sent)


def payloads_of(data: bytes, starts: Sequence[int], stop: int, head: int) -> list[bytes]:
    """What each publication of a run carries behind fixed header and `head` more bytes."""
    payloads = []
    for start, following in zip(starts, [*starts[1:], stop], strict=True):
        begin = start + 2
        while data[begin - 1] > 127:
            begin += 1
        payloads.append(data[begin + head : following])
    return payloads


def translated(name: bytes, payloads: list[bytes], to_v5: bool) -> bytes:
    """A run for receivers of the other version: the empty property block comes in, or goes."""
    name += b"\0" if to_v5 else b""
    pieces: list[bytes] = []
    for payload in payloads:
        pieces += (b"\x30", varint(len(name) + len(payload)), name, payload)
    return b"".join(pieces)
