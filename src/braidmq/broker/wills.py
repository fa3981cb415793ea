"""Wills (MQTT §3.1.2.5, §3.1.3.2): what is published for a client that left without a good-bye.

A will is kept in its session, and in the store: a client that was connected when the broker died has left as well. It
is due when its delay is over or its session ends, whichever comes first, unless the client is back by then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from braidmq.broker.session import Session
from braidmq.broker.store import SavedWill
from braidmq.broker.tick import Tick
from braidmq.mqtt.packets import Will


class Wills:
    def __init__(self, tick: Tick, publish: Callable[[str, Will, str | None], None]) -> None:
        """`publish` is called with a client id, its will that is due, and the user whose it is, if that is known."""
        self._tick = tick
        self._store = tick.store
        self._publish_will = publish
        self._stored: set[str] = set()
        """The clients whose will the store has."""

    def renew(self, session: Session, will: Will | None) -> None:
        """The client has connected, with this will: one that was waiting is off [MQTT-3.1.3-9]."""
        self._cancel(session)
        session.will = will
        if will is None:
            self._drop(session.client_id)
        elif not self._tick.degraded:
            self._save(session, will, None)

    def on_disconnect(self, session: Session, publish: bool) -> None:
        """The connection is gone: its will is off, or due at once, or waits for its delay."""
        will = session.will
        if will is None:
            return
        delay_s = will.properties.will_delay_interval or 0
        if not publish:
            session.will = None
            self._drop(session.client_id)
        elif delay_s and session.durable:
            due_at = self._tick.now() + delay_s
            self._save(session, will, due_at)
            self._wait(session, due_at)
        else:
            self.due(session)

    def hold(self, session: Session) -> float | None:
        """The session is about to go on at another broker, with a will that waits: when that is due, None if none
        waits. It is due here again if it is adopted here."""
        timer = session.will_timer
        if timer is None:
            return None
        self._cancel(session)
        return timer.when

    def adopt(self, session: Session, will: Will, due_at: float) -> None:
        """The session goes on here, and its client is away: its will waits, as it did where it was."""
        session.will = will
        self._save(session, will, due_at)
        self._wait(session, due_at)

    def due(self, session: Session) -> None:
        """Publishes the session's will, if it still has one."""
        self._cancel(session)
        will, session.will = session.will, None
        if will is not None:
            self._publish(session.client_id, will, session.owner)

    def restore(self, wills: list[SavedWill], sessions: Mapping[str, Session]) -> None:
        """Restores the wills of an earlier process; clients that were connected to it left when it ended."""
        for saved in wills:
            client_id, will, due_at = saved.client_id, saved.will, saved.due_at
            self._stored.add(client_id)
            if due_at is None:
                due_at = self._tick.now() + (will.properties.will_delay_interval or 0)
                self._store.save_will(client_id, will, due_at, saved.owner)
            session = sessions.get(client_id)
            if session is None or due_at <= self._tick.now():
                self._publish(client_id, will, saved.owner)
            else:
                session.will = will
                self._wait(session, due_at)

    def _wait(self, session: Session, due_at: float) -> None:
        session.will_timer = self._tick.timers.at(due_at, partial(self.due, session))

    def _cancel(self, session: Session) -> None:
        if session.will_timer is not None:
            session.will_timer.cancel()
            session.will_timer = None

    def _publish(self, client_id: str, will: Will, owner: str | None) -> None:
        self._drop(client_id)
        self._publish_will(client_id, will, owner)

    def _save(self, session: Session, will: Will, due_at: float | None) -> None:
        self._stored.add(session.client_id)
        self._store.save_will(session.client_id, will, due_at, session.owner)

    def _drop(self, client_id: str) -> None:
        if client_id in self._stored:
            self._stored.discard(client_id)
            self._store.drop_will(client_id)
