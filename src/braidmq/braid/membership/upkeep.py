"""What a broker of a braid does from time to time: compares, forgets what is old, and says again what it uses."""

from __future__ import annotations

from braidmq.braid.catch_up.history import History
from braidmq.braid.catch_up.reconcile import Reconciler
from braidmq.braid.identity import BrokerIdentity, save_alive
from braidmq.braid.interest.interest import InterestParts
from braidmq.braid.membership.gossip import Gossip
from braidmq.braid.membership.presence import Presence
from braidmq.braid.transfer.outbound import OutboundTopics
from braidmq.broker.broker import Broker
from braidmq.host import Host

COMPARE_S = 10.0
"""How often a broker compares what it knows with another: shapes, and how far histories have come."""

REFRESH_S = 300.0
"""How often a broker announces its shapes again, and forgets topics that nobody publishes any more."""


class Upkeep:
    def __init__(
        self,
        broker: Broker,
        host: Host,
        presence: Presence,
        identity: BrokerIdentity,
        gossip: Gossip,
        reconciler: Reconciler,
        history: History,
        interest: InterestParts,
        outbound: OutboundTopics,
    ) -> None:
        self._broker = broker
        self._host = host
        self._presence = presence
        self._identity = identity
        self._gossip = gossip
        self._reconciler = reconciler
        self._history = history
        self._interest = interest
        self._outbound = outbound

    def start(self) -> None:
        self._host.spawn(self._keep_comparing())
        self._host.spawn(self._keep_refreshing())

    async def _keep_comparing(self) -> None:
        while self._presence.is_in:
            await self._host.sleep(self._host.chance.uniform(0.5, 1.0) * COMPARE_S)
            await self._gossip.compare()
            self._reconciler.ask_regularly()
            self._history.trim(self._broker.now())
            self._identity = save_alive(self._broker, self._identity)

    async def _keep_refreshing(self) -> None:
        while self._presence.is_in:
            await self._host.sleep(self._host.chance.uniform(0.8, 1.0) * REFRESH_S)
            self._gossip.announce(self._interest.own_shapes)
            self._interest.shapes.expire(self._host.now())
            self._outbound.sweep()
