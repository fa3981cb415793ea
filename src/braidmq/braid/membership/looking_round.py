"""What a broker finds out and tells while it enters: which others are silent, and that its links of before are gone.

Links of the ring that lead to a broker that is gone are mended when somebody notices, which takes a while. Nobody can
enter beside them before. So a broker that starts says at once that its nodes of before are not there any more, asks all
others whether they are, and tells those that answer which do not: they look for themselves, and mend what they must.
"""

from __future__ import annotations

from braidmq.braid.membership.broker_records import BrokerRecords
from braidmq.braid.membership.introducers import Introducers
from braidmq.braid.roaming.directory_messages import AreYouThere, StillThere
from braidmq.host import Address, Host, ask
from braidmq.overlay import Overlay
from braidmq.overlay.ring.messages import CheckLinks

OTHERS_MAX = 32
"""Brokers that are asked and told."""

ANSWER_S, LATE_S = 0.2, 2.0
"""How long they have to answer before others are told to look for them, and how long it is waited for them after all:
they may be far away."""

AGAIN_S, AGAIN_MAX = 1.0, 5
"""How often, and how many times, those that did not answer are told that this broker has started: there may be a way
round to them soon."""


class LookingRound:
    def __init__(self, host: Host, overlay: Overlay, introducers: Introducers, records: BrokerRecords) -> None:
        self._host = host
        self._overlay = overlay
        self._introducers = introducers
        self._records = records

    async def look(self) -> None:
        others = self._others()
        started = CheckLinks(self._host.address, min(node.me.incarnation for node in self._overlay.ring.nodes.values()))
        self._tell(others, started)
        answered: dict[Address, None] = {}
        for one in others:
            self._host.spawn(self._ask(one, answered))
        await self._host.sleep(ANSWER_S)
        silent = [one for one in others if one not in answered]
        for address in silent:
            self._overlay.ring.silent.note(address)
            self._introducers.miss(address)
            self._tell(list(answered), CheckLinks(address))
        for _ in range(AGAIN_MAX if silent else 0):
            await self._host.sleep(AGAIN_S)
            self._tell(silent, started)

    async def _ask(self, address: Address, answered: dict[Address, None]) -> None:
        began_at = self._host.now()
        if await ask(self._host, address, AreYouThere(), StillThere, timeout_s=LATE_S) is not None:
            answered[address] = None
            self._overlay.ring.silent.heard(address, self._host.now() - began_at)

    def _tell(self, others: list[Address], told: CheckLinks) -> None:
        for one in others:
            self._host.send(one, told)

    def _others(self) -> list[Address]:
        known = dict.fromkeys((*self._introducers.known, *[one.address for one in self._records]))
        there = [one for one in known if one != self._host.address and not self._introducers.has_parted(one)]
        self._host.chance.shuffle(there)
        return there[:OTHERS_MAX]
