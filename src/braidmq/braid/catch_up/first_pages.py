"""What a broker has missed while it was down, of several origins: given out together, by time of storing.

A client that has published at one broker and then at another is followed in two histories. After a start they are asked
for side by side; what each origin says first waits for the others for a moment, so that what was published later does
not come first. The order of each origin stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import merge

from braidmq.braid.catch_up.history import Sent
from braidmq.host import Host

TOGETHER_S = 0.5
"""How long the first answers of origins wait for each other."""

Give = Callable[[str, Sent], None]


class FirstPages:
    def __init__(self, host: Host, origins: Iterable[str], give: Give) -> None:
        """`origins` are those that are asked; `give` handles a publication of one of them."""
        self._awaited = dict.fromkeys(origins)
        self._give = give
        self._pages: dict[str, list[Sent]] = {}
        self._through = host.event()
        self._host = host
        self._ends_at = host.now() + TOGETHER_S

    def awaits(self, origin: str) -> bool:
        """Whether an origin has not said anything yet."""
        return origin in self._awaited

    async def add(self, origin: str, page: list[Sent]) -> None:
        """Gives out what an origin has said first, in its turn."""
        self._pages[origin] = page
        self.leave_out(origin)
        if not self._through.is_set:
            await self._through.wait(max(0.0, self._ends_at - self._host.now()))
        self._give_all()

    def leave_out(self, origin: str) -> None:
        """An origin is not waited for any more."""
        self._awaited.pop(origin, None)
        if not self._awaited:
            self._give_all()

    def _give_all(self) -> None:
        pages, self._pages = self._pages, {}
        rows = [[(origin, sent) for sent in page] for origin, page in pages.items()]
        for origin, sent in merge(*rows, key=lambda row: row[1].stored_at):
            self._give(origin, sent)
        self._through.set()
