"""The history of a broker that leaves: others follow it to its end, or one of them answers for it from then on.

    the broker that leaves                    the others
    AskFollowed, how far it has come ───────▶ each fetches what it lacks
                         ◀─────────────────── HasFollowed: to the end, or not yet
    if one is silent, or needs too long:      the taker
    TakeHistory, page by page ──────────────▶ keeps it, as long as any history is kept
                         ◀─────────────────── HistoryTaken: stored

The taker tells that this history is to be asked for there (`heads`), and answers those that ask (`reconcile`). So a
broker that was cut off, or down, misses nothing. Where mirrors have a copy of the store, they do the same without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from braidmq.braid.catch_up.cursors import Cursors
from braidmq.braid.catch_up.heads import Head, HistoryHeads
from braidmq.braid.catch_up.history import HISTORY_S, History, Sent
from braidmq.braid.catch_up.reconcile import Reconciler
from braidmq.broker.broker import Broker
from braidmq.broker.store import MemoryStore
from braidmq.host import Address, Event, Host, Message, Reply, Service, ask, handles, run_all

LEFT = "$left/"
"""The store's rows for what was taken stand among the cursors, under this, the number of a page and the origin."""

LEFT_MAX = 4
"""Brokers that have left whose histories are kept here; the one that left first goes."""

PAGE_BYTES_MAX = 256 << 10
ASK_TIMEOUT_S = 1.0
AGAIN_S = 0.1
"""How long after its answer a broker is asked again that has not followed to the end."""

TAKEN_S = 5.0
"""How long a taker has until it has stored a page."""


class AskFollowed(Message, frozen=True, array_like=True, gc=False):
    """I am about to leave, or the broker is gone for which I answer. Have you followed its history up to this offset?
    If not, I am to be asked."""

    origin: str
    head: int


class HasFollowed(Message, frozen=True, array_like=True, gc=False):
    has_followed: bool


class TakeHistory(Message, frozen=True, array_like=True, gc=False):
    """I am about to leave: answer for my history. Pages are numbered from 0."""

    origin: str
    page: int
    sent: tuple[bytes, ...]
    is_last: bool


class HistoryTaken(Message, frozen=True, array_like=True, gc=False):
    """This page is in my store and its copies."""

    page: int


class LeftHistories(Service):
    """Both sides: a broker that leaves, and those that stay."""

    def __init__(
        self,
        broker: Broker,
        host: Host,
        origin: str,
        history: History,
        cursors: Cursors,
        heads: HistoryHeads,
        reconciler: Reconciler,
    ) -> None:
        """`origin` names this broker's own history."""
        self._broker = broker
        self._host = host
        self._origin = origin
        self._history = history
        self._cursors = cursors
        self._heads = heads
        self._reconciler = reconciler
        self._pages: dict[str, list[tuple[bytes, ...]]] = {}
        """By origin: what has come of a history that is not whole."""
        self._kept: dict[str, tuple[History, int]] = {}
        """By origin: its history, and how many pages of it are in the store."""
        self._taken: tuple[int, Event] = (-1, host.event())
        """The page that was given last, and that it was taken."""
        self._restore()
        host.serve(self)

    def _restore(self) -> None:
        rows: dict[str, dict[int, bytes]] = {}
        for key, row in self._broker.saved_cursors:
            if key.startswith(LEFT):
                page, origin = key.removeprefix(LEFT).split("/", 1)
                rows.setdefault(origin, {})[int(page)] = row
        for origin, pages in rows.items():
            sent = [one for page in sorted(pages) for one in msgspec.msgpack.decode(pages[page], type=list[bytes])]
            self._kept[origin] = (_history_of(sent), 1 + max(pages))

    # The broker that leaves

    async def leave(
        self, known: Iterable[Address], takers: Sequence[Address], has_parted: Callable[[Address], bool], ends_at: float
    ) -> bool:
        """Others follow to the end, or a taker answers from now on; False if neither could be had by then. `known` are
        the addresses of all brokers that were heard of."""
        self._history.trim(self._broker.now())
        newest = self._history.newest_at
        if newest is None or self._broker.now() - newest > HISTORY_S:
            return True
        others = [one for one in dict.fromkeys(known) if one != self._host.address]
        behind = {one for one in others if has_parted(one)}
        asked = [one for one in others if one not in behind]
        while asked and self._host.now() < ends_at:
            not_yet: list[Address] = []
            await run_all(self._host, [self._ask(one, not_yet, behind) for one in asked])
            asked = not_yet
            if asked:
                await self._host.sleep(AGAIN_S)
        if not asked and not behind:
            return True
        for taker in takers:
            if await self._give(taker, ends_at + TAKEN_S):
                return True
        return False

    async def _ask(self, other: Address, not_yet: list[Address], behind: set[Address]) -> None:
        asked = AskFollowed(self._origin, self._history.kept)
        answer = await ask(self._host, other, asked, HasFollowed, timeout_s=ASK_TIMEOUT_S)
        if answer is None:
            behind.add(other)
        elif not answer.has_followed:
            not_yet.append(other)

    async def _give(self, taker: Address, ends_at: float) -> bool:
        pages = list(self._history.pages(PAGE_BYTES_MAX))
        for number, page in enumerate(pages):
            taken = self._host.event()
            self._taken = (number, taken)
            sent = tuple([msgspec.msgpack.encode(one) for one in page])
            self._host.send(taker, TakeHistory(self._origin, number, sent, number == len(pages) - 1))
            if self._host.now() > ends_at or not await taken.wait(TAKEN_S):
                return False
        return True

    @handles(HistoryTaken)
    def on_history_taken(self, _origin: Address, told: HistoryTaken) -> Reply:
        page, taken = self._taken
        if told.page == page:
            taken.set()
        return None

    # Those that stay

    @handles(AskFollowed)
    def on_ask_followed(self, origin: Address, asked: AskFollowed) -> Reply:
        self._heads.learn(origin, [(asked.origin, origin, asked.head)])
        cursor = self._cursors.get(asked.origin)
        has_followed = cursor is not None and cursor.floor >= asked.head
        if cursor is not None and not has_followed:
            self._reconciler.ask_soon(asked.origin, cursor)
        return HasFollowed(has_followed)

    # The taker

    @handles(TakeHistory)
    def on_take_history(self, giver: Address, told: TakeHistory) -> Reply:
        pages = self._pages.setdefault(told.origin, [])
        if told.page == 0:
            pages.clear()
            self._drop(told.origin)
        if told.page != len(pages):
            return None
        pages.append(told.sent)
        self._broker.store.save_cursor(_key(told.origin, told.page), msgspec.msgpack.encode(told.sent))
        if told.is_last:
            del self._pages[told.origin]
            for origin in list(self._kept)[: max(0, len(self._kept) + 1 - LEFT_MAX)]:
                self._drop(origin)
            self._kept[told.origin] = (_history_of([one for page in pages for one in page]), len(pages))
        self._host.spawn(self._confirm(giver, told.page))
        return None

    async def _confirm(self, giver: Address, page: int) -> None:
        self._broker.flush()
        if self._broker.degraded:
            return
        copied = self._host.event()
        self._broker.tick.when_copied(copied.set)
        await copied.wait()
        self._host.send(giver, HistoryTaken(page))

    def get(self, origin: str) -> History | None:
        """The history of a broker that has left, if it is kept here."""
        kept = self._kept.get(origin)
        return None if kept is None else kept[0]

    def heads(self) -> list[Head]:
        """How far they had come: to be asked for here. What is old, or of a broker that is back, is forgotten."""
        now = self._broker.now()
        for origin, (history, _) in list(self._kept.items()):
            cursor = self._cursors.get(origin)
            newest = history.newest_at or 0.0
            if now - newest > HISTORY_S or (cursor is not None and cursor.head > history.head):
                self._drop(origin)
        return [(origin, self._host.address, history.head) for origin, (history, _) in self._kept.items()]

    def _drop(self, origin: str) -> None:
        kept = self._kept.pop(origin, None)
        if kept is not None:
            for page in range(kept[1]):
                self._broker.store.drop_cursor(_key(origin, page))
            self._broker.request_flush()


def _key(origin: str, page: int) -> str:
    return f"{LEFT}{page}/{origin}"


def _history_of(rows: Iterable[bytes]) -> History:
    return History(MemoryStore(), [msgspec.msgpack.decode(row, type=Sent) for row in rows])
