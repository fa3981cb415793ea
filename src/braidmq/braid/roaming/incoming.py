"""Sessions that have come from other brokers: made whole here, and watched while something may come on two ways.

While a session checks marks, what it has had is written with what came of it: after a crash it knows that still.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

import msgspec

from braidmq.braid.catch_up.cursors import SavedCursor
from braidmq.braid.roaming.clients import Arrival, ClientRecords
from braidmq.braid.roaming.directory_messages import SessionHolder
from braidmq.braid.roaming.fetching import MOVE_WAIT_S, FetchedState, SessionFetcher
from braidmq.braid.roaming.gaps import gaps_of, moved_from
from braidmq.braid.roaming.handover import Handovers
from braidmq.braid.roaming.left_behind import deliver_left_behind
from braidmq.braid.roaming.marks import Horizon, Marks, SavedMove, merged, rows_of
from braidmq.braid.roaming.messages import GivenUp
from braidmq.braid.roaming.moved import MovedDelivery, state_of, subscribe_all, unsubscribe_all
from braidmq.braid.roaming.proofs import OriginProofs
from braidmq.braid.roaming.sessions import RoamingSession, release_unproven
from braidmq.braid.transfer.predecessors import Predecessors
from braidmq.broker.broker import Broker
from braidmq.broker.router import filter_cost
from braidmq.broker.store import SavedSession
from braidmq.broker.subscription import Subscribed
from braidmq.host import Address, Host, run_all
from braidmq.mqtt.topics import split_share

EFFECTIVE_WAIT_S = 0.12
"""How long a CONNECT waits until subscriptions that have moved here have taken effect in the whole braid. What reaches
the other broker alone after that is passed on from there (`tail`), or fetched."""

READY_S = 0.16
"""How long after a client has come its session is fetched at the latest, once it is given up: the client waits."""

OVERLAP_S = 40.0
"""How long a session that has come checks marks: longer than its relay lasts."""

BEHIND_S = 600.0
"""How much longer it does so at the most while this broker has not followed the histories as far as the session has."""

SAVE_MANY_S = 1.0
"""How often the marks of a session are written that has seen many."""

OWED_SOON_S, OWED_AGAIN_S, OWED_S = 0.25, 2.0, 600.0
"""When an origin is asked first that did not answer when a session came that lacks something of it, how often from then
on, and how long."""

MOVED = "$moved/"
"""The store's rows for sessions that have come stand among the cursors, under this and the client id."""

_log = logging.getLogger("braidmq.braid")


class IncomingSessions:
    def __init__(
        self,
        broker: Broker,
        host: Host,
        clients: ClientRecords,
        marks: Marks,
        handovers: Handovers,
        fetcher: SessionFetcher,
        until_effective: Callable[[list[str], float], Coroutine[Any, Any, None]],
        predecessors: Predecessors,
    ) -> None:
        """`until_effective` waits until filters have taken effect in the whole braid, but not longer than so long."""
        self._broker = broker
        self._host = host
        self._clients = clients
        self._marks = marks
        self._handovers = handovers
        self._fetcher = fetcher
        self._until_effective = until_effective
        self._predecessors = predecessors
        predecessors.on_taken = self._on_published
        self.until_left: Callable[[list[str], float], Coroutine[Any, Any, None]]
        """Waits until what is held here of topics that filters match has left: the broker that has the session must
        have had it before it gives up the session, or it would come behind what is published here meanwhile."""
        self.reached: Callable[[], Iterable[tuple[str, int]]]
        """How far the histories of all origins have come, as far as is known."""
        self.unpack_instances: Callable[[str, bytes], None] = lambda _client_id, _packed: None
        """Takes up what a client is an instance of, with what is reserved of it."""
        self._owed: dict[RoamingSession, None] = {}
        """Sessions that lack something of origins that have not answered."""
        self._checking: dict[RoamingSession, str] = {}
        """Sessions that check marks, and from which broker they came."""
        self._saved_at = 0.0
        self.taken = 0
        """Sessions that have moved here."""
        self.proofs = OriginProofs(broker, host, clients, self._owe)
        self._restore()

    def _restore(self) -> None:
        """Sessions that had just come when an earlier process ended still check marks."""
        for key, row in self._broker.saved_cursors:
            if not key.startswith(MOVED):
                continue
            client_id = key.removeprefix(MOVED)
            session = self._broker.sessions.get(client_id)
            if session is None:
                self._broker.store.drop_cursor(key)
                continue
            saved = msgspec.msgpack.decode(row, type=SavedMove)
            roaming = RoamingSession.instead_of(self._broker, session, self._marks, Horizon(saved.horizon))
            self.proofs.begin(roaming, dict(session.subscriptions))
            self._predecessors.set(client_id, saved.published)
            self._clients.came_from[client_id] = saved.giver
            self._checking[roaming] = saved.giver
            self._host.spawn(self._stop_checking_later(roaming))

    # Coming

    async def bring(self, arrival: Arrival, giver: SessionHolder, move: int, given: GivenUp, gone: str = "") -> bool:
        """Fetches a session that was given up, and makes it the client's here; whether that came to its end. `gone` is
        the broker that had it, if it comes from a copy."""
        client_id = arrival.client_id
        broker = self._broker
        subscriptions = await self._fetcher.subscriptions(arrival, giver.address, move, given.subscriptions)
        if subscriptions is None:
            return False
        session = RoamingSession(broker, client_id, broker.store.next_row(), given.expiry_s, self._marks)
        session.owner = arrival.owner
        subscribe_all(broker, session, subscriptions)
        filters = [split_share(one)[1] for one in subscriptions]
        left_s = min(EFFECTIVE_WAIT_S, arrival.began_at + READY_S - self._host.now())
        if arrival.is_pushed or left_s > 0:
            wait_s = EFFECTIVE_WAIT_S if arrival.is_pushed else left_s
            await run_all(self._host, [self._until_effective(filters, wait_s), self.until_left(filters, wait_s)])
        arrival.extend(MOVE_WAIT_S)
        fetched = await self._fetcher.state(arrival, giver.address, move)
        if fetched is not None:
            fetched = await self._complete(session, subscriptions, fetched, gone)
        if fetched is None or arrival.is_late or broker.degraded:
            unsubscribe_all(broker, session, subscriptions)
            if fetched is None or broker.degraded:
                return False
            deliver_left_behind(broker, client_id, fetched.deliveries)
        else:
            epochs = self._clients.epochs  # without it if the client has come elsewhere since, where it is asked for
            epochs[client_id] = max(arrival.epoch, epochs.get(client_id, 0))
            epochs.set_begun(client_id, given.begun)
            is_branch = 0 < given.begun <= arrival.own_epoch
            self._install(session, subscriptions, fetched, is_branch)
            self._checking[session] = giver.name
            self._save(session)
        broker.flush()
        if broker.degraded:  # it stays where it was
            if not arrival.is_late:
                broker.sessions.end(session, moved=True)
            return False
        self.taken += 1
        self._clients.came_from[client_id] = giver.name
        self._host.spawn(self._confirm(giver.address, move, client_id, session))
        return True

    async def adopt(
        self, saved: SavedSession, giver: str, wait_s: float, fetch: Callable[[], Awaitable[FetchedState]]
    ) -> RoamingSession | None:
        """Makes the session of a broker that is gone this broker's own: `fetch` says what it has, and is called once
        what is published now gathers here, or after so long. None if there is a newer one meanwhile, or it cannot be
        stored."""
        broker = self._broker
        session = RoamingSession(broker, saved.client_id, broker.store.next_row(), saved.expiry_s, self._marks)
        session.owner = saved.owner
        subscribe_all(broker, session, saved.subscriptions)
        await self._until_effective([split_share(one)[1] for one in saved.subscriptions], wait_s)
        fetched = await self._complete(session, saved.subscriptions, await fetch(), gone=giver)
        old = broker.sessions.get(saved.client_id)
        if broker.degraded or (old is not None and old.connection is not None):
            unsubscribe_all(broker, session, saved.subscriptions)
            return None
        self._install(session, saved.subscriptions, fetched, is_branch=True)
        broker.sessions.leave_shares(session)
        self._checking[session] = giver
        self._save(session)
        broker.flush()
        if broker.degraded:
            broker.sessions.end(session, moved=True)
            return None
        self.taken += 1
        self._clients.came_from[saved.client_id] = giver
        self._host.spawn(self._stop_checking_later(session))
        return session

    async def _complete(
        self, session: RoamingSession, subscriptions: dict[str, Subscribed], fetched: FetchedState, gone: str = ""
    ) -> FetchedState:
        """Adds what the giver had not got yet, and may have been handled here before the session began to gather. An
        origin that is `gone` is asked later. Of one that knew of the session here when it was asked nothing comes
        elsewhere any more."""
        filters = [one for one in subscriptions if split_share(one)[0] is None]
        begun_at = self._clients.epochs.begun(session.client_id) / 1000 or self._broker.now()
        gaps = gaps_of(fetched.horizon.rows, self.reached(), begun_at) if filters else {}
        if not gaps:
            return fetched
        asked = {one: at for one, at in gaps.items() if one != gone}
        is_effective = self.proofs.is_effective(filters)
        found, silent, floors, copied = await self.proofs.fetcher.fetch_behind(filters, asked)
        for origin, floor in floors.items():
            session.note_proven(origin, floor, is_effective and origin not in copied)
        silent += [gone] if gone in gaps else []
        missed = [one for one in found if not fetched.horizon.covers((one[0], one[1].offset))]
        items = [moved for one in missed if (moved := moved_from(subscriptions, *one)) is not None]
        rows = merged([*fetched.horizon.rows, *rows_of((origin, sent.offset) for origin, sent in missed)])
        if silent:
            self._owe(session, subscriptions, {origin: gaps[origin] for origin in silent})
        return fetched._replace(deliveries=[*fetched.deliveries, *items], horizon=Horizon(rows))

    def _owe(self, session: RoamingSession, subscriptions: dict[str, Subscribed], owed: dict[str, SavedCursor]) -> None:
        self._host.spawn(self._fetch_owed(session, subscriptions, owed))

    async def _fetch_owed(
        self, session: RoamingSession, subscriptions: dict[str, Subscribed], owed: dict[str, SavedCursor]
    ) -> None:
        """Some origins have not answered: what the session lacks of theirs comes later."""
        self._owed[session] = None
        ends_at = self._host.now() + OWED_S
        filters = [one for one in subscriptions if split_share(one)[0] is None]
        pause_s = OWED_SOON_S
        while owed and self._host.now() < ends_at:
            await self._host.sleep(pause_s)
            pause_s = min(2 * pause_s, OWED_AGAIN_S)
            if self._broker.sessions.get(session.client_id) is not session:
                break
            found, silent, _, _ = await self.proofs.fetcher.fetch_behind(filters, owed)
            owed = {origin: owed[origin] for origin in silent}
            if self._broker.sessions.get(session.client_id) is session:
                items = [moved_from(subscriptions, *one) for one in found]
                self._handovers.deliver_late(session, tuple([one for one in items if one is not None]))
                self._broker.request_flush()
        self._owed.pop(session, None)

    def _install(
        self, session: RoamingSession, subscriptions: dict[str, Subscribed], fetched: FetchedState, is_branch: bool
    ) -> None:
        """Makes what was fetched the client's session here; with what an older one here has, unless it is the same, or
        a branch of it."""
        broker = self._broker
        client_id = session.client_id
        old = broker.sessions.get(client_id)
        is_same = old is None or is_branch or self._handovers.is_under_way(client_id)
        left_behind: list[MovedDelivery] = []
        if old is not None and not is_same:
            release_unproven(old)
            left_behind = state_of(old, broker.now())
        self._clients.displaced.pop(client_id, None)
        self.proofs.begin(session, subscriptions)
        self._predecessors.set(client_id, fetched.published)
        if old is not None:
            broker.sessions.end(old, moved=True)
        session.subscriptions = dict(subscriptions)
        session.filter_bytes = sum(filter_cost(one) for one in subscriptions)
        absence, now = fetched.absence, broker.now()
        broker.sessions.adopt(session, None if absence is None else absence.ends_at(now))
        self.unpack_instances(client_id, fetched.instances)
        if absence is not None and absence.will is not None:
            broker.sessions.wills.adopt(session, absence.will, now + absence.will_in_s)
        session.arrive(fetched.deliveries, fetched.received, fetched.horizon)
        self._handovers.end_for(client_id, session)
        deliver_left_behind(broker, client_id, left_behind)

    async def _confirm(self, giver: Address, move: int, client_id: str, session: RoamingSession) -> None:
        self._host.spawn(self._stop_checking_later(session))
        await self._until_copied()
        if not await self._fetcher.confirm(giver, move, client_id):
            _log.warning("%s was not told that the session of %r has moved here", giver, client_id)

    async def _until_copied(self) -> None:
        """The other broker deletes it once it is told: by then the copies of the store here have it."""
        copied = self._host.event()
        self._broker.tick.when_copied(copied.set)
        await copied.wait()

    # Marks

    @property
    def is_checking(self) -> bool:
        """Whether what sessions get that have come is looked at, so that they do not get it twice."""
        return bool(self._checking)

    def save_marks(self) -> None:
        """Writes what sessions that have come have had since, with what came of it."""
        news = [session for session in self._checking if session.has_news]
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
        published = self._predecessors.left(session.client_id)
        saved = SavedMove(self._checking[session], tuple(session.horizon), published)
        self._broker.store.save_cursor(MOVED + session.client_id, msgspec.msgpack.encode(saved))

    def _on_published(self, client_id: str) -> None:
        """A client that has come has published on a topic again."""
        session = self._broker.sessions.get(client_id)
        if isinstance(session, RoamingSession) and session in self._checking:
            session.has_news = True

    def _is_ahead(self, session: RoamingSession) -> bool:
        """Whether a session has had what this broker has yet to follow, and would give it again."""
        is_here = self._broker.sessions.get(session.client_id) is session
        return is_here and not self._handovers.has_followed(session.horizon)

    async def _stop_checking_later(self, session: RoamingSession) -> None:
        await self._host.sleep(OVERLAP_S)
        ends_at = self._host.now() + BEHIND_S
        while session in self._owed or (self._is_ahead(session) and self._host.now() < ends_at):
            await self._host.sleep(OVERLAP_S)
        self._checking.pop(session, None)
        session.stop_checking()
        self._broker.sessions.forget_routes(session)
        current = self._broker.sessions.get(session.client_id)
        if current is session or not isinstance(current, RoamingSession):
            self._broker.store.drop_cursor(MOVED + session.client_id)
            self._broker.request_flush()
