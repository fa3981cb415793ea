"""What a broker needs of the copies of its store that other brokers hold (`braid.mirrors` makes them)."""

from __future__ import annotations

from typing import Protocol


class StoreCopies(Protocol):
    """How far the copies are. Positions only grow, and mean nothing else here."""

    @property
    def is_behind(self) -> bool:
        """Whether the copies lack something that the store has committed, and are to be waited for."""
        ...

    @property
    def end(self) -> int:
        """The position of what was committed last."""
        ...

    def give_up(self, why: str) -> None:
        """Nothing waits for those any longer that are behind: they are no copies any more."""
        ...

    def make_sure(self) -> bool:
        """Finds out whether another broker has acted for this one meanwhile, if it may have. Whether that has to be
        waited for: then the tick's `be_sure` is called."""
        ...


class NoCopies:
    """The store is the only one there is."""

    is_behind = False
    end = 0

    def give_up(self, why: str) -> None: ...

    def make_sure(self) -> bool:
        return False
