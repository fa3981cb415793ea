"""The sessions of a broker: how they begin, get and lose a connection, and end; and their subscriptions.

A session that outlives its connection is in the store, with the time when it ends. What a member of a shared
subscription leaves goes to another member.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from braidmq.broker.backlog import Backlog
from braidmq.broker.client import ConnectedClient
from braidmq.broker.group_queue import is_queue
from braidmq.broker.invariants import check_exchanges, check_session
from braidmq.broker.message import Delivery
from braidmq.broker.reading import may_read
from braidmq.broker.router import Router, filter_cost
from braidmq.broker.session import Session, SessionBroker
from braidmq.broker.share_delivery import ShareDelivery
from braidmq.broker.store import SavedSession, Snapshot
from braidmq.broker.subscription import Subscribed
from braidmq.broker.wills import Wills
from braidmq.broker.withdrawing import give_back, topics_waiting, withdraw
from braidmq.mqtt.packets import Will
from braidmq.mqtt.reasons import Reason
from braidmq.mqtt.topics import SHARE_PREFIX
from braidmq.security.identity import Access, Identity


class Sessions(Mapping[str, Session]):
    """By client identifier."""

    def __init__(
        self, broker: SessionBroker, router: Router, publish_will: Callable[[str, Will, str | None], None]
    ) -> None:
        """`publish_will` is called with a client id, its will that is due, and the user whose it is, if known."""
        self._broker = broker
        self._router = router
        self._tick = broker.tick
        self._store = broker.store
        self._metrics = broker.metrics
        self._log = logging.getLogger("braidmq.broker")
        self._by_id: dict[str, Session] = {}
        self.wills = Wills(broker.tick, publish_will)
        self.shares = ShareDelivery(broker, router)

    def __getitem__(self, client_id: str) -> Session:
        return self._by_id[client_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_id)

    def __len__(self) -> int:
        return len(self._by_id)

    def replace(self, session: Session) -> None:
        """Puts a session in the place of another with its client id, whose subscriptions it has."""
        self._by_id[session.client_id] = session

    def restore(self, snapshot: Snapshot) -> None:
        """Restores what an earlier process left. Its clients are gone now: the time of their sessions begins to run."""
        now = self._tick.now()
        queues = [saved for saved in snapshot.sessions if is_queue(saved.client_id)]
        for saved in snapshot.sessions:
            if is_queue(saved.client_id):
                continue
            session = Session(self._broker, saved.client_id, saved.row)
            session.expiry_s = saved.expiry_s
            _restore(session, saved)
            check_exchanges(session)
            self._by_id[saved.client_id] = session
            for full_filter, subscribed in saved.subscriptions.items():
                session.subscriptions[full_filter] = subscribed
                session.filter_bytes += filter_cost(full_filter)
                self._router.subscribe(session, full_filter, subscribed)
                self._metrics.subscriptions += 1
            ends_at = saved.ends_at
            if ends_at is None and not session.never_ends:
                ends_at = now + session.expiry_s
                self._save(session, ends_at)
            self._expire_later(session, ends_at)
        self._metrics.sessions = len(self._by_id)
        self.wills.restore(snapshot.wills, self)
        for saved in queues:
            self.shares.restore(saved)
        for session in self._by_id.values():
            if session.shares:
                self.leave_shares(session)

    # From CONNECT to the end

    def new_client_id(self) -> str:
        while True:
            client_id = f"braidmq-{secrets.token_hex(8)}"
            if client_id not in self._by_id:
                return client_id

    def is_kept_from(self, client_id: str, user: str, starts_fresh: bool) -> bool:
        """Whether a client id has a session that its user keeps from this one: a user who is away does not keep it
        where another one `starts_fresh`."""
        session = self._by_id.get(client_id)
        if session is None or not session.is_foreign(user):
            return False
        return session.connection is not None or not starts_fresh

    def open(self, client_id: str, owner: str, clean_start: bool, expiry_s: int) -> tuple[Session, bool]:
        """The session for a CONNECT, and whether it was there before; a connection that has it is taken over.

        The session of another user who does not keep it ends.
        """
        session = self._by_id.get(client_id)
        if session is not None and session.is_foreign(owner):
            clean_start = True
        if session is not None and session.connection is not None:
            if clean_start:
                session.expiry_s = 0  # it ends here, and its will is due (MQTT 5 §3.1.3.2.2)
            session.connection.disconnect(Reason.SESSION_TAKEN_OVER, "another connection has taken over this client id")
            session = self._by_id.get(client_id)
        if session is not None and clean_start:
            self.end(session)  # [MQTT-3.1.2-4]
            session = None
        present = session is not None
        if session is None:
            session = Session(self._broker, client_id, self._store.next_row())
            self._by_id[client_id] = session
            self._metrics.sessions += 1
        was_durable = session.durable
        session.owner = owner
        session.expiry_s = expiry_s
        if was_durable and not session.durable:
            self._drop_stored(session)
        elif session.durable:
            self._save(session, None)
        return session, present

    def attached(self, session: Session, will: Will | None) -> None:
        """A connection has the session: nothing of it runs out any more."""
        if session.expiry_timer is not None:
            session.expiry_timer.cancel()
            session.expiry_timer = None
        check_session(session)
        self.wills.renew(session, will)
        self.forget_routes(session)
        self._tell_groups(session)
        self._router.federation.on_presence(session)

    def detach(self, session: Session, client: ConnectedClient, will: bool) -> None:
        """A client leaves its session: with its will, or without."""
        if session.connection is not client:
            return
        check_session(session)
        session.detach()
        check_session(session)
        self.forget_routes(session)
        self.wills.on_disconnect(session, will)
        if not session.durable:
            self.end(session)
            return
        self.expire_detached(session)
        self._router.federation.on_presence(session)
        if session.shares:
            self.leave_shares(session)
            self._tell_groups(session)
        self._tick.request_flush()

    def _tell_groups(self, session: Session) -> None:
        """A member has come or gone, though its session stays."""
        for full_filter in session.subscriptions if session.shares else ():
            group = self._router.group(full_filter) if full_filter.startswith(SHARE_PREFIX) else None
            if group is not None:
                self._router.federation.on_group(group)

    def leave_shares(self, session: Session) -> None:
        """A member that is away gives back what it has not acknowledged (MQTT 5 §4.8.2)."""
        self.shares.pass_on(give_back(session))

    def _expire_later(self, session: Session, ends_at: float | None) -> None:
        if ends_at is not None:
            session.expiry_timer = self._tick.timers.at(ends_at, partial(self.end, session))

    def expire_detached(self, session: Session, ends_at: float | None = None) -> None:
        """A session without a connection is here: its time begins to run, or runs on until `ends_at`."""
        if ends_at is None and not session.never_ends:
            ends_at = self._tick.now() + session.expiry_s
        self._save(session, ends_at)
        self._expire_later(session, ends_at)

    def adopt(self, session: Session, ends_at: float | None = None) -> None:
        """A session has come from another broker, with subscriptions that the router knows already. Its time runs from
        now on, or until `ends_at`."""
        self._by_id[session.client_id] = session
        self._metrics.sessions += 1
        self._metrics.subscriptions += len(session.subscriptions)
        self.expire_detached(session, ends_at)
        for full_filter, subscribed in session.subscriptions.items():
            self._store.save_subscription(session.row, full_filter, subscribed)

    def end(self, session: Session, moved: bool = False) -> None:
        """Nothing of the session stays here. A will that waited is due now [MQTT-3.1.2-8], and what it had of shared
        subscriptions goes to other members, unless it goes on at another broker."""
        if self._by_id.get(session.client_id) is not session:
            return
        del self._by_id[session.client_id]
        self._metrics.sessions -= 1
        self.forget_routes(session)
        for full_filter in session.subscriptions:
            self._router.unsubscribe(session, full_filter)
            self._metrics.subscriptions -= 1
        left = [] if moved else give_back(session)
        check_session(session)
        session.clear()
        self._drop_stored(session)
        if moved:
            self.wills.renew(session, None)
        self.wills.due(session)
        self.shares.pass_on(left)
        self._router.federation.on_presence(session, is_over=True, moved=moved)
        self._tick.request_flush()

    def _save(self, session: Session, ends_at: float | None) -> None:
        session.stored = True
        self._store.save_session(session.row, session.client_id, session.expiry_s, ends_at, session.owner)

    def _drop_stored(self, session: Session) -> None:
        if session.stored:
            session.stored = False
            self._store.drop_session(session.row)

    def forget_routes(self, session: Session) -> None:
        for full_filter in session.subscriptions:
            self._router.forget(full_filter)

    # Subscriptions

    def subscribe(self, session: Session, full_filter: str, subscribed: Subscribed) -> bool:
        new = self._router.subscribe(session, full_filter, subscribed)
        session.subscriptions[full_filter] = subscribed
        session.filter_bytes += new * filter_cost(full_filter)
        self._metrics.subscriptions += new
        if session.durable:
            self._store.save_subscription(session.row, full_filter, subscribed)
        return new

    def unsubscribe(self, session: Session, full_filter: str) -> bool:
        if full_filter not in session.subscriptions:
            return False
        self.shares.pass_on(self._unsubscribe(session, full_filter))
        return True

    def _unsubscribe(self, session: Session, full_filter: str) -> list[Delivery]:
        """What it leaves of a shared subscription is for the other members."""
        del session.subscriptions[full_filter]
        self._router.unsubscribe(session, full_filter)
        session.filter_bytes -= filter_cost(full_filter)
        self._metrics.subscriptions -= 1
        if session.durable:
            self._store.drop_subscription(session.row, full_filter)
        return give_back(session, full_filter) if full_filter.startswith("$share/") else []

    # Access

    def judge_all(self, access: Access) -> None:
        """New rules: every session whose user is known loses what that user may not have any more."""
        known = [(session, who) for session in self.values() if (who := session.last_identity) is not None]
        self.withdraw_forbidden(access, known)

    def withdraw_forbidden(self, access: Access, judged: Iterable[tuple[Session, Identity]]) -> None:
        """Withdraws from sessions what these identities may not have: the rules have changed, or it is another user.

        What they leave of shared subscriptions is passed on when all have been judged: no member gets it that is about
        to lose its subscription, too.
        """
        left: list[Delivery] = []
        for session, identity in judged:
            for full_filter in list(session.subscriptions):
                if not may_read(access, identity, session.client_id, full_filter):
                    self._log.info("client %r loses its subscription to %r", session.client_id, full_filter)
                    left += self._unsubscribe(session, full_filter)
            topics = topics_waiting(session)
            forbidden = {one for one in topics if not may_read(access, identity, session.client_id, one)}
            if forbidden:
                withdraw(session, forbidden)
        self.shares.pass_on(left)


def _restore(session: Session, saved: SavedSession) -> None:
    """Gives a session what was in the store: under way where it has a packet id, waiting where it has none."""
    session.received = saved.received
    session.owner = saved.owner
    session.stored = True
    waiting = []
    for one in saved.deliveries:
        delivery = one.delivery
        if one.released:
            session.released[delivery.packet_id] = delivery
        elif delivery.packet_id:
            session.inflight[delivery.packet_id] = delivery
        else:
            waiting.append(delivery)
    if waiting:
        session.backlog = Backlog(session.broker.metrics)
        session.backlog.fill(waiting)
