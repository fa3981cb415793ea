"""Reconciling: this broker asks other brokers for what it has missed, and answers those that ask.

It asks when it enters, when a stream of QoS 1 or 2 has a gap, when it hears of an offset that it should have had, and
now and then. The origin looks through its history for what the asker wants (its filters, told once and then named by
their digest) and has not got; what stays in a cluster that the asker is not in is none of it. Both sides are bounded: a
page at a time, one question to an origin at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from hashlib import sha256

import msgspec

from braidmq.bounded import BoundedDict
from braidmq.braid.catch_up.cursors import Cursor, Cursors
from braidmq.braid.catch_up.history import History, Sent
from braidmq.braid.interest.covering import CoveringFilters
from braidmq.braid.interest.scope import may_see
from braidmq.braid.transfer.batch import PublicationBatch
from braidmq.host import Address, Host, Message, Reply, Service, ask, handles
from braidmq.mqtt.packets import V5
from braidmq.mqtt.trees import FilterTree

ASK_TIMEOUT_S = 2.5
PAGE_BYTES_MAX = 128 << 10
SOON_S = 0.25
"""The least time between two rounds of questions to one origin."""

RETRY_S = 1.0
"""The least time after which one that has not answered is asked again; it doubles each time."""

REGULARLY_S = 30.0
"""How often a broker asks an origin that has more than it has seen, though nothing seems to be missing."""

DIGESTS_MAX = 512
"""Sets of filters that a broker remembers for brokers that ask."""

_log = logging.getLogger("braidmq.braid")


class AskMissed(Message, frozen=True, array_like=True, gc=False):
    """What have I missed of this origin? `filters` is None if you should know them by their digest."""

    origin: str
    floor: int
    since: float
    seen: tuple[tuple[int, int], ...]
    digest: bytes
    filters: tuple[str, ...] | None
    cluster: str = ""


class Missed(Message, frozen=True, array_like=True, gc=False):
    """A page of it; up to `floor` that is all. `head` is the last offset there is."""

    sent: tuple[bytes, ...]
    floor: int
    head: int


class TellFilters(Message, frozen=True, array_like=True, gc=False):
    """I do not know these filters: ask again, and name them."""


class Reconciler(Service):
    def __init__(
        self,
        host: Host,
        name: str,
        history: History,
        cursors: Cursors,
        covering: CoveringFilters,
        receive: Callable[[PublicationBatch], None],
        on_fetched: Callable[[str, int], None],
        is_holding: Callable[[str], bool],
        cluster: str = "",
        has_parted: Callable[[Address], bool] = lambda _address: False,
    ) -> None:
        """`receive` handles what was missed, `on_fetched` is told an origin and up to which offset that was all;
        `is_holding` says whether something of an origin is still held back, `has_parted` whether a broker has left its
        address. `cluster` is that of this broker."""
        self._host = host
        self._cluster = cluster
        self._name = name
        self._history = history
        self._cursors = cursors
        self._covering = covering
        self._receive = receive
        self._on_fetched = on_fetched
        self._is_holding = is_holding
        self._has_parted = has_parted
        self._digests: BoundedDict[bytes, FilterTree[str]] = BoundedDict(DIGESTS_MAX)
        self._asking: dict[str, bool] = {}
        """The origins that are being asked, and whether they are to be asked once more."""
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
        for origin, cursor in self._cursors:
            if not self._has_parted(cursor.address):
                self.ask_soon(origin, cursor)

    def ask_regularly(self) -> None:
        """Asks brokers that have more than was seen of them, and again those that have not answered."""
        now = self._host.now()
        for origin, cursor in self._cursors:
            is_due = cursor.head > cursor.floor and now - cursor.asked_at > (cursor.retry_s or REGULARLY_S)
            if is_due and not self._has_parted(cursor.address):
                self.ask_soon(origin, cursor)

    async def _ask_all(self, origin: str, cursor: Cursor) -> None:
        try:
            while True:
                wait_s = cursor.asked_at + SOON_S - self._host.now()
                if cursor.asked_at and wait_s > 0:
                    await self._host.sleep(wait_s)
                self._asking[origin] = False
                cursor.asked_at = self._host.now()
                if not await self._ask(origin, cursor):
                    if not self._is_holding(origin):
                        return
                    await self._host.sleep(RETRY_S)
                elif not self._asking[origin]:
                    return
        finally:
            self._asking.pop(origin, None)

    async def _ask(self, origin: str, cursor: Cursor) -> bool:
        """Fetches all that was missed, a page at a time; whether that came to its end."""
        floor = cursor.floor
        while True:
            filters = dict.fromkeys(self._covering.filters)
            answer = await self._ask_page(origin, cursor, floor, tuple(sorted(filters)))
            if answer is None:
                cursor.retry_s = min(max(2 * cursor.retry_s, RETRY_S), REGULARLY_S)
                return False
            cursor.retry_s = 0.0
            cursor.head = max(cursor.head, answer.head)
            self._receive_all(origin, answer)
            floor = max(floor, answer.floor)
            is_end = answer.floor >= answer.head or not answer.sent
            if is_end:
                self._on_fetched(origin, floor)
            if filters.keys() != self._covering.filters.keys():
                self._asking[origin] = True  # more is wanted than was asked for: the floor must not rise over it
                return True
            if not self._is_holding(origin):  # what is held back is not handled yet
                cursor.raise_floor(floor)
                self._cursors.note(origin)
            if is_end:
                return True

    async def _ask_page(self, origin: str, cursor: Cursor, floor: int, filters: tuple[str, ...]) -> Missed | None:
        digest = sha256("\0".join(filters).encode()).digest()[:16]
        seen = tuple([(low, high) for low, high in cursor.seen_ranges() if high > floor])
        asked = AskMissed(origin, floor, cursor.since, seen, digest, None, self._cluster)
        to = cursor.address
        answer = await ask(self._host, to, asked, (Missed, TellFilters), timeout_s=ASK_TIMEOUT_S)
        if isinstance(answer, TellFilters):
            named = msgspec.structs.replace(asked, filters=filters)
            return await ask(self._host, to, named, Missed, timeout_s=ASK_TIMEOUT_S)
        return answer

    def _receive_all(self, origin: str, answer: Missed) -> None:
        for row in answer.sent:
            sent = msgspec.msgpack.decode(row, type=Sent)
            if self._covering.wanted(sent.topic, sent.stored_at):
                self.fetched += 1
                self._receive(
                    PublicationBatch(origin, sent.incarnation, sent.topic, sent.number, 1, V5, b"", (sent.item,))
                )

    # Being asked

    @handles(AskMissed)
    def on_ask_missed(self, _origin: Address, asked: AskMissed) -> Reply:
        if asked.origin != self._name:  # that history was lost with its store; this is another one
            return Missed((), asked.floor, asked.floor)
        wanted = self._digests.pop(asked.digest, None)
        if wanted is None:
            if asked.filters is None:
                return TellFilters()
            wanted = FilterTree()
            for one in asked.filters:
                wanted.set(one, one)
        self._digests[asked.digest] = wanted
        tree = wanted

        def wants(sent: Sent) -> bool:
            return bool(tree.match(sent.topic)) and may_see(asked.cluster, sent.item.forward)

        found, floor = self._history.missed(asked.floor, asked.since, asked.seen, wants, PAGE_BYTES_MAX)
        return Missed(tuple([msgspec.msgpack.encode(one) for one in found]), floor, self._history.kept)
