"""A broker's part in its braid: what its clients want and publish, brought to the other brokers and back.

Subscriptions become keys in the overlay (`interest`); publications leave as outbound topics to the brokers that want
them, and come in as inbound streams (`transfer`). What a broker missed it fetches (`catch_up`); retained messages are
found wherever they are kept (`retained`); sessions follow their clients (`roaming`); other brokers hold copies of the
store (`mirrors`). The publish/subscribe method below
decides how publications travel; this knows only its interface.

Here the parts are made, and joined in one place (`_join`). What the core asks of them comes by `federation`.
"""

from __future__ import annotations

from functools import partial

from braidmq.braid.catch_up.catch_up import CatchUpParts
from braidmq.braid.catch_up.history import History
from braidmq.braid.federation import BraidFederation
from braidmq.braid.identity import BrokerIdentity, identity_of, missed_since
from braidmq.braid.inspect.group_survey import GroupSurvey
from braidmq.braid.inspect.probes import Probes
from braidmq.braid.inspect.status import BraidInspector
from braidmq.braid.interest.demand import DemandTopics
from braidmq.braid.interest.interest import InterestParts
from braidmq.braid.interest.scope import is_confined
from braidmq.braid.interest.shapes import Shapes
from braidmq.braid.membership.home import HOME
from braidmq.braid.membership.introducers import Introducers
from braidmq.braid.membership.membership import MembershipParts
from braidmq.braid.membership.presence import Presence
from braidmq.braid.mirrors.adopting import Adoptions
from braidmq.braid.mirrors.broker_copy import BrokerCopies
from braidmq.braid.mirrors.gone_histories import GoneHistories
from braidmq.braid.mirrors.mirrors import MirrorParts
from braidmq.braid.mirrors.settings import CopySettings
from braidmq.braid.mirrors.unconfirmed_tail import UnconfirmedTail
from braidmq.braid.retained.retained import RetainedParts
from braidmq.braid.roaming.client_homes import ClientHomes
from braidmq.braid.roaming.drain import Drain
from braidmq.braid.roaming.published_before import PublishedBefore
from braidmq.braid.roaming.roaming import RoamingParts
from braidmq.braid.roaming.sending_away import SendingAway
from braidmq.braid.roaming.takers import Takers
from braidmq.braid.selection.selection import SelectionParts
from braidmq.braid.shares.shares import ShareParts
from braidmq.braid.task_limiter import TaskLimiter
from braidmq.braid.transfer.inbound import InboundStreams
from braidmq.braid.transfer.outbound import OutboundTopics
from braidmq.braid.transfer.shaped_topics import ShapedTopics
from braidmq.braid.transfer.transfer import TransferParts
from braidmq.braid.transfer.wildcard_topics import WildcardTopics
from braidmq.broker.broker import Broker
from braidmq.detours.detours import Detours
from braidmq.host import Address, Host
from braidmq.overlay import Overlay
from braidmq.pubsub.method import Method, ProvenMethod, Publication, WildcardMethod


class Braid:
    """Made for a broker; `enter` joins it to the other brokers."""

    def __init__(
        self,
        broker: Broker,
        overlay: Overlay,
        method: Method,
        name: str,
        incarnation: int,
        introducers: Introducers,
        cluster: str = "",
        identity: BrokerIdentity | None = None,
        method_name: str = "",
        copying: CopySettings | None = None,
    ) -> None:
        """`identity` says which broker this is; if it is not given, that is found out here."""
        since = missed_since(broker)
        identity = identity or identity_of(broker, overlay.host.chance, name)
        origin = identity.identity
        host, presence, limiter = overlay.host, Presence(overlay.host), TaskLimiter(overlay.host)
        inbound = InboundStreams(host, cluster)
        interest = InterestParts(broker, host, overlay, method, presence, limiter, cluster)
        catch_up = CatchUpParts(broker, host, origin, since, introducers, interest.filters, inbound, cluster, method)
        retained = RetainedParts(broker, host, method, name)
        outbound = _outbound_topics(origin, incarnation, method, host, catch_up.history, interest.shapes, limiter)
        predecessors = outbound.queue.predecessors
        roaming = RoamingParts(
            broker,
            host,
            overlay,
            presence,
            name,
            origin,
            cluster,
            catch_up.heads.followed,
            interest.announcer.waits.until_effective,
            predecessors,
            PublishedBefore(host, predecessors, inbound.predecessors, interest.filters),
        )
        transfer = TransferParts(
            broker, host, method, presence, origin, since, inbound, outbound, catch_up, retained, roaming.marks
        )
        membership = MembershipParts(
            broker, host, overlay, method, presence, introducers, name, identity, interest, catch_up, outbound
        )
        self.broker, self.host, self.overlay, self.method = broker, host, overlay, method
        self.detours = Detours(host)
        host.ways.is_confined = is_confined
        self.name = name
        self._introducers = introducers
        self.identity = origin
        """Which broker this is, whatever its name and address; it is also the name of its history."""
        self.presence, self.membership, self.interest = presence, membership, interest
        self.mirrors = MirrorParts(broker, overlay, presence, introducers, origin, copying or CopySettings(copies=1))
        self.demand = DemandTopics(broker, outbound)
        self.shares = ShareParts(broker, host, presence, origin, cluster)
        self.transfer, self.catch_up, self.retained, self.roaming = transfer, catch_up, retained, roaming
        self.tail = self._new_tail()
        self.selection = SelectionParts(
            broker,
            overlay,
            presence,
            membership.records,
            self.shares.records,
            name,
            cluster,
            origin,
            predecessors,
            inbound.predecessors,
        )
        self.sending = SendingAway(broker, host, roaming.pusher)
        self.drain = self._new_drain(Takers(host, membership.records, introducers, cluster))
        self.homes = ClientHomes(broker, membership.records, self.sending)
        self.probes = Probes(host, method, name, cluster, broker.now)
        self.status = self._new_status(method_name)
        self.adoptions = self.act_for(self.mirrors.held)
        self._join()
        self._stand_for_earlier_sessions()
        self.selection.start()

    def _stand_for_earlier_sessions(self) -> None:
        for topic_filter in self.broker.router.filters():
            self.demand.on_filter(topic_filter, True)
        self.shares.begin()

    def _new_tail(self) -> UnconfirmedTail:
        last = [] if self.mirrors.own is None else list(self.mirrors.own.set.mirrors)
        epochs = self.roaming.clients.epochs
        return UnconfirmedTail(self.broker, self.host, self.identity, self.catch_up.history, epochs, last)

    def _new_status(self, method_name: str) -> BraidInspector:
        return BraidInspector(
            self.overlay,
            self.method,
            method_name,
            self.name,
            self.identity,
            self.presence,
            self.interest,
            self.catch_up,
            self.transfer,
            self.membership,
            self.probes,
            self.detours,
            self.mirrors,
            GroupSurvey(self.broker, self.host, self.shares, self.membership.records, self.name),
        )

    def _new_drain(self, takers: Takers) -> Drain:
        clients, handovers = self.roaming.clients, self.roaming.handovers
        records, retained = self.membership.records, self.retained.handover
        return Drain(self.broker, self.host, clients, handovers, self.sending, takers, records, retained)

    def _join(self) -> None:
        """All callbacks from one part to another, to the method below and to the core above."""
        outbound, inbound = self.transfer.outbound, self.transfer.inbound
        outbound.advertise = self.membership.entering.advertise
        outbound.withdraw = self.method.withdraw
        outbound.queue.on_touched = self.broker.tick.request_flush
        outbound.on_open = self.broker.router.forget
        outbound.on_demand = self.demand.on_change
        inbound.is_next = self.catch_up.cursors.is_next
        inbound.deliver = self.transfer.receiver.deliver
        self.roaming.directory.mirrors = self.mirrors.addresses
        inbound.on_gap = self.transfer.receiver.on_gap
        inbound.predecessors.is_handled = self.transfer.receiver.is_handled
        inbound.predecessors.on_missing = self.transfer.receiver.on_missing
        self.roaming.incoming.until_left = outbound.until_left
        self.roaming.incoming.reached = self.catch_up.heads.reached
        self.roaming.incoming.proofs.fetcher = self.catch_up.missed_fetcher
        self.roaming.incoming.proofs.is_effective = self.interest.announcer.waits.is_effective
        self.catch_up.missed_fetcher.round_trips = self.roaming.round_trips
        self.catch_up.missed_fetcher.address_of = self.membership.records.address_of
        introducers = self.membership.introducers
        self.roaming.search.others = self.roaming.reach.others = self._others
        self.roaming.search.is_unreached = self.detours.is_unreached
        self.roaming.takeovers.has_others = lambda: bool(introducers.known)
        self.roaming.reach.go_round = self.detours.go_round
        self.roaming.reach.try_directly = self.detours.try_directly
        self.roaming.taker.is_draining = lambda: self.drain.is_on
        if self.mirrors.own is not None:
            self.mirrors.own.standstill.on_taken_up = self.roaming.displaced.on_taken_up
        self.mirrors.held.taken_up = self.adoptions.taken_up
        self.catch_up.reconciler.is_known = lambda: self.tail.known.is_set
        self.roaming.takeovers.tail_known = self.tail.known
        self.drain.announce = self.announce
        self.drain.register = self.roaming.displaced.register
        self.drain.leave_queues = self.shares.adoption.give_away
        self.drain.leave_history = self._leave_history
        self.drain.ask_for_missed = self.catch_up.reconciler.ask_all_once
        self.retained.replication.send_late = self.transfer.sender.send_late
        self._join_shares()
        self._join_instances()
        self.method.on_message = self._on_message
        if isinstance(outbound, ShapedTopics):
            self.interest.shapes.on_new = outbound.learn_shape
            self.interest.agreement.is_taking_up = outbound.is_taking_up
            self.method.on_demand = outbound.set_demand
        if isinstance(self.method, ProvenMethod):
            self.method.on_question = self._on_question
        if isinstance(self.method, WildcardMethod) and isinstance(outbound, WildcardTopics):
            outbound.on_changed = self._on_wants
            self.method.on_wants = outbound.on_wants
            self.detours.on_reached = self.method.on_reached
        self.broker.federate(self._federation())

    def _on_wants(self, topic_filter: str) -> None:
        """Other brokers want something else than before."""
        self.demand.on_wants(topic_filter)
        self.broker.on_wants(topic_filter)

    def _join_shares(self) -> None:
        announcer, gossip = self.shares.announcer, self.membership.gossip
        announcer.announce = gossip.announce_groups
        announcer.on_changed = self.demand.on_wants
        announcer.partners = self._partners
        gossip.learn_groups = self.shares.records.learn
        self.shares.checks.others = self._others
        self.selection.instances.on_load = self.shares.on_load
        directory = self.roaming.directory
        self.shares.adoption.claim, self.shares.adoption.name = directory.claim, directory.name

    def _join_instances(self) -> None:
        """Instances of components go with the sessions of their clients."""
        handovers, holds = self.roaming.handovers, self.selection.holds
        handovers.pack_instances = holds.pack
        self.roaming.incoming.unpack_instances = holds.unpack

        def gone_to(client_id: str) -> Address | None:
            holder = handovers.gone_to(client_id)
            return None if holder is None else holder.address

        self.selection.gone_to = gone_to

    def _partners(self) -> list[Address]:
        """With whom it is compared what all brokers know: one that was met, and one that may have begun apart."""
        introducers = self.membership.introducers
        return [one for one in dict.fromkeys((introducers(), introducers.stranger)) if one is not None]

    def _federation(self) -> BraidFederation:
        cursors = self.catch_up.cursors
        return BraidFederation(
            self.broker,
            self.presence,
            self.interest,
            self.demand,
            cursors,
            self.transfer,
            self.retained,
            self.roaming,
            self.drain,
            self.homes,
            self.shares,
            self.selection,
        )

    def act_for(self, copies: BrokerCopies) -> Adoptions:
        """Has this broker act for those that are gone and of which it has these copies."""
        roaming = self.roaming
        adoptions = Adoptions(
            self.broker,
            self.host,
            copies,
            roaming.clients,
            roaming.directory,
            roaming.incoming,
            self.retained.replication,
            self.catch_up.missed_fetcher,
            roaming.reach,
        )
        roaming.handovers.adopt = adoptions.begin
        roaming.takeovers.adopt_here = adoptions.adopt_here
        roaming.search.copies = adoptions.copies_of
        adoptions.adopt_queues = self.shares.adoption.adopt
        adoptions.search = partial(roaming.search.search, own_epoch=0)
        histories = self.gone_histories = GoneHistories(self.host, copies, roaming.reach, self._others)
        left = self.catch_up.left
        self.catch_up.heads.gone = lambda: [*left.heads(), *histories.heads()]
        self.catch_up.reconciler.gone = lambda origin: histories.get(origin) or left.get(origin)
        return adoptions

    def _others(self) -> list[Address]:
        """The other brokers, as far as they are known and have not said good-bye."""
        introducers = self.membership.introducers
        known = dict.fromkeys((*introducers.known, *[one.address for one in self.membership.records]))
        return [one for one in known if not introducers.has_parted(one)]

    # What the method brings

    def _on_message(self, arrival: Publication) -> None:
        """Something for all brokers, a probe, or publications; how far these came is counted."""
        if arrival.topic == HOME:
            self.membership.gossip.on_announcement(arrival)
        elif not self.probes.is_probe(arrival):
            if arrival.origin != self.host.address:
                self.transfer.hops.add(arrival.hops)
            self.transfer.receiver.receive(arrival)

    def _on_question(self, topic: str, body: bytes) -> bytes | None:
        if self.status.subscribers.is_question(body):
            return self.status.subscribers.on_question(body)
        if topic == HOME:
            return self.interest.agreement.on_question(body)
        return self.retained.replication.on_question(topic, body)

    # Coming and going

    def announce(self) -> None:
        """Tells all brokers what this one says of itself, and what it uses."""
        self.membership.gossip.announce_broker(self.interest.own_shapes)

    async def enter(self) -> None:
        """Joins the braid, or begins one; then stands for what clients here want."""
        self.detours.start()
        self.host.spawn(self.tail.find_out())
        await self.membership.entering.enter()
        await self.tail.known.wait()
        await self.roaming.enter()
        self.announce()
        self.shares.enter()
        self.interest.announcer.enter()
        self.retained.replication.enter()
        self.catch_up.reconciler.ask_everybody()
        self.membership.upkeep.start()
        self.mirrors.start()
        self.adoptions.start()
        self.gone_histories.start()
        self.host.spawn(self.roaming.round_trips.keep_measuring(self._others))

    def on_parted(self, address: Address) -> None:
        """Another broker has ended, or is elsewhere: nobody looks for it, or asks it anything, at this address."""
        self.membership.admission.on_parted(address)
        self.roaming.directory.ranges.part(address)
        self.shares.lender.on_parted(address)

    async def _leave_history(self, takers: list[Address], ends_at: float) -> None:
        """Before this broker leaves: its history can be followed to the end then, too."""
        if not self.mirrors.addresses():
            records = [one.address for one in self.membership.records]
            known = [*records, *(cursor.address for _, cursor in self.catch_up.cursors)]
            await self.catch_up.left.leave(known, takers, self._introducers.has_parted, ends_at)

    async def leave(self) -> None:
        """Leaves in good order: neighbours are told, and nobody waits for this broker."""
        self.shares.announcer.leave()
        self.presence.leave()
        wanted = (*self.interest.announcer.filters, *self.retained.replication.leave())
        await self.selection.leave()
        await self.membership.entering.leave(self.transfer.outbound.filters, wanted)
        await self.roaming.leave()
        await self.membership.entering.leave_overlay()


def _outbound_topics(
    origin: str,
    incarnation: int,
    method: Method,
    host: Host,
    history: History,
    shapes: Shapes,
    limiter: TaskLimiter,
) -> OutboundTopics:
    if isinstance(method, WildcardMethod):
        return WildcardTopics(origin, incarnation, method, host, history)
    return ShapedTopics(origin, incarnation, shapes, host, history, limiter)
