"""What brokers say of themselves, and all know: where each is, where its clients connect, and whether it is drained.

A broker tells all others when it enters and when something changes; what one has missed it learns when it compares what
it knows with another. So a broker that is drained knows which others can take its sessions, and where to send its
clients. A broker that was never heard of here is not asked: it may be of a version that does not know the question.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b

import msgspec

from braidmq.bounded import BoundedDict
from braidmq.host import Address

RECORDS_MAX = 4096
"""Brokers that are remembered; the one that was heard of least recently goes."""

LISTENERS_MAX = 16
"""Listeners that a broker tells of."""

DIGEST_BYTES = 8


class ClientListener(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A listener of a broker, and where clients reach it (MQTT 5 §4.11)."""

    name: str
    kind: str
    reference: str


class BrokerRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    identity: str
    name: str
    address: Address
    at: float
    """When it was said (Unix time): of two, the later one counts."""
    cluster: str = ""
    listeners: tuple[ClientListener, ...] = ()
    is_draining: bool = False


class BrokerRecords:
    def __init__(self, identity: str, name: str, cluster: str) -> None:
        """Of the broker that keeps them."""
        self._others: BoundedDict[str, BrokerRecord] = BoundedDict(RECORDS_MAX)
        self._identity = identity
        self.name = name
        self._cluster = cluster
        self._own: BrokerRecord | None = None
        self._listeners: tuple[ClientListener, ...] = ()
        self._is_draining = False

    def __iter__(self) -> Iterator[BrokerRecord]:
        """Those of other brokers."""
        return iter(list(self._others.values()))

    def address_of(self, identity: str) -> Address | None:
        """Where another broker is, as it has said itself."""
        record = self._others.get(identity)
        return None if record is None else record.address

    def set_listeners(self, listeners: Iterable[ClientListener]) -> None:
        self._listeners = tuple(listeners)[:LISTENERS_MAX]

    def set_draining(self, is_draining: bool) -> None:
        self._is_draining = is_draining

    def say(self, address: Address, now: float) -> tuple[BrokerRecord, ...]:
        """What this broker says of itself from now on."""
        before = 0.0 if self._own is None else self._own.at
        at = max(now, before + 0.001)
        self._own = BrokerRecord(
            self._identity, self.name, address, at, self._cluster, self._listeners, self._is_draining
        )
        return (self._own,)

    @property
    def digest(self) -> bytes:
        """What is known here, in short."""
        known = sorted(f"{one.identity}\0{one.at}" for one in (*self.own, *self._others.values()))
        return blake2b("\0".join(known).encode(), digest_size=DIGEST_BYTES).digest()

    @property
    def own(self) -> tuple[BrokerRecord, ...]:
        """What it says of itself, once it has said anything."""
        return () if self._own is None else (self._own,)

    def told(self, digest: bytes) -> tuple[BrokerRecord, ...]:
        """What this broker says to another one with this digest: all that it knows, if the two differ."""
        if digest == self.digest:
            return ()
        return (*self.own, *self._others.values())

    def learn(self, told: Iterable[BrokerRecord]) -> None:
        for record in told:
            known = self._others.get(record.identity)
            if record.identity != self._identity and (known is None or known.at < record.at):
                self._others.renew(record.identity, record)
