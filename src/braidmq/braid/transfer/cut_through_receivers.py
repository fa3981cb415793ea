"""Cut-throughs into this broker (`cut_through`): from another broker's topic to the clients here."""

from __future__ import annotations

from typing import NamedTuple

from braidmq.braid.transfer.accounting import HopCounts
from braidmq.braid.transfer.delivering import PublicationReceiver
from braidmq.braid.transfer.inbound import InboundStream
from braidmq.broker.broker import Broker
from braidmq.broker.client import ConnectedClient
from braidmq.broker.router import Target
from braidmq.broker.runs import put_lone_in_flight
from braidmq.host import Address
from braidmq.net.frame_template import FrameTemplate
from braidmq.overlay import Overlay
from braidmq.overlay.view import View
from braidmq.pubsub.covers.multicast import Multicast

PACKET_ID_BYTES = 2


class InboundWay(NamedTuple):
    """What is remembered of a publication that has come the long way, for those like it."""

    broker: Broker
    overlay: Overlay
    hop_counts: HopCounts
    template: FrameTemplate
    head: bytes
    """What publications begin with: those of QoS 0 up to the payload, others up to the packet id."""
    stream: InboundStream
    hops: int
    weight: int
    """The bytes that each counts for."""
    view: View | None
    """The one that the way was found by, if it was."""
    ends_at: float


class CutThroughReceiver:
    """Of publications of QoS 0, to clients that take them as they come."""

    __slots__ = (
        "_broker",
        "_connections",
        "_ends_at",
        "_hop_counts",
        "_hops",
        "_now",
        "_offsets",
        "_overlay",
        "_router",
        "_routes",
        "_stream",
        "_template",
        "_view",
        "_weight",
    )

    def __init__(self, way: InboundWay, connections: list[ConnectedClient]) -> None:
        self._broker = broker = way.broker
        self._now = broker.tick.clock
        self._ends_at = way.ends_at
        self._overlay = way.overlay
        self._view = way.view
        self._router = broker.router
        self._routes = broker.router.version
        self._hop_counts = way.hop_counts
        self._template = way.template
        first, rest = way.template.holes[1:3]
        self._offsets = (*first, rest[0] - len(way.head), rest[1])
        self._stream = way.stream
        self._connections = connections
        self._hops = way.hops
        self._weight = way.weight

    def holds(self, frame: bytes) -> bool:
        """Whether the long way would lead where this one does, for a publication like this."""
        return (
            self._routes == self._router.version
            and self._template.fits(frame)
            and self._now() < self._ends_at
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
        self._count(sent, len(run))
        self._broker.metrics.messages_dropped += len(self._connections) - sent
        return self._weight

    def _count(self, sent: int, size: int) -> None:
        """One publication has come, and so many clients were sent it."""
        self._hop_counts.add(self._hops)
        metrics = self._broker.metrics
        metrics.messages_received += 1
        metrics.messages_sent += sent
        metrics.bytes_sent += sent * size


class AcknowledgedReceiver(CutThroughReceiver):
    """Of publications of QoS 1, to sessions that end with their connections: nothing of it has to be written first.

    Beside what is counted, the root is told that this broker has them, and it is noted how far the history of their
    origin was followed.
    """

    __slots__ = ("_head", "_multicast", "_number_at", "_offset_at", "_receiver", "_root", "_targets")

    def __init__(
        self,
        way: InboundWay,
        targets: list[Target],
        receiver: PublicationReceiver,
        multicast: Multicast,
        root: Address,
    ) -> None:
        """`root` is the broker that sends them."""
        super().__init__(way, [])
        self._head = way.head
        self._number_at, self._offset_at = way.template.holes[0], way.template.holes[3]
        self._targets = targets
        self._receiver = receiver
        self._multicast = multicast
        self._root = root

    def pass_on(self, frame: bytes) -> int:
        stream = self._stream
        first_at, first_end, run_at, run_end = self._offsets
        if not self.holds(frame) or stream.held or int.from_bytes(frame[first_at:first_end]) != stream.last + 1:
            return 0
        for target in self._targets:
            if not target.session.ready:
                return 0
        begin, end = self._offset_at
        if not self._receiver.follow(stream.origin, self._root, int.from_bytes(frame[begin:end])):
            return 0
        stream.last += 1
        head = self._head
        behind = frame[run_at + len(head) + PACKET_ID_BYTES : run_end]
        for target in self._targets:
            session = target.session
            assert session.connection is not None  # it is ready
            session.connection.link.write(b"%b%b%b" % (head, put_lone_in_flight(session).to_bytes(2), behind))
        begin, end = self._number_at
        self._multicast.note_received(self._root, int.from_bytes(frame[begin:end]))
        self._count(len(self._targets), run_end - run_at)
        return self._weight
