"""Cut-throughs out of this broker for QoS 1 and 2 (`cut_through`): from a topic here to the brokers that want it.

What comes alone is numbered, kept and written as always, and acknowledged when that is done. Only the way from there to
the links is short: the brokers are known from the last time, and what was found out then need not be found out again.
"""

from __future__ import annotations

from braidmq.braid.transfer.batch import PublicationBatch, pack
from braidmq.net.frames import Tell
from braidmq.net.host import NetHost
from braidmq.net.peer import PeerState
from braidmq.pubsub.covers.multicast import BeginCopy


class AcknowledgedSender:
    __slots__ = ("_begin", "_ends_at", "_host", "_peers", "_weight")

    def __init__(
        self,
        host: NetHost,
        begin: BeginCopy,
        peers: list[PeerState],
        weight: int,
        ends_at: float,
    ) -> None:
        """`begin` makes a copy of a batch, and sees to it that it is proven; `weight` is what it counts for beside the
        batch."""
        self._host = host
        self._begin = begin
        self._peers = peers
        self._weight = weight
        self._ends_at = ends_at

    def holds(self, _version: int, _size: int, now: float) -> bool:
        """Whether the long way would lead where this one does."""
        return now < self._ends_at

    def send(self, _version: int, _run: bytes, _now: float) -> bool:
        """Publications of QoS 0 have another way."""
        return False

    def publish(self, batch: PublicationBatch) -> bool:
        """Sends a batch at once; False if it has to take the long way."""
        now = self._host.now()
        if now >= self._ends_at:
            return False
        for peer in self._peers:
            if not peer.is_clear:
                return False
        body = pack(batch)
        copy = self._begin(body, now)
        if copy is None:
            return False
        frame = self._host.frame_of(Tell(1, copy))
        for peer in self._peers:
            peer.send_lone(frame, self._weight + len(body))
        return True
