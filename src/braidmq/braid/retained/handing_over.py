"""Retained messages of a broker that leaves: other brokers keep them from then on.

    the broker that leaves                    the taker
    TakeRetained, a page ───────────────────▶ keeps what is newer than what it has; stands for it, and tells replicas
                         ◀─────────────────── RetainedTaken: stored, and found by who asks
    drops the page, but what is newer by now

Until then both have it, of the same time, and whoever asks gets it once. Tombstones go the same way, so nothing that
was deleted comes back; and a broker that comes back itself has nothing to bring.
"""

from __future__ import annotations

from collections import deque

from braidmq.braid.membership.broker_records import BrokerRecord
from braidmq.braid.retained.messages import RetainedReplica, RetainedTaken, TakeRetained, message_of, replica_of
from braidmq.braid.retained.replication import ENTRY_BYTES, RetainedReplication
from braidmq.broker.broker import Broker
from braidmq.broker.local_topics import is_local
from braidmq.host import Address, Event, Host, Reply, Service, handles

PAGE_BYTES_MAX = 256 << 10
"""What is given at a time. One message may be larger."""

TAKEN_S = 10.0
"""How long a taker has until it has stored a page, and can be found by who asks for it."""

FOUND_S = 8.0
"""How long a taker waits until it can be found."""

LOOK_S = 0.02
"""How often it looks."""


class RetainedHandover(Service):
    """Both sides: a broker that leaves, and a taker."""

    def __init__(self, broker: Broker, host: Host, replication: RetainedReplication) -> None:
        self._broker = broker
        self._host = host
        self._replication = replication
        self._topics: deque[str] = deque()
        """Those that are still to be looked at in this pass."""
        self._page = 0
        self._taken: tuple[Event, tuple[int, ...]] = (host.event(), ())
        """What the taker of the last page says."""
        self.given = 0
        """Messages, and tombstones, that others keep now."""
        host.serve(self)

    # The broker that leaves

    def begin(self) -> None:
        self._topics.clear()
        self.given = 0
        self._replication.begin_giving()

    def end(self) -> None:
        """This broker stays: what is here still is its own."""
        self._replication.end_giving()

    @property
    def left(self) -> int:
        """Messages and tombstones that are to be given away."""
        return self._broker.retained.shared if self._replication.is_on else 0

    async def give_some(self, taker: BrokerRecord) -> bool:
        """Gives a page to another broker; False if it takes nothing of it."""
        replicas = self._next_page()
        if not replicas:
            return True
        given = self._replication.given = {one.topic: one.at for one in replicas}
        try:
            self._page += 1
            taken = self._host.event()
            self._taken = (taken, ())
            self._host.send(taker.address, TakeRetained(self._page, tuple(replicas)))
            if not await taken.wait(TAKEN_S):
                return False
            refused = self._taken[1]
            for position, (topic, at) in enumerate(given.items()):
                mine = self._broker.retained.get(topic)
                if position not in refused:
                    self.given += 1
                    if mine is not None and mine.at == at:
                        self._broker.drop_retained(topic)
            self._broker.request_flush()
            return len(refused) < len(replicas)
        finally:
            self._replication.given = {}

    def _next_page(self) -> list[RetainedReplica]:
        if not self._topics:
            self._topics.extend(
                sorted([one.topic for one in self._broker.retained.values() if not is_local(one.topic)])
            )
        now = self._broker.now()
        replicas: list[RetainedReplica] = []
        size = 0
        while self._topics and size < PAGE_BYTES_MAX:
            entry = self._broker.retained.get(self._topics.popleft())
            if entry is not None:
                replicas.append(replica_of(entry, now))
                size += ENTRY_BYTES + entry.size
        return replicas

    @handles(RetainedTaken)
    def on_retained_taken(self, _origin: Address, told: RetainedTaken) -> Reply:
        if told.page == self._page:
            taken = self._taken[0]
            self._taken = (taken, told.refused)
            taken.set()
        return None

    # The taker

    @handles(TakeRetained)
    def on_take_retained(self, origin: Address, told: TakeRetained) -> Reply:
        self._host.spawn(self._take(origin, told))
        return None

    async def _take(self, giver: Address, told: TakeRetained) -> None:
        broker, replication = self._broker, self._replication
        now = broker.now()
        refused = []
        for position, replica in enumerate(told.replicas):
            message = message_of(replica, now)
            if message.payload and not broker.retained.fits(message):
                refused.append(position)
            else:
                replication.adopt([message])
        broker.flush()
        if broker.degraded:
            return
        copied = self._host.event()
        broker.tick.when_copied(copied.set)
        await copied.wait()
        levels = {one.topic.partition("/")[0] for one in told.replicas if broker.retained.get(one.topic) is not None}
        ends_at = self._host.now() + FOUND_S
        while not all(replication.is_found(level) for level in levels if level in broker.retained.levels):
            if self._host.now() > ends_at:
                return
            await self._host.sleep(LOOK_S)
        self._host.send(giver, RetainedTaken(told.page, tuple(refused)))
