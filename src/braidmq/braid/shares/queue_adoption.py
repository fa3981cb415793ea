"""The queues of a broker that is gone, taken up from the copy of its journal: they go on here.

What was lent when that broker was lost may be with members that still have it, or are done with it: so all brokers are
asked before it is lent again (`loan_checks`). That it was taken up is written, for the broker may come back with its
store, and will ask.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import msgspec

from braidmq.braid.roaming.directory_messages import Claimed
from braidmq.braid.shares.borrowing import Borrower
from braidmq.braid.shares.loan_checks import LoanChecks
from braidmq.broker.broker import Broker
from braidmq.broker.group_queue import number_of
from braidmq.broker.message import Delivery
from braidmq.broker.store import SavedSession
from braidmq.host import Address
from braidmq.mqtt.topics import SHARE_PREFIX

QUEUES_OF: Final = f"{SHARE_PREFIX}of/"
"""What the name begins with under which the directory knows who has the queues of a broker; its identity follows."""


class QueueAdoption:
    def __init__(self, broker: Broker, checks: LoanChecks, borrower: Borrower) -> None:
        self._broker = broker
        self._checks = checks
        self._borrower = borrower
        self.claim: Callable[[str], Awaitable[Claimed | None]]
        """Makes this broker the holder of a name in the directory; which was it before."""
        self.name: str
        """Of this broker, as the directory knows it."""
        self.adopted = 0
        """Messages that were taken up."""

    async def adopt(self, owner: str, address: Address, queues: list[SavedSession]) -> None:
        """Takes up what waits in the queues of a broker that is gone, and was there, unless another broker has."""
        if not any(saved.deliveries for saved in queues):
            return
        claimed = await self.claim(QUEUES_OF + owner)
        if claimed is not None and (claimed.before is None or claimed.before.name in (owner, self.name)):
            for saved in queues:
                self._adopt(saved)
            self._broker.request_flush()
            self._checks.settle_doubts(gone=address)

    def _adopt(self, saved: SavedSession) -> None:
        shares = self._broker.sessions.shares
        group = self._broker.router.group_for(saved.client_id)
        queue = shares.queue_of(group)
        for kept in self._new(saved):
            self._borrower.note_taken(number_of(kept))
            message = msgspec.structs.replace(kept.message, row=0, holders=0)
            self._checks.doubt_one(group, queue, queue.push(message, True, number_of(kept)))
            self.adopted += 1

    def _new(self, saved: SavedSession) -> Iterable[Delivery]:
        """What was not taken up before."""
        found = [one.delivery for one in saved.deliveries]
        return [kept for kept in found if not self._borrower.has_taken(number_of(kept))]
