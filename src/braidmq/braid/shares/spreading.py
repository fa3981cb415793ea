"""What waits for a group whose policy looks at all brokers alike, this one among them (`share_policies`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from braidmq.braid.shares.group_records import GroupRecords
from braidmq.braid.shares.member_room import MemberRoom
from braidmq.braid.shares.messages import GroupRecord
from braidmq.broker.broker import Broker
from braidmq.broker.group_queue import GroupQueue
from braidmq.broker.message import Message
from braidmq.broker.share_policies import weight
from braidmq.broker.shares import ShareGroup


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


class _Place(NamedTuple):
    """A broker with members: this one, if there is no record."""

    record: GroupRecord | None
    left: int
    """How many messages its members are thought to take now."""
    used_at: int


class Spreading:
    def __init__(self, lender: SpreadingLender, broker: Broker, records: GroupRecords, identity: str) -> None:
        self._lender = lender
        self._broker = broker
        self._records = records
        self._identity = identity
        self._used_here: dict[str, int] = {}
        """By filter: the turn in which a member here was last given something."""

    def dispatch(self, group: ShareGroup) -> None:
        """Lends what waits, here and elsewhere, by the policy of its group."""
        queue = group.queue
        while queue is not None and queue.waiting:
            before = len(queue.waiting)
            places = self._places(group)
            free = sorted([one for one in places if one.left > 0], key=lambda one: one.used_at)
            for place, count in self._shares(group, free, before):
                self._lend(group, queue, place, count, places)
            if len(queue.waiting) == before:
                break

    def choose(self, group: ShareGroup, message: Message) -> GroupRecord | None:
        """The broker for one message that does not wait; None if it is this one."""
        places = self._places(group)
        if group.policy.name == "hash":
            return self._owner(group, message, places).record if places else None
        free = sorted([one for one in places if one.left > 0], key=lambda one: one.used_at)
        if group.policy.name != "round-robin":
            free.sort(key=lambda one: -one.left)
        if free and free[0].record is None:
            self._used_here[group.full_filter] = self._lender.next_turn()
        return free[0].record if free else None

    def _places(self, group: ShareGroup) -> list[_Place]:
        places = []
        if group.has_connected:
            places.append(_Place(None, group.free_here, self._used_here.get(group.full_filter, 0)))
        else:
            self._used_here.pop(group.full_filter, None)
        for record in self._records.members_of(group.full_filter):
            room = self._lender.room_of(record)
            places.append(_Place(record, room.left, room.used_at))
        return places

    def _shares(self, group: ShareGroup, free: list[_Place], count: int) -> list[tuple[_Place, int]]:
        """How many of so many messages each place gets."""
        if group.policy.name == "hash":
            return [(one, one.left) for one in free]
        if group.policy.name == "round-robin":
            return [(one, min(one.left, -(-count // len(free)))) for one in free]
        total = sum([one.left for one in free])
        if group.policy.name == "balanced":
            return [(one, min(one.left, -(-count * one.left // total))) for one in free]
        free.sort(key=lambda one: -one.left)
        below = free[1].left if len(free) > 1 else 0
        return [(one, max(1, one.left - below)) for one in free[:1]]

    def _lend(self, group: ShareGroup, queue: GroupQueue, place: _Place, count: int, places: list[_Place]) -> None:
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

    def _owner(self, group: ShareGroup, message: Message, places: list[_Place]) -> _Place:
        """Who has the key of a message."""
        key = group.policy.key_of(message)
        return max(places, key=lambda one: weight(self._identity if one.record is None else one.record.identity, key))


def _any(_message: Message) -> bool:
    return True
