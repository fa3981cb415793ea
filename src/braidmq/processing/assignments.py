"""Which topics are processed here and which on Spark: by the room at the edge, and exact over every change of hands.

A topic changes hands at the log's next offset, once everything before it is written. To Spark: Spark's interval begins
there, and the spool goes along as it will be when everything before that offset is processed. Back: the edge asks for
the topic from the next offset on and holds what arrives from there. Spark processes up to it and returns the spool;
then the edge's interval is written down, and the held messages are processed. Until that is written the topic is
Spark's: if Spark does not answer, if too much arrives, or if the broker ends, the held messages are dropped here, since
the log has them. So each message belongs to exactly one location at any time, whatever fails on the way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Final

from braidmq.processing.assignment_store import AssignmentStore, Key
from braidmq.processing.work_queue import QueuedMessage, WorkQueue
from braidmq.processors.placement import (
    Capacity,
    EdgeLoad,
    Interval,
    Location,
    TopicLoad,
    has_room,
    is_over,
    local_share,
    recalled,
    surplus,
)
from braidmq.processors.processor import SpoolState
from braidmq.processors.worker_messages import decode_message, encode_message

PUBLISHERS_MAX: Final = 10_000
"""Publishers of one topic that are counted."""
PUBLISHER_S: Final = 600.0
"""A client that has not published a topic for so long is none of its publishers any more."""
HELD_MAX: Final = 10_000
"""Messages of a topic that wait for its spool to come back from Spark."""
RETURN_S: Final = 60.0
"""How long Spark has to give a topic back."""

_log = logging.getLogger("braidmq.processing")


class MoveError(ValueError):
    """Why a topic cannot change hands."""


class TopicAssignment:
    """One topic of one processor."""

    __slots__ = (
        "asked_at",
        "changes_at",
        "held",
        "is_logged",
        "key",
        "last",
        "load",
        "location",
        "publishers",
        "returns_at",
        "topic",
        "used_at",
    )

    def __init__(self, key: Key, is_logged: bool) -> None:
        self.key = key
        self.topic = key[1]
        self.location: Location | None = None
        """None while there is no room, and no log from which Spark could read it."""
        self.is_logged = is_logged
        self.last = -1
        """The offset of the last message that came; -1 if none has come since the start."""
        self.used_at = 0.0
        self.publishers: dict[str, float] = {}
        """Clients here that publish it, and when they last did."""
        self.load = TopicLoad(1, 1, 0.0)
        self.returns_at = -1
        """The offset from which on it is to be the edge's again; -1 if that was not asked for."""
        self.asked_at = 0.0
        """When it was."""
        self.held: list[QueuedMessage] = []
        """Messages that arrived while it is undecided from which offset on the topic is whose."""
        self.changes_at = -1
        """The offset at which it changes hands as soon as the log has everything before it; otherwise -1."""

    @property
    def is_changing(self) -> bool:
        return self.changes_at >= 0

    @property
    def name(self) -> str:
        """Where it is processed, as people are told."""
        if self.location is None:
            return "no room"
        return "returning" if self.returns_at >= 0 else self.location


class TopicAssignments:
    def __init__(self, store: AssignmentStore, capacity: Capacity) -> None:
        self.store = store
        self.capacity = capacity
        self.load = EdgeLoad()
        self.changes = 0
        """Grows with each change of what is Spark's."""
        self._by_key: dict[Key, TopicAssignment] = {}
        for key, intervals in store.all().items():
            if intervals[-1].location == "spark":
                self._by_key[key] = assignment = TopicAssignment(key, is_logged=True)
                assignment.location = "spark"

    def __iter__(self) -> Iterator[TopicAssignment]:
        return iter(self._by_key.values())

    def get(self, key: Key) -> TopicAssignment | None:
        return self._by_key.get(key)

    @property
    def share(self) -> float:
        """θ_l (Eq. 2) of all that is managed here, delegated or not."""
        load = self.load
        for assignment in self:
            if assignment.location != "edge":
                load = load.plus(assignment.load)
        return local_share(self.capacity, load)

    # Topics that come and go

    def find(self, key: Key, queue: WorkQueue, offset: int, size: int, is_logged: bool, now: float) -> TopicAssignment:
        """The assignment of a topic of which a message has come; a new topic is located now."""
        assignment = self._by_key.get(key)
        if assignment is None or assignment.is_logged != is_logged:
            if assignment is not None:  # its offsets are counted anew: they cannot be compared with those of before
                self.forget(assignment)
            assignment = self._by_key[key] = TopicAssignment(key, is_logged)
        if not assignment.load.stored:
            assignment.load = TopicLoad(queue.spool, 1, queue.spool * float(size))
        if assignment.location is None:
            self._locate(assignment, offset)
        assignment.last = offset
        assignment.used_at = now
        return assignment

    def _locate(self, assignment: TopicAssignment, offset: int) -> None:
        """At the edge if there is room; else Spark's, if it can read the topic from the log, or has it already."""
        intervals = self.store.intervals(assignment.key)
        if assignment.is_logged and intervals and intervals[-1].location == "spark":
            assignment.location = "spark"
            self.changes += 1
        elif has_room(self.capacity, self.load, assignment.load):
            self._begin(assignment, Interval(offset, "edge"))
        elif assignment.is_logged:
            self._begin(assignment, Interval(offset, "spark"))

    def delegated(self, name: str) -> list[TopicAssignment]:
        """The topics of a processor that are Spark's."""
        return [assignment for assignment in self if assignment.key[0] == name and assignment.location == "spark"]

    def final_below(self, name: str, next_offset: int) -> int:
        """Below this offset the intervals of a processor's topics are final."""
        pending = [assignment.changes_at for assignment in self if assignment.is_changing and assignment.key[0] == name]
        return min([next_offset, *pending])

    def _begin(self, assignment: TopicAssignment, interval: Interval) -> None:
        if "spark" in (assignment.location, interval.location):
            self.changes += 1
        if assignment.is_logged:  # Spark can never get the others
            self.store.begin(assignment.key, interval)
        if assignment.location == "edge":
            self.load = self.load.minus(assignment.load)
        assignment.location = interval.location
        if assignment.location == "edge":
            self.load = self.load.plus(assignment.load)

    def note_publisher(self, assignment: TopicAssignment, client: str, now: float) -> None:
        if client in assignment.publishers or len(assignment.publishers) < PUBLISHERS_MAX:
            assignment.publishers[client] = now
        if len(assignment.publishers) > assignment.load.publishers:
            self._set_publishers(assignment, len(assignment.publishers))

    def note_size(self, assignment: TopicAssignment, queue: WorkQueue) -> None:
        """A spool has changed: what it takes when it is full follows from what it takes now."""
        kept = queue.spools.get(assignment.topic)
        if kept is not None and kept.messages:
            storage = queue.spool * kept.bytes / len(kept.messages)
            if storage != assignment.load.stored or queue.spool != assignment.load.spool:
                self._set_load(assignment, TopicLoad(queue.spool, assignment.load.publishers, storage))

    def _set_publishers(self, assignment: TopicAssignment, count: int) -> None:
        self._set_load(assignment, TopicLoad(assignment.load.spool, count, assignment.load.stored))

    def _set_load(self, assignment: TopicAssignment, load: TopicLoad) -> None:
        if assignment.location == "edge":
            self.load = self.load.minus(assignment.load).plus(load)
        assignment.load = load

    def forget(self, assignment: TopicAssignment) -> None:
        """Nothing of a topic is kept here any more; its intervals stay written down."""
        self.changes += 1
        if self._by_key.pop(assignment.key, None) is not None and assignment.location == "edge":
            self.load = self.load.minus(assignment.load)

    def sweep_publishers(self, now: float, is_there: Callable[[str], bool]) -> None:
        """Clients that are gone, or silent for long, are publishers no more."""
        for assignment in self:
            publishers = assignment.publishers
            for client in [one for one, at in publishers.items() if now - at > PUBLISHER_S or not is_there(one)]:
                del assignment.publishers[client]
            if len(assignment.publishers) < assignment.load.publishers:
                self._set_publishers(assignment, max(1, len(assignment.publishers)))

    # Changes of hands

    def surplus(self) -> list[TopicAssignment]:
        """Topics that have come to need more than there is, and can be delegated: the latest first."""
        if not is_over(self.capacity, self.load):
            return []
        edge = {one.key: one.load for one in self if one.location == "edge" and one.is_logged}
        fixed = self.load
        for load in edge.values():
            fixed = fixed.minus(load)
        room = Capacity(self.capacity.storage - fixed.storage, self.capacity.compute - fixed.compute)
        return [self._by_key[key] for key in surplus(room, edge)]

    def recallable(self, now: float) -> list[TopicAssignment]:
        """Delegated topics for which there is room, and that were not asked for just now."""
        delegated = {
            one.key: one.load
            for one in self
            if one.location == "spark" and one.last >= 0 and one.returns_at < 0 and now - one.asked_at > RETURN_S
        }
        return [self._by_key[key] for key in recalled(self.capacity, self.load, delegated)]

    def delegate(self, assignment: TopicAssignment, queue: WorkQueue, first: int) -> None:
        """To Spark, from an offset on that is the next; with the spool as it is when all that came before is done."""
        if assignment.location == "spark":
            self.give_up_return(assignment)
            return
        if not assignment.is_logged:
            raise MoveError(f"{assignment.topic} is not logged, so Spark cannot read it: name it in the log's topics")
        last, messages = queue.state_of(assignment.topic)
        self.store.hand_over(assignment.key, SpoolState(last, tuple([decode_message(raw) for raw in messages])))
        self._begin(assignment, Interval(first, "spark"))

    def ask_back(self, assignment: TopicAssignment, queue: WorkQueue, first: int, now: float) -> None:
        """The edge wants a topic back, from an offset on that is the next; Spark is told when it asks."""
        if assignment.location != "spark" or assignment.returns_at >= 0:
            return
        if queue.has(assignment.topic):  # the spool that comes back has these in it already
            raise MoveError(
                f"messages of {assignment.topic} from before it went to Spark still wait here: try again later"
            )
        assignment.returns_at = first
        assignment.asked_at = now
        self.changes += 1

    def hold(self, assignment: TopicAssignment, item: QueuedMessage) -> bool:
        """Keeps a message for the time when its spool is back; False if there are too many, and Spark has them all."""
        if len(assignment.held) >= HELD_MAX:
            self.give_up_return(assignment)
            return False
        assignment.held.append(item)
        return True

    def give_up_return(self, assignment: TopicAssignment) -> None:
        """Spark goes on: what was held is its to process, and in the log."""
        self.changes += 1
        assignment.returns_at = -1
        assignment.held = []

    def sweep_returns(self, now: float) -> None:
        for assignment in self:
            if assignment.returns_at >= 0 and now - assignment.asked_at > RETURN_S:
                _log.warning(
                    "Spark did not give back %s of %s within %g s", assignment.topic, assignment.key[0], RETURN_S
                )
                self.give_up_return(assignment)

    def take_back(
        self, assignment: TopicAssignment, first: int, state: SpoolState
    ) -> tuple[int, list[bytes], list[QueuedMessage]]:
        """Spark has done all before `first` and returns the spool: (its last offset, its messages, what was held here).

        A MoveError says that it is still Spark's.
        """
        if assignment.location == "edge":
            raise MoveError("it is the edge's turn already")
        if assignment.returns_at < 0 or first != assignment.returns_at:
            asked = "not at all" if assignment.returns_at < 0 else f"from offset {assignment.returns_at} on"
            raise MoveError(f"it was asked back {asked}, not from offset {first} on: go on with it")
        if state.last >= first:
            raise MoveError(f"the spool has come to offset {state.last}, and it is to end before {first}")
        self._begin(assignment, Interval(first, "edge"))
        self.store.drop_handed(assignment.key)
        held, assignment.held = assignment.held, []
        assignment.returns_at = -1
        return state.last, [encode_message(message) for message in state.messages], held
