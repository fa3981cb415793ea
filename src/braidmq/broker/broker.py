"""The broker itself, without a socket or a clock: sessions, subscriptions, retained messages, wills.

The world outside gives the time, calls `flush` when `wants_flush` was called (see `tick`), and `run_timers` when
`timers.next_at` has come. Clients come in by `receiving.accept`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from braidmq.broker.acknowledged_run import AcknowledgedRun
from braidmq.broker.client import ConnectedClient
from braidmq.broker.federation import Alone, Federation
from braidmq.broker.flow import Flow
from braidmq.broker.limits import Limits
from braidmq.broker.local_topics import is_brokers_own, is_local
from braidmq.broker.message import Message, Reached, message_of
from braidmq.broker.notices import ClientNotices
from braidmq.broker.recorder import Recorder
from braidmq.broker.retained import Retained, tombstone
from braidmq.broker.router import Router, Target
from braidmq.broker.runs import append_run, payloads_of, send_run, translated
from braidmq.broker.session import Session
from braidmq.broker.sessions import Sessions
from braidmq.broker.share_policies import SharePolicy
from braidmq.broker.shares import ShareGroup
from braidmq.broker.store import MemoryStore, Store
from braidmq.broker.tick import Tick
from braidmq.broker.transactions import Transactions
from braidmq.mqtt.packets import V5, Will
from braidmq.mqtt.reasons import Reason
from braidmq.mqtt.wire import packet_starts, string
from braidmq.security.identity import (
    Access,
    AuthenticationMethod,
    Authenticator,
    ClientIds,
    FreeClientIds,
    Identity,
    OpenAccess,
)

RETAINED_SWEEP_S = 60.0
"""How often expired retained messages are thrown away; they are not delivered in the meantime."""

INSTANT_S = 1e-6
"""The least time between two retained messages of one topic."""


def _no_spawn(coroutine: Coroutine[Any, Any, None]) -> None:
    coroutine.close()
    raise RuntimeError("this broker was given no way to wait for an authenticator")


class Broker:
    def __init__(
        self,
        *,
        clock: Callable[[], float],
        wall: Callable[[], float],
        limits: Limits | None = None,
        store: Store | None = None,
        recorder: Recorder | None = None,
        authenticator: Authenticator | None = None,
        methods: Mapping[str, AuthenticationMethod] | None = None,
        access: Access | None = None,
        client_ids: ClientIds | None = None,
        share_policies: Mapping[str, SharePolicy] | None = None,
        spawn: Callable[[Coroutine[Any, Any, None]], None] = _no_spawn,
        wants_flush: Callable[[], None] = lambda: None,
    ) -> None:
        self.federation: Federation = Alone()
        """The way to other brokers."""
        self.store: Store = store or MemoryStore()
        self.tick = Tick(clock, wall, self.store, self.federation, wants_flush, self._on_recovered)
        self.now = self.tick.now
        self.metrics = self.tick.metrics
        self.timers = self.tick.timers
        self.on_wants: Callable[[str], None] = lambda _topic_filter: None
        """Called with a filter when other brokers begin, or cease, to want what it matches; `#` if that may be all."""
        self.recorder: Recorder = self.tick.recorder
        """Keeps publications that are read later."""
        self.log = logging.getLogger("braidmq.broker")
        self.notices = ClientNotices(self.log, self.now, self.timers.at)
        """Log lines that clients bring about."""
        self.limits = limits or Limits()
        self.authenticator = authenticator
        self.methods: Mapping[str, AuthenticationMethod] = methods or {}
        self.access: Access = access or OpenAccess()
        self.client_ids: ClientIds = client_ids or FreeClientIds()
        self.spawn = spawn
        self.router = Router(self.limits.route_cache_max)
        self.router.share_policies = share_policies or {}
        self.retained = Retained(self.limits)
        self.on_delivery: Callable[[Message, Iterable[Target]], None] | None = None
        """Called with what is about to be given to sessions, while that needs to be known."""
        self.sessions = Sessions(self, self.router, self._publish_will)
        self.connections: dict[ConnectedClient, None] = {}
        if recorder is not None:
            self.set_recorder(recorder)
        self.expires_all = self.limits.message_expiry_max_s > 0
        self.started_at = self.now()
        snapshot = self.store.load()
        self.saved_history = snapshot.sent
        self.saved_cursors = snapshot.cursors
        """What an earlier process left for the federation."""
        self._restore_retained(snapshot.retained)
        self.sessions.restore(snapshot)
        self.sessions.judge_all(self.access)
        self.transactions = Transactions(self)
        self.transactions.restore(snapshot.writers, snapshot.parts)
        if self.store.dirty or self.recorder.dirty:
            self.tick.commit()
        self.timers.at(self.now() + RETAINED_SWEEP_S, self._sweep_retained)

    # The tick

    @property
    def degraded(self) -> bool:
        """True while store or log cannot be written."""
        return self.tick.degraded

    def flush(self) -> None:
        """The end of a tick."""
        self.tick.flush()

    def request_flush(self) -> None:
        """Asks for a flush at the end of this tick."""
        self.tick.request_flush()

    def _on_recovered(self) -> None:
        """The store can be written again: what waited for that leaves."""
        for session in self.sessions.values():
            if session.connection is not None and session.backlog is not None:
                self.tick.pump_later(session)

    # Connections

    def on_accepted(self, client: ConnectedClient) -> None:
        self.connections[client] = None
        self.metrics.connections += 1

    def on_closed(self, client: ConnectedClient) -> None:
        if client in self.connections:
            del self.connections[client]
            self.metrics.connections -= 1

    def order_changed(self, session: Session) -> None:
        """QoS 0 waits for this session, or no longer does: routes must lead through it, or may lead past it."""
        if session.in_order != session.was_in_order:
            session.was_in_order = session.in_order
            self.sessions.forget_routes(session)

    def on_free(self, session: Session) -> None:
        """A member of a shared subscription may be able to take more."""
        self.sessions.shares.on_free(session)

    def is_kept_from(self, client_id: str, user: str) -> bool:
        """Whether the session of a client id is another user's, who keeps it (see `ClientIds`)."""
        return self.sessions.is_kept_from(client_id, user, self.client_ids.starts_fresh)

    def run_timers(self) -> None:
        """Runs what is due; what comes of it is flushed at the end of the tick."""
        self.timers.run(self.now())
        if self.store.dirty or self.recorder.dirty:
            self.tick.request_flush()

    def reconfigure(
        self,
        limits: Limits,
        authenticator: Authenticator | None,
        methods: Mapping[str, AuthenticationMethod],
        access: Access,
        client_ids: ClientIds,
    ) -> None:
        """Changes to new bounds and rules. Open connections keep the bounds that they were told of."""
        self.limits = limits
        self.expires_all = limits.message_expiry_max_s > 0
        self.retained.limits = limits
        self.router.routes_max = limits.route_cache_max
        self.authenticator = authenticator
        self.methods = methods
        self.access = access
        self.client_ids = client_ids
        self.router.version += 1
        for session in list(self.sessions.values()):
            client = session.connection
            if client is None:
                continue
            if not client_ids.allows(client.identity, client.origin, session.client_id):
                text = "this user may not use this client identifier any more"
                client.disconnect(Reason.NOT_AUTHORIZED, text)
                continue
            free = access.unrestricted(client.identity, session.client_id)
            client.allowed_topics = None if free else set()
        self.sessions.judge_all(access)

    def federate(self, federation: Federation) -> None:
        """Joins this broker to others: from now on publications leave, and subscriptions are told, by this way."""
        self.federation = self.router.federation = self.tick.outgoing = federation
        self.router.forget_all()

    def set_recorder(self, recorder: Recorder) -> None:
        """Has this one keep what is published here from now on; called again if it wants other topics."""
        self.recorder = self.tick.recorder = recorder
        self.router.is_logged = recorder.wants
        self.router.forget_all()

    # Messages

    def publish(self, message: Message, publisher: Flow | None = None) -> Reached:
        """Keeps a message if it is to be retained and gives it to all that want it; whether that is anybody.

        A `publisher` can be made to wait for slow readers.
        """
        is_new = message.retain and self._retain(message)
        route = self.router.route(message.topic, message.name)
        to = route.receivers
        if route.logged:
            self.recorder.record(message, self.now())
        is_for_here = not message.forward or self.federation.is_for_here(message)
        reached = Reached.NOBODY
        if self.deliver(message, to.targets if is_for_here else (), to.groups, publisher, is_for_here):
            reached = Reached.SOMEBODY
        elsewhere = self.federation.send(message, is_new)
        if elsewhere > reached:
            reached = elsewhere
        if route.feed is not None and is_for_here:
            route.feed.on_publication(message, route.logged)
            reached = Reached.SOMEBODY
        return reached

    def _publish_will(self, client_id: str, will: Will, owner: str | None) -> None:
        """Publishes a will that is due; the rules may have changed since its client connected."""
        if is_brokers_own(will.topic):
            return  # no client may publish there
        if owner is not None and not self.access.may_will(Identity(owner or None), client_id, will.topic):
            self.log.info("the will of client %r for %r is no longer allowed", client_id, will.topic)
            return
        message = message_of(will, client_id, self.now(), self.limits.message_expiry_max_s)
        if self.degraded or (will.payload and not self.retained.fits(message)):
            message.retain = False  # it is told, if it cannot be kept
        self.publish(message)

    def inject(self, message: Message, choose: Callable[[list[Target]], list[Target]] | None = None) -> None:
        """A publication of another broker's client, for the clients here, or for those that `choose` leaves."""
        route = self.router.arriving(message.topic)
        to = route.receivers
        targets = to.targets if choose is None else choose(to.targets)
        self.deliver(message, targets, ())
        if route.feed is not None:
            route.feed.on_foreign(message)
        self.tick.request_flush()

    def inject_run(self, topic: str, run: bytes, version: int) -> None:
        """Plain QoS 0 publications of another broker's clients to one topic, as they stood on the wire."""
        route = self.router.arriving(topic)
        to = route.receivers
        is_v5 = version == V5
        starts = packet_starts(run)
        count = len(starts)
        self.metrics.messages_received += count
        same, other = (to.plain5, to.plain3) if is_v5 else (to.plain3, to.plain5)
        if same:
            append_run(self.tick, same, run, count, None)
        if other or to.special or route.feed is not None:
            name = string(topic)
            payloads = payloads_of(run, starts, len(run), len(name) + is_v5)
            if other:
                append_run(self.tick, other, translated(name, payloads, not is_v5), count, None)
            if to.special:
                for payload in payloads:
                    self.deliver(Message(topic, name, payload, 0), to.special, ())
            if route.feed is not None:
                route.feed.on_foreign_run(payloads)
        self.tick.request_flush()

    def takes_run(self, topic: str, count: int) -> bool:
        """Whether so many publications of QoS 1 or 2 from another broker can be given to clients here as a run."""
        route = self.router.arriving(topic)
        to = route.receivers
        return route.feed is None and to.sure is not None and to.room_for_run(None) >= count

    def inject_acknowledged_run(self, run: AcknowledgedRun, sender: str) -> None:
        """A run of another broker's client, which is taken (`takes_run`)."""
        self.metrics.messages_received += run.count
        send_run(self.tick, self.router.arriving(run.topic).receivers.targets, run, sender)
        self.tick.request_flush()

    def deliver(
        self,
        message: Message,
        targets: Iterable[Target],
        groups: Iterable[ShareGroup],
        publisher: Flow | None = None,
        is_for_here: bool = True,
    ) -> bool:
        """Gives a message to sessions, and of each group to one; whether there is anybody. One that is not for clients
        here is for groups that have members elsewhere."""
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
            session.deliver(message, qos, retain, target.ids, "", publisher)
        for group in groups:
            if message.forward and self.federation.deliver_by_index(message, group):
                reached = True
            else:
                reached = self.sessions.shares.deliver(message, group, publisher, is_for_here) or reached
        return reached

    # Retained messages

    def _restore_retained(self, messages: Iterable[Message]) -> None:
        """Restores what an earlier process left."""
        now = self.now()
        for message in messages:
            if message.expired(now):
                self.store.drop_retained(message.topic)
            else:
                self.retained.keep(message)
        self.metrics.retained_messages = len(self.retained)

    def _retain(self, message: Message) -> bool:
        """[MQTT-3.3.1-5], [MQTT-3.3.1-6]: the newest replaces the last; an empty one deletes it.

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

    def adopt_retained(self, message: Message) -> bool:
        """Keeps a retained message, or a tombstone, of a broker that is gone; False if there is a newer one here."""
        last = self.retained.get(message.topic)
        if (last is not None and last.at >= message.at) or message.expired(self.now()):
            return False
        self._keep(message)
        return True

    def _bury(self, topic: str, at: float) -> None:
        """Deletes a message; other brokers may have older copies, which must not come back for it."""
        if self.federation.keeps_tombstones and not is_local(topic):
            self._keep(tombstone(topic, at, self.now()))
        else:
            self.drop_retained(topic)

    def drop_retained(self, topic: str) -> None:
        """Deletes a message, or its tombstone, and leaves nothing."""
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
