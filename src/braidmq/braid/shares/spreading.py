"""What waits for a group whose policy looks at all brokers alike, this one among them (`share_policies`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from braidmq.bounded import BoundedDict
from braidmq.braid.shares.group_records import GroupRecords
from braidmq.braid.shares.member_room import MemberRoom
from braidmq.braid.shares.messages import GroupRecord
from braidmq.broker.broker import Broker
from braidmq.broker.group_queue import GroupQueue
from braidmq.broker.message import Message
from braidmq.broker.proportions import Proportions
from braidmq.broker.share_policies import weight
from braidmq.broker.shares import ShareGroup

PROPORTIONS_MAX: Final = 8192
"""Groups of which it is remembered who has got too little."""


class SpreadingLender(Protocol):
    """Who lends messages to other brokers."""

    def room_of(self, record: GroupRecord) -> MemberRoom: ...
    def next_turn(self) -> int: ...
    def lend(
        self,
        group: ShareGroup,
        queue: GroupQueue,
        record: GroupRecord,
        room: MemberRoom,
        count: int,
        is_wanted: Callable[[Message], bool],
    ) -> None: ...


class Place(NamedTuple):
    """A broker with members: this one, if there is no record."""

    record: GroupRecord | None
    left: int
    """How many messages its members are thought to take now."""
    weight: float
    """The same, where what they say of their processors counts as well."""
    used_at: int


class Spreading:
    def __init__(self, lender: SpreadingLender, broker: Broker, records: GroupRecords, identity: str) -> None:
        self._lender = lender
        self._broker = broker
        self._records = records
        self._identity = identity
        self._used_here: dict[str, int] = {}
        """By filter: the turn in which a member here was last given something."""
        self._proportions: BoundedDict[str, Proportions[str]] = BoundedDict(PROPORTIONS_MAX)
        """By filter."""

    def dispatch(self, group: ShareGroup) -> None:
        """Lends what waits, here and elsewhere, by the policy of its group."""
        queue = group.queue
        while queue is not None and queue.waiting:
            before = len(queue.waiting)
            places = self._places(group)
            free = sorted([one for one in places if one.left > 0], key=lambda one: one.used_at)
            for place, count in self._shares(group, free, before):
                self._lend(group, queue, place, count, places)
            if len(queue.waiting) == before and group.policy.name != "hash":  # it may not go where it should
                for place in free:
                    self._lend(group, queue, place, place.left, places)
            if len(queue.waiting) == before:
                break

    def choose(self, group: ShareGroup, message: Message) -> GroupRecord | None:
        """The broker for one message that does not wait; None if it is this one."""
        place = self._first(group, message, self._proportions_of(group))
        if place is not None and place.record is None and group.policy.name != "hash":
            self._used_here[group.full_filter] = self._lender.next_turn()
        return None if place is None else place.record

    def peek(self, group: ShareGroup, message: Message) -> Place | None:
        """The place for one message that comes now; nothing is changed by asking. None if none can take it."""
        place = self._first(group, message, self._proportions_of(group).copy())
        return place if place is not None and place.left > 0 else None

    def _first(self, group: ShareGroup, message: Message, proportions: Proportions[str]) -> Place | None:
        places = self._places(group)
        if group.policy.name == "hash":
            return self._owner(group, message, places) if places else None
        free = [one for one in places if one.left > 0]
        if not free:
            return None
        if group.policy.name == "balanced":
            chosen = proportions.next(self._weights(free))
            return next(one for one in free if self._identity_of(one) == chosen)
        if group.policy.name == "least-loaded":
            return max(free, key=lambda one: (one.weight, -one.used_at))
        return min(free, key=lambda one: one.used_at)

    def _places(self, group: ShareGroup) -> list[Place]:
        places = []
        if group.connected:
            used_at = self._used_here.get(group.full_filter, 0)
            places.append(Place(None, group.free_here, group.spare_here, used_at))
        else:
            self._used_here.pop(group.full_filter, None)
        for record in self._records.members_of(group.full_filter):
            room = self._lender.room_of(record)
            places.append(Place(record, room.left, room.left * record.idle, room.used_at))
        return places

    def _shares(self, group: ShareGroup, free: list[Place], count: int) -> list[tuple[Place, int]]:
        """How many of so many messages each place gets."""
        if not free or group.policy.name == "hash":
            return [(one, one.left) for one in free]
        if group.policy.name == "round-robin":
            return [(one, min(one.left, -(-count // len(free)))) for one in free]
        if group.policy.name == "balanced":
            count = min(count, sum([one.left for one in free]))
            given = self._proportions_of(group).divide(count, self._weights(free))
            return [(one, min(one.left, given[self._identity_of(one)])) for one in free]
        most, *others = sorted(free, key=lambda one: -one.weight)
        below = others[0].weight if others else 0.0
        return [(most, max(1, int(most.left * (1.0 - below / most.weight))))]

    def _proportions_of(self, group: ShareGroup) -> Proportions[str]:
        """By identity: who has got too little, for what its members can take."""
        return self._proportions.setdefault(group.full_filter, Proportions())

    def _weights(self, free: list[Place]) -> dict[str, float]:
        return {self._identity_of(one): one.weight for one in free}

    def _identity_of(self, place: Place) -> str:
        return self._identity if place.record is None else place.record.identity

    def _lend(self, group: ShareGroup, queue: GroupQueue, place: Place, count: int, places: list[Place]) -> None:
        is_wanted: Callable[[Message], bool] = _any
        if group.policy.name == "hash":
            is_wanted = lambda message: self._owner(group, message, places) is place  # noqa: E731 - it is short
        if place.record is None:
            before = len(queue.waiting)
            self._broker.sessions.shares.bind_here(group, count, is_wanted)
            if len(queue.waiting) < before:
                self._used_here[group.full_filter] = self._lender.next_turn()
        else:
            room = self._lender.room_of(place.record)
            self._lender.lend(group, queue, place.record, room, count, is_wanted)

    def _owner(self, group: ShareGroup, message: Message, places: list[Place]) -> Place:
        """Who has the key of a message."""
        key = group.policy.key_of(message)
        return max(places, key=lambda one: weight(self._identity_of(one), key))


def _any(_message: Message) -> bool:
    return True
