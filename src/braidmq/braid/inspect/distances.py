"""How far the other brokers are just now: each is asked a few times, and the shortest round trip counts."""

from __future__ import annotations

from typing import Final

from braidmq.admin.ring_contract import Distance, DistancesAnswer
from braidmq.braid.membership.broker_records import BrokerRecords
from braidmq.braid.roaming.directory_messages import AreYouThere, StillThere
from braidmq.host import Address, Host, ask, run_all

ASKED_TIMES: Final = 5
"""One answer may have waited for something else."""
TIMEOUT_S: Final = 2.0
BROKERS_MAX: Final = 1024
"""Brokers that are asked."""


class Distances:
    def __init__(self, host: Host, records: BrokerRecords) -> None:
        self._host = host
        self._records = records

    async def measure(self) -> DistancesAnswer:
        """Round trips to all brokers that are known here; those that do not answer have none."""
        known = sorted(self._records, key=lambda one: one.name)[:BROKERS_MAX]
        found: dict[Address, float] = {}

        async def ask_one(address: Address) -> None:
            for _ in range(ASKED_TIMES):
                began_at = self._host.now()
                if await ask(self._host, address, AreYouThere(), StillThere, timeout_s=TIMEOUT_S) is None:
                    return
                found[address] = min(found.get(address, TIMEOUT_S), self._host.now() - began_at)

        await run_all(self._host, [ask_one(one.address) for one in known])
        told = [Distance(one.name, _ms(found.get(one.address))) for one in known]
        return DistancesAnswer(self._records.name, told)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 3)
