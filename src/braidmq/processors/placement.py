"""Where the messages of a topic are processed: at the edge while it has room, and else on Spark (seed 003 §5.1).

An edge server l has two limits: storage A_l, which bounds its spools, and compute B_l, which bounds

    v_l = Σ |C^P_{n,l}| · u_n  over the topics n that it manages,                                             (Eq. 1)

where u_n is the size of a topic's spool and C^P_{n,l} are the publishers of the topic that are at home there. What it
could hold itself of all that it manages is

    θ_l = min(A_l / Σ u_n, B_l / v_l, 1).                                                                     (Eq. 2)

It delegates when Σ u_n > A_l or v_l > B_l. Who comes first stays: a new topic never pushes another one out. Storage may
be counted in messages, as the paper does, or in bytes, as the broker does; the equations do not mind.

Who has processed what is a list of intervals, and never open to doubt: each says from which offset on whose turn it is.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Final, Literal, TypeVar

import msgspec

Key = TypeVar("Key", bound=Hashable)

Place = Literal["edge", "spark"]

RECALL_SHARE: Final = 0.8
"""A topic is taken back if the edge is then at most so full: else it would go again with the next newcomer."""


TURNS_MAX: Final = 64
"""Turns of a topic that are remembered."""


class Capacity(msgspec.Struct, frozen=True):
    """What an edge has: storage A_l and compute B_l."""

    storage: float
    compute: float


class Need(msgspec.Struct, frozen=True):
    """What one topic takes of an edge: the size u_n of its spool, and the |C^P_{n,l}| clients that publish it there.

    `storage` is the spool's size in the unit of the capacity, if that is not messages.
    """

    spool: int
    publishers: int
    storage: float = -1.0

    @property
    def stored(self) -> float:
        return self.spool if self.storage < 0 else self.storage

    @property
    def computed(self) -> float:
        return self.publishers * self.spool


class Use(msgspec.Struct, frozen=True):
    """What several topics take together: Σ u_n, and v_l (Eq. 1)."""

    storage: float = 0.0
    compute: float = 0.0

    def plus(self, need: Need) -> Use:
        return Use(self.storage + need.stored, self.compute + need.computed)

    def minus(self, need: Need) -> Use:
        return Use(self.storage - need.stored, self.compute - need.computed)


def use_of(needs: Iterable[Need]) -> Use:
    """Eq. 1, and beside it the storage."""
    listed = list(needs)
    return Use(sum(need.stored for need in listed), sum(need.computed for need in listed))


def is_over(capacity: Capacity, use: Use) -> bool:
    """Whether an edge must delegate: Σ u_n > A_l or v_l > B_l."""
    return use.storage > capacity.storage or use.compute > capacity.compute


def local_share(capacity: Capacity, use: Use) -> float:
    """θ_l (Eq. 2): the share of what it manages that an edge can process itself."""
    share = 1.0
    if use.storage > 0:
        share = min(share, capacity.storage / use.storage)
    if use.compute > 0:
        share = min(share, capacity.compute / use.compute)
    return share


def has_room(capacity: Capacity, use: Use, need: Need, share: float = 1.0) -> bool:
    """Whether one more topic fits into this share of an edge that is in use as said."""
    within = Capacity(capacity.storage * share, capacity.compute * share)
    return not is_over(within, use.plus(need))


def allocate(capacity: Capacity, needs: Mapping[Key, Need]) -> tuple[list[Key], list[Key]]:
    """(who is processed at the edge, who is delegated) of topics in the order in which they came."""
    edge: list[Key] = []
    delegated: list[Key] = []
    use = Use()
    for key, need in needs.items():
        if has_room(capacity, use, need):
            use = use.plus(need)
            edge.append(key)
        else:
            delegated.append(key)
    return edge, delegated


def surplus(capacity: Capacity, edge: Mapping[Key, Need]) -> list[Key]:
    """Who is to be delegated because those at the edge have come to need more than there is: the latest first."""
    use = use_of(edge.values())
    leaving: list[Key] = []
    for key, need in reversed(list(edge.items())):
        if not is_over(capacity, use):
            break
        use = use.minus(need)
        leaving.append(key)
    return leaving


def recalled(capacity: Capacity, use: Use, delegated: Mapping[Key, Need]) -> list[Key]:
    """Who can be taken back, of those that were delegated, in their order."""
    returning: list[Key] = []
    for key, need in delegated.items():
        if has_room(capacity, use, need, RECALL_SHARE):
            use = use.plus(need)
            returning.append(key)
    return returning


class Turn(msgspec.Struct, frozen=True, array_like=True):
    """From this offset on it is the turn of a place, until the next turn begins."""

    first: int
    place: Place


Turns = tuple[Turn, ...]


def turn_at(turns: Turns, offset: int) -> Place | None:
    """Whose turn a message is; None if it came before the first turn."""
    place: Place | None = None
    for turn in turns:
        if turn.first > offset:
            break
        place = turn.place
    return place


def with_turn(turns: Turns, turn: Turn) -> Turns:
    """One more turn at the end; the oldest go. Turns only go forward: a ValueError says that this one would not."""
    if turns and turn.first < turns[-1].first:
        raise ValueError(f"a turn from offset {turn.first} on, behind one from {turns[-1].first} on")
    if turns and turn.place == turns[-1].place:
        return turns
    return (*turns, turn)[-TURNS_MAX:]


def ranges_of(turns: Turns, place: Place) -> list[tuple[int, int | None]]:
    """The offsets [first, end) that are a place's to process; an end of None is not known yet."""
    ends: Sequence[int | None] = [*(turn.first for turn in turns[1:]), None]
    return [(turn.first, end) for turn, end in zip(turns, ends, strict=False) if turn.place == place]
