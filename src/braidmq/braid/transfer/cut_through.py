"""CutThrough: the short way between two brokers for publications that come one at a time.

A device that sends a reading now and then takes the same way each time: the same receivers, the same link, the same
message but for its number and the payload. So when a plain QoS 0 publication has gone the long way alone, through the
method and the overlay, and the one before it was like it, what became of it is remembered: out of this broker as
frames to be filled in (`CutThroughSender`), into it as frames to be recognised (`CutThroughReceiver`). What travels is
the same, byte for byte; and nobody at the other end can tell, or needs to know, which way it took.

A lane holds as long as nothing has changed that the long way would look at: the routing view, the demand, the routes,
the link. Whom the overlay suspects can change without a sign, so no lane lasts longer than the overlay itself remembers
how it has cut a range. Then one publication takes the long way again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from braidmq.braid.transfer.batch import Batch, pack
from braidmq.host import Address, Message
from braidmq.mqtt.packets import V5
from braidmq.net.frame_template import FrameTemplate
from braidmq.net.frames import LENGTH_BYTES, Envelope, Tell
from braidmq.overlay.ranges import SPLITS_KEPT_S, Deliver
from braidmq.pubsub.relay_free import RelayFree

if TYPE_CHECKING:
    from braidmq.braid.braid import Braid
    from braidmq.braid.transfer.accounting import HopCounts
    from braidmq.braid.transfer.inbound import InboundStream
    from braidmq.braid.transfer.outbound import OutboundTopic
    from braidmq.broker.client import Client
    from braidmq.net.host import NetHost
    from braidmq.net.peer import PeerState

LANE_S = SPLITS_KEPT_S
"""How long a lane holds at most."""

LIVELY_S = 0.1
"""A stream gets a lane if two of its publications come alone within this time: then it is worth the making."""

RUN_BYTES_MAX = 2048
"""The largest publication that takes a lane."""

PEERS_MAX = 8
"""Brokers that a lane leads to; with more of them the way is not what takes the time."""

IN_LANES_MAX = 4096
"""CutThrough into this broker; with one more all are made anew."""

TELL_BYTES = 48
"""Bytes behind the delivery's number by which a frame is known before it is compared: its range, and so its topic."""

_NUMBERS = (0x1111111111111111, 0x2222222222222222)
_NUMBER_BYTES = 8
_WIDTHS = (
    (0x7F, 1, 0x01, 0x02),
    (0xFF, 1, 0x81, 0x82),
    (0xFFFF, 2, 0x1111, 0x2222),
    (0xFFFFFFFF, 4, 0x11111111, 0x22222222),
)
"""Whole numbers up to here take so many bytes that can differ; two of them of which each byte does."""


def mould_of(
    frame_of: Callable[[Envelope], bytes], told: Tell[Message], batch: Batch, head: bytes
) -> FrameTemplate | None:
    """The mould of frames like one that carries this batch, with three holes: the delivery's number, the batch's, and
    what is behind the head of its run."""
    body = pack(batch)
    message = told.body
    if not isinstance(message, Deliver) or not message.body.endswith(body) or batch.first > _WIDTHS[-1][0]:
        return None
    carried = message.body
    around = carried[: len(carried) - len(body)]
    firsts = next((one, other) for last, _, one, other in _WIDTHS if batch.first <= last)
    rest = len(batch.run) - len(head)
    samples = []
    for number, first, filling in zip(_NUMBERS, firsts, (b"\0", b"\xff"), strict=True):
        sample = msgspec.structs.replace(batch, first=first, run=head + filling * rest)
        deliver = msgspec.structs.replace(message, number=number, body=around + pack(sample))
        samples.append(frame_of(Tell(told.hops, deliver)))
    mould = FrameTemplate(*samples)
    sizes = [end - begin for begin, end in mould.holes]
    return mould if sizes == [_NUMBER_BYTES, first_bytes(batch.first), rest] else None


def first_bytes(first: int) -> int:
    """The bytes in which a batch's number can differ from another one's that takes as many."""
    return next(size for last, size, _, _ in _WIDTHS if first <= last)


def head_of(run: bytes, topic: str, version: int) -> bytes:
    """A plain publication up to its payload."""
    begin = 2
    while run[begin - 1] > 127:
        begin += 1
    return run[: begin + 2 + len(topic.encode()) + (version == V5)]


class CutThroughSender:
    """From a topic here to the brokers that want it; to none, if only this one does."""

    __slots__ = (
        "_ends_at",
        "_first_bytes",
        "_first_max",
        "_frames",
        "_lanes",
        "_outlet",
        "_overlay",
        "_size",
        "_version",
        "_view",
    )

    def __init__(
        self,
        lanes: CutThrough,
        outlet: OutboundTopic,
        batch: Batch,
        frames: list[tuple[PeerState, FrameTemplate, int, int]],
    ) -> None:
        """`frames`: to whom, the mould, which of the topic's filters it is for, and what it counts for."""
        self._lanes = lanes
        self._outlet = outlet
        self._ends_at = lanes.now() + LANE_S
        self._overlay = lanes.braid.overlay
        self._view = self._overlay.view
        self._size = len(batch.run)
        self._version = batch.version
        self._first_bytes = first_bytes(batch.first)
        self._first_max = next(last for last, _, _, _ in _WIDTHS if batch.first <= last)
        self._frames = frames

    def holds(self, version: int, size: int, now: float) -> bool:
        """Whether the long way would lead where the lane does, for a publication like this."""
        return (
            size == self._size
            and version == self._version
            and self._outlet.number < self._first_max
            and now < self._ends_at
            and self._overlay.view is self._view
        )

    def send(self, version: int, run: bytes, now: float) -> bool:
        """Sends one plain publication at once; False if it has to take the long way."""
        outlet = self._outlet
        if outlet.is_holding or not self.holds(version, len(run), now):
            return False
        for peer, _, _, _ in self._frames:
            if not peer.is_clear:
                return False
        outlet.number += 1
        first = outlet.number
        number = self._lanes.number
        self._lanes.number = number + PEERS_MAX
        for peer, mould, which, weight in self._frames:
            fields = ((number + which).to_bytes(_NUMBER_BYTES), first.to_bytes(self._first_bytes), run)
            peer.send_lone(mould.fill(fields), weight)
        return True


class CutThroughReceiver:
    """From another broker's topic to the clients here that take it as it comes."""

    __slots__ = (
        "_ends_at",
        "_hops",
        "_inlet",
        "_lanes",
        "_mould",
        "_overlay",
        "_places",
        "_receivers",
        "_router",
        "_routes",
        "_view",
        "_weight",
    )

    def __init__(
        self,
        lanes: CutThrough,
        mould: FrameTemplate,
        head: bytes,
        inlet: InboundStream,
        receivers: list[Client],
        hops: int,
        weight: int,
    ) -> None:
        self._lanes = lanes
        self._ends_at = lanes.now() + LANE_S
        self._overlay = lanes.braid.overlay
        self._view = self._overlay.view
        self._router = lanes.braid.broker.router
        self._routes = self._router.version
        self._mould = mould
        _, first, payload = mould.holes
        self._places = (*first, payload[0] - len(head), payload[1])
        self._inlet = inlet
        self._receivers = receivers
        self._hops = hops
        self._weight = weight

    def holds(self, frame: bytes) -> bool:
        """Whether the long way would lead where the lane does, for a publication like this."""
        return (
            self._routes == self._router.version
            and self._mould.fits(frame)
            and self._lanes.now() < self._ends_at
            and self._overlay.view is self._view
            and not self._inlet.is_new
        )

    def take(self, frame: bytes) -> int:
        """Passes a publication on at once; the bytes that it counts for, 0 if it has to take the long way."""
        inlet = self._inlet
        first_at, first_end, run_at, run_end = self._places
        if not self.holds(frame) or inlet.held or int.from_bytes(frame[first_at:first_end]) != inlet.last + 1:
            return 0
        inlet.last += 1
        run = frame[run_at:run_end]
        sent = 0
        for receiver in self._receivers:
            if receiver.writable:
                receiver.link.write(run)
                sent += 1
        self._lanes.hops.add(self._hops)
        metrics = self._lanes.braid.broker.metrics
        metrics.messages_received += 1
        metrics.messages_sent += sent
        metrics.bytes_sent += sent * len(run)
        metrics.messages_dropped += len(self._receivers) - sent
        return self._weight


class CutThrough:
    """All lanes of a broker, with range delivery over real links."""

    def __init__(self, braid: Braid, host: NetHost, hops: HopCounts) -> None:
        self.braid = braid
        self.host = host
        self.hops = hops
        self.now = braid.broker.tick.clock
        self.number = host.chance.getrandbits(61) | 1 << 61
        """Of the next delivery: far from those that range delivery counts itself, and always eight bytes."""
        self._in_lanes: dict[tuple[Address, bytes], CutThroughReceiver] = {}
        self._tell_at: dict[Address, int] = {}
        """By sender: where its frames tell one stream from another."""
        self._lone: dict[tuple[Address, bytes], tuple[int, float]] = {}
        """By stream into this broker: the size of the last frame that came alone, and when that was."""
        self._before = (0, 0)

    @staticmethod
    def can_serve(braid: Braid) -> bool:
        """Whether all that comes of a publication is told to the host at once, as range deliveries."""
        return isinstance(braid.method, RelayFree)

    # Out

    def publish(self, outlet: OutboundTopic, batch: Batch) -> None:
        """Sends a batch the long way, and makes a lane for those like it, if it comes alone and often enough."""
        if not self._is_lively(outlet, batch):
            self.braid.publish(outlet, batch)
            return
        wanted = list(outlet.wanted)
        arrivals = self.braid.arrivals
        with self.host.recording() as posts:
            self.braid.publish(outlet, batch)
        if list(outlet.wanted) == wanted and (posts or self.braid.arrivals == arrivals + len(wanted)):
            outlet.cut_through = self._lane_out(outlet, batch, posts)

    def _is_lively(self, outlet: OutboundTopic, batch: Batch) -> bool:
        if batch.count != 1 or batch.letters or batch.skips or len(batch.run) > RUN_BYTES_MAX:
            return False
        now = self.now()
        version, size, at = outlet.lone
        outlet.lone = (batch.version, len(batch.run), now)
        if outlet.cut_through is not None and outlet.cut_through.holds(batch.version, len(batch.run), now):
            return False  # it has one, which could not be taken this time
        return version == batch.version and size == len(batch.run) and now - at < LIVELY_S

    def _lane_out(
        self, outlet: OutboundTopic, batch: Batch, posts: list[tuple[Address, Envelope]]
    ) -> CutThroughSender | None:
        if len(posts) > PEERS_MAX or batch.first > _WIDTHS[-1][0]:
            return None
        frames = []
        deliveries: dict[int, int] = {}
        for to, told in posts:
            peer = self.host.peer(to)
            if peer is None or not isinstance(told, Tell) or not isinstance(told.body, Deliver):
                return None
            mould = mould_of(self.host.frame_of, told, batch, b"")
            if mould is None:
                return None
            which = deliveries.setdefault(told.body.number, len(deliveries))
            frames.append((peer, mould, which, self.host.weight_of(told)))
        return CutThroughSender(self, outlet, batch, frames)

    # In

    def take(self, sender: Address, frame: bytes) -> int:
        """Handles a frame with one message, if it has a lane; the bytes of publications in it, 0 if it has none."""
        at = self._tell_at.get(sender)
        if at is not None and not self.braid.broker.tick.flush_wanted and self.host.on_message is None:
            lane = self._in_lanes.get((sender, frame[at : at + TELL_BYTES]))
            if lane is not None and (weight := lane.take(frame)):
                return weight
        self._before = (self.braid.arrivals, self.host.posted)
        return 0

    def learn(self, sender: Address, frame: bytes, told: Envelope) -> None:
        """A frame with one message has taken the long way: makes a lane for those like it, if they are many enough."""
        if (self.braid.arrivals - 1, self.host.posted) != self._before:
            return
        batch = self.braid.last_batch
        if not isinstance(told, Tell) or not isinstance(told.body, Deliver) or batch is None or batch.count != 1:
            return
        at = frame.find(told.body.number.to_bytes(_NUMBER_BYTES)) + _NUMBER_BYTES
        if at < _NUMBER_BYTES or batch.letters or batch.skips or told.body.root != sender:
            return
        self._tell_at[sender] = at
        name = (sender, frame[at : at + TELL_BYTES])
        now = self.now()
        size, came_at = self._lone.pop(name, (0, 0.0))
        self._lone[name] = (len(frame), now)
        if size != len(frame) or now - came_at > LIVELY_S:
            if len(self._lone) > IN_LANES_MAX:
                self._lone.clear()
                self._in_lanes.clear()
                self._tell_at.clear()
            return
        lane = self._in_lanes.get(name)
        if lane is not None and lane.holds(frame):
            return  # it has one, which could not be taken this time
        lane = self._lane_in(frame, told, batch, told.body.hops)
        if lane is not None:
            self._in_lanes[name] = lane

    def _lane_in(self, frame: bytes, told: Tell[Message], batch: Batch, hops: int) -> CutThroughReceiver | None:
        inlet = self.braid.inlets.at_rest(batch)
        route = self.braid.broker.router.route(batch.topic)
        same, other = (route.plain5, route.plain3) if batch.version == V5 else (route.plain3, route.plain5)
        if inlet is None or not same or other or route.special or route.groups or route.feed is not None:
            return None
        head = head_of(batch.run, batch.topic, batch.version)
        mould = mould_of(self._content_of, told, batch, head)
        if mould is None or not mould.fits(frame) or mould.holes[1][0] - mould.holes[0][1] < TELL_BYTES:
            return None
        return CutThroughReceiver(self, mould, head, inlet, same, hops, self.host.weight_of(told))

    def _content_of(self, envelope: Envelope) -> bytes:
        """A frame without its length, as it is handed over."""
        return self.host.frame_of(envelope)[LENGTH_BYTES:]
