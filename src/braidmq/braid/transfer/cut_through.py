"""Cut-through: the short way between two brokers for publications that come one at a time.

A device that sends a reading now and then takes the same way each time: the same receivers, the same link, the same
message but for its number and the payload. So when a plain publication has gone the long way alone, through the
method and the overlay, and the one before it was like it, what became of it is remembered: out of this broker as
frames to be filled in (`CutThroughSender`) or the links that they leave by (`AcknowledgedSender`), into it as frames to
be recognised (`CutThroughReceiver`). What travels is the same, byte for byte; the other end cannot tell, and need not
know, which way it took.

A cut-through holds as long as nothing has changed that the long way would look at: the demand, the routes, the link,
and where range delivery finds the way (`Deliver`), the routing view. What comes by multicast (`MulticastCopy`) has its
receivers named: as long as the demand is the same, they are. Whom the overlay suspects can change without a sign, so
no cut-through lasts longer than the overlay itself remembers how it has cut a range. Then one publication takes the
long way again.
"""

from __future__ import annotations

from braidmq.braid.transfer.accounting import HopCounts
from braidmq.braid.transfer.acknowledged_sender import AcknowledgedSender
from braidmq.braid.transfer.batch import PublicationBatch
from braidmq.braid.transfer.carrier_template import (
    FIELD_MAX,
    NUMBER_BYTES,
    Carrier,
    field_bytes,
    field_max,
    head_of,
    tell_of,
    template_of,
)
from braidmq.braid.transfer.cut_through_receivers import AcknowledgedReceiver, CutThroughReceiver, InboundWay
from braidmq.braid.transfer.delivering import PublicationReceiver
from braidmq.braid.transfer.inbound import InboundStreams
from braidmq.braid.transfer.outbound_topic import LastingPath, OutboundTopic
from braidmq.braid.transfer.sending import PROOF_S, PublicationSender
from braidmq.broker.broker import Broker
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

QOS_1 = 0x32
"""The first byte of a plain publication of QoS 1."""

RECEIVERS_MAX = 4096
"""Cut-throughs into this broker; with one more all are made anew."""


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
        self._first_bytes = field_bytes(batch.first)
        self._first_max = field_max(batch.first)
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
            fields = ((number + which).to_bytes(NUMBER_BYTES), first.to_bytes(self._first_bytes), run)
            peer.send_lone(template.fill(fields), weight)
        return True


class CutThrough:
    """All cut-throughs of a broker, over real links."""

    def __init__(
        self,
        broker: Broker,
        host: NetHost,
        overlay: Overlay,
        method: Method,
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
        self._multicast = method.multicast if isinstance(method, MulticastMethod) else None
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

    def publish_alone(self, outbound_topic: OutboundTopic, batch: PublicationBatch) -> bool:
        """Sends the only batch of a tick a short way, if it is of QoS 1 or 2 and there is one."""
        if batch.kept is None or batch.count != 1:
            return False
        path = outbound_topic.cut_through
        return isinstance(path, AcknowledgedSender) and path.publish(batch)

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
            make = self._make_sender if batch.kept is None else self._make_acknowledged
            outbound_topic.cut_through = make(outbound_topic, batch, posts)

    def _is_lively(self, outbound_topic: OutboundTopic, batch: PublicationBatch) -> bool:
        if batch.count != 1 or batch.items or batch.skips or len(batch.run) > RUN_BYTES_MAX:
            return False
        is_kept = batch.kept is not None
        if is_kept and self._multicast is None:
            return False
        now = self.now()
        version, size, at = outbound_topic.lone
        outbound_topic.lone = (batch.version, len(batch.run), now)
        path = outbound_topic.cut_through
        if isinstance(path, AcknowledgedSender) == is_kept and path and path.holds(batch.version, len(batch.run), now):
            return False  # it has one, which could not be taken this time
        return version == batch.version and size == len(batch.run) and now - at < LIVELY_S

    def _make_acknowledged(
        self, _outbound_topic: OutboundTopic, batch: PublicationBatch, posts: list[tuple[Address, Envelope]]
    ) -> LastingPath | None:
        """If each broker that wants it has been sent its copy."""
        peers = [peer for to, _ in posts if (peer := self.host.peer(to)) is not None]
        copies = [told.body for _, told in posts if isinstance(told, Tell) and isinstance(told.body, MulticastCopy)]
        if not 0 < len(peers) == len(copies) == len(posts) <= PEERS_MAX or self._multicast is None:
            return None
        copy, told = copies[0], posts[0][1]
        begin = self._multicast.repeater(copy.number, PROOF_S)
        if begin is None or any(one is not copy for one in copies):
            return None
        weight = self.host.weight_of(told) - len(copy.body)
        return AcknowledgedSender(self.host, begin, peers, weight, self.host.now() + CUT_THROUGH_S)

    def _make_sender(
        self, outbound_topic: OutboundTopic, batch: PublicationBatch, posts: list[tuple[Address, Envelope]]
    ) -> CutThroughSender | None:
        if len(posts) > PEERS_MAX or batch.first > FIELD_MAX:
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
        if batch is None or batch.count != 1 or (batch.offset and self._multicast is None):
            return
        if not isinstance(told, Tell) or not isinstance(told.body, Carrier):
            return
        at = frame.find(told.body.number.to_bytes(NUMBER_BYTES)) + NUMBER_BYTES
        if at < NUMBER_BYTES or batch.items or batch.skips or told.body.root != sender:
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
        if batch.kept is None:
            head = head_of(batch.run, batch.topic, batch.version)
        elif to.sure is not None and batch.run[0] == QOS_1:
            head = batch.run[: batch.acknowledged_run.ids_at]
        else:
            return None
        template = template_of(self._content_of, told, batch, head)
        if template is None or not template.fits(frame):
            return None
        (_, number_end), (first_at, _) = template.holes[:2]
        if number_end + len(tell_of(frame, number_end)) > first_at:
            return None
        stream = self._inbound.at_rest(batch)
        if stream is None:
            return None
        view = self.overlay.view if isinstance(told.body, Deliver) else None
        ends_at = self.now() + CUT_THROUGH_S
        weight = self.host.weight_of(told)
        way = InboundWay(self.broker, self.overlay, self.hops, template, head, stream, hops, weight, view, ends_at)
        if batch.kept is None:
            return CutThroughReceiver(way, same)
        if to.sure is None or self._multicast is None or not isinstance(told.body, MulticastCopy):
            return None
        return AcknowledgedReceiver(way, to.sure, self._receiver, self._multicast, told.body.root)

    def _content_of(self, envelope: Envelope) -> bytes:
        """A frame without its length, as it is handed over."""
        return self.host.frame_of(envelope)[LENGTH_BYTES:]
