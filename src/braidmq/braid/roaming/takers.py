"""The brokers that can take what a broker that is drained gives away: the nearest ones that answer, in turn.

Near is what shares more levels of the cluster's path: what must stay inside a cluster can then move along.
"""

from __future__ import annotations

from collections.abc import Iterator

from braidmq.braid.membership.broker_records import BrokerRecord, BrokerRecords
from braidmq.braid.membership.introducers import Introducers
from braidmq.braid.roaming.messages import AskRoom, HasRoom
from braidmq.host import Host, ask, run_all

TAKERS_MAX = 16
"""Brokers among which sessions and clients are shared out."""

ASKED_MAX = 64
"""Brokers that are asked whether they have room, the nearest first."""

ASK_TIMEOUT_S = 1.0


class Takers:
    def __init__(self, host: Host, records: BrokerRecords, introducers: Introducers, cluster: str) -> None:
        """`cluster` is that of this broker."""
        self._host = host
        self._records = records
        self._introducers = introducers
        self._cluster = cluster
        self._takers: list[BrokerRecord] = []
        self._turn = 0

    def __iter__(self) -> Iterator[BrokerRecord]:
        return iter(self._takers)

    def __len__(self) -> int:
        return len(self._takers)

    async def find(self) -> None:
        """Asks the brokers that are known who has room now: those of the nearest cluster that has any."""
        known = [one for one in self._records if not one.is_draining and not self._introducers.has_parted(one.address)]
        known.sort(key=lambda one: (-shared_levels(one.cluster, self._cluster), one.identity))
        found: dict[str, BrokerRecord] = {}

        async def ask_one(record: BrokerRecord) -> None:
            answer = await ask(self._host, record.address, AskRoom(), HasRoom, timeout_s=ASK_TIMEOUT_S)
            if answer is not None and answer.has_room:
                found[record.identity] = record

        await run_all(self._host, [ask_one(one) for one in known[:ASKED_MAX]])
        answering = [one for one in known if one.identity in found]
        nearest = shared_levels(answering[0].cluster, self._cluster) if answering else 0
        near = [one for one in answering if shared_levels(one.cluster, self._cluster) == nearest]
        self._takers = near[:TAKERS_MAX]

    def next(self) -> BrokerRecord | None:
        """Whose turn it is."""
        if not self._takers:
            return None
        self._turn += 1
        return self._takers[self._turn % len(self._takers)]

    def next_for(self, name: str, kind: str) -> tuple[BrokerRecord, str] | None:
        """Whose turn it is among those that clients of a listener, of this name and kind, can be sent to; and where."""
        for _ in self._takers:
            taker = self.next()
            reference = None if taker is None else reference_of(taker, name, kind)
            if taker is not None and reference is not None:
                return taker, reference
        return None

    def drop(self, taker: BrokerRecord) -> None:
        """It does not answer, or has no room any more: it is asked again when they are next looked for."""
        self._takers = [one for one in self._takers if one.identity != taker.identity]

    def clear(self) -> None:
        self._takers = []


def shared_levels(one: str, other: str) -> int:
    """How many levels of their paths two clusters share."""
    count = 0
    for left, right in zip(one.split("/"), other.split("/"), strict=False):
        if left != right or not left:
            break
        count += 1
    return count


def reference_of(taker: BrokerRecord, name: str, kind: str) -> str | None:
    """Where clients of a listener, of this name and kind, find one of the same kind at another broker: that of the same
    name, if there is one."""
    alike = [one for one in taker.listeners if one.kind == kind]
    alike.sort(key=lambda one: one.name != name)
    return alike[0].reference if alike else None
