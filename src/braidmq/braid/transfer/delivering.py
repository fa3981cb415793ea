"""The way of a publication of another broker to the clients here."""

from __future__ import annotations

import logging
from functools import partial

import msgspec

from braidmq.braid.catch_up.cursors import SEEN_MANY, Cursors
from braidmq.braid.catch_up.reconcile import Reconciler
from braidmq.braid.retained.queries import RetainedQueries
from braidmq.braid.retained.replication import RetainedReplication
from braidmq.braid.roaming.marks import Marks
from braidmq.braid.transfer.batch import BatchItem, KeptRun, Predecessor, PublicationBatch, message_of, unpack
from braidmq.braid.transfer.inbound import InboundStreams
from braidmq.broker.broker import Broker
from braidmq.host import Address
from braidmq.pubsub.method import Publication

_log = logging.getLogger("braidmq.braid")


class PublicationReceiver:
    def __init__(
        self,
        broker: Broker,
        origin: str,
        since: float,
        cursors: Cursors,
        inbound: InboundStreams,
        reconciler: Reconciler,
        marks: Marks,
        replication: RetainedReplication,
        queries: RetainedQueries,
    ) -> None:
        """`origin` names this broker's own history. What was published before `since` is not missed here."""
        self._broker = broker
        self._origin = origin
        self._since = since
        self._cursors = cursors
        self._inbound = inbound
        self._reconciler = reconciler
        self._marks = marks
        self._replication = replication
        self._queries = queries
        self.arrivals = 0
        self.last_batch: PublicationBatch | None = None
        """How many batches have arrived, own ones included, and the last of them."""

    def receive(self, arrival: Publication) -> None:
        """Takes a batch from the method, and passes it on in its turn."""
        try:
            batch = unpack(arrival.body)
        except msgspec.MsgspecError as error:
            _log.warning("%s sent something that is no batch of publications: %s", arrival.origin, error)
            return
        self.arrivals += 1
        self.last_batch = batch
        if batch.origin != self._origin:  # clients here have had it from the broker itself
            if batch.offset:
                self._cursors.of(batch.origin, arrival.origin, self._since)
            self._inbound.receive(batch)

    def on_gap(self, origin: str) -> None:
        """Something of an origin's history may be missing."""
        cursor = self._cursors.get(origin)
        if cursor is not None:
            self._reconciler.ask_soon(origin, cursor)

    def on_missing(self, one: Predecessor) -> None:
        """A publication is waited for that has not come."""
        cursor = self._cursors.of(one.origin, one.at, self._since)
        cursor.head = max(cursor.head, one.offset)
        self._reconciler.ask_soon(one.origin, cursor)

    def is_handled(self, origin: str, offset: int) -> bool:
        """Whether clients here have had a publication, or it is not for them."""
        return origin == self._origin or self._cursors.is_handled(origin, offset)

    def follow(self, origin: str, address: Address, offset: int) -> bool:
        """A publication of QoS 1 came a short way, and is given to the clients here now: notes it; False, and nothing,
        if something of its origin's history is missing before it, or anything may wait for it."""
        cursor = self._cursors.get(origin)
        if cursor is None or cursor.seen or offset != cursor.floor + 1 or self._inbound.predecessors:
            return False
        cursor.address = address
        return self._cursors.mark_run_handled(origin, cursor, offset, 1)

    def deliver(self, batch: PublicationBatch) -> None:
        """Gives publications of another broker to the clients here."""
        self._give(batch)
        if self._inbound.predecessors:
            self._inbound.predecessors.look(batch.origin)

    def _give(self, batch: PublicationBatch) -> None:
        if batch.kept is not None:
            if self._deliver_run(batch, batch.kept):
                return
            batch = batch.with_items()
        elif batch.run:
            self._broker.inject_run(batch.topic, batch.run, batch.version)
        now = self._broker.now()
        follows = None if batch.follows is None else (batch.follows.origin, batch.follows.offset)
        for item in batch.items:
            message = message_of(item, batch.topic, now)
            if self._is_new(batch.origin, item) and not message.expired(now):
                self._marks.current = (batch.origin, item.offset) if item.offset else None
                self._marks.follows = follows if item is batch.items[0] else None
                if message.retain:
                    self._replication.heard(message.topic, message.at)
                    self._broker.inject(message, partial(self._queries.without_given, message))
                else:
                    self._broker.inject(message)
        self._marks.current = self._marks.follows = None

    def _deliver_run(self, batch: PublicationBatch, kept: KeptRun) -> bool:
        """Gives a run of QoS 1 or 2 to the clients here; False if it has to be looked at one by one."""
        cursor = self._cursors.get(batch.origin)
        if cursor is None or not self._broker.takes_run(batch.topic, batch.count):
            return False
        if not self._cursors.mark_run_handled(batch.origin, cursor, kept.offset, batch.count):
            return False
        self._broker.inject_acknowledged_run(batch.acknowledged_run, kept.sender)
        if len(cursor.seen) > SEEN_MANY:
            self._reconciler.ask_soon(batch.origin, cursor)
        return True

    def _is_new(self, origin: str, item: BatchItem) -> bool:
        """Whether a publication has not been handled before, in this incarnation of the broker or an earlier one."""
        cursor = self._cursors.get(origin)
        if not item.offset or cursor is None:
            return True
        is_new = self._cursors.mark_handled(origin, cursor, item.offset)
        self._inbound.duplicates += not is_new
        if len(cursor.seen) > SEEN_MANY:
            self._reconciler.ask_soon(origin, cursor)
        return is_new
