"""Acting for a broker that is gone: its sessions are taken up from the copy of its journal.

A client of a broker that does not answer any more comes to another one, which asks a mirror of that broker for the
session. The mirror takes it up as its own: what the copy says, what was published since and is in the histories of
other brokers, and what gathers meanwhile; then it gives it up to whoever asks, as any session (`handover`). What no
client asks for is taken up after a while: nobody else keeps what is published for it.

A mirror does not act for a broker that it hears from. Where a cut leaves both of them with clients, a session is where
its client has come last: the directory's epochs say so when they meet again, and the other one gives way (`displaced`).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import msgspec

from braidmq.braid.catch_up.cursors import SavedCursor
from braidmq.braid.catch_up.history import Sent
from braidmq.braid.catch_up.missed_fetching import MissedFetcher
from braidmq.braid.identity import IDENTITY_ROW
from braidmq.braid.interest.clusters import CLUSTERS_ROW
from braidmq.braid.mirrors.broker_copy import BrokerCopies, BrokerCopy
from braidmq.braid.mirrors.gone_histories import GoneHistories
from braidmq.braid.retained.replication import RetainedReplication
from braidmq.braid.roaming.clients import ClientRecords
from braidmq.braid.roaming.directory import ClientDirectory
from braidmq.braid.roaming.epochs import epochs_in
from braidmq.braid.roaming.fetching import FetchedState
from braidmq.braid.roaming.gaps import moved_from
from braidmq.braid.roaming.incoming import EFFECTIVE_WAIT_S, MOVED, IncomingSessions
from braidmq.braid.roaming.marks import Horizon, Row, SavedMove, rows_of
from braidmq.braid.roaming.messages import GiveUpAnswer, HeldCopyOf
from braidmq.braid.roaming.moved import moved_of
from braidmq.braid.roaming.searching import SearchResult
from braidmq.broker.broker import Broker
from braidmq.broker.store import SavedSession, Snapshot
from braidmq.host import Event, Host
from braidmq.mqtt.topics import split_share

GONE_S = 60.0
"""How long a broker was not heard from before all its sessions are taken up: it may just be restarted."""

LOOK_S = 5.0
"""How often it is looked for such brokers."""

QUIET_S = 0.7
"""A broker that was not heard from for so long may be gone: more than the time between two of its heartbeats."""

THERE_S = 0.15
"""How long it counts that one has answered that was heard from, and that somebody does not reach."""

ADOPT_WAIT_S = 0.05
"""How long a client that has come here waits until the subscriptions of its session have taken effect. One that has
come to another broker waits there."""

HEARD_S = 0.1
"""One that was heard from so recently is not looked for."""

SINCE_SLACK_S = 60.0
"""How long before it was last heard from a broker may have ceased to follow others."""

_log = logging.getLogger("braidmq.braid")


class Adoptions:
    def __init__(
        self,
        broker: Broker,
        host: Host,
        copies: BrokerCopies,
        clients: ClientRecords,
        directory: ClientDirectory,
        incoming: IncomingSessions,
        replication: RetainedReplication,
        fetcher: MissedFetcher,
        histories: GoneHistories,
    ) -> None:
        self._broker = broker
        self._host = host
        self._copies = copies
        self._clients = clients
        self._directory = directory
        self._incoming = incoming
        self._replication = replication
        self._fetcher = fetcher
        self._histories = histories
        self._under_way: dict[str, Event] = {}
        """By client id: the end of taking its session up."""
        self._done: dict[tuple[str, str], int] = {}
        """By broker and client id: the epoch of the session that was taken up, never twice from one copy."""
        self._looking: dict[str, Event] = {}
        """Brokers of which it is being found out whether they are there, and the end of that."""
        self._silent_at: dict[str, float] = {}
        """When one of them was found not to be."""
        self._there_until: dict[str, float] = {}
        """Until when it is taken for granted that one is."""
        self.search: Callable[[str], Awaitable[SearchResult]]
        """Asks all brokers what they have of a client's session."""
        self.adopted = 0
        """Sessions that were taken up."""

    # What copies have

    def copies_of(self, client_id: str) -> tuple[HeldCopyOf, ...]:
        """What the copies here have of a client's session. One whose broker is heard is not read: it goes on.

        That broker may just have gone: so it is looked for, before somebody wants its session.
        """
        found = []
        for copy in self._copies:
            quiet_s = self._host.now() - copy.heard_at
            is_heard = self._is_heard(copy) and quiet_s < QUIET_S
            if is_heard and quiet_s > HEARD_S and not self._is_known_there(copy.owner):
                self._look(copy)
            epoch = 0 if is_heard else _epoch_in(copy, client_id)
            found.append(HeldCopyOf(copy.owner, copy.term, epoch, is_heard))
        return tuple(found)

    def _is_heard(self, copy: BrokerCopy) -> bool:
        """Whether a broker is there, as far as is known here."""
        return copy.is_streaming and self._silent_at.get(copy.owner, -1.0) < copy.heard_at

    def _is_known_there(self, owner: str) -> bool:
        return self._host.now() < self._there_until.get(owner, 0.0)

    def _look(self, copy: BrokerCopy) -> None:
        """Somebody looks for a session of a broker that was heard here just now: is it there?"""
        if copy.owner not in self._looking:
            self._looking[copy.owner] = self._host.event()
            self._host.spawn(self._look_for(copy))

    async def _look_for(self, copy: BrokerCopy) -> None:
        owner, began_at = copy.owner, self._host.now()
        if await self._fetcher.round_trips.is_there(copy.address):
            self._there_until[owner] = self._host.now() + THERE_S
        elif copy.heard_at < began_at:
            self._silent_at[owner] = self._host.now()
        self._looking.pop(owner).set()

    # One session, since its client has come

    def begin(self, owner: str, client_id: str, wait_s: float = 0.0) -> GiveUpAnswer | None:
        """Takes a session up that a broker had, if that is gone and the copy has it: BUSY while that is under way,
        THERE if the broker is there; None if there is nothing to take up any more. It waits for so long until its
        subscriptions have taken effect."""
        copy = self._copies.get(owner)
        if client_id in self._under_way:
            return GiveUpAnswer.BUSY
        if copy is None:
            return None
        if self._is_heard(copy):
            if self._is_known_there(owner):
                return GiveUpAnswer.THERE
            self._look(copy)
            return GiveUpAnswer.BUSY
        saved = self._saved(copy, client_id)
        if saved is None or self._is_done(copy, client_id):
            return None
        stale = self._broker.sessions.get(client_id)
        if stale is not None and stale.connection is not None:
            return None
        self._under_way[client_id] = self._host.event()
        self._host.spawn(self._adopt(copy, saved, wait_s))
        return GiveUpAnswer.BUSY

    def _is_done(self, copy: BrokerCopy, client_id: str) -> bool:
        return self._done.get((copy.owner, client_id), 0) >= _epoch_in(copy, client_id)

    async def adopt_here(self, owner: str, client_id: str) -> GiveUpAnswer | None:
        """As `begin`, for a client that has come to this broker: GIVEN if its session is here now."""
        while (answer := self.begin(owner, client_id, ADOPT_WAIT_S)) is GiveUpAnswer.BUSY:
            await (self._under_way.get(client_id) or self._looking[owner]).wait()
        return GiveUpAnswer.GIVEN if answer is None and client_id in self._broker.sessions else answer

    def _saved(self, copy: BrokerCopy, client_id: str) -> SavedSession | None:
        now = self._broker.now()
        found = (one for one in copy.snapshot().sessions if one.client_id == client_id)
        return next((one for one in found if one.ends_at is None or one.ends_at > now), None)

    async def _adopt(self, copy: BrokerCopy, saved: SavedSession, wait_s: float) -> None:
        try:
            snapshot = copy.snapshot()
            session = await self._incoming.adopt(saved, copy.owner, wait_s, lambda: self._state(copy, snapshot, saved))
            if session is not None:
                epoch, begun = epochs_in(snapshot)[saved.client_id]
                self._done[copy.owner, saved.client_id] = epoch
                epochs = self._clients.epochs
                newer = epoch + 1  # than what the broker has, should it come back
                epochs[saved.client_id] = max(newer, epochs.get(saved.client_id, 0))
                epochs.set_begun(saved.client_id, begun)
                self.adopted += 1
        finally:
            self._under_way.pop(saved.client_id).set()

    async def _state(self, copy: BrokerCopy, snapshot: Snapshot, saved: SavedSession) -> FetchedState:
        """What the session has: what the copy says, and behind it what was published since."""
        now = self._broker.now()
        followed = _followed(snapshot)
        filters = [one for one in saved.subscriptions if split_share(one)[0] is None]
        since = now - (self._host.now() - copy.heard_at) - SINCE_SLACK_S
        found = await self._fetcher.fetch(filters, followed, copy.owner, since)
        horizon = _horizon(copy.owner, snapshot, followed, saved.client_id)
        missed = [one for one in found if not Horizon(horizon).covers((one[0], one[1].offset))]
        items = [moved_of(one.delivery, now, one.released) for one in saved.deliveries]
        items += [moved for one in missed if (moved := moved_from(saved.subscriptions, *one)) is not None]
        rows = [*horizon, *rows_of((origin, sent.offset) for origin, sent in missed)]
        published = dict(self._histories.last_of(copy, saved.client_id))
        came = _moved(snapshot, saved.client_id)
        if came is not None:
            published.update(came.published)
        return FetchedState(items, tuple(saved.received), Horizon(rows), None, tuple(published.items()))

    # All of them, when their broker stays away

    def start(self) -> None:
        self._host.spawn(self._keep_looking())

    async def _keep_looking(self) -> None:
        while True:
            await self._host.sleep(LOOK_S)
            for copy in list(self._copies):
                if self._host.now() - copy.heard_at > GONE_S:
                    await self._adopt_all(copy)

    async def _adopt_all(self, copy: BrokerCopy) -> None:
        snapshot = copy.snapshot()
        left = [one for one in snapshot.sessions if not self._is_done(copy, one.client_id)]
        if (copy.owner, "") not in self._done:
            level = logging.WARNING if left else logging.INFO
            _log.log(level, "%s is gone: its %d sessions are taken up here", copy.owner, len(left))
            self._done[copy.owner, ""] = 1
            self._replication.adopt(snapshot.retained)
        epochs = epochs_in(snapshot)
        for saved in left:
            if copy.is_streaming:
                return  # it is back
            epoch, _ = epochs[saved.client_id]
            await self._adopt_unclaimed(copy, saved, epoch)
            self._done[copy.owner, saved.client_id] = epoch

    async def _adopt_unclaimed(self, copy: BrokerCopy, saved: SavedSession, epoch: int) -> None:
        """Takes a session up that nobody asks for, unless there is a newer one anywhere."""
        client_id = saved.client_id
        found = (await self.search(client_id)).found()
        if found and (found[0].epoch > epoch or found[0].is_live or found[0].address != self._host.address):
            return
        claimed = await self._directory.claim(client_id, saved.owner or "")
        if claimed is None or claimed.is_foreign:
            return
        if claimed.before is None or claimed.before.name in (copy.owner, self._directory.name):
            self._clients.epochs[client_id] = claimed.epoch
            if (
                self.begin(copy.owner, client_id, EFFECTIVE_WAIT_S) is GiveUpAnswer.BUSY
                and client_id in self._under_way
            ):
                await self._under_way[client_id].wait()


def _epoch_in(copy: BrokerCopy, client_id: str) -> int:
    return epochs_in(copy.snapshot()).get(client_id, (0, 0))[0]


def _followed(snapshot: Snapshot) -> dict[str, SavedCursor]:
    """By origin: how far the broker had followed it."""
    rows = [(key, row) for key, row in snapshot.cursors if _is_cursor(key)]
    return {origin: msgspec.msgpack.decode(row, type=SavedCursor) for origin, row in rows}


def _is_cursor(key: str) -> bool:
    return key not in (IDENTITY_ROW, CLUSTERS_ROW) and not key.startswith("$")


def _horizon(owner: str, snapshot: Snapshot, followed: dict[str, SavedCursor], client_id: str) -> list[Row]:
    """What the session has had, or has in its state, of all histories."""
    rows: list[Row] = [(origin, one.floor, tuple(one.seen)) for origin, one in followed.items()]
    if snapshot.sent:
        rows.append((owner, msgspec.msgpack.decode(snapshot.sent[-1], type=Sent).last, ()))
    moved = _moved(snapshot, client_id)
    return rows if moved is None else [*rows, *moved.horizon]


def _moved(snapshot: Snapshot, client_id: str) -> SavedMove | None:
    """Of a session that had just come to the broker."""
    row = dict(snapshot.cursors).get(MOVED + client_id)
    return None if row is None else msgspec.msgpack.decode(row, type=SavedMove)
