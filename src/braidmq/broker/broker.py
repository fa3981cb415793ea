"""The broker itself, without a socket or a clock: sessions, subscriptions, retained messages, wills.

The world outside gives the time, calls `flush` when `wants_flush` was rung (see `tick`), and `run_timers` when
`timers.next_at` has come.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any

from braidmq.broker.connection import Connection
from braidmq.broker.fast_path import deliver_run
from braidmq.broker.federation import Federation
from braidmq.broker.flow import Link
from braidmq.broker.limits import Limits
from braidmq.broker.local_topics import is_local
from braidmq.broker.message import Delivery, Message, Reached
from braidmq.broker.reading import may_read
from braidmq.broker.recorder import Recorder
from braidmq.broker.retained import Retained, tombstone
from braidmq.broker.router import Router, Target, filter_cost
from braidmq.broker.session import Session
from braidmq.broker.shares import ShareGroup, Subscribed
from braidmq.broker.store import MemoryStore, Snapshot, Store
from braidmq.broker.tick import Tick
from braidmq.broker.transactions import Transactions
from braidmq.broker.wills import Wills
from braidmq.mqtt.packets import Will
from braidmq.mqtt.reasons import Reason
from braidmq.security.identity import (
    Access,
    Authenticator,
    ClientIds,
    FreeClientIds,
    Identity,
    Method,
    OpenAccess,
    Origin,
)

RETAINED_SWEEP_S = 60.0
"""How often expired retained messages are thrown away; they are not delivered in the meantime."""

INSTANT_S = 1e-6
"""The least time between two retained messages of one topic."""


def _no_spawn(coroutine: Coroutine[Any, Any, None]) -> None:
    coroutine.close()
    raise RuntimeError("this broker was given no way to wait for an authenticator")


class Broker(Tick):
    def __init__(
        self,
        *,
        clock: Callable[[], float],
        wall: Callable[[], float],
        limits: Limits | None = None,
        store: Store | None = None,
        recorder: Recorder | None = None,
        authenticator: Authenticator | None = None,
        methods: Mapping[str, Method] | None = None,
        access: Access | None = None,
        client_ids: ClientIds | None = None,
        spawn: Callable[[Coroutine[Any, Any, None]], None] = _no_spawn,
        wants_flush: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(clock, wall, store or MemoryStore(), wants_flush)
        self.limits = limits or Limits()
        self.authenticator = authenticator
        self.methods: Mapping[str, Method] = methods or {}
        self.access: Access = access or OpenAccess()
        self.client_ids: ClientIds = client_ids or FreeClientIds()
        self.spawn = spawn
        self.router = Router(self.limits.route_cache_max)
        self.retained = Retained(self.limits)
        self.wills = Wills(self)
        self.on_delivery: Callable[[Message, Iterable[Target]], None] | None = None
        """Called with what is about to be given to sessions, while somebody needs to know."""
        self.sessions: dict[str, Session] = {}
        if recorder is not None:
            self.set_recorder(recorder)
        self.expires_all = self.limits.message_expiry_max_s > 0
        self.started_at = self.now()
        snapshot = self.store.load()
        self.saved_history = snapshot.sent
        self.saved_cursors = snapshot.cursors
        """What an earlier process left for the braid."""
        self._restore(snapshot)
        self._judge_sessions()
        self.ledger = Transactions(self)
        self.ledger.restore(snapshot.writers, snapshot.parts)
        if self.store.dirty or self.recorder.dirty:
            self.commit()
        self.timers.at(self.now() + RETAINED_SWEEP_S, self._sweep_retained)

    # Connections

    def connect(self, link: Link, origin: Origin) -> Connection:
        """A socket was accepted."""
        connection = Connection(self, link, origin)
        self.connections[connection] = None
        self.metrics.connections += 1
        return connection

    def disconnected(self, connection: Connection) -> None:
        if connection in self.connections:
            del self.connections[connection]
            self.metrics.connections -= 1

    def order_changed(self, session: Session) -> None:
        """QoS 0 waits for this session, or no longer does: routes must lead through it, or may lead past it."""
        if session.in_order != session.was_in_order:
            session.was_in_order = session.in_order
            self.forget_routes(session)

    def run_timers(self) -> None:
        """Does what is due; what comes of it is flushed at the end of the tick."""
        self.timers.run(self.now())
        if self.store.dirty or self.recorder.dirty:
            self.ring()

    def _restore(self, snapshot: Snapshot) -> None:
        """Takes up what an earlier process left. Clients that it had are gone now: their time begins to run."""
        now = self.now()
        for message in snapshot.retained:
            if message.expired(now):
                self.store.drop_retained(message.topic)
            else:
                self.retained.keep(message)
        self.metrics.retained_messages = len(self.retained)
        for saved in snapshot.sessions:
            session = Session(self, saved.client_id, saved.row)
            session.expiry_s = saved.expiry_s
            session.restore(saved)
            self.sessions[saved.client_id] = session
            for full_filter, subscribed in saved.subscriptions.items():
                session.subscriptions[full_filter] = subscribed
                session.filter_bytes += filter_cost(full_filter)
                self.router.subscribe(session, full_filter, subscribed)
                self.metrics.subscriptions += 1
            ends_at = saved.ends_at
            if ends_at is None and not session.never_ends:
                ends_at = now + session.expiry_s
                self._save(session, ends_at)
            self._expire_later(session, ends_at)
        self.metrics.sessions = len(self.sessions)
        self.wills.restore(snapshot.wills)

    # Sessions

    def new_client_id(self) -> str:
        while True:
            client_id = f"braidmq-{secrets.token_hex(8)}"
            if client_id not in self.sessions:
                return client_id

    def is_kept_from(self, client_id: str, user: str) -> bool:
        """Whether the session of a client id is another user's, who keeps it (see `ClientIds`)."""
        session = self.sessions.get(client_id)
        if session is None or not session.is_foreign(user):
            return False
        return session.connection is not None or not self.client_ids.starts_fresh

    def take_up(self, client_id: str, owner: str, clean_start: bool, expiry_s: int) -> tuple[Session, bool]:
        """The session for a CONNECT, and whether it was there before; a connection that has it is taken over.

        One that is another user's, who does not keep it, ends.
        """
        session = self.sessions.get(client_id)
        if session is not None and session.is_foreign(owner):
            clean_start = True
        if session is not None and session.connection is not None:
            if clean_start:
                session.expiry_s = 0  # it ends here, and its will is due (MQTT 5 §3.1.3.2.2)
            session.connection.disconnect(Reason.SESSION_TAKEN_OVER, "another connection has taken over this client id")
            session = self.sessions.get(client_id)
        if session is not None and clean_start:
            self.end_session(session)  # [MQTT-3.1.2-4]
            session = None
        present = session is not None
        if session is None:
            session = Session(self, client_id, self.store.next_row())
            self.sessions[client_id] = session
            self.metrics.sessions += 1
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
        self.wills.renew(session, will)
        self.forget_routes(session)

    def identify(self, connection: Connection, identity: Identity) -> None:
        """Notes who is connected: for access control, and for the time that its credentials last."""
        assert connection.session is not None
        connection.identity = identity
        connection.repeat = None
        if connection.identity_timer is not None:
            connection.identity_timer.cancel()
        free = self.access.unrestricted(identity, connection.session.client_id)
        connection.allowed_topics = None if free else set()
        if identity.expires_at is not None:
            text = "the credentials have expired"
            connection.identity_timer = self.timers.at(
                identity.expires_at, partial(connection.disconnect, Reason.NOT_AUTHORIZED, text)
            )

    def part(self, session: Session, connection: Connection, will: bool) -> None:
        """A connection leaves its session: with its will, or without."""
        if session.connection is not connection:
            return
        session.detach()
        self.forget_routes(session)
        self.wills.settle(session, will)
        if not session.durable:
            self.end_session(session)
            return
        self.expire_detached(session)
        if session.burden:
            self._hand_over_shares(session)
        self.ring()

    def _hand_over_shares(self, session: Session) -> None:
        """A member that is away gives what it has not acknowledged to those that are there (MQTT 5 §4.8.2)."""
        for full_filter in session.subscriptions:
            if full_filter.startswith("$share/"):
                group = self.router.group(full_filter)
                if group is not None and any(member.connection for member in group.members):
                    self._pass_on(session.give_back(full_filter))

    def _expire_later(self, session: Session, ends_at: float | None) -> None:
        if ends_at is not None:
            session.expiry_timer = self.timers.at(ends_at, partial(self.end_session, session))

    def expire_detached(self, session: Session) -> None:
        """A session without a connection is here: its time begins to run."""
        ends_at = None if session.never_ends else self.now() + session.expiry_s
        self._save(session, ends_at)
        self._expire_later(session, ends_at)

    def adopt(self, session: Session) -> None:
        """A session has come from another broker, with subscriptions that the router knows already."""
        self.sessions[session.client_id] = session
        self.metrics.sessions += 1
        self.metrics.subscriptions += len(session.subscriptions)
        self.expire_detached(session)
        for full_filter, subscribed in session.subscriptions.items():
            self.store.save_subscription(session.row, full_filter, subscribed)

    def end_session(self, session: Session, moved: bool = False) -> None:
        """Nothing of the session stays here. A will that waited is due now [MQTT-3.1.2-8], and what it had of shared
        subscriptions goes to other members, unless it goes on at another broker."""
        if self.sessions.get(session.client_id) is not session:
            return
        del self.sessions[session.client_id]
        self.metrics.sessions -= 1
        self.forget_routes(session)
        for full_filter in session.subscriptions:
            self.router.unsubscribe(session, full_filter)
            self.metrics.subscriptions -= 1
        left = [] if moved else session.give_back()
        session.clear()
        self._drop_stored(session)
        if moved:
            self.wills.renew(session, None)
        self.wills.due(session)
        self._pass_on(left)
        self.ring()

    def _save(self, session: Session, ends_at: float | None) -> None:
        session.stored = True
        self.store.save_session(session.row, session.client_id, session.expiry_s, ends_at, session.owner)

    def _drop_stored(self, session: Session) -> None:
        if session.stored:
            session.stored = False
            self.store.drop_session(session.row)

    def forget_routes(self, session: Session) -> None:
        for full_filter in session.subscriptions:
            self.router.forget(full_filter)

    # Subscriptions

    def subscribe(self, session: Session, full_filter: str, subscribed: Subscribed) -> bool:
        new = self.router.subscribe(session, full_filter, subscribed)
        session.subscriptions[full_filter] = subscribed
        session.filter_bytes += new * filter_cost(full_filter)
        self.metrics.subscriptions += new
        if session.durable:
            self.store.save_subscription(session.row, full_filter, subscribed)
        return new

    def unsubscribe(self, session: Session, full_filter: str) -> bool:
        if full_filter not in session.subscriptions:
            return False
        self._pass_on(self._unsubscribe(session, full_filter))
        return True

    def _unsubscribe(self, session: Session, full_filter: str) -> list[Delivery]:
        """What it leaves of a shared subscription is for the other members."""
        del session.subscriptions[full_filter]
        self.router.unsubscribe(session, full_filter)
        session.filter_bytes -= filter_cost(full_filter)
        self.metrics.subscriptions -= 1
        if session.durable:
            self.store.drop_subscription(session.row, full_filter)
        return session.give_back(full_filter) if full_filter.startswith("$share/") else []

    def reconfigure(
        self,
        limits: Limits,
        authenticator: Authenticator | None,
        methods: Mapping[str, Method],
        access: Access,
        client_ids: ClientIds,
    ) -> None:
        """Takes new bounds and rules over. Connections that are open keep theirs where they were told of them."""
        self.limits = limits
        self.expires_all = limits.message_expiry_max_s > 0
        self.retained.limits = limits
        self.router.routes_max = limits.route_cache_max
        self.authenticator = authenticator
        self.methods = methods
        self.access = access
        self.client_ids = client_ids
        self.router.version += 1
        for connection in list(self.connections):
            session = connection.session
            if session is None:
                continue
            if not client_ids.allows(connection.identity, connection.origin, session.client_id):
                text = "this user may not use this client identifier any more"
                connection.disconnect(Reason.NOT_AUTHORIZED, text)
                continue
            free = access.unrestricted(connection.identity, session.client_id)
            connection.allowed_topics = None if free else set()
        self._judge_sessions()

    def federate(self, federation: Federation) -> None:
        """Joins this broker to others: from now on publications leave and subscriptions are told by way of these."""
        self.federation = self.router.federation = federation
        self.router.forget_all()

    def set_recorder(self, recorder: Recorder) -> None:
        """Has this one keep what is published here from now on; called again if it wants other topics."""
        self.recorder = recorder
        self.router.is_logged = recorder.wants
        self.router.version += 1
        self.router.forget_all()

    def _judge_sessions(self) -> None:
        """New rules: every session whose user is known loses what that user may not have any more."""
        self.withdraw_forbidden(
            [(session, who) for session in self.sessions.values() if (who := session.last_identity) is not None]
        )

    def withdraw_forbidden(self, judged: Iterable[tuple[Session, Identity]]) -> None:
        """Takes from sessions what these identities may not have: the rules have changed, or it is somebody else.

        What they leave of shared subscriptions is passed on when all have been judged: no member gets it that is about
        to lose its subscription, too.
        """
        left: list[Delivery] = []
        for session, identity in judged:
            for full_filter in list(session.subscriptions):
                if not may_read(self.access, identity, session.client_id, full_filter):
                    self.log.info("client %r loses its subscription to %r", session.client_id, full_filter)
                    left += self._unsubscribe(session, full_filter)
            topics = session.topics_waiting()
            forbidden = {one for one in topics if not may_read(self.access, identity, session.client_id, one)}
            if forbidden:
                session.withdraw(forbidden)
        self._pass_on(left)

    # Messages

    def publish(self, message: Message, publisher: Connection | None = None) -> Reached:
        """Keeps a message if it is to be retained and gives it to all that want it; whether that is anybody."""
        self.publisher = publisher
        is_new = message.retain and self._retain(message)
        route = self.router.route(message.topic)
        if route.logged:
            self.recorder.take(message, self.now())
        is_for_here = not message.forward or self.federation.is_for_here(message)
        reached = Reached.NOBODY
        if is_for_here and self.deliver(message, route.targets, route.groups):
            reached = Reached.SOMEBODY
        elsewhere = self.federation.send(message, is_new)
        if elsewhere > reached:
            reached = elsewhere
        if route.tap is not None and is_for_here:
            route.tap.take(message, route.logged)
            reached = Reached.SOMEBODY
        return reached

    def inject(self, message: Message, choose: Callable[[list[Target]], list[Target]] | None = None) -> None:
        """A publication of another broker's client, for the clients here, or for those that `choose` leaves."""
        self.publisher = None
        route = self.router.route(message.topic)
        targets = route.targets if choose is None else choose(route.targets)
        self.deliver(message, targets, route.groups)
        if route.tap is not None:
            route.tap.take_foreign(message)
        self.ring()

    def inject_run(self, topic: str, run: bytes, version: int) -> None:
        """Plain QoS 0 publications of another broker's clients to one topic, as they stood on the wire."""
        deliver_run(self, self.router.route(topic), run, version)
        self.ring()

    def deliver(self, message: Message, targets: Iterable[Target], groups: Iterable[ShareGroup]) -> bool:
        reached = False
        if self.on_delivery is not None:
            self.on_delivery(message, targets)
        for target in targets:
            session = target.session
            if target.no_local and session.client_id == message.sender:  # [MQTT-3.8.3-3]
                if target.own is None:
                    continue
                target = target.own
            reached = True
            qos = message.qos if message.qos < target.qos else target.qos
            retain = message.retain and target.retain_as_published  # [MQTT-3.3.1-12], [MQTT-3.3.1-13]
            session.deliver(message, qos, retain, target.ids)
        for group in groups:
            reached = reached or bool(group.members)
            self._deliver_to_one(message, group)
        return reached

    def _deliver_to_one(self, message: Message, group: ShareGroup) -> None:
        session = group.choose(message.qos, message.size)
        if session is None:
            self.metrics.messages_dropped += 1
            return
        subscribed = group.members[session]
        ids = (subscribed.identifier,) if subscribed.identifier else ()
        retain = message.retain and subscribed.retain_as_published
        session.deliver(message, min(message.qos, subscribed.qos), retain, ids, group.full_filter)

    def _pass_on(self, left: list[Delivery]) -> None:
        """What a member of a shared subscription did not take goes to another one."""
        now = self.now()
        for delivery in left:
            group = self.router.group(delivery.group)
            if group is not None and not delivery.message.expired(now):
                self._deliver_to_one(delivery.message, group)
            else:
                self.metrics.messages_dropped += 1

    def _retain(self, message: Message) -> bool:
        """[MQTT-3.3.1-5], [MQTT-3.3.1-6]: the newest replaces the last; an empty one takes it away.

        True if none of its topic was kept before.
        """
        last = self.retained.get(message.topic)
        message.at = self.now() if last is None else max(self.now(), last.at + INSTANT_S)
        if message.payload:
            self._keep(message)
        else:
            self._bury(message.topic, message.at)
        return last is None or not last.payload

    def _keep(self, message: Message) -> None:
        self.retained.keep(message)
        if not is_local(message.topic):
            self.store.save_retained(message)
        for topic in self.retained.surplus():
            self.drop_retained(topic)
        self.metrics.retained_messages = len(self.retained)

    def _bury(self, topic: str, at: float) -> None:
        """Takes a message away; other brokers may have older copies, which must not take its place."""
        if self.federation.keeps_tombstones and not is_local(topic):
            self._keep(tombstone(topic, at, self.now()))
        else:
            self.drop_retained(topic)

    def drop_retained(self, topic: str) -> None:
        """Takes a message away, or its tombstone, and leaves nothing."""
        if self.retained.discard(topic) and not is_local(topic):
            self.store.drop_retained(topic)
        self.metrics.retained_messages = len(self.retained)

    def _sweep_retained(self) -> None:
        for topic in self.retained.expired(self.now()):
            message = self.retained.get(topic)
            if message is not None and message.payload:
                self._bury(topic, message.at)
            else:
                self.drop_retained(topic)
        self.timers.at(self.now() + RETAINED_SWEEP_S, self._sweep_retained)

    # The end

    def shut_down(self) -> None:
        """Tells every client, keeps what must be kept; sockets close behind it."""
        self.federation.begin_leaving()
        for connection in list(self.connections):
            connection.disconnect(Reason.SERVER_SHUTTING_DOWN, "the broker is going down")
        self.flush()
