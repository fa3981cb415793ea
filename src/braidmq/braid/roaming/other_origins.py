"""What waits for an origin to say what is before it, and was published at another one: its publisher has roamed.

It has its place among what that publisher has published at the origin. If it says what it follows there, that is just
behind; if not, it has waited for that before it came, and is where it stands among those that wait.
"""

from __future__ import annotations

from braidmq.braid.roaming.marks import MarkedDelivery


class OtherOrigins:
    def __init__(self, origin: str) -> None:
        """`origin` is the one that has said what is before."""
        self._origin = origin
        self._by_stream: dict[tuple[str, str], list[tuple[MarkedDelivery, int | None]]] = {}
        """In their order, and the offset at the origin behind which each comes; None for those that have waited for it
        before they came."""
        self._ahead: dict[int, list[MarkedDelivery]] = {}
        """By offset at the origin: those that are to be given before, and stand before it."""

    def add(self, one: MarkedDelivery) -> None:
        """The next that waits; it need not wait for this origin again."""
        waiting = self._by_stream.setdefault(one.stream, [])
        after = waiting[-1][1] if waiting else None
        if one.follows is not None and one.follows[0] == self._origin:
            after, one.follows = one.follows[1], None
        waiting.append((one, after))

    def pass_by(self, own: MarkedDelivery) -> None:
        """The next that waits is one of the origin: those that stand before it are before it, unless they follow it."""
        assert own.mark is not None
        waiting = self._by_stream.get(own.stream, [])
        self._ahead[own.mark[1]] = [one for one, after in waiting if after is None]

    def before(self, own: MarkedDelivery) -> list[MarkedDelivery]:
        """Takes out those that come before one of the origin."""
        assert own.mark is not None
        offset = own.mark[1]
        waiting = self._by_stream.pop(own.stream, None)
        if waiting is None:
            return []
        ahead = self._ahead.get(offset, ())
        is_before = [one in ahead if after is None else after < offset for one, after in waiting]
        if not all(is_before):
            self._by_stream[own.stream] = [each for each, is_one in zip(waiting, is_before, strict=True) if not is_one]
        return [one for (one, _), is_one in zip(waiting, is_before, strict=True) if is_one]

    def left(self) -> list[MarkedDelivery]:
        """Those that come behind all of the origin."""
        return [one for waiting in self._by_stream.values() for one, _ in waiting]
