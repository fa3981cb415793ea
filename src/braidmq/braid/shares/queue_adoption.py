"""The queues of a broker that is gone, taken up from the copy of its journal, or that leaves, and gives them away: they
go on here.

What was lent when that broker was lost may be with members that still have it, or are done with it: so all brokers are
asked before it is lent again (`loan_checks`). That it was taken up is written, for the broker may come back with its
store, and will ask.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from braidmq.braid.roaming.directory_messages import Claimed
from braidmq.braid.shares.borrowing import Borrower
from braidmq.braid.shares.lending import Lender
from braidmq.braid.shares.loan_checks import LoanChecks
from braidmq.braid.shares.messages import LentMessage, QueueTaken, TakeQueue
from braidmq.braid.transfer.batch import item_of, message_of
from braidmq.broker.broker import Broker
from braidmq.broker.group_queue import number_of
from braidmq.broker.message import Delivery, Message
from braidmq.broker.store import SavedSession
from braidmq.host import Address, Host, Reply, Service, ask, handles
from braidmq.mqtt.topics import SHARE_PREFIX

QUEUES_OF: Final = f"{SHARE_PREFIX}of/"
"""What the name begins with under which the directory knows who has the queues of a broker; its identity follows."""


GIVEN_AT_ONCE: Final = 256
"""Messages that a broker which leaves gives away at a time."""

GIVE_S: Final = 2.0
"""How long another broker has to take them."""


class QueueAdoption(Service):
    def __init__(self, broker: Broker, host: Host, lender: Lender, checks: LoanChecks, borrower: Borrower) -> None:
        self._broker = broker
        self._host = host
        self._lender = lender
        self._checks = checks
        self._borrower = borrower
        self.claim: Callable[[str], Awaitable[Claimed | None]]
        """Makes this broker the holder of a name in the directory; which was it before."""
        self.name: str
        """Of this broker, as the directory knows it."""
        self.adopted = 0
        """Messages that were taken up."""
        host.serve(self)

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
        for one in saved.deliveries:
            message = msgspec.structs.replace(one.delivery.message, row=0, holders=0)
            self._take(saved.client_id, number_of(one.delivery), message)

    def _take(self, full_filter: str, number: int, message: Message) -> None:
        """Takes up a message of another broker's queue, unless that was done before."""
        if self._borrower.has_taken(number):
            return
        self._borrower.note_taken(number)
        group = self._broker.router.group_for(full_filter)
        queue = self._broker.sessions.shares.queue_of(group)
        self._checks.doubt_one(group, queue, queue.push(message, True, number))
        self.adopted += 1

    # Brokers that leave

    async def give_away(self, takers: list[Address], ends_at: float) -> None:
        """This broker leaves for good: others go on with what waits here."""
        for group in self._broker.router.groups():
            queue = group.queue
            while queue is not None and len(queue) and self._host.now() < ends_at:
                some = [*queue.lent.values(), *queue.waiting][:GIVEN_AT_ONCE]
                if not await self._give(group.full_filter, some, takers):
                    return
                for kept in some:
                    self._lender.end(kept, queue)

    async def _give(self, full_filter: str, some: list[Delivery], takers: list[Address]) -> bool:
        now = self._broker.now()
        messages = [LentMessage(number_of(one), one.message.topic, item_of(one.message, now)) for one in some]
        told = TakeQueue(full_filter, tuple(messages))
        for taker in takers:
            if await ask(self._host, taker, told, QueueTaken, timeout_s=GIVE_S) is not None:
                return True
        return False

    @handles(TakeQueue)
    def on_take_queue(self, _origin: Address, told: TakeQueue) -> Reply:
        now = self._broker.now()
        for one in told.messages:
            self._take(told.full_filter, one.number, message_of(one.item, one.topic, now))
        self._broker.flush()
        self._checks.settle_doubts()
        return None if self._broker.degraded else QueueTaken()
