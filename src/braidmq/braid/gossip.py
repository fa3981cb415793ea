"""What all brokers of a braid know, and how they come to know it: shapes of filters, clusters, how far histories are.

A broker says to all what is new with it, and compares what it knows with another now and then: what one of them has
missed, it learns from the other. That is also how a broker that enters finds out whether it has met a braid.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from braidmq.braid.interest.clusters import Seen
from braidmq.braid.interest.shapes import Shape
from braidmq.host import Address, CallError, Message, Reply, Service, handles
from braidmq.pubsub.method import Publication as Arrival
from braidmq.pubsub.method import ignore

if TYPE_CHECKING:
    from braidmq.braid.braid import Braid

HOME = ""
"""The topic of all brokers."""

CALL_TIMEOUT_S = 2.0

ANNOUNCE_S = 30.0
"""How long an announcement is repeated to those who have not answered for it."""

Head = tuple[str, Address, int]
"""An origin, its address, and the last offset of its history."""

_log = logging.getLogger("braidmq.braid")


class Compare(Message, frozen=True, array_like=True, gc=False):
    """What I know; what do you know? Of clusters I tell my own, and a digest of all."""

    shapes: tuple[Shape, ...]
    heads: tuple[Head, ...]
    clusters: tuple[Seen, ...] = ()
    digest: bytes = b""


class Compared(Message, frozen=True, array_like=True, gc=False):
    is_in: bool
    shapes: tuple[Shape, ...]
    heads: tuple[Head, ...]
    clusters: tuple[Seen, ...] = ()


class Announcement(msgspec.Struct, frozen=True, array_like=True):
    """Said to all brokers."""

    shapes: tuple[Shape, ...]
    clusters: tuple[Seen, ...] = ()


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Announcement).decode


class Gossip(Service):
    """One broker's side of it."""

    def __init__(self, braid: Braid) -> None:
        self._braid = braid
        self._host = braid.host
        self._broker = braid.broker
        self._host.serve(self)

    async def compare(self) -> None:
        """With one that was met, and with one that was configured and may be in a braid that began apart."""
        for other in dict.fromkeys((self._braid.introducers(), self._braid.introducers.stranger)):
            if other is not None:
                await self.compare_with(other)

    async def compare_with(self, address: Address) -> bool:
        """Exchanges what is known with another broker; whether it answered and is in the braid."""
        try:
            told = await self._host.call(address, self._comparison(), CALL_TIMEOUT_S)
        except CallError:
            self._braid.introducers.miss(address)
            return False
        if not isinstance(told, Compared):
            return False
        if told.is_in:
            self._braid.introducers.meet(address)
        self._take_in(address, told)
        return told.is_in

    def _comparison(self) -> Compare:
        now = self._broker.now()
        return Compare(
            tuple(self._braid.shapes),
            self._heads(),
            self._braid.clusters.own_seen(now),
            self._braid.clusters.digest(now),
        )

    @handles(Compare)
    def on_compare(self, origin: Address, asked: Compare) -> Reply:
        if self._braid.is_in:
            self._braid.introducers.meet(origin)
        clusters = self._braid.clusters.told(self._broker.now(), asked.digest)
        answer = Compared(self._braid.is_in, tuple(self._braid.shapes), self._heads(), clusters)
        self._take_in(origin, asked)
        return answer

    def _take_in(self, teller: Address, told: Compare | Compared) -> None:
        self.learn(told.shapes)
        self._learn_heads(teller, told.heads)
        self._learn_clusters(told.clusters)

    def _heads(self) -> tuple[Head, ...]:
        heads = [(origin, cursor.address, cursor.head) for origin, cursor in self._braid.cursors]
        if own := self._braid.history.head:
            heads.insert(0, (self._braid.origin, self._host.address, own))
        return tuple(heads)

    def _learn_heads(self, teller: Address, heads: Iterable[Head]) -> None:
        """What others say of where a third one is may be old: it counts if that one does not answer where it was."""
        for origin, address, head in heads:
            if origin == self._braid.origin:
                continue
            known = self._braid.cursors.get(origin)
            is_there = known is not None and not known.retry_s and not self._braid.introducers.has_parted(known.address)
            if known is not None and is_there and address != teller:
                address = known.address
            cursor = self._braid.cursors.of(origin, address, self._braid.since)
            if head > cursor.head:
                cursor.head = head
                self._braid.introducers.recall(address)  # whoever publishes is there

    def learn(self, shapes: Iterable[Shape]) -> None:
        """Takes up shapes that somebody uses."""
        for shape in self._braid.shapes.learn(shapes, self._host.now()):
            self._braid.outbound.learn_shape(shape)

    def _learn_clusters(self, told: tuple[Seen, ...]) -> None:
        self._braid.clusters.learn(told, self._broker.now())
        if self._broker.store.dirty:
            self._broker.ring()

    def announce(self, shapes: list[Shape], clusters: tuple[Seen, ...] = ()) -> None:
        """Tells all brokers of shapes that are used here, and of a cluster."""
        shapes = list(dict.fromkeys(shapes))
        self.learn(shapes)
        body = _encode(Announcement(tuple(shapes), clusters))
        if not (shapes or clusters) or not self._braid.is_in:
            return
        if self._braid.proven is not None:
            self._braid.proven.publish_surely(HOME, body, ANNOUNCE_S, ignore)
        else:
            self._braid.method.publish(HOME, body)

    def on_announcement(self, arrival: Arrival) -> None:
        try:
            told = _decode(arrival.body)
        except msgspec.MsgspecError as error:
            _log.warning("%s announced something that cannot be read: %s", arrival.origin, error)
            return
        self.learn(told.shapes)
        self._learn_clusters(told.clusters)
