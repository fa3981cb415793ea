"""How the messages of shared subscriptions come to one member each (MQTT 5 §4.8.2).

A member that can take a message gets it at once. While none can, messages of QoS 1 and 2 wait in the queue of the group
(`group_queue`), and each is bound when a member is free: here, or at another broker (`Federation`). What a member
leaves goes back to the front of the queue. QoS 0 does not wait: without a free member a busy one gets it, or nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from braidmq.broker.flow import Flow
from braidmq.broker.group_queue import GroupQueue, QueueLoan
from braidmq.broker.message import Delivery, Loan, Message
from braidmq.broker.router import Router
from braidmq.broker.session import Session, SessionBroker
from braidmq.broker.shares import ShareGroup
from braidmq.broker.store import SavedSession

QUEUE_KEPT_S: Final = 60.0
"""How long what waits for a group outlives its last member, anywhere: it may just be restarted."""

RESERVED_S: Final = 0.5
"""How long members are kept free for another broker, whose turn it is."""


class ShareDelivery:
    def __init__(self, broker: SessionBroker, router: Router) -> None:
        self._broker = broker
        self._router = router
        self._tick = broker.tick
        self._metrics = broker.metrics
        self._hungry: dict[ShareGroup, None] = {}
        """Those with something waiting, here or at another broker."""

    @property
    def waiting(self) -> int:
        """How many messages wait for a member that is free."""
        return sum([len(group.queue.waiting) for group in self._hungry if group.queue is not None])

    # Publications

    def deliver(
        self, message: Message, group: ShareGroup, publisher: Flow | None = None, is_for_here: bool = True
    ) -> bool:
        """Gives a message to one member, at once or when one is free; whether there is any. One that is not for
        clients here goes to another broker."""
        if not is_for_here and not self._router.federation.is_for_group(message, group):
            return False
        is_near = group.is_near or not group.elsewhere
        if is_for_here and is_near and (group.queue is None or not group.is_waiting or not message.qos):
            session = group.choose_ready() if group.is_near else group.choose(message)
            if session is not None:
                self.give(message, group, session, publisher)
                return True
        if message.qos:
            self._queue(message, group)
            self.wake(group)
        elif not (group.elsewhere and self._router.federation.send_to_group(message, group)):
            busy = (group.choose(message) or group.choose_busy(message.size)) if is_for_here else None
            if busy is None:
                self._metrics.messages_dropped += 1
            else:
                self.give(message, group, busy, publisher)
        return True

    def give(self, message: Message, group: ShareGroup, session: Session, publisher: Flow | None = None) -> int:
        """Gives a message to a member; at which QoS."""
        subscribed = group.members[session]
        qos = min(message.qos, subscribed.qos)
        ids = (subscribed.identifier,) if subscribed.identifier else ()
        retain = message.retain and subscribed.retain_as_published
        session.deliver(message, qos, retain, ids, group.full_filter, publisher)
        return qos

    def lend(self, message: Message, group: ShareGroup, session: Session, loan: Loan) -> int:
        """Gives a message to a member that is ready; at which QoS. At QoS 1 it is a loan: it stays where it is kept
        until the member has acknowledged it."""
        subscribed = group.members[session]
        if min(message.qos, subscribed.qos) != 1:
            return self.give(message, group, session)
        ids = (subscribed.identifier,) if subscribed.identifier else ()
        retain = message.retain and subscribed.retain_as_published
        session.borrow(Delivery(message, 1, retain, ids, group.full_filter, loan=loan))
        return 1

    # The queue

    def queue_of(self, group: ShareGroup) -> GroupQueue:
        if group.queue is None:
            group.queue = GroupQueue(group.full_filter, self._broker.store, self._metrics)
        return group.queue

    def _queue(self, message: Message, group: ShareGroup) -> None:
        queue = self.queue_of(group)
        limits = self._broker.limits
        while not queue.has_room(message.size, max(1, len(group.members)), limits):
            self._metrics.messages_dropped += 1
            if limits.queue_full == "drop_newest" or not queue.waiting:
                return
            queue.drop_oldest()
        queue.push(message, group.is_kept)

    def wake(self, group: ShareGroup) -> None:
        """Something waits, and members may be free, here or elsewhere."""
        self._hungry[group] = None
        self._pump(group)
        if not group.has_anybody and group.is_waiting:
            self._expire_later(group)

    def want_free(self, group: ShareGroup) -> None:
        """The federation is to be told when a member here is free."""
        self._hungry[group] = None

    def on_free(self, session: Session) -> None:
        """A member may be able to take more."""
        if self._hungry and session.ready:
            for group in [one for one in self._hungry if session in one.members]:
                self._pump(group)

    def _pump(self, group: ShareGroup) -> None:
        """Gives what waits to members here that can take it; then other brokers may have the rest, or the members."""
        if group.is_near or not group.elsewhere:
            if group.is_waiting and not group.reserved:
                self._reserve(group)
            self.bind_here(group)
        if group.is_waiting:
            if group.elsewhere:
                self._router.federation.on_waiting(group)
            if not group.is_near:
                self._router.federation.on_free(group)
        elif not self._router.federation.on_free(group):
            self._hungry.pop(group, None)
            self._router.drop_unused(group)

    def _reserve(self, group: ShareGroup) -> None:
        """What waits here comes first, but not always: other brokers that wait for members here have their turns."""
        group.reserved = self._router.federation.reserve(group)
        if group.reserved:
            self._tick.timers.at(self._tick.now() + RESERVED_S, lambda: self._release(group))

    def _release(self, group: ShareGroup) -> None:
        group.reserved = 0
        if group.is_waiting:
            self._pump(group)

    def bind_here(
        self, group: ShareGroup, count: int | None = None, is_wanted: Callable[[Message], bool] | None = None
    ) -> None:
        """Lends what waits to members here, as far as they can take it; at most so many, of those that are wanted."""
        queue = group.queue
        now = self._tick.now()
        left = len(queue.waiting) if queue is not None and count is None else count or 0

        def may_have(message: Message) -> bool:
            if message.forward and not self._router.federation.is_for_here(message):
                return False
            if is_wanted is not None and not is_wanted(message):
                return False
            return group.policy.name != "hash" or group.choose(message) is not None

        while queue is not None and left > 0 and queue.waiting and group.free_here > group.reserved:
            kept = queue.lend(now, may_have)
            session = None if kept is None else group.choose(kept.message)
            if kept is None or session is None:
                break
            left -= 1
            if self.lend(kept.message, group, session, QueueLoan(queue, kept)) != 1:
                queue.settle(kept)

    # What members leave

    def pass_on(self, left: list[Delivery]) -> None:
        """What members did not take goes to others: in its order, before what waits."""
        now = self._tick.now()
        for delivery in reversed(left):
            if delivery.loan is not None:
                delivery.loan.give_back()
            elif delivery.message.expired(now):
                self._metrics.messages_dropped += 1
                continue
            else:
                group = self._router.group_for(delivery.group)
                self.queue_of(group).push_front(delivery.message, group.is_kept)
        for full_filter in dict.fromkeys(delivery.group for delivery in left):
            known = self._router.group(full_filter)
            if known is not None and known.is_waiting:
                self.wake(known)

    def on_member(self, full_filter: str) -> None:
        """A group has one member more or less, here or elsewhere, or one that stays for longer."""
        group = self._router.group(full_filter)
        if group is not None and group.is_waiting:
            self.wake(group)

    def _expire_later(self, group: ShareGroup) -> None:
        group.left_at = self._tick.now()
        self._tick.timers.at(group.left_at + QUEUE_KEPT_S, lambda: self._end_if_left(group))

    def _end_if_left(self, group: ShareGroup) -> None:
        """Nobody has been in a group for a while: what still waits is for nobody."""
        is_left = not group.has_anybody and self._tick.now() >= group.left_at + QUEUE_KEPT_S
        if is_left and group.queue is not None:
            self._metrics.messages_dropped += len(group.queue.waiting)
            group.queue.clear()
            self._hungry.pop(group, None)
            self._router.drop_unused(group)
            self._tick.request_flush()

    # From an earlier process

    def restore(self, saved: SavedSession) -> None:
        group = self._router.group_for(saved.client_id)
        self.queue_of(group).restore(saved)
        self.wake(group)
