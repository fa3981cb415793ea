"""Wills (MQTT §3.1.2.5, §3.1.3.2): what is published for a client that left without a good-bye.

A will is kept in its session, and in the store: a client that was connected when the broker died has left as well. It
is due when its delay is over or its session ends, whichever comes first, unless the client is back by then.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from braidmq.broker.local_topics import is_local
from braidmq.broker.message import message_of
from braidmq.broker.store import SavedWill
from braidmq.mqtt.packets import Will
from braidmq.security.identity import Identity

if TYPE_CHECKING:
    from braidmq.broker.broker import Broker
    from braidmq.broker.session import Session


class Wills:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._stored: set[str] = set()
        """The clients whose will the store has."""

    def renew(self, session: Session, will: Will | None) -> None:
        """The client has connected, with this will: one that was waiting is off [MQTT-3.1.3-9]."""
        self._cancel(session)
        session.will = will
        if will is None:
            self._drop(session.client_id)
        elif not self._broker.degraded:
            self._save(session, will, None)

    def settle(self, session: Session, publish: bool) -> None:
        """The connection is gone: its will is off, or due at once, or waits for its delay."""
        will = session.will
        if will is None:
            return
        delay_s = will.properties.will_delay_interval or 0
        if not publish:
            session.will = None
            self._drop(session.client_id)
        elif delay_s and session.durable:
            due_at = self._broker.now() + delay_s
            self._save(session, will, due_at)
            self._wait(session, due_at)
        else:
            self.due(session)

    def due(self, session: Session) -> None:
        """Publishes the session's will, if it still has one."""
        self._cancel(session)
        will, session.will = session.will, None
        if will is not None:
            self._publish(session.client_id, will, session.owner)

    def restore(self, wills: list[SavedWill]) -> None:
        """Takes up the wills of an earlier process; clients that were connected to it left when it ended."""
        broker = self._broker
        for saved in wills:
            client_id, will, due_at = saved.client_id, saved.will, saved.due_at
            self._stored.add(client_id)
            if due_at is None:
                due_at = broker.now() + (will.properties.will_delay_interval or 0)
                broker.store.save_will(client_id, will, due_at, saved.owner)
            session = broker.sessions.get(client_id)
            if session is None or due_at <= broker.now():
                self._publish(client_id, will, saved.owner)
            else:
                session.will = will
                self._wait(session, due_at)

    def _wait(self, session: Session, due_at: float) -> None:
        session.will_timer = self._broker.timers.at(due_at, partial(self.due, session))

    def _cancel(self, session: Session) -> None:
        if session.will_timer is not None:
            session.will_timer.cancel()
            session.will_timer = None

    def _publish(self, client_id: str, will: Will, owner: str | None) -> None:
        """The rules may be others by now than those under which the client connected."""
        broker = self._broker
        self._drop(client_id)
        if is_local(will.topic):
            return  # no client may publish there
        if owner is not None and not broker.access.may_will(Identity(owner or None), client_id, will.topic):
            broker.log.info("the will of client %r for %r is no longer allowed", client_id, will.topic)
            return
        message = message_of(will, client_id, broker.now(), broker.limits.message_expiry_max_s)
        if broker.degraded or (will.payload and not broker.retained.fits(message)):
            message.retain = False  # it is told, if it cannot be kept
        broker.publish(message)

    def _save(self, session: Session, will: Will, due_at: float | None) -> None:
        self._stored.add(session.client_id)
        self._broker.store.save_will(session.client_id, will, due_at, session.owner)

    def _drop(self, client_id: str) -> None:
        if client_id in self._stored:
            self._stored.discard(client_id)
            self._broker.store.drop_will(client_id)
