"""A broker's place in the braid: what its clients want and publish, brought to the others and back.

Subscriptions become keys in the overlay (`interest`), publications leave through `outbound` to those who want them and
come in through `inbound`. The publish/subscribe method below decides how they travel; this knows only its interface. The
empty topic, which no client can name, has every broker as its subscriber: what concerns all is said there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from braidmq.braid.admission import Admission
from braidmq.braid.catch_up.cursors import SEEN_MANY, Cursors
from braidmq.braid.catch_up.history import History, Sent
from braidmq.braid.catch_up.reconcile import Reconciler
from braidmq.braid.gossip import HOME, Gossip
from braidmq.braid.identity import OWN, BrokerIdentity, identity_of
from braidmq.braid.interest.agreement import Agreement
from braidmq.braid.interest.announcing import InterestAnnouncer
from braidmq.braid.interest.clusters import ROW as CLUSTERS
from braidmq.braid.interest.clusters import Clusters
from braidmq.braid.interest.covering import CoveringFilters
from braidmq.braid.interest.demand import Demand, DemandQuery
from braidmq.braid.interest.scope import PREFIX as SCOPE_PREFIX
from braidmq.braid.interest.scope import Scopes, may_see, scope_of
from braidmq.braid.interest.shapes import Shapes, shape_of
from braidmq.braid.introducers import Introducers
from braidmq.braid.retained.queries import RetainedQueries
from braidmq.braid.retained.replication import RetainedReplication
from braidmq.braid.roaming.directory import Directory
from braidmq.braid.roaming.takeover import MOVED, Takeovers
from braidmq.braid.task_limiter import TaskLimiter
from braidmq.braid.transfer.batch import Batch, BatchItem, item_of, message_of, pack, unpack
from braidmq.braid.transfer.inbound import InboundStreams
from braidmq.braid.transfer.outbound import OutboundTopic, OutboundTopics
from braidmq.broker.admission import Arrived
from braidmq.broker.federation import ANSWERED, RetainedQuery
from braidmq.broker.local_topics import DEMAND_PREFIX, LOCAL_PREFIXES, is_local
from braidmq.broker.message import Message as Publication
from braidmq.broker.message import Reached
from braidmq.host import Address
from braidmq.keys import Role, key_of
from braidmq.mqtt.packets import Publish, Will
from braidmq.mqtt.reasons import Reason
from braidmq.overlay.overlay import Overlay
from braidmq.overlay.ranges.delivery import Outcome
from braidmq.pubsub.method import Method, ProvenMethod, ScopedMethod
from braidmq.pubsub.method import Publication as Arrival

if TYPE_CHECKING:
    from braidmq.braid.transfer.cut_through import CutThrough
    from braidmq.broker.broker import Broker
    from braidmq.broker.session import Session
    from braidmq.broker.shares import Subscribed

FOUND_AFTER_S = 5.0
"""How long a broker looks for the others before it begins a braid of its own; two braids that meet become one."""

PROOF_S = 30.0
"""How long a publication of QoS 1 or 2 is repeated to those who have not answered for it."""

REFRESH_S = 300.0
"""How often a broker announces its shapes again, and forgets topics that nobody publishes any more."""

COMPARE_S = 10.0
"""How often a broker compares what it knows with another: shapes, and how far histories have come."""

AWAY_SLACK_S = 30.0
"""How far clocks may differ when a broker that was away asks for what it has missed."""

SAVE_S = 1.0
"""How often cursors are written if nothing else is."""

POLL_S = 0.02

SEEDS_ASKED_MAX = 16
"""Configured brokers that are asked at a time when this one enters."""


_log = logging.getLogger("braidmq.braid")


class Braid:
    """Made for a broker; `enter` joins it to the others."""

    def __init__(
        self,
        broker: Broker,
        overlay: Overlay,
        method: Method,
        name: str,
        incarnation: int,
        introducers: Introducers,
        cluster: str = "",
        own: BrokerIdentity | None = None,
    ) -> None:
        """`own` is who this broker is; if it is not given, that is found out here."""
        self.broker = broker
        self.overlay = overlay
        self.host = host = overlay.host
        self.method = method
        self.proven = method if isinstance(method, ProvenMethod) else None
        """The method, if it can prove who has a publication."""
        self.scoped = method if isinstance(method, ScopedMethod) else None
        """The method, if it can keep a publication inside a cluster."""
        self.clusters = Clusters(cluster, broker.store, broker.saved_cursors)
        self.scopes = Scopes(self.clusters, self.scoped is not None)
        self.name = name
        self.introducers = introducers
        self.home = key_of(HOME, Role.PUBLISHER, "", name)
        """The key by which this broker stands in the overlay whatever it wants and publishes."""
        self.shapes = Shapes()
        self.interest = CoveringFilters()
        own = own or identity_of(broker, host.chance, name)
        self.identity = self.origin = own.identity
        """Who this broker is, whatever its name and address; it is also the name of its history."""
        self._own = own
        was_before = any(row[0] == OWN for row in broker.saved_cursors)
        self.since = own.alive_at - AWAY_SLACK_S if was_before else broker.now()
        """What was published before is not missed by anybody here."""
        self.admission = Admission(self)
        saved = [msgspec.msgpack.decode(row, type=Sent) for row in broker.saved_history]
        self.history = History(broker.store, saved)
        self.cursors = Cursors(
            broker.store,
            [row for row in broker.saved_cursors if row[0] not in (OWN, CLUSTERS) and not row[0].startswith(MOVED)],
        )
        self._limiter = TaskLimiter(host)
        self.outbound = OutboundTopics(self.origin, incarnation, self.shapes, host, self.history, self._limiter)
        self.outbound.advertise = self._advertise
        self.outbound.withdraw = method.withdraw
        self.outbound.on_touched = broker.ring
        self.outbound.on_open = broker.router.forget
        self.inbound = InboundStreams(host, self._deliver, self._on_gap, self.cursors.is_next, cluster)
        self.reconciler = Reconciler(
            host,
            self.origin,
            self.history,
            self.cursors,
            self.interest,
            self.inbound.take_fetched,
            self.inbound.settle,
            self.inbound.is_holding,
            cluster,
            introducers.has_parted,
        )
        self.replication = RetainedReplication(broker, host, method, name)
        self.replication.send_late = self._send_late
        self.retained_queries = RetainedQueries(broker, host, self.replication, name)
        self.demand = Demand(broker, self.outbound)
        self._saved_at = 0.0
        self.cork: Callable[[], bool] = lambda: False
        self.uncork: Callable[[], None] = lambda: None
        """Hold back what the host is to send, so that it leaves in one piece and at once."""
        self.cut_through: CutThrough | None = None
        """The short way for publications that come alone, where links are real."""
        self.arrivals = 0
        self.last_batch: Batch | None = None
        """How many batches have arrived, own ones included, and the last of them."""
        self.is_in = False
        self.is_leaving = False
        """Whether this broker is about to end: what it stands for then is left in good order by `leave`."""
        self.unproven = 0
        """Publications of QoS 1 or 2 of which no proof came in time."""
        self.gossip = Gossip(self)
        self.agreement = Agreement(self)
        self.announcer = InterestAnnouncer(self, self._limiter)
        method.on_message = self._on_message
        method.on_demand = self.outbound.set_demand
        if isinstance(method, ProvenMethod):
            method.on_question = self._on_question
        self.directory = Directory(overlay, name, broker.now, self.identity)
        self.takeovers = Takeovers(self, self.directory)
        broker.federate(self)
        for topic_filter in broker.router.filters():
            self.demand.on_filter(topic_filter, True)
            if not topic_filter.startswith(LOCAL_PREFIXES):
                self.interest.add(topic_filter, 0.0)

    # Entering

    async def enter(self) -> None:
        """Joins the braid that an introducer is in, or begins one; then stands for what clients here want.

        Who is refused by a braid does not begin another: its clients would be alone, and nobody would notice.
        """
        began_at = self.host.now()
        pause_s = 0.1
        told = ""
        while not await self._find_introducer():
            refusal = self.admission.refusal
            if refusal and refusal != told:
                told = refusal
                _log.error("%s is not let into the braid, and goes on trying: %s", self.name, refusal)
            if not self.introducers.seeds or (self.host.now() - began_at > FOUND_AFTER_S and not refusal):
                break
            await self.host.sleep(pause_s * self.host.chance.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, 2.0)
        if self.introducers() is None:
            self.overlay.found(self.home)
        else:
            await self.overlay.join(self.home)
        await self.method.subscribe(HOME)
        await self.method.advertise(HOME)
        self.is_in = True
        self.introducers.may_be_used = True
        await self.gossip.compare()
        await self.directory.enter()
        await self.takeovers.displaced.enter()
        self.gossip.announce(
            [shape for one in self.interest.filters if (shape := shape_of(one))],
            clusters=self.clusters.own_seen(self.broker.now()),
        )
        self.announcer.update()
        self.replication.enter()
        self.reconciler.ask_everybody()
        self.host.spawn(self._keep_comparing())
        self.host.spawn(self._keep_refreshing())

    async def _advertise(self, topic_filter: str) -> None:
        """Not before this broker is in the braid: the first key of a broker that knows nobody begins a ring."""
        while not self.is_in:
            await self.host.sleep(POLL_S)
        await self.method.advertise(topic_filter)

    async def _find_introducer(self) -> bool:
        """Asks all that were configured at once: most of them may be down."""
        found: list[Address] = []

        async def ask(seed: Address) -> None:
            if await self.gossip.compare_with(seed):
                found.append(seed)

        seeds = [seed for seed in self.introducers.seeds if seed != self.host.address]
        self.host.chance.shuffle(seeds)
        await self._do_all([ask(seed) for seed in seeds[:SEEDS_ASKED_MAX]], lambda: bool(found))
        self.introducers.may_be_used = self.introducers.may_be_used or bool(found)
        return bool(found)

    async def leave(self) -> None:
        """Leaves in good order: neighbours are told, and nobody waits for this broker.

        Of the topics in the order of keys every second one goes at a time: of two keys side by side that leave at the
        same time, one refuses the other, and both try again.
        """
        self.is_in = False
        self.is_leaving = True
        published = dict.fromkeys((*self.outbound.filters, HOME))
        wanted = dict.fromkeys((*self.announcer.filters, *self.replication.leave(), HOME))
        topics = sorted({**published, **wanted})

        async def end(topic: str) -> None:
            if topic in published:  # first: or it would have to stand as a publisher when it subscribes no longer
                await self.method.withdraw(topic)
            if topic in wanted:
                await self.method.unsubscribe(topic)

        while topics:
            await self._do_all([end(topic) for topic in topics[::2]])
            topics = topics[1::2]
        await self.directory.leave()
        await self.overlay.leave(self.home)

    async def _do_all(
        self, procedures: list[Coroutine[Any, Any, None]], is_enough: Callable[[], bool] = lambda: False
    ) -> None:
        """Runs procedures beside each other; returns when all are through, or it is enough."""
        under_way = dict.fromkeys(range(len(procedures)))

        async def run(number: int, procedure: Coroutine[Any, Any, None]) -> None:
            await procedure
            del under_way[number]

        for number, procedure in enumerate(procedures):
            self.host.spawn(run(number, procedure))
        while under_way and not is_enough():
            await self.host.sleep(POLL_S)

    # From time to time

    async def _keep_comparing(self) -> None:
        while self.is_in:
            await self.host.sleep(self.host.chance.uniform(0.5, 1.0) * COMPARE_S)
            await self.gossip.compare()
            self.reconciler.ask_regularly()
            self.history.trim(self.broker.now())
            self._own = msgspec.structs.replace(self._own, alive_at=self.broker.now())
            self.broker.store.save_cursor(OWN, msgspec.msgpack.encode(self._own))
            self.broker.ring()

    async def _keep_refreshing(self) -> None:
        while self.is_in:
            await self.host.sleep(self.host.chance.uniform(0.8, 1.0) * REFRESH_S)
            self.gossip.announce([shape for one in self.interest.filters if (shape := shape_of(one))])
            self.shapes.expire(self.host.now())
            self.outbound.sweep()

    # What clients here want

    def on_filter(self, topic_filter: str, wanted: bool) -> None:
        """A filter has its first subscription here, or has lost its last."""
        if self.is_leaving:
            return
        self.demand.on_filter(topic_filter, wanted)
        if topic_filter.startswith(LOCAL_PREFIXES):
            return
        if wanted:
            self.interest.add(topic_filter, self.broker.now())
        else:
            self.interest.discard(topic_filter)
        if self.is_in:
            self.announcer.update()

    def on_processed(self, topic_filter: str, wanted: bool) -> None:
        self.demand.on_filter(topic_filter, wanted)

    def when_effective(self, filters: list[str], done: Callable[[], None]) -> None:
        awaited = [one for one in filters if self.announcer.is_awaited(one)]
        if awaited:
            self.announcer.when_effective(awaited, done)
        else:
            done()

    def refusal_of(self, topic_filter: str) -> Reason | None:
        if topic_filter.startswith(SCOPE_PREFIX):  # nothing is published under such a topic
            return Reason.TOPIC_FILTER_INVALID
        if topic_filter.startswith(DEMAND_PREFIX) and not self.demand.has_room(topic_filter):
            return Reason.QUOTA_EXCEEDED
        return None

    def query_retained(self, session: Session, topic_filter: str, subscribed: Subscribed) -> RetainedQuery | None:
        if topic_filter.startswith(DEMAND_PREFIX):
            return DemandQuery(self.demand, session, topic_filter, subscribed)
        if not self.replication.is_on or is_local(topic_filter):
            return None
        return self.retained_queries.begin(session, topic_filter) or ANSWERED

    def admit(self, client_id: str, user: str, clean_start: bool, done: Callable[[Arrived], bool]) -> None:
        self.takeovers.arrive(client_id, user, clean_start, done)

    # Publications

    def resolve_scope(self, packet: Publish | Will) -> None:
        self.scopes.settle(packet)

    def outbound_for(self, topic: str) -> OutboundTopic | None:
        return self.outbound.open_for(topic)

    @property
    def keeps_tombstones(self) -> bool:
        return self.replication.is_on

    @property
    def is_demand_told(self) -> bool:
        return not self.outbound.is_resting

    def on_demand_late(self) -> None:
        self.outbound.rest()

    def send(self, message: Publication, is_new: bool) -> Reached:
        """Takes a publication of a client here for the others; whether anybody there wants it, as far as is known."""
        reached = self._send(message)
        if message.retain:
            self.replication.on_retained(message, is_new, bool(reached))
        return reached

    def _send(self, message: Publication) -> Reached:
        if message.topic.startswith(LOCAL_PREFIXES):
            return Reached.NOBODY
        scope = scope_of(message.forward) if message.forward else None
        if scope is not None and self.scoped is None:
            return Reached.NOBODY
        outbound_topic = self.outbound.for_publication(message.topic)
        now = self.broker.now()
        is_open = outbound_topic.is_open
        if is_open or (message.qos and outbound_topic.was_recently_wanted(self.host.now())):
            outbound_topic.add_item(item_of(message, now), now, scope)
            if message.qos:
                self.takeovers.marks.set(message, (self.origin, self.history.head))
        if (
            is_open and not outbound_topic.is_known and self.is_in and self.proven is not None
        ):  # who cannot prove cannot tell
            return Reached.UNKNOWN
        return Reached.SOMEBODY if self._is_wanted(outbound_topic, scope) else Reached.NOBODY

    def when_known(self, message: Publication, action: Callable[[bool], None]) -> None:
        """Calls when it is known whether anybody elsewhere wants a publication that was just sent."""
        outbound_topic = self.outbound.for_publication(message.topic)
        scope = scope_of(message.forward) if message.forward else None
        outbound_topic.when_known(lambda: action(self._is_wanted(outbound_topic, scope)))

    def _is_wanted(self, outbound_topic: OutboundTopic, scope: str | None) -> bool:
        return outbound_topic.is_open and (scope is None or self._may_be_wanted(outbound_topic, scope))

    def _may_be_wanted(self, outbound_topic: OutboundTopic, scope: str) -> bool:
        """Whether somebody in a cluster may want a topic that somebody anywhere may want."""
        known = self.scoped if outbound_topic.is_settled else None
        return known is None or any(known.may_be_wanted(one, scope) for one in list(outbound_topic.wanted))

    def is_for_here(self, message: Publication) -> bool:
        """Whether clients of this broker may get a publication: it is for all, or for a cluster that this one is in."""
        return may_see(self.clusters.own, message.forward)

    def _send_late(self, message: Publication) -> None:
        """What nobody elsewhere wanted when it was published leaves now, if somebody does."""
        outbound_topic = self.outbound.get(message.topic)
        if outbound_topic is not None and outbound_topic.is_open:
            self._send(message)

    def is_offered(self, topic: str) -> bool:
        return topic in self.outbound or topic.startswith(LOCAL_PREFIXES)

    @property
    def has_output(self) -> bool:
        return self.outbound.has_ready

    def begin_leaving(self) -> None:
        self.is_leaving = True

    def before_commit(self) -> None:
        """Writes how far others' histories were followed, with what came of them."""
        self.takeovers.save_marks()
        if self.cursors.is_changed and (self.broker.store.dirty or self.broker.now() - self._saved_at > SAVE_S):
            self._saved_at = self.broker.now()
            self.cursors.save()

    def flush(self) -> None:
        """The end of a tick: what was collected leaves."""
        if not self.broker.store.dirty:
            self.history.written()
        ready = self.outbound.take_ready()
        if not ready:
            return
        is_corked = self.cork()
        for outbound_topic in ready:
            for batch in outbound_topic.batches():
                if self.cut_through is None:
                    self.publish(outbound_topic, batch)
                else:
                    self.cut_through.publish(outbound_topic, batch)
        if is_corked:
            self.uncork()

    def publish(self, outbound_topic: OutboundTopic, batch: Batch) -> None:
        """Gives a batch to the method, for each filter that wants it."""
        body = pack(batch)
        proven = self.proven if any(item.qos for item in batch.items) else None
        scope = scope_of(batch.items[0].forward) if batch.items else None
        for topic_filter in list(outbound_topic.wanted):  # to publish may show that nobody wants it any more
            if scope is not None:
                self._publish_within(topic_filter, body, scope, proven is not None)
            elif proven is not None:
                proven.publish_surely(topic_filter, body, PROOF_S, self._on_outcome)
            else:
                self.method.publish(topic_filter, body)

    def _publish_within(self, topic_filter: str, body: bytes, scope: str, surely: bool) -> None:
        assert self.scoped is not None
        if surely:
            self.scoped.publish_surely(topic_filter, body, PROOF_S, self._on_outcome, scope)
        else:
            self.scoped.publish_within(topic_filter, body, scope)

    def _on_outcome(self, outcome: Outcome) -> None:
        self.unproven += not outcome.complete

    def _on_message(self, arrival: Arrival) -> None:
        if arrival.topic == HOME:
            if arrival.origin != self.host.address:
                self.introducers.meet(arrival.origin)
            self.gossip.on_announcement(arrival)
            return
        try:
            batch = unpack(arrival.body)
        except msgspec.MsgspecError as error:
            _log.warning("%s sent something that is no batch of publications: %s", arrival.origin, error)
            return
        self.arrivals += 1
        self.last_batch = batch
        if batch.origin != self.origin:  # clients here have had it from the broker itself
            if batch.items and batch.items[0].offset:
                self.cursors.of(batch.origin, arrival.origin, self.since)
            self.inbound.take(batch)

    def _on_question(self, topic: str, body: bytes) -> bytes | None:
        return self.agreement.on_question(body) if topic == HOME else self.replication.on_question(topic, body)

    def _on_gap(self, origin: str) -> None:
        cursor = self.cursors.get(origin)
        if cursor is not None:
            self.reconciler.ask_soon(origin, cursor)

    def _deliver(self, batch: Batch) -> None:
        """Gives publications of another broker to the clients here."""
        if batch.run:
            self.broker.inject_run(batch.topic, batch.run, batch.version)
        now = self.broker.now()
        for item in batch.items:
            message = message_of(item, batch.topic, now)
            if self._is_new(batch.origin, item) and not message.expired(now):
                self.takeovers.marks.current = (batch.origin, item.offset) if item.offset else None
                if message.retain:
                    self.replication.heard(message.topic, message.at)
                    self.broker.inject(message, partial(self.retained_queries.without_given, message))
                else:
                    self.broker.inject(message)
        self.takeovers.marks.current = None

    def _is_new(self, origin: str, item: BatchItem) -> bool:
        """Whether a publication has not been handled before, in this incarnation of the broker or an earlier one."""
        cursor = self.cursors.get(origin)
        if not item.offset or cursor is None:
            return True
        is_new = self.cursors.take(origin, cursor, item.offset)
        self.inbound.duplicates += not is_new
        if len(cursor.seen) > SEEN_MANY:
            self.reconciler.ask_soon(origin, cursor)
        return is_new
