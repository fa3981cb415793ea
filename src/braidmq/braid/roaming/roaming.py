"""Sessions that follow their clients from broker to broker: the parts of it, put together."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any

from braidmq.braid.membership.presence import Presence
from braidmq.braid.roaming.clients import ClientRecords
from braidmq.braid.roaming.directory import ClientDirectory
from braidmq.braid.roaming.displaced import DisplacedSessions
from braidmq.braid.roaming.fetching import SessionFetcher
from braidmq.braid.roaming.handover import Handovers
from braidmq.braid.roaming.incoming import IncomingSessions
from braidmq.braid.roaming.marks import Marks, Row
from braidmq.braid.roaming.published_before import PublishedBefore
from braidmq.braid.roaming.pushing import SessionPusher
from braidmq.braid.roaming.reaching import BrokerReach
from braidmq.braid.roaming.searching import SessionSearch
from braidmq.braid.roaming.takeover import Takeovers
from braidmq.braid.roaming.taking import SessionTaker
from braidmq.braid.transfer.predecessors import Predecessors
from braidmq.broker.broker import Broker
from braidmq.host import Host
from braidmq.overlay import Overlay


class RoamingParts:
    def __init__(
        self,
        broker: Broker,
        host: Host,
        overlay: Overlay,
        presence: Presence,
        name: str,
        identity: str,
        cluster: str,
        followed: Callable[[], Iterable[Row]],
        until_effective: Callable[[list[str], float], Coroutine[Any, Any, None]],
        predecessors: Predecessors,
        published_before: PublishedBefore,
    ) -> None:
        """`followed` says how far histories were followed here; `until_effective` waits until filters have taken effect
        in the whole braid, but not longer than so long."""
        self.published_before = published_before
        self.marks = Marks()
        self._entered = host.event()
        self.directory = ClientDirectory(overlay, name, broker.now, identity)
        self.clients = clients = ClientRecords()
        clients.epochs.restore(broker)
        self.round_trips = self.directory.round_trips
        self.reach = BrokerReach(host, self.round_trips)
        self.search = SessionSearch(broker, host, identity, clients, self.round_trips, self.reach)
        self.handovers = Handovers(broker, host, identity, clients, self.marks, followed, predecessors)
        self.search.gone_to = self.handovers.gone_to
        fetcher = SessionFetcher(broker, host, identity, cluster, clients, self.handovers, self.round_trips)
        self.displaced = DisplacedSessions(
            broker, host, presence, identity, clients, self.directory, self.handovers, fetcher
        )
        self.displaced.search = search = partial(self.search.search, own_epoch=0)
        self.incoming = IncomingSessions(
            broker, host, clients, self.marks, self.handovers, fetcher, until_effective, predecessors
        )
        self.takeovers = Takeovers(
            broker,
            host,
            identity,
            clients,
            self.directory,
            self.handovers,
            self.displaced,
            fetcher,
            self.incoming,
            self.search,
            self.reach,
            self._entered,
        )
        self.taker = SessionTaker(broker, host, presence, clients, self.directory, fetcher, self.incoming)
        self.pusher = SessionPusher(broker, host, identity, clients, self.directory, self.handovers)
        self.pusher.search = self.taker.search = search
        self.pusher.set_aside_later = self.displaced.set_aside_later

    async def enter(self) -> None:
        await self.directory.enter()
        await self.displaced.enter()
        self._entered.set()

    async def leave(self) -> None:
        await self.directory.registrar.leave()
