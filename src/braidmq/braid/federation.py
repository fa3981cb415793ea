"""The one door between the core of a broker and its braid: what `broker.federation.Federation` asks for."""

from __future__ import annotations

from collections.abc import Callable

from braidmq.braid.catch_up.cursors import Cursors
from braidmq.braid.interest.demand import DemandQuery, DemandTopics
from braidmq.braid.interest.interest import InterestParts
from braidmq.braid.interest.scope import PREFIX as SCOPE_PREFIX
from braidmq.braid.interest.scope import may_see
from braidmq.braid.membership.presence import Presence
from braidmq.braid.retained.retained import RetainedParts
from braidmq.braid.roaming.client_homes import ClientHomes
from braidmq.braid.roaming.drain import Drain
from braidmq.braid.roaming.roaming import RoamingParts
from braidmq.braid.selection.indexing import INDEX_PREFIX
from braidmq.braid.selection.selection import SelectionParts
from braidmq.braid.shares.shares import ShareParts
from braidmq.braid.transfer.outbound_topic import OutboundTopic
from braidmq.braid.transfer.transfer import TransferParts
from braidmq.broker.admission import Arrived
from braidmq.broker.broker import Broker
from braidmq.broker.federation import ANSWERED, RetainedQuery
from braidmq.broker.feed import TopicFeed
from braidmq.broker.local_topics import DEMAND_PREFIX, UNREAD_PREFIXES, is_local
from braidmq.broker.message import Message, Reached
from braidmq.broker.session import Session
from braidmq.broker.shares import ShareGroup
from braidmq.broker.subscription import Subscribed
from braidmq.mqtt.packets import Publish, Will
from braidmq.mqtt.reasons import Reason
from braidmq.mqtt.topics import SHARE_PREFIX

_NEVER_PUBLISHED = (SCOPE_PREFIX, INDEX_PREFIX, *UNREAD_PREFIXES)
"""Nothing comes under a topic that begins so: what clients publish there has another topic, or is for their broker."""


class BraidFederation:
    def __init__(
        self,
        broker: Broker,
        presence: Presence,
        interest: InterestParts,
        demand: DemandTopics,
        cursors: Cursors,
        transfer: TransferParts,
        retained: RetainedParts,
        roaming: RoamingParts,
        drain: Drain,
        homes: ClientHomes,
        shares: ShareParts,
        selection: SelectionParts,
    ) -> None:
        self._broker = broker
        self._presence = presence
        self._interest = interest
        self._demand = demand
        self._cursors = cursors
        self._retained = retained
        self._roaming = roaming
        self._incoming = roaming.incoming
        self._epochs = roaming.clients.epochs
        self._drain = drain
        self.home_reference = homes.redirect
        self._shares = shares
        self._selection = selection
        self._outbound = transfer.outbound
        self._queue = transfer.outbound.queue
        self._sender = transfer.sender
        self.is_for_group = shares.lender.is_for_group
        self.send_to_group = shares.lender.send_unsure
        self.on_waiting = shares.lender.on_waiting
        self.on_free = shares.borrower.on_free
        self.reserve = shares.borrower.reserve
        self.on_group = shares.announcer.on_group

    @property
    def is_in(self) -> bool:
        return self._presence.is_in or (not self._presence.is_leaving and self._roaming.takeovers.awaits_entry)

    @property
    def has_entered(self) -> bool:
        return self._presence.is_in

    # Publications of clients here

    def resolve_scope(self, packet: Publish | Will) -> None:
        self._selection.indexed.resolve(packet)
        self._interest.scopes.resolve(packet)

    def is_for_here(self, message: Message) -> bool:
        """Whether it is for all, or for a cluster that this broker is in."""
        return may_see(self._interest.clusters.own, message.forward)

    def send(self, message: Message, is_new: bool) -> Reached:
        reached = self._sender.send(message)
        if message.retain:
            self._retained.replication.on_retained(message, is_new, bool(reached))
        return reached

    @property
    def is_demand_told(self) -> bool:
        return not self._outbound.is_resting

    def when_known(self, message: Message, action: Callable[[bool], None]) -> None:
        self._sender.when_known(message, action)

    def on_demand_late(self) -> None:
        self._outbound.rest()

    @property
    def keeps_tombstones(self) -> bool:
        return self._retained.replication.is_on

    def request(self, session: Session, packet: Publish) -> tuple[Reason, str]:
        return self._selection.request(session, packet)

    # Routes

    def feed_for(self, topic: str) -> TopicFeed | None:
        indexed = self._selection.indexed
        return indexed if topic[:1] == "$" and topic == indexed.topic else None

    def deliver_by_index(self, message: Message, group: ShareGroup) -> bool:
        return self._selection.indexed.deliver(message, group)

    def outbound_for(self, topic: str) -> OutboundTopic | None:
        return self._outbound.published(topic)

    def on_filter(self, topic_filter: str, wanted: bool) -> None:
        if not self._presence.is_leaving:
            self._demand.on_filter(topic_filter, wanted)
            self._interest.on_filter(topic_filter, wanted)

    def on_processed(self, topic_filter: str, wanted: bool) -> None:
        self._demand.on_filter(topic_filter, wanted)

    # Clients and their subscriptions

    def admit(self, client_id: str, user: str, clean_start: bool, done: Callable[[Arrived], bool]) -> None:
        self._roaming.takeovers.arrive(client_id, user, clean_start, done)

    def when_followed(self, client_id: str, go_on: Callable[[], None]) -> None:
        self._roaming.published_before.when_here(client_id, go_on)

    @property
    def is_draining(self) -> bool:
        return self._drain.sends_away

    def server_reference(self, listener: str) -> str | None:
        return self._drain.server_reference(listener)

    def on_share(self, session: Session) -> None:
        if not self._presence.is_leaving:
            self._selection.on_share(session)

    def on_presence(self, session: Session, is_over: bool = False, moved: bool = False) -> None:
        if not self._presence.is_leaving:
            self._selection.on_presence(session, is_over, moved)

    def refusal_of(self, topic_filter: str) -> Reason | None:
        if topic_filter.startswith(_NEVER_PUBLISHED):
            return Reason.TOPIC_FILTER_INVALID
        if topic_filter.startswith(DEMAND_PREFIX) and not self._demand.has_room(topic_filter):
            return Reason.QUOTA_EXCEEDED
        return None

    def query_retained(self, session: Session, topic_filter: str, subscribed: Subscribed) -> RetainedQuery | None:
        if topic_filter.startswith(DEMAND_PREFIX):
            return DemandQuery(self._demand, session, topic_filter, subscribed)
        if not self._retained.replication.is_on or is_local(topic_filter):
            return None
        return self._retained.queries.begin(session, topic_filter) or ANSWERED

    def when_effective(self, filters: list[str], done: Callable[[], None]) -> None:
        shared = [one for one in filters if one.startswith(SHARE_PREFIX)]
        if not shared:
            self._interest.announcer.waits.when_effective(filters, done)
            return
        plain = [one for one in filters if one not in shared]
        when_effective = self._interest.announcer.waits.when_effective
        self._shares.announcer.waits.when_effective(shared, lambda: when_effective(plain, done))

    # The tick

    @property
    def has_output(self) -> bool:
        return self._queue.has_ready or self._shares.has_output

    def before_commit(self) -> None:
        """Writes how far histories of other brokers were followed, with what came of them."""
        self._shares.before_commit()
        if self._incoming.is_checking:
            self._incoming.save_marks()
        if self._epochs.is_changed:
            self._epochs.save(self._broker, self._roaming.clients.arriving)
        if self._cursors.is_changed:
            self._cursors.save_if_due(self._broker.now())

    def flush(self) -> None:
        self._sender.flush()
        self._shares.flush()

    def take(self) -> Callable[[], None]:
        publications, shares = self._sender.take(), self._shares.take()

        def send() -> None:
            publications()
            shares()

        return send

    def begin_leaving(self) -> None:
        self._presence.is_leaving = True
