"""Client take-over and moving sessions between brokers: the side to which the client has come.

Before the CONNACK this broker claims the client id in the `directory` and learns who had it. That broker closes a
connection that it has (0x8E) and, if the session outlives that and the client wants it, gives it up (`handovers`):

    here                                      there
    claim ─▶ directory
    GiveUp ─────────────────────────────────▶ disconnects; goes on gathering
    FetchSubscriptions ─────────────────────▶
    stands for them, and gathers; once that has taken effect in the whole braid
    FetchState ─────────────────────────────▶ freezes: state, and how far histories were followed
    one commit; CONNACK with session present
    SessionStored ───────────────────────────────────▶ deletes it, one commit; passes on what was on its way

From before the state is taken there until after its relay ends, a publication reaches one of the two brokers or both;
what comes on both ways is known by its mark (`roaming`), so it is given to the client once.

If the other broker does not answer in time the client begins anew (session present 0), and what was left behind is
fetched when that broker is back (`displaced`). One that has died while it took the session over knows nothing of it after
its restart: then the broker before it still has it, and is asked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from braidmq.braid.roaming.directory import Claimed, Directory, Holder
from braidmq.braid.roaming.displaced import DisplacedSessions
from braidmq.braid.roaming.handover import (
    CONFIRM_S,
    AskForeignSession,
    FetchState,
    FetchSubscriptions,
    GivenUp,
    GiveUp,
    GiveUpAnswer,
    Handovers,
    HasForeignSession,
    SessionDeleted,
    SessionState,
    SessionStored,
    SessionSubscriptions,
)
from braidmq.braid.roaming.transfer import (
    Horizon,
    Marks,
    Moved,
    RoamingSession,
    SavedMove,
    state_of,
    subscribe_all,
    unsubscribe_all,
)
from braidmq.broker.admission import Arrived
from braidmq.broker.router import filter_cost
from braidmq.broker.shares import Subscribed
from braidmq.host import Address, CallError, Message
from braidmq.mqtt.topics import split_share
from braidmq.security.identity import is_foreign

if TYPE_CHECKING:
    from braidmq.braid.braid import Braid

CLAIM_WAIT_S = 5.0
"""How long a CONNECT waits for the directory; then it is served here, and claimed later."""

MOVE_WAIT_S = 4.0
"""How long it waits for an answer of the broker that had the client before."""

EFFECTIVE_WAIT_S = 3.0
"""How long it waits until subscriptions that have moved here have taken effect in the whole braid."""

CALL_TIMEOUT_S = 1.0
BUSY_S = 0.05
POLL_S = 0.01
HANDED_ON_MAX = 4
"""How often a session may have moved on while it is looked for."""

OVERLAP_S = 40.0
"""How long a session that has come looks at marks: longer than its relay lasts."""

SAVE_MANY_S = 1.0
"""How often the marks of a session are written that has seen many."""

SERVED_MAX = 100_000
"""Clients that are remembered after their session has ended or moved."""

MOVED = "$moved/"
"""The store's rows for sessions that have come stand among the cursors, under this and the client id."""

_log = logging.getLogger("braidmq.braid")


class Served(NamedTuple):
    """When a client has connected here, and whether it wanted nothing of its session."""

    at: float
    clean: bool


class Arrival:
    """A CONNECT that waits for its session. `done` says whether the client is still there, and served now."""

    def __init__(self, client_id: str, user: str, clean: bool, done: Callable[[Arrived], bool]) -> None:
        self.client_id = client_id
        self.user = user
        self.clean = clean
        self.is_contested = False
        """Whether the session may be another user's: then the client is not served before that is known."""
        self.epoch = 0
        self.ends_at = 0.0
        self.is_late = False
        """The client was served before its session had come."""
        self._done: Callable[[Arrived], bool] | None = done

    @property
    def is_over(self) -> bool:
        return self._done is None

    def end(self, arrived: Arrived) -> bool:
        done, self._done = self._done, None
        return done is not None and done(arrived)


class Takeovers:
    def __init__(self, braid: Braid, directory: Directory) -> None:
        self._braid = braid
        self._broker = braid.broker
        self._host = braid.host
        self._name = braid.identity
        self._directory = directory
        self.marks = Marks()
        self.handovers = Handovers(braid, self.marks)
        self.handovers.is_coming = self._is_coming
        self.handovers.is_arriving = self._is_arriving
        self.handovers.has_served = self._has_served
        self.taken = 0
        """Sessions that have moved here."""
        self.epochs: dict[str, int] = {}
        """Of the clients that this broker holds."""
        self.arriving: dict[str, Arrival] = {}
        self.came_from: dict[str, str] = {}
        """By client id: the broker from which its session came."""
        self.served: dict[str, Served] = {}
        """Clients that have connected here in this incarnation of the broker."""
        self._settling: dict[RoamingSession, str] = {}
        """Sessions that have come, while they look at marks, and from which broker."""
        self._saved_at = 0.0
        self.displaced = DisplacedSessions(braid, self, directory)
        self.handovers.is_displaced = self.displaced.is_displaced
        self._restore()

    def _restore(self) -> None:
        """Sessions that had just come when an earlier process ended still look at marks."""
        for key, row in self._broker.saved_cursors:
            if not key.startswith(MOVED):
                continue
            client_id = key.removeprefix(MOVED)
            session = self._broker.sessions.get(client_id)
            if session is None:
                self._broker.store.drop_cursor(key)
                continue
            saved = msgspec.msgpack.decode(row, type=SavedMove)
            roaming = RoamingSession.instead_of(session, self.marks, Horizon(saved.horizon))
            self.came_from[client_id] = saved.giver
            self._settling[roaming] = saved.giver
            self._host.spawn(self._settle_later(roaming))

    # A client connects

    def arrive(self, client_id: str, user: str, clean: bool, done: Callable[[Arrived], bool]) -> None:
        """Brings the client's session here, if it has one. Calls when it may be opened, or that it may not."""
        self._host.spawn(self._arrive(Arrival(client_id, user, clean, done)))

    async def _arrive(self, arrival: Arrival) -> None:
        client_id = arrival.client_id
        while client_id in self.arriving:
            await self._host.sleep(POLL_S)
        self.arriving[client_id] = arrival
        self._extend(arrival, CLAIM_WAIT_S)
        self._host.spawn(self._watch(arrival))
        try:
            await self._settle(arrival)
        finally:
            del self.arriving[client_id]
        self._open(arrival)

    def _open(self, arrival: Arrival) -> None:
        if arrival.end(Arrived.HERE):
            self.served.pop(arrival.client_id, None)
            self.served[arrival.client_id] = Served(self._host.now(), arrival.clean)
            if len(self.served) > SERVED_MAX:
                self.served.pop(next(iter(self.served)))

    def _has_served(self, client_id: str) -> bool:
        return client_id in self.served

    def _extend(self, arrival: Arrival, seconds: float) -> None:
        arrival.ends_at = self._host.now() + seconds

    async def _watch(self, arrival: Arrival) -> None:
        while not arrival.is_over:
            left_s = arrival.ends_at - self._host.now()
            if left_s > 0:
                await self._host.sleep(left_s)
                continue
            if arrival.is_contested:
                arrival.end(Arrived.UNREACHABLE)
                return
            if arrival.epoch or self.displaced.is_displaced(arrival.client_id):
                self.displaced.leave_behind(arrival.client_id)
            arrival.is_late = True
            self._open(arrival)

    async def _settle(self, arrival: Arrival) -> None:
        client_id = arrival.client_id
        claimed = await self._directory.claim(client_id, arrival.user)
        if claimed is not None and claimed.is_foreign:
            claimed = await self._claim_over(arrival, claimed)
        if arrival.is_over or self.handovers.keeps_from(client_id, arrival.user):
            arrival.end(Arrived.FOREIGN)
            return
        if claimed is None:  # registering will find out
            self.epochs[client_id] = max(int(self._broker.now() * 1000), self.epochs.get(client_id, 0))
            if self.displaced.is_displaced(client_id):
                self.displaced.leave_behind(client_id)
            return
        arrival.epoch = self.epochs[client_id] = claimed.epoch
        if claimed.before is None or claimed.before.name == self._name:
            self.displaced.take_back(client_id)
            return
        self.came_from.pop(client_id, None)
        answer = await self._bring(arrival, claimed.before)
        earlier = claimed.earlier
        if answer in (None, GiveUpAnswer.UNKNOWN) and earlier is not None and earlier.name != claimed.before.name:
            if earlier.name != self._name:
                answer = await self._bring(arrival, earlier)
            elif answer is GiveUpAnswer.UNKNOWN:
                self.displaced.take_back(client_id)
                return
        if answer in (None, GiveUpAnswer.UNKNOWN):
            if self.handovers.under_way(client_id):
                self.displaced.take_back(client_id)
            else:
                self.displaced.leave_behind(client_id)

    async def _claim_over(self, arrival: Arrival, claimed: Claimed) -> Claimed | None:
        """Another user has the client id, so the directory says: claims it if its holder has nothing any more."""
        holder = claimed.before
        assert holder is not None
        arrival.is_contested = True
        self._extend(arrival, 2 * MOVE_WAIT_S)
        is_kept = await self.is_kept(holder, arrival.user)
        if is_kept is None:
            arrival.end(Arrived.UNREACHABLE)
            return None
        again = None if is_kept else await self._directory.claim(arrival.client_id, arrival.user, holder.epoch)
        if is_kept or (again is not None and again.is_foreign):
            arrival.end(Arrived.FOREIGN)
            return None
        arrival.is_contested = False
        return again

    async def is_kept(self, holder: Holder, user: str) -> bool | None:
        """Whether a broker keeps a session from this user, since it is another one's; None if it does not answer."""
        if holder.name == self._name:
            return self.handovers.keeps_from(holder.client_id, user)
        answer = await self.ask(holder.address, AskForeignSession(holder.client_id, user), MOVE_WAIT_S)
        return answer.is_kept if isinstance(answer, HasForeignSession) else None

    async def _bring(self, arrival: Arrival, holder: Holder) -> GiveUpAnswer | None:
        """Brings the session from a broker; its answer, None if it gave none or stopped in the middle."""
        client_id = arrival.client_id
        for _ in range(HANDED_ON_MAX):
            move = self._host.chance.getrandbits(62)
            self._extend(arrival, MOVE_WAIT_S)
            asked = self._give_up(move, arrival)
            answer = await self._ask_to_give_up(arrival, holder.address, asked)
            if answer is None:
                return None
            if answer.answer is GiveUpAnswer.ELSEWHERE and answer.holder is not None:
                holder = answer.holder
                continue
            if answer.answer is GiveUpAnswer.NEWER:
                self._lose(arrival, Arrived.ELSEWHERE)
            elif answer.answer is GiveUpAnswer.FOREIGN:
                self._lose(arrival, Arrived.FOREIGN)
            elif answer.answer is GiveUpAnswer.GIVEN:
                return GiveUpAnswer.GIVEN if await self._fetch(arrival, holder, move, answer.expiry_s) else None
            elif answer.answer is GiveUpAnswer.NOTHING:
                if self.handovers.under_way(client_id):
                    self.displaced.take_back(client_id)
                else:
                    self.displaced.end_stale(client_id)
            return answer.answer
        return None

    def _give_up(self, move: int, arrival: Arrival) -> GiveUp:
        cluster = self._braid.clusters.own
        return GiveUp(move, arrival.client_id, self._name, arrival.epoch, arrival.clean, cluster, arrival.user)

    async def _ask_to_give_up(self, arrival: Arrival, to: Address, asked: GiveUp) -> GivenUp | None:
        while True:
            answer = await self.ask(to, asked, MOVE_WAIT_S)
            if not isinstance(answer, GivenUp):
                return None
            self._extend(arrival, MOVE_WAIT_S)
            if answer.answer is not GiveUpAnswer.BUSY or arrival.client_id not in self.epochs:
                return answer
            await self._host.sleep(BUSY_S)

    async def ask(self, to: Address, request: Message, wait_s: float) -> object:
        """Repeats a request until it is answered, or time is over."""
        ends_at = self._host.now() + wait_s
        while True:
            try:
                return await self._host.call(to, request, CALL_TIMEOUT_S)
            except CallError:
                if self._host.now() + CALL_TIMEOUT_S / 2 > ends_at:
                    return None
                await self._host.sleep(BUSY_S)

    # Fetching its session

    async def _fetch(self, arrival: Arrival, giver: Holder, move: int, expiry_s: int) -> bool:
        client_id = arrival.client_id
        broker = self._broker
        subscriptions = await self._fetch_subscriptions(arrival, giver.address, move)
        if subscriptions is None:
            return False
        session = RoamingSession(broker, client_id, broker.store.next_row(), expiry_s, self.marks)
        session.owner = arrival.user
        subscribe_all(broker, session, subscriptions)
        await self._until_effective(arrival, subscriptions)
        fetched = await self._fetch_state(arrival, giver.address, move)
        if fetched is None or arrival.is_late or broker.degraded:
            unsubscribe_all(broker, session, subscriptions)
            if fetched is None or broker.degraded:
                return False
            self.displaced.fill(client_id, fetched[0])
        else:
            self._install(session, subscriptions, *fetched)
            self._settling[session] = giver.name
            self._save(session)
        broker.flush()
        if broker.degraded:  # it stays where it was
            if not arrival.is_late:
                broker.end_session(session, moved=True)
            return False
        self.taken += 1
        self.came_from[client_id] = giver.name
        self._host.spawn(self._confirm(giver.address, move, client_id, session))
        return True

    async def _fetch_subscriptions(self, arrival: Arrival, giver: Address, move: int) -> dict[str, Subscribed] | None:
        found: dict[str, Subscribed] = {}
        since = 0
        while True:
            part = await self.ask(giver, FetchSubscriptions(move, arrival.client_id, since), MOVE_WAIT_S)
            if not isinstance(part, SessionSubscriptions):
                return None
            self._extend(arrival, MOVE_WAIT_S)
            found.update(part.items)
            since = part.following
            if not since:
                return found

    async def _until_effective(self, arrival: Arrival, subscriptions: dict[str, Subscribed]) -> None:
        filters = [split_share(one)[1] for one in subscriptions]
        ends_at = self._host.now() + EFFECTIVE_WAIT_S
        while any(self._braid.announcer.is_awaited(one) for one in filters) and self._host.now() < ends_at:
            await self._host.sleep(POLL_S)
        self._extend(arrival, MOVE_WAIT_S)

    async def _fetch_state(
        self, arrival: Arrival, giver: Address, move: int
    ) -> tuple[list[Moved], tuple[int, ...], Horizon] | None:
        first: SessionState | None = None
        items: list[Moved] = []
        since = 0
        while True:
            part = await self.ask(giver, FetchState(move, arrival.client_id, since), MOVE_WAIT_S)
            if not isinstance(part, SessionState):
                return None
            self._extend(arrival, MOVE_WAIT_S)
            first = first or part
            items += part.items
            since = part.following
            if not since:
                return items, first.received, Horizon(first.horizon)

    async def fetch_rest(self, client_id: str, giver: Address) -> tuple[int, list[Moved]] | None:
        """What another broker still has of a client whose session is here, and the name of the move."""
        session = self._broker.sessions.get(client_id)
        user = (session.owner if session is not None else None) or ""
        arrival = Arrival(client_id, user, False, lambda _arrived: False)
        arrival.epoch = self.epochs.get(client_id, 0)
        move = self._host.chance.getrandbits(62)
        answer = await self._ask_to_give_up(arrival, giver, self._give_up(move, arrival))
        if answer is None or answer.answer is not GiveUpAnswer.GIVEN:
            return None
        fetched = await self._fetch_state(arrival, giver, move)
        return None if fetched is None else (move, fetched[0])

    def _install(
        self,
        session: RoamingSession,
        subscriptions: dict[str, Subscribed],
        state: list[Moved],
        received: tuple[int, ...],
        horizon: Horizon,
    ) -> None:
        """Makes what was fetched the client's session here; with what an older one here has, unless it is the same."""
        broker = self._broker
        client_id = session.client_id
        old = broker.sessions.get(client_id)
        left_behind = [] if old is None or self.handovers.under_way(client_id) else state_of(old, broker.now())
        self.displaced.forget(client_id)
        if old is not None:
            broker.end_session(old, moved=True)
        session.subscriptions = dict(subscriptions)
        session.filter_bytes = sum(filter_cost(one) for one in subscriptions)
        broker.adopt(session)
        session.arrive(state, received, horizon)
        self.handovers.end(client_id, session)
        self.displaced.fill(client_id, left_behind)

    async def _confirm(self, giver: Address, move: int, client_id: str, session: RoamingSession) -> None:
        self._host.spawn(self._settle_later(session))
        answer = await self.ask(giver, SessionStored(move, client_id), CONFIRM_S)
        if not isinstance(answer, SessionDeleted):
            _log.warning("%s was not told that the session of %r has moved here", giver, client_id)

    def save_marks(self) -> None:
        """Writes what sessions that have come have had since, with what came of it: after a crash they know it."""
        news = [session for session in self._settling if session.has_news]
        if not news:
            return
        now = self._host.now()
        is_due = now - self._saved_at > SAVE_MANY_S
        self._saved_at = now if is_due else self._saved_at
        for session in news:
            is_here = self._broker.sessions.get(session.client_id) is session
            if is_here and (is_due or not session.has_seen_many):
                self._save(session)

    def _save(self, session: RoamingSession) -> None:
        session.has_news = False
        saved = SavedMove(self._settling[session], tuple(session.horizon))
        self._broker.store.save_cursor(MOVED + session.client_id, msgspec.msgpack.encode(saved))

    async def _settle_later(self, session: RoamingSession) -> None:
        await self._host.sleep(OVERLAP_S)
        self._settling.pop(session, None)
        session.settle()
        self._broker.forget_routes(session)
        current = self._broker.sessions.get(session.client_id)
        if current is session or not isinstance(current, RoamingSession):
            self._broker.store.drop_cursor(MOVED + session.client_id)
            self._broker.ring()

    # Others ask

    def _is_arriving(self, asked: GiveUp) -> GiveUpAnswer | None:
        """What somebody is answered who wants a session that is just coming here, or came here later."""
        client_id = asked.client_id
        arrival = self.arriving.get(client_id)
        if self.epochs.get(client_id, 0) > asked.epoch:
            return GiveUpAnswer.NEWER
        if arrival is not None:
            if arrival.epoch:
                self._lose(arrival, Arrived.ELSEWHERE)
            return GiveUpAnswer.BUSY
        self.epochs.pop(client_id, None)
        self.came_from.pop(client_id, None)
        return None

    def _is_coming(self, client_id: str, user: str) -> bool:
        arrival = self.arriving.get(client_id)
        return arrival is not None and not arrival.is_contested and is_foreign(arrival.user, user)

    def _lose(self, arrival: Arrival, arrived: Arrived) -> None:
        """The client is not served here: it has come to another broker since, or may not have the session."""
        self.epochs.pop(arrival.client_id, None)
        arrival.end(arrived)
