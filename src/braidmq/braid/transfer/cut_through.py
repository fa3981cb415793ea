"""Cut-through: the short way between two brokers for publications that come one at a time.

A device that sends a reading now and then takes the same way each time: the same receivers, the same link, the same
message but for its number and the payload. So when a plain QoS 0 publication has gone the long way alone, through the
method and the overlay, and the one before it was like it, what became of it is remembered: out of this broker as
frames to be filled in (`CutThroughSender`), into it as frames to be recognised (`CutThroughReceiver`). What travels is
the same, byte for byte; the other end cannot tell, and need not know, which way it took.

A cut-through holds as long as nothing has changed that the long way would look at: the demand, the routes, the link,
and where range delivery finds the way (`Deliver`), the routing view. What comes by multicast (`MulticastCopy`) has its
receivers named: as long as the demand is the same, they are. Whom the overlay suspects can change without a sign, so
no cut-through lasts longer than the overlay itself remembers how it has cut a range. Then one publication takes the
long way again.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from braidmq.braid.transfer.accounting import HopCounts
from braidmq.braid.transfer.batch import PublicationBatch, pack
from braidmq.braid.transfer.delivering import PublicationReceiver
from braidmq.braid.transfer.inbound import InboundStream, InboundStreams
from braidmq.braid.transfer.outbound_topic import OutboundTopic
from braidmq.braid.transfer.sending import PublicationSender
from braidmq.broker.broker import Broker
from braidmq.broker.client import ConnectedClient
from braidmq.host import Address, Message
from braidmq.mqtt.packets import V5
from braidmq.net.frame_template import FrameTemplate
from braidmq.net.frames import LENGTH_BYTES, Envelope, Tell
from braidmq.net.host import NetHost
from braidmq.net.peer import PeerState
from braidmq.overlay import Overlay
from braidmq.overlay.ranges import SPLITS_KEPT_S, Deliver
from braidmq.overlay.view import View
from braidmq.pubsub.covers.multicast import MulticastMethod
from braidmq.pubsub.covers.multicast_messages import MulticastCopy
from braidmq.pubsub.method import Method
from braidmq.pubsub.relay_free import RelayFree

CUT_THROUGH_S = SPLITS_KEPT_S
"""How long a cut-through holds at most."""

LIVELY_S = 0.1
"""A stream gets a cut-through if two of its publications come alone within this time: then it is worth the making."""

RUN_BYTES_MAX = 2048
"""The largest publication that takes a cut-through."""

PEERS_MAX = 8
"""Brokers that a cut-through leads to; with more of them the way is not what takes the time."""

RECEIVERS_MAX = 4096
"""Cut-throughs into this broker; with one more all are made anew."""

TELL_BYTES = 48
"""Bytes behind the number of a range delivery by which a frame is known before it is compared: those of its range."""

Carrier = Deliver | MulticastCopy
"""What brings publications to a broker: (root, number) names it, and its body ends with a batch."""

_NUMBERS = (0x1111111111111111, 0x2222222222222222)
_NUMBER_BYTES = 8
_WIDTHS = (
    (0x7F, 1, 0x01, 0x02),
    (0xFF, 1, 0x81, 0x82),
    (0xFFFF, 2, 0x1111, 0x2222),
    (0xFFFFFFFF, 4, 0x11111111, 0x22222222),
)
"""Whole numbers up to here take so many bytes that can differ; two of them of which each byte does."""


def template_of(
    frame_of: Callable[[Envelope], bytes], told: Tell[Message], batch: PublicationBatch, head: bytes
) -> FrameTemplate | None:
    """The template of frames like one that carries this batch.

    It has three holes: the delivery's number, the batch's, and what is behind the head of its run.
    """
    body = pack(batch)
    message = told.body
    if not isinstance(message, Carrier) or not message.body.endswith(body) or batch.first > _WIDTHS[-1][0]:
        return None
    carried = message.body
    around = carried[: len(carried) - len(body)]
    firsts = next((one, other) for last, _, one, other in _WIDTHS if batch.first <= last)
    rest = len(batch.run) - len(head)
    samples = []
    for number, first, byte in zip(_NUMBERS, firsts, (b"\0", b"\xff"), strict=True):
        sample = msgspec.structs.replace(batch, first=first, run=head + byte * rest)
        carrier = msgspec.structs.replace(message, number=number, body=around + pack(sample))
        samples.append(frame_of(Tell(told.hops, carrier)))
    template = FrameTemplate(*samples)
    sizes = [end - begin for begin, end in template.holes]
    return template if sizes == [_NUMBER_BYTES, first_bytes(batch.first), rest] else None


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
        "_all",
        "_ends_at",
        "_first_bytes",
        "_first_max",
        "_frames",
        "_outbound_topic",
        "_overlay",
        "_size",
        "_version",
        "_view",
    )

    def __init__(
        self,
        all_: CutThrough,
        outbound_topic: OutboundTopic,
        batch: PublicationBatch,
        frames: list[tuple[PeerState, FrameTemplate, int, int]],
        view: View | None,
    ) -> None:
        """`frames`: the peer, the template, which of the topic's filters it is for, and what it counts for.

        `view` is the one that the way was found by, if it was.
        """
        self._all = all_
        self._outbound_topic = outbound_topic
        self._ends_at = all_.now() + CUT_THROUGH_S
        self._overlay = all_.overlay
        self._view = view
        self._size = len(batch.run)
        self._version = batch.version
        self._first_bytes = first_bytes(batch.first)
        self._first_max = next(last for last, _, _, _ in _WIDTHS if batch.first <= last)
        self._frames = frames

    def holds(self, version: int, size: int, now: float) -> bool:
        """Whether the long way would lead where this one does, for a publication like this."""
        return (
            size == self._size
            and version == self._version
            and self._outbound_topic.number < self._first_max
            and now < self._ends_at
            and (self._view is None or self._overlay.view is self._view)
        )

    def send(self, version: int, run: bytes, now: float) -> bool:
        """Sends one plain publication at once; False if it has to take the long way."""
        outbound_topic = self._outbound_topic
        if outbound_topic.is_holding or not self.holds(version, len(run), now):
            return False
        for peer, _, _, _ in self._frames:
            if not peer.is_clear:
                return False
        outbound_topic.number += 1
        first = outbound_topic.number
        number = self._all.number
        self._all.number = number + PEERS_MAX
        for peer, template, which, weight in self._frames:
            fields = ((number + which).to_bytes(_NUMBER_BYTES), first.to_bytes(self._first_bytes), run)
            peer.send_lone(template.fill(fields), weight)
        return True


class CutThroughReceiver:
    """From another broker's topic to the clients here that take it as it comes."""

    __slots__ = (
        "_all",
        "_connections",
        "_ends_at",
        "_hops",
        "_offsets",
        "_overlay",
        "_router",
        "_routes",
        "_stream",
        "_template",
        "_view",
        "_weight",
    )

    def __init__(
        self,
        all_: CutThrough,
        template: FrameTemplate,
        head: bytes,
        stream: InboundStream,
        connections: list[ConnectedClient],
        hops: int,
        weight: int,
        view: View | None,
    ) -> None:
        self._all = all_
        self._ends_at = all_.now() + CUT_THROUGH_S
        self._overlay = all_.overlay
        self._view = view
        self._router = all_.broker.router
        self._routes = self._router.version
        self._template = template
        _, first, payload = template.holes
        self._offsets = (*first, payload[0] - len(head), payload[1])
        self._stream = stream
        self._connections = connections
        self._hops = hops
        self._weight = weight

    def holds(self, frame: bytes) -> bool:
        """Whether the long way would lead where this one does, for a publication like this."""
        return (
            self._routes == self._router.version
            and self._template.fits(frame)
            and self._all.now() < self._ends_at
            and (self._view is None or self._overlay.view is self._view)
            and not self._stream.is_new
        )

    def pass_on(self, frame: bytes) -> int:
        """Passes a publication on at once; the bytes that it counts for, 0 if it has to take the long way."""
        stream = self._stream
        first_at, first_end, run_at, run_end = self._offsets
        if not self.holds(frame) or stream.held or int.from_bytes(frame[first_at:first_end]) != stream.last + 1:
            return 0
        stream.last += 1
        run = frame[run_at:run_end]
        sent = 0
        for connection in self._connections:
            if connection.writable:
                connection.link.write(run)
                sent += 1
        self._all.hops.add(self._hops)
        metrics = self._all.broker.metrics
        metrics.messages_received += 1
        metrics.messages_sent += sent
        metrics.bytes_sent += sent * len(run)
        metrics.messages_dropped += len(self._connections) - sent
        return self._weight


class CutThrough:
    """All cut-throughs of a broker, over real links."""

    def __init__(
        self,
        broker: Broker,
        host: NetHost,
        overlay: Overlay,
        sender: PublicationSender,
        receiver: PublicationReceiver,
        inbound: InboundStreams,
        hops: HopCounts,
    ) -> None:
        """`sender` and `receiver` are the long ways."""
        self.broker = broker
        self.overlay = overlay
        self.hops = hops
        self.now = broker.tick.clock
        self.number = host.chance.getrandbits(61) | 1 << 61
        """Of the next delivery: far from those that the method counts itself, and always eight bytes."""
        self.host = host
        self._sender = sender
        self._receiver = receiver
        self._inbound = inbound
        self._receivers: dict[tuple[Address, bytes], CutThroughReceiver] = {}
        self._tell_at: dict[Address, int] = {}
        """By sender: where its frames tell one stream from another."""
        self._lone: dict[tuple[Address, bytes], tuple[str, int, float]] = {}
        """By what frames are known by: the topic and size of the last one that came alone, and when that was."""
        self._before = (0, 0)

    @staticmethod
    def can_serve(method: Method) -> bool:
        """Whether all that comes of a publication is told to the host at once, in carriers."""
        return isinstance(method, RelayFree | MulticastMethod)

    # Out

    def publish(self, outbound_topic: OutboundTopic, batch: PublicationBatch) -> None:
        """Sends a batch the long way, and makes a cut-through for those like it, if it comes alone and often enough."""
        if not self._is_lively(outbound_topic, batch):
            self._sender.publish(outbound_topic, batch)
            return
        wanted = list(outbound_topic.wanted)
        arrivals = self._receiver.arrivals
        with self.host.recording() as posts:
            self._sender.publish(outbound_topic, batch)
        if list(outbound_topic.wanted) == wanted and (posts or self._receiver.arrivals == arrivals + len(wanted)):
            outbound_topic.cut_through = self._make_sender(outbound_topic, batch, posts)

    def _is_lively(self, outbound_topic: OutboundTopic, batch: PublicationBatch) -> bool:
        if batch.count != 1 or batch.offset or batch.items or batch.skips or len(batch.run) > RUN_BYTES_MAX:
            return False
        now = self.now()
        version, size, at = outbound_topic.lone
        outbound_topic.lone = (batch.version, len(batch.run), now)
        cut_through = outbound_topic.cut_through
        if cut_through is not None and cut_through.holds(batch.version, len(batch.run), now):
            return False  # it has one, which could not be taken this time
        return version == batch.version and size == len(batch.run) and now - at < LIVELY_S

    def _make_sender(
        self, outbound_topic: OutboundTopic, batch: PublicationBatch, posts: list[tuple[Address, Envelope]]
    ) -> CutThroughSender | None:
        if len(posts) > PEERS_MAX or batch.first > _WIDTHS[-1][0]:
            return None
        frames = []
        deliveries: dict[int, int] = {}
        view = None if posts else self.overlay.view
        for to, told in posts:
            peer = self.host.peer(to)
            if peer is None or not isinstance(told, Tell) or not isinstance(told.body, Carrier):
                return None
            template = template_of(self.host.frame_of, told, batch, b"")
            if template is None:
                return None
            if isinstance(told.body, Deliver):
                view = self.overlay.view
            which = deliveries.setdefault(told.body.number, len(deliveries))
            frames.append((peer, template, which, self.host.weight_of(told)))
        return CutThroughSender(self, outbound_topic, batch, frames, view)

    # In

    def take(self, sender: Address, frame: bytes) -> int:
        """Handles a frame with one message, if it has a cut-through; its bytes of publications, 0 if it has none."""
        at = self._tell_at.get(sender)
        tick = self.broker.tick
        if at is not None and not (tick.flush_wanted or tick.is_delaying) and self.host.on_message is None:
            receiver = self._receivers.get((sender, tell_of(frame, at)))
            if receiver is not None and (weight := receiver.pass_on(frame)):
                return weight
        self._before = (self._receiver.arrivals, self.host.posted)
        return 0

    def learn(self, sender: Address, frame: bytes, told: Envelope) -> None:
        """A frame with one message has taken the long way: makes a cut-through for those like it, if they are many."""
        if (self._receiver.arrivals - 1, self.host.posted) != self._before:
            return
        batch = self._receiver.last_batch
        if batch is None or batch.count != 1 or batch.offset:
            return
        if not isinstance(told, Tell) or not isinstance(told.body, Carrier):
            return
        at = frame.find(told.body.number.to_bytes(_NUMBER_BYTES)) + _NUMBER_BYTES
        if at < _NUMBER_BYTES or batch.items or batch.skips or told.body.root != sender:
            return
        self._tell_at[sender] = at
        name = (sender, tell_of(frame, at))
        now = self.now()
        topic, size, came_at = self._lone.pop(name, ("", 0, 0.0))
        self._lone[name] = (batch.topic, len(frame), now)
        if topic != batch.topic or size != len(frame) or now - came_at > LIVELY_S:
            if len(self._lone) > RECEIVERS_MAX:
                self._lone.clear()
                self._receivers.clear()
                self._tell_at.clear()
            return
        receiver = self._receivers.get(name)
        if receiver is not None and receiver.holds(frame):
            return  # it has one, which could not be taken this time
        receiver = self._make_receiver(frame, told, batch, told.body.hops)
        if receiver is not None:
            self._receivers[name] = receiver

    def _make_receiver(
        self, frame: bytes, told: Tell[Message], batch: PublicationBatch, hops: int
    ) -> CutThroughReceiver | None:
        route = self.broker.router.arriving(batch.topic)
        to = route.receivers
        same, other = (to.plain5, to.plain3) if batch.version == V5 else (to.plain3, to.plain5)
        if not same or other or to.special or to.groups or route.feed is not None:
            return None
        head = head_of(batch.run, batch.topic, batch.version)
        template = template_of(self._content_of, told, batch, head)
        if template is None or not template.fits(frame):
            return None
        (_, number_end), (first_at, _), _ = template.holes
        if number_end + len(tell_of(frame, number_end)) > first_at:
            return None
        stream = self._inbound.at_rest(batch)
        if stream is None:
            return None
        view = self.overlay.view if isinstance(told.body, Deliver) else None
        return CutThroughReceiver(self, template, head, stream, same, hops, self.host.weight_of(told), view)

    def _content_of(self, envelope: Envelope) -> bytes:
        """A frame without its length, as it is handed over."""
        return self.host.frame_of(envelope)[LENGTH_BYTES:]
