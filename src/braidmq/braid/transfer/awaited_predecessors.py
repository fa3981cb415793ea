"""What waits for the last publication of a client at the broker that it was at before: streams, and the client itself.

Other brokers hold back what it publishes after until they have had that; so does the broker that it has come to, which
does not read from it until then. Who holds the history that it is in is asked for it, and waited for within bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from braidmq.bounded import BoundedDict
from braidmq.braid.transfer.batch import Predecessor

GIVEN_UP_MAX = 1024
"""Publications that are remembered as not to be waited for any more."""


class AwaitedPredecessors:
    def __init__(self) -> None:
        self.is_handled: Callable[[str, int], bool]
        """Whether a publication has been handled here, by its origin and its offset."""
        self.on_missing: Callable[[Predecessor], None]
        """Called with one that has not: it is to be asked for."""
        self._waiting: dict[str, dict[Hashable, tuple[Predecessor, Callable[[], None]]]] = {}
        """By origin: what waits, each for one publication and with what is to be done then."""
        self._given_up: BoundedDict[tuple[str, int], None] = BoundedDict(GIVEN_UP_MAX)

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def is_here(self, one: Predecessor) -> bool:
        """Whether nobody need wait for it."""
        return self.is_handled(one.origin, one.offset) or (one.origin, one.offset) in self._given_up

    def is_awaited(self, origin: str) -> bool:
        return origin in self._waiting

    def wait(self, waiter: Hashable, one: Predecessor, action: Callable[[], None]) -> None:
        """Calls when it is here, or given up. One who waits, waits for one at a time."""
        waiting = self._waiting.setdefault(one.origin, {})
        is_new = waiter not in waiting
        waiting[waiter] = one, action
        if is_new:
            self.on_missing(one)

    def leave(self, waiter: Hashable, origin: str) -> None:
        """Somebody waits for nothing of an origin any more."""
        waiting = self._waiting.get(origin)
        if waiting is not None and waiting.pop(waiter, None) is not None and not waiting:
            del self._waiting[origin]

    def give_up(self, one: Predecessor) -> None:
        """It will not come, or too late."""
        self._given_up.renew((one.origin, one.offset), None)
        self.look(one.origin)

    def look(self, origin: str) -> None:
        """Something of an origin has been handled: who has waited for it goes on."""
        for waiter, (one, action) in list(self._waiting.get(origin, {}).items()):
            if self.is_here(one):
                self.leave(waiter, origin)
                action()

    def on_fetched(self, origin: str, floor: int, is_held: Callable[[int], bool]) -> None:
        """All of an origin's history up to an offset was fetched: it is here, unless it is held back in its turn, or
        nobody here wanted it."""
        for one, _ in list(self._waiting.get(origin, {}).values()):
            if one.offset <= floor and not is_held(one.offset):
                self.give_up(one)
