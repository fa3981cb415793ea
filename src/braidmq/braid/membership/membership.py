"""How a broker belongs to its braid: the parts of it, put together."""

from __future__ import annotations

from braidmq.braid.catch_up.catch_up import CatchUpParts
from braidmq.braid.identity import BrokerIdentity
from braidmq.braid.interest.interest import InterestParts
from braidmq.braid.membership.admission import Admission
from braidmq.braid.membership.broker_records import BrokerRecords
from braidmq.braid.membership.entering import Entering
from braidmq.braid.membership.gossip import Gossip
from braidmq.braid.membership.introducers import Introducers
from braidmq.braid.membership.looking_round import LookingRound
from braidmq.braid.membership.presence import Presence
from braidmq.braid.membership.upkeep import Upkeep
from braidmq.braid.transfer.outbound import OutboundTopics
from braidmq.broker.broker import Broker
from braidmq.host import Host
from braidmq.overlay import Overlay
from braidmq.pubsub.method import Method


class MembershipParts:
    def __init__(
        self,
        broker: Broker,
        host: Host,
        overlay: Overlay,
        method: Method,
        presence: Presence,
        introducers: Introducers,
        name: str,
        identity: BrokerIdentity,
        interest: InterestParts,
        catch_up: CatchUpParts,
        outbound: OutboundTopics,
    ) -> None:
        """`name` is what this broker is called."""
        self.introducers = introducers
        self.records = BrokerRecords(identity.identity, name, interest.clusters.own)
        self.admission = Admission(overlay, presence, introducers, catch_up.cursors, name)
        self.gossip = Gossip(
            broker,
            host,
            method,
            presence,
            introducers,
            interest.shapes,
            interest.clusters,
            catch_up.heads,
            self.records,
        )
        looking_round = LookingRound(host, overlay, introducers, self.records)
        self.entering = Entering(
            host, overlay, method, presence, introducers, self.admission, self.gossip, looking_round, name
        )
        self.upkeep = Upkeep(
            broker,
            host,
            presence,
            identity,
            self.gossip,
            catch_up.reconciler,
            catch_up.history,
            interest,
            outbound,
        )
