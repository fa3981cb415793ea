"""Shared subscriptions (MQTT 5 §4.8.2): the group of one filter under one name, as its members and its queue.

Members here take turns; one that is away, slow or full is passed over. How much a member can take is what its Receive
Maximum leaves, and no more than the slots that it says it has. Others may be at other brokers (`elsewhere`).
"""

from __future__ import annotations

from braidmq.broker.group_queue import GroupQueue
from braidmq.broker.member_load import MemberLoad
from braidmq.broker.message import Message
from braidmq.broker.proportions import Proportions
from braidmq.broker.session import Session
from braidmq.broker.share_policies import NEAR, SharePolicy, weight
from braidmq.broker.subscription import Subscribed
from braidmq.mqtt.topics import SHARE_PREFIX, split_share


class ShareGroup:
    __slots__ = (
        "_name",
        "_proportions",
        "elsewhere",
        "full_filter",
        "is_near",
        "left_at",
        "loads",
        "members",
        "policy",
        "queue",
        "reserved",
        "turn",
    )

    def __init__(self, full_filter: str, policy: SharePolicy = NEAR) -> None:
        self.full_filter = full_filter
        self._name = split_share(full_filter)[0] or ""
        self.policy = policy
        self.is_near = policy.name == "near"
        self.members: dict[Session, Subscribed] = {}
        """Those here."""
        self.loads: dict[Session, MemberLoad] = {}
        """What some of them say of themselves."""
        self.elsewhere = 0
        """How many other brokers have members."""
        self.left_at = 0.0
        """When it was last noticed that nobody is in it."""
        self.queue: GroupQueue | None = None
        """What waits here for a member, or is lent to one."""
        self.reserved = 0
        """How many of the messages that members here could take are for other brokers, though something waits here."""
        self.turn = 0
        self._proportions: Proportions[Session] = Proportions()

    @property
    def has_anybody(self) -> bool:
        return bool(self.members) or self.elsewhere > 0

    @property
    def connected(self) -> int:
        """How many members are connected here."""
        return sum([session.connection is not None for session in self.members])

    @property
    def is_waiting(self) -> bool:
        """Whether something waits for a member."""
        return self.queue is not None and bool(self.queue.waiting)

    @property
    def waiting(self) -> int:
        """How many messages wait here for a member."""
        return 0 if self.queue is None else len(self.queue.waiting)

    @property
    def is_kept(self) -> bool:
        """Whether what waits for it must survive the process: so does a member, or it is at another broker."""
        return self.elsewhere > 0 or any(session.durable for session in self.members)

    @property
    def free(self) -> int:
        """How many messages members here could take at once, beside those that wait."""
        return max(0, self.free_here - self.waiting)

    @property
    def free_here(self) -> int:
        """How many messages members here could take at once."""
        return sum([self.free_of(session) for session in self.members])

    def free_of(self, session: Session) -> int:
        """How many messages a member here could take at once."""
        if not session.ready:
            return 0
        load = self.loads.get(session)
        if load is None or load.slots is None:
            return session.free
        prefix = f"{SHARE_PREFIX}{self._name}/"
        under_way = (*session.inflight.values(), *session.released.values())
        return max(0, min(session.free, load.slots - sum([one.group.startswith(prefix) for one in under_way])))

    def _spare_of(self, session: Session) -> float:
        """How much a member could take, where its processor counts as well."""
        load = self.loads.get(session)
        return self.free_of(session) * (1.0 if load is None else load.idle)

    @property
    def spare_here(self) -> float:
        return sum([self._spare_of(session) for session in self.members])

    @property
    def told_load(self) -> tuple[int | None, float]:
        """How many messages members here can have at a time, if all of them say so, and the part of their processors
        that is left."""
        loads = [self.loads.get(session) for session in self.members if session.connection is not None]
        slots = [None if load is None else load.slots for load in loads]
        told = [one for one in slots if one is not None]
        idle = sum([1.0 if load is None else load.idle for load in loads]) / max(1, len(loads))
        return sum(told) if told and len(told) == len(slots) else None, idle if loads else 1.0

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
            return owner if owner is not None and self.free_of(owner) else None
        if self.policy.name == "round-robin":
            return self.choose_ready()
        spare = {session: spare for session in self.members if (spare := self._spare_of(session))}
        if not spare:
            return None
        if self.policy.name == "balanced":
            return self._proportions.next(spare)
        return max(spare, key=lambda session: spare[session])

    def peek(self, message: Message) -> Session | None:
        """The member here that would have a message now; it is still its turn afterwards."""
        turn, proportions = self.turn, self._proportions
        self._proportions = proportions.copy()
        chosen = self.choose(message)
        self.turn, self._proportions = turn, proportions
        return chosen

    def choose_ready(self) -> Session | None:
        """The member whose turn it is among those that can take a message at once; None if none can."""
        sessions = list(self.members)
        count = len(sessions)
        for step in range(count):
            session = sessions[(self.turn + step) % count]
            if self.free_of(session):
                self.turn = (self.turn + step + 1) % count
                return session
        return None

    def choose_busy(self, size: int) -> Session | None:
        """Of those that are connected and have room for a message, the one that has least to do."""
        busy = [one for one in self.members if one.connection is not None and one.has_room(size) and self._works(one)]
        return min(busy, key=lambda session: session.burden, default=None)

    def _works(self, session: Session) -> bool:
        """Whether a member does not say that it has no slots at all."""
        load = self.loads.get(session)
        return load is None or load.slots != 0
