"""What waits for an origin to say what is before it, and was published at another one: its publisher has roamed.

It has its place among what that publisher has published at the origin. What follows something there comes behind that,
and with it all that comes behind it; what is followed by something there comes before. What says neither is where it
stands among those that wait. Of one origin the offsets say which is first.
"""

from __future__ import annotations

from braidmq.braid.roaming.marks import MarkedDelivery


class OtherOrigins:
    def __init__(self, origin: str) -> None:
        """`origin` is the one that has said what is before."""
        self._origin = origin
        self._by_stream: dict[tuple[str, str], list[tuple[MarkedDelivery, int | None]]] = {}
        """In their order, and the offset at the origin behind which each comes; None if nothing says that."""
        self._ahead: dict[int, list[MarkedDelivery]] = {}
        """By offset at the origin: those that stand before it."""

    def add(self, one: MarkedDelivery) -> None:
        """The next that waits; it need not wait for this origin again."""
        waiting = self._by_stream.setdefault(one.stream, [])
        at = next((number for number, (other, _) in enumerate(waiting) if _is_before(one, other)), len(waiting))
        after = waiting[at - 1][1] if at else None
        if one.follows is not None and one.follows[0] == self._origin:
            after, one.follows = one.follows[1], None
        waiting.insert(at, (one, after))

    def pass_by(self, own: MarkedDelivery) -> None:
        """The next that waits is one of the origin."""
        assert own.mark is not None
        self._ahead[own.mark[1]] = [one for one, _ in self._by_stream.get(own.stream, ())]

    def before(self, own: MarkedDelivery) -> list[MarkedDelivery]:
        """Takes out those that come before one of the origin."""
        assert own.mark is not None
        offset = own.mark[1]
        waiting = self._by_stream.get(own.stream, [])
        end = 0
        for number, (one, after) in enumerate(waiting, 1):
            is_ahead = one in self._ahead.get(offset, ()) or _is_followed(one, own)
            if is_ahead if after is None else after < offset:
                end = number
        self._by_stream[own.stream] = waiting[end:]
        return [one for one, _ in waiting[:end]]

    def left(self) -> list[MarkedDelivery]:
        """Those that come behind all of the origin."""
        return [one for waiting in self._by_stream.values() for one, _ in waiting]


def _is_before(one: MarkedDelivery, other: MarkedDelivery) -> bool:
    """Whether both are of one origin, and this one comes first."""
    if one.mark is None or other.mark is None:
        return False
    return one.mark[0] == other.mark[0] and one.mark[1] < other.mark[1]


def _is_followed(one: MarkedDelivery, own: MarkedDelivery) -> bool:
    """Whether one is what another one follows, or is before that."""
    if one.mark is None or own.follows is None:
        return False
    return one.mark[0] == own.follows[0] and one.mark[1] <= own.follows[1]
