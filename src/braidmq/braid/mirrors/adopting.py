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

import msgspec

from braidmq.braid.catch_up.cursors import SavedCursor
from braidmq.braid.catch_up.history import Sent
from braidmq.braid.catch_up.missed_fetching import Found, MissedFetcher
from braidmq.braid.identity import IDENTITY_ROW
from braidmq.braid.interest.clusters import CLUSTERS_ROW
from braidmq.braid.mirrors.broker_copy import BrokerCopies, BrokerCopy
from braidmq.braid.retained.replication import RetainedReplication
from braidmq.braid.roaming.clients import ClientRecords
from braidmq.braid.roaming.directory import ClientDirectory
from braidmq.braid.roaming.fetching import FetchedState
from braidmq.braid.roaming.incoming import MOVED, IncomingSessions
from braidmq.braid.roaming.marks import Horizon, Row, SavedMove, rows_of
from braidmq.braid.roaming.moved import MovedDelivery, moved_of
from braidmq.broker.broker import Broker
from braidmq.broker.store import SavedSession, Snapshot
from braidmq.broker.subscription import Subscribed
from braidmq.host import Event, Host
from braidmq.mqtt.topics import matches, split_share

GONE_S = 60.0
"""How long a broker was not heard from before all its sessions are taken up: it may just be restarted."""

LOOK_S = 5.0
"""How often it is looked for such brokers."""

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
    ) -> None:
        self._broker = broker
        self._host = host
        self._copies = copies
        self._clients = clients
        self._directory = directory
        self._incoming = incoming
        self._replication = replication
        self._fetcher = fetcher
        self._under_way: dict[str, Event] = {}
        """By client id: the end of taking its session up."""
        self._done: dict[tuple[str, str], None] = {}
        """Sessions that were taken up, by broker and client id: never twice from one copy."""
        self.adopted = 0
        """Sessions that were taken up."""

    # One session, since its client has come

    def begin(self, owner: str, client_id: str) -> bool:
        """Takes a session up that a broker had, if that is gone and the copy has it; whether that is under way."""
        if client_id in self._under_way:
            return True
        copy = self._copies.get(owner)
        if copy is None or copy.is_streaming or (owner, client_id) in self._done:
            return False
        saved = self._saved(copy, client_id)
        if saved is None:
            return False
        self._under_way[client_id] = self._host.event()
        self._host.spawn(self._adopt(copy, saved))
        return True

    async def adopt_here(self, owner: str, client_id: str) -> bool:
        """As `begin`, for a client that has come to this broker; whether its session is here now."""
        if self.begin(owner, client_id):
            await self._under_way[client_id].wait()
        return client_id in self._broker.sessions

    def _saved(self, copy: BrokerCopy, client_id: str) -> SavedSession | None:
        now = self._broker.now()
        found = (one for one in copy.snapshot().sessions if one.client_id == client_id)
        return next((one for one in found if one.ends_at is None or one.ends_at > now), None)

    async def _adopt(self, copy: BrokerCopy, saved: SavedSession) -> None:
        try:
            snapshot = copy.snapshot()
            session = await self._incoming.adopt(saved, copy.owner, lambda: self._state(copy, snapshot, saved))
            if session is not None:
                self._done[copy.owner, saved.client_id] = None
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
        items += [moved for one in missed if (moved := _moved(saved.subscriptions, one)) is not None]
        rows = [*horizon, *rows_of((origin, sent.offset) for origin, sent in missed)]
        return FetchedState(items, tuple(saved.received), Horizon(rows), None)

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
        left = [one for one in snapshot.sessions if (copy.owner, one.client_id) not in self._done]
        if (copy.owner, "") not in self._done:
            level = logging.WARNING if left else logging.INFO
            _log.log(level, "%s is gone: its %d sessions are taken up here", copy.owner, len(left))
            self._done[copy.owner, ""] = None
            self._replication.adopt(snapshot.retained)
        for saved in left:
            if copy.is_streaming:
                return  # it is back
            claimed = await self._directory.claim(saved.client_id, saved.owner or "")
            if claimed is None or claimed.is_foreign:
                continue
            if claimed.before is None or claimed.before.name in (copy.owner, self._directory.name):
                self._clients.epochs[saved.client_id] = claimed.epoch
                if self.begin(copy.owner, saved.client_id):
                    await self._under_way[saved.client_id].wait()
            self._done[copy.owner, saved.client_id] = None


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
    moved = dict(snapshot.cursors).get(MOVED + client_id)
    if moved is not None:
        rows += msgspec.msgpack.decode(moved, type=SavedMove).horizon
    return rows


def _moved(subscriptions: dict[str, Subscribed], found: Found) -> MovedDelivery | None:
    """A publication as the session gets it; None if it would have got none of it."""
    origin, sent = found
    item = sent.item
    matching = [
        one for full, one in subscriptions.items() if not full.startswith("$share/") and matches(full, sent.topic)
    ]
    if item is None or not matching:
        return None
    qos = min(item.qos, max(one.qos for one in matching))
    if not qos:
        return None
    retain = item.retain and any(one.retain_as_published for one in matching)
    ids = tuple([one.identifier for one in matching if one.identifier])
    return MovedDelivery(sent.topic, item, qos, retain, ids, "", 0, mark=(origin, sent.offset))
