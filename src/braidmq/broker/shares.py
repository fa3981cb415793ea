"""Shared subscriptions (MQTT 5 §4.8.2): the group of one filter under one name, as its members and its queue.

Members here take turns; one that is away, slow or full is passed over. Others may be at other brokers (`elsewhere`).
"""

from __future__ import annotations

from braidmq.broker.group_queue import GroupQueue
from braidmq.broker.message import Message
from braidmq.broker.session import Session
from braidmq.broker.share_policies import NEAR, SharePolicy, weight
from braidmq.broker.subscription import Subscribed


class ShareGroup:
    __slots__ = ("elsewhere", "full_filter", "is_near", "left_at", "members", "policy", "queue", "reserved", "turn")

    def __init__(self, full_filter: str, policy: SharePolicy = NEAR) -> None:
        self.full_filter = full_filter
        self.policy = policy
        self.is_near = policy.name == "near"
        self.members: dict[Session, Subscribed] = {}
        """Those here."""
        self.elsewhere = 0
        """How many other brokers have members."""
        self.left_at = 0.0
        """When it was last noticed that nobody is in it."""
        self.queue: GroupQueue | None = None
        """What waits here for a member, or is lent to one."""
        self.reserved = 0
        """How many of the messages that members here could take are for other brokers, though something waits here."""
        self.turn = 0

    @property
    def has_anybody(self) -> bool:
        return bool(self.members) or self.elsewhere > 0

    @property
    def has_connected(self) -> bool:
        """Whether a member is connected here."""
        return any(session.connection is not None for session in self.members)

    @property
    def is_waiting(self) -> bool:
        """Whether something waits for a member."""
        return self.queue is not None and bool(self.queue.waiting)

    @property
    def is_kept(self) -> bool:
        """Whether what waits for it must survive the process: so does a member, or it is at another broker."""
        return self.elsewhere > 0 or any(session.durable for session in self.members)

    @property
    def free(self) -> int:
        """How many messages members here could take at once, beside those that wait."""
        waiting = 0 if self.queue is None else len(self.queue.waiting)
        return max(0, self.free_here - waiting)

    @property
    def free_here(self) -> int:
        """How many messages members here could take at once."""
        return sum([session.free for session in self.members if session.ready])

    @property
    def offered(self) -> int:
        """How many of other brokers' messages members here could take now: with `near`, behind those that wait here."""
        return self.free if self.is_near else self.free_here

    def choose(self, message: Message) -> Session | None:
        """The member here that is to have a message, by the group's policy; None if it cannot take it at once."""
        if self.is_near or len(self.members) < 2:
            return self.choose_ready()
        if self.policy.name == "hash":
            key = self.policy.key_of(message)
            there = [session for session in self.members if session.connection is not None]
            owner = max(there, key=lambda session: weight(session.client_id, key), default=None)
            return owner if owner is not None and owner.ready else None
        if self.policy.name == "least-loaded":
            free = [session for session in self.members if session.ready]
            return max(free, key=lambda session: session.free, default=None)
        return self.choose_ready()

    def choose_ready(self) -> Session | None:
        """The member whose turn it is among those that can take a message at once; None if none can."""
        sessions = list(self.members)
        count = len(sessions)
        for step in range(count):
            session = sessions[(self.turn + step) % count]
            if session.ready:
                self.turn = (self.turn + step + 1) % count
                return session
        return None

    def choose_busy(self, size: int) -> Session | None:
        """Of those that are connected and have room for a message, the one that has least to do."""
        busy = [one for one in self.members if one.connection is not None and one.has_room(size)]
        return min(busy, key=lambda session: session.burden, default=None)
