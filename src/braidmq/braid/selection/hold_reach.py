"""Reservations, found by the ids that clients know them by: at the broker that the id names, or where the instance has
gone since with its session. A broker that an instance has left says where it went; if that broker is gone itself, all
are asked.
"""

from __future__ import annotations

from typing import Final

from braidmq.bounded import BoundedDict
from braidmq.braid.membership.broker_records import BrokerRecords
from braidmq.braid.selection.holds import NOT_HELD, Holds
from braidmq.braid.selection.messages import FindHold, HoldFound, HoldState, ReleaseHold, RenewHold
from braidmq.broker.component_topics import level_of
from braidmq.host import Address, Host, ask, run_all

CALL_S: Final = 2.0
CALL_TRIES: Final = 3
"""How long a broker has to answer, and how often it is asked."""

MOVES_MAX: Final = 4
"""From how many brokers to the next a reservation is followed for one question."""

KNOWN_MAX: Final = 10_000
"""Reservations of which is known that they are elsewhere than their ids say."""

SEARCH_S: Final = 1.0
ASKED_AT_ONCE: Final = 64


class HoldReach:
    def __init__(self, host: Host, holds: Holds, records: BrokerRecords, broker_name: str) -> None:
        """`broker_name` is that of this broker."""
        self._host = host
        self._holds = holds
        self._records = records
        self._broker_name = broker_name
        self._moved_to: BoundedDict[str, Address] = BoundedDict(KNOWN_MAX)

    def locate(self, known_as: str) -> Address | None:
        """Where a reservation is thought to be; None if no broker has the name in its id."""
        request, _, name = known_as.partition("@")
        if request in self._moved_to:
            return self._moved_to[request]
        if name == level_of(self._broker_name):
            return self._host.address
        return next((one.address for one in self._records if level_of(one.name) == name), None)

    async def call(self, known_as: str, asked: RenewHold | ReleaseHold, is_counted_on: bool) -> HoldState | None:
        """What becomes of a reservation, wherever it is; None if nobody answers for it. One that a client counts on
        is looked for at all brokers before it is given up."""
        state = await self._follow(self.locate(known_as), asked)
        is_lost = state is None or (is_counted_on and state.problem == NOT_HELD)
        if not is_lost:
            return state
        found = await self._search(asked.request)
        if found is None:
            return state
        self._moved_to.renew(asked.request, found)
        return await self._follow(found, asked)

    async def _follow(self, address: Address | None, asked: RenewHold | ReleaseHold) -> HoldState | None:
        for _ in range(MOVES_MAX):
            state = None if address is None else await self._ask(address, asked)
            if state is None or state.moved_to is None:
                return state
            address = state.moved_to
            self._moved_to.renew(asked.request, address)
        return None

    async def _ask(self, address: Address, asked: RenewHold | ReleaseHold) -> HoldState | None:
        if address != self._host.address:
            return await ask(self._host, address, asked, HoldState, timeout_s=CALL_S, tries=CALL_TRIES)
        if isinstance(asked, RenewHold):
            return self._holds.renew(asked.request, asked.holder, address)
        return self._holds.release(asked.request, asked.holder)

    async def _search(self, request: str) -> Address | None:
        """The broker that has a reservation."""
        if self._holds.held_by(request) is not None:
            return self._host.address
        found: list[Address] = []

        async def ask_one(address: Address) -> None:
            answer = await ask(self._host, address, FindHold(request), HoldFound, timeout_s=SEARCH_S)
            if answer is not None and answer.is_here:
                found.append(address)

        others = [one.address for one in self._records]
        for first in range(0, len(others), ASKED_AT_ONCE):
            await run_all(self._host, [ask_one(one) for one in others[first : first + ASKED_AT_ONCE]])
            if found:
                return found[0]
        return None
