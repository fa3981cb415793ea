"""What has become of messages that were lent, and of which nothing is heard: their brokers are asked.

A message between brokers may be lost, a broker may have crashed, and so may this one: what it finds in its store when
it starts may be lent already, nobody knows to whom. So all brokers are asked about that before it is lent again. One
that does not answer may have it: then QoS 1 goes to another member, since it may come twice; QoS 2 is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from braidmq.braid.shares.group_records import GroupRecords
from braidmq.braid.shares.lending import Lender, RemoteLoan
from braidmq.braid.shares.messages import AskLoans, LoansKnown
from braidmq.broker.broker import Broker
from braidmq.broker.group_queue import number_of
from braidmq.broker.shares import ShareGroup
from braidmq.host import Address, Host, ask, run_all

CHECK_S: Final = 1.0
"""How long nothing is heard of what was lent before it is asked for, and how often."""

ASK_MAX: Final = 1024
"""Messages that a broker is asked about at a time."""

ASK_S: Final = 1.0
ASK_TRIES: Final = 2
"""How long a broker has to answer, and how often it is asked, before it is taken to be silent."""

SILENT_CHECK_S: Final = 2.0
"""How often one that is silent is asked whether it is there again."""

DOUBT_PAUSE_S: Final = 2.0
"""How long after entering the braid, or after asking in vain, all are asked about what was found in the store."""

DOUBT_S: Final = 60.0
"""How long QoS 2 from the store waits for brokers that do not say whether they have it; then it is lent again."""


class LoanChecks:
    def __init__(self, broker: Broker, host: Host, records: GroupRecords, lender: Lender) -> None:
        self._host = host
        self._records = records
        self._lender = lender
        self.others: Callable[[], list[Address]]
        """All other brokers, as far as they are known."""
        self._checking: dict[str, None] = {}
        """Brokers that are being asked, by identity."""
        self._silent_checked_at = 0.0
        for group in broker.router.groups():  # of an earlier process
            self.doubt(group)

    def doubt(self, group: ShareGroup) -> None:
        """What waits may be lent already: it is not, until all brokers have been asked."""
        queue, lender = group.queue, self._lender
        while queue is not None and queue.waiting:
            kept = queue.lend_first()
            lender.loans[number_of(kept)] = RemoteLoan(group, queue, kept, "", 0, self._host.now())

    def start(self) -> None:
        self._host.spawn(self._keep_checking())
        self._host.spawn(self._settle_doubts())

    # What was lent

    async def _keep_checking(self) -> None:
        while True:
            await self._host.sleep(CHECK_S)
            before = self._host.now() - CHECK_S
            by_broker: dict[str, list[int]] = {}
            for number, loan in self._lender.loans.items():
                if loan.identity and loan.lent_at < before:
                    by_broker.setdefault(loan.identity, []).append(number)
            if self._host.now() - self._silent_checked_at > SILENT_CHECK_S:
                self._silent_checked_at = self._host.now()
                for identity in self._lender.silent():
                    by_broker.setdefault(identity, [])
            for identity, numbers in by_broker.items():
                if identity not in self._checking:
                    self._checking[identity] = None
                    self._host.spawn(self._check(identity, numbers))
            self._lender.probe()

    async def _check(self, identity: str, numbers: list[int]) -> None:
        address = self._records.address_of(identity)
        for first in range(0, max(1, len(numbers)), ASK_MAX):
            loans = self._attempts_of(numbers[first : first + ASK_MAX])
            known = None if address is None else await self._ask(address, loans)
            if address is None or known is None or known.identity != identity:
                self._lender.on_silent(identity)
                self._give_back(identity, loans, qos_max=1)
                break
            self._lender.on_heard(identity)
            self._lender.settle(address, known.settled)
            self._give_back(identity, {one: loans[one] for one in loans if one not in {*known.held, *known.settled}})
        del self._checking[identity]

    def _attempts_of(self, numbers: Iterable[int]) -> dict[int, int]:
        loans = self._lender.loans
        return {number: loans[number].attempt for number in numbers if number in loans}

    async def _ask(self, address: Address, loans: dict[int, int]) -> LoansKnown | None:
        asked = AskLoans(tuple(loans.items()))
        return await ask(self._host, address, asked, LoansKnown, timeout_s=ASK_S, tries=ASK_TRIES)

    def _give_back(self, identity: str, loans: dict[int, int], qos_max: int = 2) -> None:
        """Ends these attempts, unless they have ended meanwhile."""
        current = self._lender.loans
        ended = [
            number
            for number, attempt in loans.items()
            if number in current and current[number].attempt == attempt and current[number].kept.qos <= qos_max
        ]
        self._lender.give_back(identity, ended)

    # What was found in the store

    def _doubtful(self) -> dict[int, int]:
        return {number: loan.attempt for number, loan in self._lender.loans.items() if not loan.identity}

    async def _settle_doubts(self) -> None:
        """Asks all brokers; what nobody has is lent again."""
        ends_at = self._host.now() + DOUBT_S
        while self._doubtful():
            await self._host.sleep(DOUBT_PAUSE_S)
            answered: list[Address] = []
            others = self.others()
            await run_all(self._host, [self._ask_all(address, answered) for address in others])
            is_sure = len(answered) == len(others) or self._host.now() > ends_at
            self._give_back("", self._doubtful(), qos_max=2 if is_sure else 1)

    async def _ask_all(self, address: Address, answered: list[Address]) -> None:
        """Asks one broker about all that is doubtful."""
        numbers = list(self._doubtful())
        for first in range(0, len(numbers), ASK_MAX):
            known = await self._ask(address, self._attempts_of(numbers[first : first + ASK_MAX]))
            if known is None:
                return
            self._lender.settle(address, known.settled)
            self._lender.note_held(known.identity, known.held)
        answered.append(address)
