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

from braidmq.bounded import BoundedDict
from braidmq.braid.catch_up.missed_fetching import MissedFetcher
from braidmq.braid.mirrors.broker_copy import BrokerCopies, BrokerCopy
from braidmq.braid.mirrors.copied_sessions import CopiedSessions
from braidmq.braid.retained.replication import RetainedReplication
from braidmq.braid.roaming.clients import ClientRecords
from braidmq.braid.roaming.directory import ClientDirectory
from braidmq.braid.roaming.epochs import UNKNOWN_EPOCH
from braidmq.braid.roaming.fetching import FetchedState
from braidmq.braid.roaming.gaps import moved_from
from braidmq.braid.roaming.incoming import EFFECTIVE_WAIT_S, IncomingSessions
from braidmq.braid.roaming.marks import Horizon, rows_of
from braidmq.braid.roaming.messages import GiveUpAnswer, HeldCopyOf
from braidmq.braid.roaming.moved import moved_of
from braidmq.braid.roaming.reaching import BrokerReach
from braidmq.braid.roaming.searching import SearchResult
from braidmq.broker.broker import Broker
from braidmq.broker.store import SavedSession
from braidmq.host import Address, Event, Host
from braidmq.mqtt.reasons import Reason
from braidmq.mqtt.topics import split_share

GONE_S = 60.0
"""How long a broker was not heard from before all its sessions are taken up: it may just be restarted."""

LOOK_S = 5.0
"""How often it is looked for such brokers."""

QUIET_S = 0.7
"""A broker that was not heard from for so long may be gone: more than the time between two of its heartbeats."""

ADOPT_WAIT_S = 0.05
"""How long a client that has come here waits until the subscriptions of its session have taken effect. One that has
come to another broker waits there."""

HEARD_S = 0.1
"""One that was heard from so recently is not looked for."""

SINCE_SLACK_S = 60.0
"""How long before it was last heard from a broker may have ceased to follow others."""

BEGUN_MAX = 100_000
"""Sessions of which it is remembered when they were taken up."""

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
        reach: BrokerReach,
    ) -> None:
        self._broker = broker
        self._host = host
        self._copies = copies
        self._clients = clients
        self._directory = directory
        self._incoming = incoming
        self._replication = replication
        self._fetcher = fetcher
        self._reach = reach
        self._under_way: dict[str, Event] = {}
        """By client id: the end of taking its session up."""
        self._done: dict[tuple[str, str], int] = {}
        """By broker and client id: the epoch of the session that was taken up, never twice from one copy."""
        self._begun: BoundedDict[tuple[str, str], tuple[float, int]] = BoundedDict(BEGUN_MAX)
        """By broker and client id: when it was begun to take its session up last, and the epoch that it had."""
        self.adopt_queues: Callable[[str, Address, list[SavedSession]], Awaitable[None]]
        """Takes up what waits for shared subscriptions at a broker that is gone."""
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
            is_there = self._reach.is_there(copy.owner, copy.address)
            if is_there is None and (quiet_s > HEARD_S or not copy.is_streaming):
                self._reach.look(copy.address)
            is_heard = is_there if is_there is not None else copy.is_streaming and quiet_s < QUIET_S
            epoch = 0 if is_heard else copy.sessions().epoch_of(client_id)
            found.append(HeldCopyOf(copy.owner, copy.term, epoch, is_heard))
        return tuple(found)

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
        is_there = self._reach.is_there(owner, copy.address)
        if is_there is None:
            self._reach.look(copy.address)
            return GiveUpAnswer.BUSY
        if is_there:
            return GiveUpAnswer.THERE
        saved = copy.sessions().get(client_id, self._broker.now())
        if saved is None or self._is_done(copy, client_id):
            return None
        if self._has_newer(client_id, copy.sessions().epoch_of(client_id)):
            return None
        self._begun.renew((owner, client_id), (self._host.now(), copy.sessions().epoch_of(client_id)))
        self._under_way[client_id] = self._host.event()
        self._host.spawn(self._adopt(copy, saved, wait_s))
        return GiveUpAnswer.BUSY

    def _has_newer(self, client_id: str, epoch: int) -> bool:
        """Whether a newer session is here than one of an epoch. A connection that an older one still has is ended:
        its client has been elsewhere since."""
        session = self._broker.sessions.get(client_id)
        if session is None:
            return False
        arrival = self._clients.arriving.get(client_id)
        own_epoch = self._clients.epochs.get(client_id, UNKNOWN_EPOCH) if arrival is None else arrival.own_epoch
        if own_epoch > epoch:
            return True
        if session.connection is not None:
            session.connection.disconnect(Reason.SESSION_TAKEN_OVER, "the client has been at another broker since")
        return False

    def _is_done(self, copy: BrokerCopy, client_id: str) -> bool:
        return self._done.get((copy.owner, client_id), 0) >= copy.sessions().epoch_of(client_id)

    def taken_up(self, owner: str, seconds: float) -> tuple[tuple[str, int], ...]:
        """The sessions of a broker that were taken up here in so many seconds, or are about to be, and their epochs.

        It asks itself, so it is there: no session is taken up behind the answer, unless it falls silent again.
        """
        copy = self._copies.get(owner)
        if copy is not None:
            self._reach.on_heard(owner, copy.address)
        since = self._host.now() - seconds
        begun = self._begun.items()
        return tuple([(client_id, epoch) for (one, client_id), (at, epoch) in begun if one == owner and at >= since])

    async def adopt_here(self, owner: str, client_id: str) -> GiveUpAnswer | None:
        """As `begin`, for a client that has come to this broker: GIVEN if its session is here now."""
        answer = await self._begin_and_wait(owner, client_id, ADOPT_WAIT_S)
        copy = self._copies.get(owner)
        is_here = client_id in self._broker.sessions and copy is not None and self._is_done(copy, client_id)
        return GiveUpAnswer.GIVEN if answer is None and is_here else answer

    async def _begin_and_wait(self, owner: str, client_id: str, wait_s: float) -> GiveUpAnswer | None:
        """As `begin`, until that is over."""
        while (answer := self.begin(owner, client_id, wait_s)) is GiveUpAnswer.BUSY:
            copy = self._copies.get(owner)
            if client_id in self._under_way:
                done = self._done.get((owner, client_id), 0)
                await self._under_way[client_id].wait()
                if self._done.get((owner, client_id), 0) > done:
                    return None  # it is here, though the broker may be back by now
            elif copy is not None:
                await self._reach.look(copy.address).wait()
        return answer

    async def _adopt(self, copy: BrokerCopy, saved: SavedSession, wait_s: float) -> None:
        try:
            copied = copy.sessions()
            session = await self._incoming.adopt(saved, copy.owner, wait_s, lambda: self._state(copy, copied, saved))
            if session is not None:
                epoch = copied.epoch_of(saved.client_id)
                self._done[copy.owner, saved.client_id] = epoch
                epochs = self._clients.epochs
                newer = epoch + 1  # than what the broker has, should it come back
                epochs[saved.client_id] = max(newer, epochs.get(saved.client_id, 0))
                epochs.set_begun(saved.client_id, copied.begun(saved.client_id))
                self.adopted += 1
        finally:
            self._under_way.pop(saved.client_id).set()

    async def _state(self, copy: BrokerCopy, copied: CopiedSessions, saved: SavedSession) -> FetchedState:
        """What the session has: what the copy says, and behind it what was published since."""
        now = self._broker.now()
        filters = [one for one in saved.subscriptions if split_share(one)[0] is None]
        since = now - (self._host.now() - copy.heard_at) - SINCE_SLACK_S
        found = await self._fetcher.fetch(filters, copied.followed, copy.owner, since)
        horizon = Horizon(copied.horizon_of(saved.client_id))
        missed = [one for one in found if not horizon.covers((one[0], one[1].offset))]
        items = [moved_of(one.delivery, now, one.released) for one in saved.deliveries]
        items += [moved for one in missed if (moved := moved_from(saved.subscriptions, *one)) is not None]
        rows = [*horizon.rows, *rows_of((origin, sent.offset) for origin, sent in missed)]
        published = copied.published_by(saved.client_id, self._host.address)
        instances = copied.instances_of(saved.client_id)
        return FetchedState(items, tuple(saved.received), Horizon(rows), None, published, instances)

    # All of them, when their broker stays away

    def start(self) -> None:
        self._host.spawn(self._keep_looking())

    async def _keep_looking(self) -> None:
        while True:
            await self._host.sleep(LOOK_S)
            for copy in list(self._copies):
                if self._host.now() - copy.heard_at > GONE_S and not await self._reach.find(copy.owner, copy.address):
                    await self._adopt_all(copy)

    async def _adopt_all(self, copy: BrokerCopy) -> None:
        copied = copy.sessions()
        left = [one for one in copied.all if not self._is_done(copy, one.client_id)]
        if (copy.owner, "") not in self._done:
            level = logging.WARNING if left else logging.INFO
            _log.log(level, "%s is gone: its %d sessions are taken up here", copy.owner, len(left))
            self._done[copy.owner, ""] = 1
            self._replication.adopt(copied.retained)
            await self.adopt_queues(copy.owner, copy.address, copied.queues)
        for saved in left:
            if copy.is_streaming:
                return  # it is back
            epoch = copied.epoch_of(saved.client_id)
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
            await self._begin_and_wait(copy.owner, client_id, EFFECTIVE_WAIT_S)
