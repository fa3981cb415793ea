"""Reconciling: this broker asks other brokers for what it has missed, and answers those that ask.

It asks when it enters, when a stream of QoS 1 or 2 has a gap, when it hears of an offset that it should have had, and
now and then. The origin looks through its history for what the asker wants (its filters, told once and then named by
their digest) and has not got; what stays in a cluster that the asker is not in is none of it. Both sides are bounded: a
page at a time, and so much of the history at a time; one question to an origin at a time.

Filters come while a question is under way. What they want was stored after the question was put: so the answer says up
to where everything is older than that, and thus far the floor may rise whatever has come meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum

import msgspec

from braidmq.braid.catch_up.cursors import Cursor, Cursors
from braidmq.braid.catch_up.first_pages import FirstPages
from braidmq.braid.catch_up.history import HISTORY_MESSAGES_MAX, History, Sent
from braidmq.braid.catch_up.wanted_sets import TellWanted, WantedSet, WantedSets, WantedTaken, set_of
from braidmq.braid.catch_up.wants_telling import Wants, WantsTelling
from braidmq.braid.interest.client_filters import ClientFilters
from braidmq.braid.interest.scope import may_see
from braidmq.braid.transfer.batch import PublicationBatch
from braidmq.host import Address, Host, Message, Reply, Service, ask, handles
from braidmq.mqtt.packets import V5

ASK_TIMEOUT_S = 2.5
PAGE_BYTES_MAX = 128 << 10
SOON_S, SOON_S_MAX = 0.25, 8.0
"""The least time between two rounds of questions to one origin; where filters come all the time, it doubles up to a
bound."""

RETRY_S = 1.0
"""The least time after which one that has not answered is asked again; it doubles each time."""

WAIT_STEP_S = 0.05
"""How often it is looked whether all have answered."""

REGULARLY_S = 30.0
"""How often a broker asks an origin that has more than it has seen, though nothing seems to be missing."""

GOALS_MAX = 8
"""How often a round goes on to what has been kept since it began, because something is held back that may need it."""

LOOKED_MAX, LOOKED_MIN = 8000, 100
"""How much of a history is looked at for one question: so many publications, by the number of filters that each could
be wanted by, but at least so many."""

FILTERS_NAMED_MAX = 1000
"""Filters that are named in a question; where there are more, their hashes are told instead."""

_log = logging.getLogger("braidmq.braid")


class AskMissed(Message, frozen=True, array_like=True, gc=False):
    """What have I missed of this origin? `filters` is None if you should know them by their digest. What was stored
    from `until` on may be wanted by filters that are not among them."""

    origin: str
    floor: int
    since: float
    seen: tuple[tuple[int, int], ...]
    digest: bytes
    filters: tuple[str, ...] | None
    cluster: str = ""
    until: float = 0.0
    is_once: bool = False
    """Whether these are not all filters of the asker, so that they need not be remembered."""


class Missed(Message, frozen=True, array_like=True, gc=False):
    """A page of it; up to `floor` that is all. `head` is the last offset there is. Up to `settled`, everything was
    stored before the time `until` of the question; None if the broker does not say."""

    sent: tuple[bytes, ...]
    floor: int
    head: int
    settled: int | None = None
    is_elsewhere: bool = False
    """Whether I do not have this history: it was lost with the broker that was here before me, or is at a mirror."""
    is_copy: bool = False
    """Whether I answer for a broker that I take to be gone: it may be there, and go on."""


class TellFilters(Message, frozen=True, array_like=True, gc=False):
    """I do not know these filters: tell them, and ask again. I know those that have the digest `known`."""

    known: bytes = b""


class Round(Enum):
    """How a round of questions to an origin ended."""

    FAILED = 0
    DONE = 1
    AGAIN = 2
    """More is wanted by now than was asked for."""


class Reconciler(Service):
    def __init__(
        self,
        host: Host,
        name: str,
        history: History,
        cursors: Cursors,
        filters: ClientFilters,
        now: Callable[[], float],
        receive: Callable[[PublicationBatch], None],
        on_fetched: Callable[[str, int], None],
        is_holding: Callable[[str], bool],
        cluster: str = "",
        has_parted: Callable[[Address], bool] = lambda _address: False,
        tells_hashes: bool = True,
        is_awaited: Callable[[str], bool] = lambda _origin: False,
    ) -> None:
        """`now` is the clock by which publications are stored. `receive` handles what was missed, `on_fetched` is told
        an origin and up to which offset that was all; `is_holding` says whether something of an origin is still
        held back, `is_awaited` whether something of another one waits for it, `has_parted` whether a broker has
        left its address. `cluster` is that of this broker. `tells_hashes` if all brokers understand hashes of
        filters."""
        self._host = host
        self._cluster = cluster
        self._name = name
        self._history = history
        self._cursors = cursors
        self._filters = filters
        self._tells_hashes = tells_hashes
        self._telling = WantsTelling(host, filters, now)
        self._receive = receive
        self._on_fetched = on_fetched
        self._is_holding = is_holding
        self._is_awaited = is_awaited
        self._has_parted = has_parted
        self.gone: Callable[[str], History | None] = lambda _origin: None
        """The history of a broker that is gone, if it is answered for here."""
        self.is_known: Callable[[], bool] = lambda: True
        """Whether it is known what of this broker's history is to be left out."""
        self._wanted_sets = WantedSets()
        self._asking: dict[str, bool] = {}
        """The origins that are being asked, and whether they are to be asked once more."""
        self._first_pages: FirstPages | None = None
        """What origins say first after the start."""
        self.fetched = 0
        """Publications that were missed, and fetched."""
        host.serve(self)

    # Asking

    def ask_soon(self, origin: str, cursor: Cursor) -> None:
        """Something seems to be missing of an origin."""
        if origin == self._name:
            return
        if origin in self._asking:
            self._asking[origin] = True
        else:
            self._asking[origin] = False
            self._host.spawn(self._ask_all(origin, cursor))

    def ask_everybody(self) -> None:
        there = [(origin, cursor) for origin, cursor in self._cursors if not self._has_parted(cursor.address)]
        if self._first_pages is None:
            self._first_pages = FirstPages(
                self._host, [one for one, _ in there if one != self._name], self._receive_one
            )
        for origin, cursor in there:
            self.ask_soon(origin, cursor)

    async def ask_all_once(self, timeout_s: float) -> bool:
        """Asks everybody, and waits until all have answered that can; whether they have in time."""
        self.ask_everybody()
        ends_at = self._host.now() + timeout_s
        while self._asking and self._host.now() < ends_at:
            await self._host.sleep(WAIT_STEP_S)
        return not self._asking

    def ask_regularly(self) -> None:
        """Asks brokers that have more than was seen of them, and again those that have not answered."""
        now = self._host.now()
        for origin, cursor in self._cursors:
            is_due = cursor.head > cursor.floor and now - cursor.asked_at > (cursor.retry_s or REGULARLY_S)
            if is_due and not self._has_parted(cursor.address):
                self.ask_soon(origin, cursor)

    async def _ask_all(self, origin: str, cursor: Cursor) -> None:
        soon_s = SOON_S
        try:
            while True:
                wait_s = cursor.asked_at + soon_s - self._host.now()
                if cursor.asked_at and wait_s > 0:
                    await self._host.sleep(wait_s)
                self._asking[origin] = False
                cursor.asked_at = self._host.now()
                ended = await self._ask(origin, cursor)
                if ended is Round.FAILED:
                    if not self._is_holding(origin) and not self._is_awaited(origin):
                        return
                    await self._host.sleep(RETRY_S)
                elif ended is Round.AGAIN:
                    soon_s = min(2 * soon_s, SOON_S_MAX)
                elif self._is_awaited(origin):  # who has been asked does not answer for it yet
                    soon_s = min(2 * soon_s, RETRY_S)
                elif not self._asking[origin]:
                    return
        finally:
            self._asking.pop(origin, None)

    async def _ask(self, origin: str, cursor: Cursor) -> Round:
        """Fetches all that was missed, a page at a time: what had been kept when it was asked for.

        What is kept later is on its way here by itself. Who ran after it would get all of it twice.
        """
        floor = settled = cursor.floor
        began = self._telling.wants()
        goal: int | None = None
        goals = 0
        while True:
            answer = await self._ask_page(origin, cursor, floor, began)
            if answer is None:
                self._give_up(origin, cursor)
                return Round.FAILED
            if answer.head >= cursor.head:
                cursor.retry_s = 0.0
            cursor.head = max(cursor.head, answer.head)
            await self._receive_all(origin, answer)
            goal = answer.head if goal is None else goal
            is_stuck = not answer.sent and answer.floor <= floor
            is_end = is_stuck or answer.floor >= goal
            if answer.settled is not None and settled >= floor:
                settled = answer.settled
            floor = max(floor, answer.floor)
            if is_end:
                self._on_fetched(origin, floor)
            has_more = self._filters.added_version > began.version
            if not self._is_holding(origin):  # what is held back is not handled yet
                cursor.raise_floor(settled if has_more else floor)
                self._cursors.note(origin)
            if has_more and settled < floor:
                return Round.AGAIN
            if is_end and floor < cursor.head and (answer.is_elsewhere or answer.head < cursor.head):
                self._give_up(origin, cursor)  # one has answered that has less than there is: another has it
                return Round.FAILED
            if is_end:
                goals += 1
                if is_stuck or floor >= answer.head or goals >= GOALS_MAX or not self._is_holding(origin):
                    return Round.DONE
                goal = answer.head

    def _give_up(self, origin: str, cursor: Cursor) -> None:
        """An origin, or what answers for it, does not say all: it is asked again later, there or elsewhere."""
        cursor.retry_s = min(max(2 * cursor.retry_s, RETRY_S), REGULARLY_S)
        if self._first_pages is not None:
            self._first_pages.leave_out(origin)

    async def _ask_page(self, origin: str, cursor: Cursor, floor: int, began: Wants) -> Missed | None:
        seen = tuple([(low, high) for low, high in cursor.seen_ranges() if high > floor])
        digest = self._filters.digest
        asked = AskMissed(origin, floor, cursor.since, seen, digest, None, self._cluster, began.at)
        gone = self.gone(origin)
        if gone is not None and gone.head >= cursor.head:
            return self._missed(gone, asked, set_of(digest, tuple(self._filters)))
        to = cursor.address
        answer = await ask(self._host, to, asked, (Missed, TellFilters), timeout_s=ASK_TIMEOUT_S)
        if not isinstance(answer, TellFilters):
            return answer
        if len(self._filters) <= FILTERS_NAMED_MAX or not self._tells_hashes:
            asked = msgspec.structs.replace(asked, digest=self._filters.digest, filters=tuple(self._filters))
        else:
            wants = await self._telling.tell(to, answer.known)
            if wants is None:
                return None
            asked = msgspec.structs.replace(asked, digest=wants.digest)
        return await ask(self._host, to, asked, Missed, timeout_s=ASK_TIMEOUT_S)

    async def _receive_all(self, origin: str, answer: Missed) -> None:
        page = [msgspec.msgpack.decode(row, type=Sent) for row in answer.sent]
        if self._first_pages is not None and self._first_pages.awaits(origin):
            await self._first_pages.add(origin, page)
        else:
            for sent in page:
                self._receive_one(origin, sent)

    def _receive_one(self, origin: str, sent: Sent) -> None:
        if sent.item is not None and self._filters.wanted(sent.topic, sent.stored_at):
            self.fetched += 1
            about = (origin, sent.incarnation, sent.topic, sent.number, 1, V5)
            self._receive(PublicationBatch(*about, b"", (sent.item,), follows=sent.follows))

    # Being asked

    @handles(TellWanted)
    def on_tell_wanted(self, asker: Address, told: TellWanted) -> Reply:
        return WantedTaken() if self._wanted_sets.change(asker, told) else TellFilters()

    @handles(AskMissed)
    def on_ask_missed(self, asker: Address, asked: AskMissed) -> Reply:
        if asked.origin == self._name and not self.is_known():
            return None
        history = self._history if asked.origin == self._name else self.gone(asked.origin)
        if history is None:
            return Missed((), asked.floor, asked.floor, is_elsewhere=True)
        wanted = self._wanted_sets.get(asker, asked.digest)
        if wanted is None:
            if asked.filters is None:
                return TellFilters(self._wanted_sets.digest_of(asker))
            wanted = set_of(asked.digest, asked.filters)
            if not asked.is_once:
                self._wanted_sets.put(asker, wanted)
        missed = self._missed(history, asked, wanted)
        return missed if history is self._history else msgspec.structs.replace(missed, is_copy=True)

    def _missed(self, history: History, asked: AskMissed, wanted: WantedSet) -> Missed:
        is_wanted: dict[str, bool] = {}

        def wants(sent: Sent) -> bool:
            if sent.topic not in is_wanted:
                is_wanted[sent.topic] = wanted.wants(sent.topic)
            return is_wanted[sent.topic] and (sent.item is None or may_see(asked.cluster, sent.item.forward))

        looked_max = max(LOOKED_MIN, LOOKED_MAX // (1 + len(wanted.shapes)))
        if not asked.until:  # a broker of before, which takes a page with nothing in it for the last
            looked_max = HISTORY_MESSAGES_MAX
        page = history.missed(asked.floor, asked.since, asked.seen, wants, PAGE_BYTES_MAX, asked.until, looked_max)
        sent = tuple([msgspec.msgpack.encode(one) for one in page.sent])
        return Missed(sent, page.floor, history.kept, page.settled)
