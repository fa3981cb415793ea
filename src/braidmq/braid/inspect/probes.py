"""Probes: publications that no client gets, sent to see which way publications take.

A probe leaves where the publications of a topic do, by the method of the braid and to the filters that are wanted.
Every broker that it comes to says so to the one that asked: from where, after how many hops, when, and whether it was
for this broker or only came by.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from braidmq.host import Address, Host, Message, Reply, Service, handles
from braidmq.net.host import NetHost
from braidmq.overlay.ranges import Deliver, RangeDelivery
from braidmq.pubsub.baselines.can.messages import CanFlood
from braidmq.pubsub.baselines.rendezvous_tree import Submit, TreeDelivery
from braidmq.pubsub.covers.multicast import MulticastMethod
from braidmq.pubsub.covers.multicast_messages import MulticastCopy
from braidmq.pubsub.locality.locality import HandOver
from braidmq.pubsub.locality.proofs import RoutedPublication
from braidmq.pubsub.method import Method, ProvenMethod, Publication, ignore
from braidmq.pubsub.relay_free import RelayFree

MARK = b"\xc1probe"
"""What a probe begins with; no batch of publications does."""

MARK_WITHIN_BYTES = 128
"""Where in a delivered body a probe begins at the latest: behind what the method puts before it."""

TRACES_MAX = 16
"""Probes whose ways are gathered at a time."""

MEETINGS_MAX = 10_000
"""Reports that are gathered of one probe."""

QUIET_S = 0.5
"""A way counts as complete when nobody has reported for so long."""

TRACE_S_MAX = 10.0


class TraceProbe(msgspec.Struct, frozen=True, array_like=True):
    token: int
    asker: Address
    topic_filter: str
    sent_at: float
    """By the clock of the broker that asks (Unix time)."""


class ProbeMet(Message, frozen=True, array_like=True, gc=False):
    """A probe has come to this broker. `sender` is None where the method does not tell; `is_taken` if it is for it."""

    token: int
    topic_filter: str
    name: str
    cluster: str
    sender: Address | None
    hops: int
    is_taken: bool
    at_s: float
    """Since it was sent, by the clocks of both brokers."""


class Meeting(msgspec.Struct):
    """One step of a way."""

    topic_filter: str
    name: str
    cluster: str
    address: Address
    sender: Address | None
    hops: int
    is_taken: bool
    at_s: float


class _Trace(msgspec.Struct):
    sent_at: float
    heard_at: float
    meetings: list[Meeting] = msgspec.field(default_factory=list)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(TraceProbe).decode
_decode_carried = msgspec.msgpack.Decoder(RoutedPublication).decode


class Probes(Service):
    def __init__(self, host: Host, method: Method, name: str, cluster: str, clock: Callable[[], float]) -> None:
        self._host = host
        self._method = method
        self._name = name
        self._cluster = cluster
        self._clock = clock
        self._open: dict[int, _Trace] = {}
        ranges: RangeDelivery | None = getattr(method, "ranges", None)
        if isinstance(method, MulticastMethod):
            method.multicast.on_hop = self._on_copy
        elif ranges is not None:
            ranges.on_hop = self._on_hop
        if not isinstance(method, RelayFree | MulticastMethod) and isinstance(host, NetHost):
            host.on_message = self._on_step
        host.serve(self)

    @property
    def is_full(self) -> bool:
        return len(self._open) >= TRACES_MAX

    async def follow(self, filters: list[str], surely: bool, timeout_s: float) -> list[Meeting]:
        """Sends a probe to each of these filters, which are advertised here, and gathers what is said of them."""
        token = self._host.chance.getrandbits(60)
        began_at = self._host.now()
        trace = self._open[token] = _Trace(began_at, began_at)
        try:
            for topic_filter in filters:
                body = MARK + _encode(TraceProbe(token, self._host.address, topic_filter, self._clock()))
                if surely and isinstance(self._method, ProvenMethod):
                    self._method.publish_surely(topic_filter, body, timeout_s, ignore)
                else:
                    self._method.publish(topic_filter, body)
            while (left_s := min(trace.heard_at + QUIET_S, began_at + timeout_s) - self._host.now()) > 0:
                await self._host.sleep(left_s)
        finally:
            del self._open[token]
        return sorted(trace.meetings, key=lambda one: (filters.index(one.topic_filter), one.hops, one.at_s, one.name))

    def is_probe(self, arrival: Publication) -> bool:
        """Whether what arrives is a probe; then it is seen to."""
        if not arrival.body.startswith(MARK):
            return False
        probe = _read(arrival.body)
        if probe is not None:
            self._report(probe, None, arrival.hops, is_taken=True)
        return True

    def _on_hop(self, sender: Address, message: Deliver) -> None:
        """Something has come by range delivery."""
        begin = message.body.find(MARK, 0, MARK_WITHIN_BYTES)
        if begin >= 0:
            probe = _read(message.body[begin:])
            before = 0 if isinstance(self._method, RelayFree) else _decode_carried(message.body).hops
            if probe is not None:
                self._report(probe, sender, before + message.hops, is_taken=False)

    def _on_copy(self, sender: Address, copy: MulticastCopy) -> None:
        """Something has come by multicast."""
        if copy.body.startswith(MARK):
            probe = _read(copy.body)
            if probe is not None:
                self._report(probe, sender, copy.hops, is_taken=False)

    def _on_step(self, sender: Address, _receiver: Address, message: Message, _hops: int) -> None:
        """Something has come in a way that other methods have."""
        if isinstance(message, HandOver):
            message = message.carried
        elif not isinstance(message, Submit | TreeDelivery | CanFlood):
            return
        if message.body.startswith(MARK):
            probe = _read(message.body)
            if probe is not None:
                self._report(probe, sender, message.hops, is_taken=False)

    def _report(self, probe: TraceProbe, sender: Address | None, hops: int, is_taken: bool) -> None:
        at_s = self._clock() - probe.sent_at
        met = ProbeMet(probe.token, probe.topic_filter, self._name, self._cluster, sender, hops, is_taken, at_s)
        if probe.asker == self._host.address:
            self.on_probe_met(self._host.address, met)
        else:
            self._host.send(probe.asker, met)

    @handles(ProbeMet)
    def on_probe_met(self, origin: Address, met: ProbeMet) -> Reply:
        trace = self._open.get(met.token)
        if trace is None or len(trace.meetings) >= MEETINGS_MAX:
            return None
        trace.heard_at = self._host.now()
        for one in reversed(trace.meetings):
            if one.address != origin or one.topic_filter != met.topic_filter or one.hops != met.hops:
                continue
            if met.is_taken and not one.is_taken:
                one.is_taken = True
                return None
            if one.sender is None and met.sender is not None:  # the second report was quicker
                one.sender = met.sender
                return None
        at_s = min(max(met.at_s, 0.0), trace.heard_at - trace.sent_at)  # clocks differ
        meeting = Meeting(met.topic_filter, met.name, met.cluster, origin, met.sender, met.hops, met.is_taken, at_s)
        trace.meetings.append(meeting)
        return None


def _read(body: bytes) -> TraceProbe | None:
    try:
        return _decode(body[len(MARK) :])
    except msgspec.MsgspecError:
        return None
