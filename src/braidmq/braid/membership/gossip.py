"""What all brokers of a braid know, and how they come to know it: shapes of filters, clusters, how far histories are,
and what each broker says of itself.

A broker says to all what is new with it, and compares what it knows with another now and then: what one of them has
missed, it learns from the other. That is also how a broker that enters finds out whether it has met a braid.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import msgspec

from braidmq.braid.catch_up.heads import Head, HistoryHeads
from braidmq.braid.interest.clusters import Clusters, Seen
from braidmq.braid.interest.shapes import Shape, Shapes
from braidmq.braid.membership.broker_records import BrokerRecord, BrokerRecords
from braidmq.braid.membership.home import HOME
from braidmq.braid.membership.introducers import Introducers
from braidmq.braid.membership.presence import Presence
from braidmq.braid.shares.messages import GroupRecord
from braidmq.broker.broker import Broker
from braidmq.host import Address, Host, Message, Reply, Service, ask, handles
from braidmq.overlay.ranges import OnOutcome, Outcome
from braidmq.pubsub.method import Method, ProvenMethod, ignore
from braidmq.pubsub.method import Publication as Arrival

CALL_TIMEOUT_S = 2.0

ANNOUNCE_S = 30.0
"""How long an announcement is repeated to brokers that have not answered for it."""

NOTHING_MISSING = Outcome((), (), 0.0, {})

_log = logging.getLogger("braidmq.braid")


class Compare(Message, frozen=True, array_like=True, gc=False):
    """What I know; what do you know? Of clusters and of brokers I tell my own, and a digest of all."""

    shapes: tuple[Shape, ...]
    heads: tuple[Head, ...]
    clusters: tuple[Seen, ...] = ()
    digest: bytes = b""
    brokers: tuple[BrokerRecord, ...] = ()
    brokers_digest: bytes = b""


class Compared(Message, frozen=True, array_like=True, gc=False):
    is_in: bool
    shapes: tuple[Shape, ...]
    heads: tuple[Head, ...]
    clusters: tuple[Seen, ...] = ()
    brokers: tuple[BrokerRecord, ...] = ()


class Announcement(msgspec.Struct, frozen=True, array_like=True):
    """Said to all brokers."""

    shapes: tuple[Shape, ...]
    clusters: tuple[Seen, ...] = ()
    brokers: tuple[BrokerRecord, ...] = ()
    groups: tuple[GroupRecord, ...] = ()


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Announcement).decode


class Gossip(Service):
    """One broker's side of it."""

    def __init__(
        self,
        broker: Broker,
        host: Host,
        method: Method,
        presence: Presence,
        introducers: Introducers,
        shapes: Shapes,
        clusters: Clusters,
        heads: HistoryHeads,
        records: BrokerRecords,
    ) -> None:
        self._broker = broker
        self._host = host
        self._method = method
        self._presence = presence
        self._introducers = introducers
        self._shapes = shapes
        self._clusters = clusters
        self._heads = heads
        self._records = records
        self.learn_groups: Callable[[Iterable[GroupRecord]], None]
        """Called with what other brokers say of shared subscriptions."""
        host.serve(self)

    # Comparing

    async def compare(self) -> None:
        """With one that was met, and with one that was configured and may be in a braid that began apart."""
        for other in dict.fromkeys((self._introducers(), self._introducers.stranger)):
            if other is not None:
                await self.compare_with(other)

    async def compare_with(self, address: Address) -> bool:
        """Exchanges what is known with another broker; whether it answered and is in the braid."""
        now = self._broker.now()
        known = Compare(
            tuple(self._shapes),
            self._heads.told(),
            self._clusters.own_seen(now),
            self._clusters.digest(now),
            self._records.own,
            self._records.digest,
        )
        told = await ask(self._host, address, known, Compared, timeout_s=CALL_TIMEOUT_S)
        if told is None:
            self._introducers.miss(address)
            return False
        if told.is_in:
            self._introducers.meet(address)
        self._learn(address, told)
        return told.is_in

    @handles(Compare)
    def on_compare(self, origin: Address, asked: Compare) -> Reply:
        if self._presence.is_in:
            self._introducers.meet(origin)
        clusters = self._clusters.told(self._broker.now(), asked.digest)
        self._records.learn(asked.brokers)
        brokers = self._records.told(asked.brokers_digest)
        answer = Compared(self._presence.is_in, tuple(self._shapes), self._heads.told(), clusters, brokers)
        self._learn(origin, asked)
        return answer

    def _learn(self, teller: Address, told: Compare | Compared) -> None:
        self._shapes.learn(told.shapes, self._host.now())
        self._heads.learn(teller, told.heads)
        self._learn_clusters(told.clusters)
        self._records.learn(told.brokers)

    def _learn_clusters(self, told: tuple[Seen, ...]) -> None:
        self._clusters.learn(told, self._broker.now())
        if self._broker.store.dirty:
            self._broker.request_flush()

    # Announcing

    def announce_broker(self, shapes: list[Shape]) -> None:
        """Tells all brokers, besides shapes, of this one: in which cluster it is, and what it says of itself now."""
        now = self._broker.now()
        self.announce(shapes, self._clusters.own_seen(now), self._records.say(self._host.address, now))

    def announce(
        self, shapes: list[Shape], clusters: tuple[Seen, ...] = (), brokers: tuple[BrokerRecord, ...] = ()
    ) -> None:
        """Tells all brokers of shapes that are used here, of a cluster, and of this broker."""
        shapes = list(dict.fromkeys(shapes))
        self._shapes.learn(shapes, self._host.now())
        body = _encode(Announcement(tuple(shapes), clusters, brokers))
        if not (shapes or clusters or brokers) or not self._presence.is_in:
            return
        if isinstance(self._method, ProvenMethod):
            self._method.publish_surely(HOME, body, ANNOUNCE_S, ignore)
        else:
            self._method.publish(HOME, body)

    def announce_groups(self, groups: tuple[GroupRecord, ...], on_outcome: OnOutcome) -> None:
        """Tells all brokers of groups that have members here, or have them no more."""
        body = _encode(Announcement((), groups=groups))
        if isinstance(self._method, ProvenMethod):
            self._method.publish_surely(HOME, body, ANNOUNCE_S, on_outcome)
        else:
            self._method.publish(HOME, body)
            on_outcome(NOTHING_MISSING)

    def on_announcement(self, arrival: Arrival) -> None:
        if arrival.origin != self._host.address:
            self._introducers.meet(arrival.origin)
        try:
            told = _decode(arrival.body)
        except msgspec.MsgspecError as error:
            _log.warning("%s announced something that cannot be read: %s", arrival.origin, error)
            return
        self._shapes.learn(told.shapes, self._host.now())
        self._learn_clusters(told.clusters)
        self._records.learn(told.brokers)
        self.learn_groups(told.groups)
