"""Which topics are processed here, and which are Spark's: as long as there is room, and over every change of hands.

A change of hands is exact: it happens at the log's next offset, when all before it is written. To Spark: its turn
begins there; the spool, as it will be when all that came before is done, goes along. Back: the edge asks for a topic
from the next offset on and holds what comes from there. Spark processes up to it and returns the spool; then the edge's
turn is written down, and what was held goes through. Until that is written the turn is Spark's: if Spark does not
answer, if too much comes, or if the broker ends, what was held is let go, for it is in the log. So each message has one
place at any time, whatever is lost on the way.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from braidmq.processing.assignment_store import AssignmentStore, Key
from braidmq.processing.work_queue import Item, WorkQueue
from braidmq.processors.frames import decode_message, encode_message
from braidmq.processors.placement import (
    Capacity,
    Need,
    Place,
    Turn,
    Use,
    has_room,
    is_over,
    local_share,
    recalled,
    surplus,
)
from braidmq.processors.processor import SpoolState

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
        "need",
        "place",
        "publishers",
        "returns_at",
        "topic",
        "used_at",
    )

    def __init__(self, key: Key, is_logged: bool) -> None:
        self.key = key
        self.topic = key[1]
        self.place: Place | None = None
        """None while there is no room, and no log from which Spark could read it."""
        self.is_logged = is_logged
        self.last = -1
        """The offset of the last message that came; -1 if none has come since the start."""
        self.used_at = 0.0
        self.publishers: dict[str, float] = {}
        """Clients here that publish it, and when they last did."""
        self.need = Need(1, 1, 0.0)
        self.returns_at = -1
        """The offset from which on it is to be the edge's again; -1 if that was not asked for."""
        self.asked_at = 0.0
        """When it was."""
        self.held: list[Item] = []
        """What came while it is not known yet from where on it is whose."""
        self.changes_at = -1
        """The offset at which it is about to change hands, as soon as the log has all that came before; else -1."""

    @property
    def is_changing(self) -> bool:
        return self.changes_at >= 0

    @property
    def name(self) -> str:
        """What is said of it: where it is processed."""
        if self.place is None:
            return "no room"
        return "returning" if self.returns_at >= 0 else self.place


class TopicAssignments:
    def __init__(self, placements: AssignmentStore, capacity: Capacity) -> None:
        self.placements = placements
        self.capacity = capacity
        self.use = Use()
        self.changes = 0
        """Grows with each change of what is Spark's."""
        self._spots: dict[Key, TopicAssignment] = {}
        for key, turns in placements.all().items():
            if turns[-1].place == "spark":
                self._spots[key] = spot = TopicAssignment(key, is_logged=True)
                spot.place = "spark"

    def __iter__(self) -> Iterator[TopicAssignment]:
        return iter(self._spots.values())

    def get(self, key: Key) -> TopicAssignment | None:
        return self._spots.get(key)

    @property
    def share(self) -> float:
        """θ_l (Eq. 2) of all that is managed here, delegated or not."""
        use = self.use
        for spot in self:
            if spot.place != "edge":
                use = use.plus(spot.need)
        return local_share(self.capacity, use)

    # Topics that come and go

    def find(self, key: Key, line: WorkQueue, offset: int, size: int, is_logged: bool, now: float) -> TopicAssignment:
        """The spot of a topic of which a message has come; a new topic gets its place now."""
        spot = self._spots.get(key)
        if spot is None or spot.is_logged != is_logged:
            if spot is not None:  # its offsets are others from now on: nothing of before can be compared with them
                self.forget(spot)
            spot = self._spots[key] = TopicAssignment(key, is_logged)
        if not spot.need.stored:
            spot.need = Need(line.spool, 1, line.spool * float(size))
        if spot.place is None:
            self._place(spot, offset)
        spot.last = offset
        spot.used_at = now
        return spot

    def _place(self, spot: TopicAssignment, offset: int) -> None:
        """At the edge if there is room; else Spark's, if it can read the topic from the log, or has it already."""
        turns = self.placements.turns(spot.key)
        if spot.is_logged and turns and turns[-1].place == "spark":
            spot.place = "spark"
            self.changes += 1
        elif has_room(self.capacity, self.use, spot.need):
            self._begin(spot, Turn(offset, "edge"))
        elif spot.is_logged:
            self._begin(spot, Turn(offset, "spark"))

    def delegated(self, name: str) -> list[TopicAssignment]:
        """The topics of a processor that are Spark's."""
        return [spot for spot in self if spot.key[0] == name and spot.place == "spark"]

    def settled(self, name: str, next_offset: int) -> int:
        """Below this offset no turn of a processor's topics will change any more."""
        pending = [spot.changes_at for spot in self if spot.is_changing and spot.key[0] == name]
        return min([next_offset, *pending])

    def _begin(self, spot: TopicAssignment, turn: Turn) -> None:
        if "spark" in (spot.place, turn.place):
            self.changes += 1
        if spot.is_logged:  # else Spark can never have it, and nobody asks
            self.placements.begin(spot.key, turn)
        if spot.place == "edge":
            self.use = self.use.minus(spot.need)
        spot.place = turn.place
        if spot.place == "edge":
            self.use = self.use.plus(spot.need)

    def note_publisher(self, spot: TopicAssignment, client: str, now: float) -> None:
        if client in spot.publishers or len(spot.publishers) < PUBLISHERS_MAX:
            spot.publishers[client] = now
        if len(spot.publishers) > spot.need.publishers:
            self._set_need(spot, Need(spot.need.spool, len(spot.publishers), spot.need.stored))

    def note_size(self, spot: TopicAssignment, line: WorkQueue) -> None:
        """A spool has changed: what it takes when it is full follows from what it takes now."""
        kept = line.spools.get(spot.topic)
        if kept is not None and kept.messages:
            storage = line.spool * kept.bytes / len(kept.messages)
            if storage != spot.need.stored or line.spool != spot.need.spool:
                self._set_need(spot, Need(line.spool, spot.need.publishers, storage))

    def _set_need(self, spot: TopicAssignment, need: Need) -> None:
        if spot.place == "edge":
            self.use = self.use.minus(spot.need).plus(need)
        spot.need = need

    def forget(self, spot: TopicAssignment) -> None:
        """Nothing of a topic is kept here any more; whose turn it is stays written down."""
        self.changes += 1
        if self._spots.pop(spot.key, None) is not None and spot.place == "edge":
            self.use = self.use.minus(spot.need)

    def sweep_publishers(self, now: float) -> None:
        for spot in self:
            for client in [one for one, at in spot.publishers.items() if now - at > PUBLISHER_S]:
                del spot.publishers[client]
            if len(spot.publishers) < spot.need.publishers:
                self._set_need(spot, Need(spot.need.spool, max(1, len(spot.publishers)), spot.need.stored))

    # Changes of hands

    def surplus(self) -> list[TopicAssignment]:
        """Topics that have come to need more than there is, and can be delegated: the latest first."""
        if not is_over(self.capacity, self.use):
            return []
        edge = {spot.key: spot.need for spot in self if spot.place == "edge" and spot.is_logged}
        fixed = self.use
        for need in edge.values():
            fixed = fixed.minus(need)
        room = Capacity(self.capacity.storage - fixed.storage, self.capacity.compute - fixed.compute)
        return [self._spots[key] for key in surplus(room, edge)]

    def recallable(self, now: float) -> list[TopicAssignment]:
        """Delegated topics for which there is room, and that were not asked for just now."""
        delegated = {
            spot.key: spot.need
            for spot in self
            if spot.place == "spark" and spot.last >= 0 and spot.returns_at < 0 and now - spot.asked_at > RETURN_S
        }
        return [self._spots[key] for key in recalled(self.capacity, self.use, delegated)]

    def delegate(self, spot: TopicAssignment, line: WorkQueue, first: int) -> None:
        """To Spark, from an offset on that is the next; with the spool as it is when all that came before is done."""
        if spot.place == "spark":
            self.give_up_return(spot)
            return
        if not spot.is_logged:
            raise MoveError(f"{spot.topic} is not logged, so Spark cannot read it: name it in the log's topics")
        last, messages = line.state_of(spot.topic)
        self.placements.hand_over(spot.key, SpoolState(last, tuple([decode_message(raw) for raw in messages])))
        self._begin(spot, Turn(first, "spark"))

    def ask_back(self, spot: TopicAssignment, line: WorkQueue, first: int, now: float) -> None:
        """The edge wants a topic back, from an offset on that is the next; Spark is told when it asks."""
        if spot.place != "spark" or spot.returns_at >= 0:
            return
        if line.has(spot.topic):  # the spool that comes back has these in it already
            raise MoveError(f"messages of {spot.topic} from before it went to Spark still wait here: try again later")
        spot.returns_at = first
        spot.asked_at = now
        self.changes += 1

    def hold(self, spot: TopicAssignment, item: Item) -> bool:
        """Keeps a message for the time when its spool is back; False if there are too many, and Spark has them all."""
        if len(spot.held) >= HELD_MAX:
            self.give_up_return(spot)
            return False
        spot.held.append(item)
        return True

    def give_up_return(self, spot: TopicAssignment) -> None:
        """Spark goes on: what was held is its to process, and in the log."""
        self.changes += 1
        spot.returns_at = -1
        spot.held = []

    def sweep_returns(self, now: float) -> None:
        for spot in self:
            if spot.returns_at >= 0 and now - spot.asked_at > RETURN_S:
                _log.warning("Spark did not give back %s of %s within %g s", spot.topic, spot.key[0], RETURN_S)
                self.give_up_return(spot)

    def take_back(self, spot: TopicAssignment, first: int, state: SpoolState) -> tuple[int, list[bytes], list[Item]]:
        """Spark has done all before `first` and returns the spool: (its last offset, its messages, what was held here).

        A MoveError says that it is still Spark's turn.
        """
        if spot.place == "edge":
            raise MoveError("it is the edge's turn already")
        if spot.returns_at < 0 or first != spot.returns_at:
            asked = "not at all" if spot.returns_at < 0 else f"from offset {spot.returns_at} on"
            raise MoveError(f"it was asked back {asked}, not from offset {first} on: go on with it")
        if state.last >= first:
            raise MoveError(f"the spool has come to offset {state.last}, and it is to end before {first}")
        self._begin(spot, Turn(first, "edge"))
        self.placements.drop_handed(spot.key)
        held, spot.held = spot.held, []
        spot.returns_at = -1
        return state.last, [encode_message(message) for message in state.messages], held
