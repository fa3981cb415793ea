"""The tick: what all connections did since the last one is kept, and then told.

Everything that a connection wants to send is collected. `flush`, called once a loop tick, first commits log and store
and then writes, so that no acknowledgement leaves before what it acknowledges is kept. If the commit fails, those who
waited for it are cut off without an answer, and ask again; the changes stay for the next try.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from braidmq.broker.federation import Alone, Federation
from braidmq.broker.metrics import Metrics
from braidmq.broker.notices import Notices
from braidmq.broker.recorder import NoRecorder, Recorder
from braidmq.broker.store import Store, StoreError
from braidmq.broker.timers import Timers
from braidmq.log.errors import LogError

if TYPE_CHECKING:
    from braidmq.broker.connection import Connection
    from braidmq.broker.session import Session

STORE_RETRY_S = 1.0
"""How often a store that could not be written is tried again."""


class Tick:
    """The time of a broker, and the order of what happens in it."""

    def __init__(
        self, clock: Callable[[], float], wall: Callable[[], float], store: Store, wants_flush: Callable[[], None]
    ) -> None:
        self.clock = clock
        self._epoch = wall() - clock()
        self.store = store
        self.recorder: Recorder = NoRecorder()
        """Who keeps publications for those who read them later."""
        self.wants_flush = wants_flush
        self.log = logging.getLogger("braidmq.broker")
        self.metrics = Metrics()
        self.timers = Timers()
        self.notices = Notices(self.log, self.now, self.timers.at)
        """Log lines that clients bring about."""
        self.connections: dict[Connection, None] = {}
        self.touched_connections: list[Connection] = []
        self.publisher: Connection | None = None
        """Whose publication is being delivered."""
        self.degraded = False
        """True while store or log cannot be written: then nothing is acknowledged that would need them."""
        self.federation: Federation = Alone()
        """The way to other brokers."""
        self.tick = 0
        self.tick_bytes = 0
        self.flush_wanted = False
        self._to_close: list[Connection] = []
        self._to_pump: dict[Session, None] = {}
        self._to_go_on: list[Connection] = []

    def now(self) -> float:
        """Unix time that never goes back while the broker runs."""
        return self.clock() + self._epoch

    def ring(self) -> None:
        """Asks for a flush at the end of this tick."""
        if not self.flush_wanted:
            self.flush_wanted = True
            self.wants_flush()

    def begin_read(self) -> Callable[[], None]:
        """Something is read that may lead to much: it is flushed when the function that this returns is called."""
        if self.flush_wanted:
            return _nothing
        self.flush_wanted = True
        return self.flush

    def settle(self) -> None:
        """The first read of a tick is done: if it left something to do, the tick's end will do it."""
        unsaved = self.store.dirty or self.recorder.dirty
        later = self._to_close or self._to_pump or self._to_go_on
        if self.touched_connections or unsaved or later or self.federation.has_output:
            self.wants_flush()
        else:
            self.flush_wanted = False

    def touched(self, connection: Connection) -> None:
        """The connection has something to send; called before it is put there."""
        self.touched_connections.append(connection)
        if not self.flush_wanted:
            self.ring()

    def closing(self, connection: Connection) -> None:
        """The connection's socket is to be closed behind what it still has to send."""
        self._to_close.append(connection)
        self.ring()

    def flush(self) -> None:
        """The end of a tick: one commit, then everything that was waiting for it is written."""
        metrics = self.metrics
        self.publisher = None
        self.flush_wanted = False
        self.tick += 1
        metrics.bytes_received += self.tick_bytes
        self.tick_bytes = 0
        self.federation.before_commit()
        committed = not (self.store.dirty or self.recorder.dirty) or self.commit()
        touched = self.touched_connections
        self.touched_connections = []
        sent = 0
        for connection in touched:
            if connection.awaits_commit:
                connection.awaits_commit = False
                if not committed:
                    self._cut(connection)
            out = connection.out
            if out:
                data = out[0] if len(out) == 1 else b"".join(out)
                out.clear()
                sent += len(data)
                connection.link.write(data)
        metrics.bytes_sent += sent
        self.federation.flush()
        if self._to_close:
            closing, self._to_close = self._to_close, []
            for connection in closing:
                connection.link.close()
        if self._to_pump or self._to_go_on:
            self._continue()

    def _continue(self) -> None:
        """What was too much for one tick goes on, now that its first part is written."""
        self.ring()  # what comes of it is the next tick's
        sessions, self._to_pump = self._to_pump, {}
        for session in sessions:
            session.pump()
        connections, self._to_go_on = self._to_go_on, []
        for connection in connections:
            connection.go_on()

    def go_on_later(self, connection: Connection) -> None:
        """The connection has more packets than are handled in one tick."""
        self._to_go_on.append(connection)
        self.ring()

    def _cut(self, connection: Connection) -> None:
        """What this connection was about to be told is not true: it is told nothing, and will ask again."""
        if connection.owed is not None:
            connection.owed.drop()
        connection.out.clear()
        connection.end(will=True)
        connection.link.abort()

    def pump_later(self, session: Session) -> None:
        """The session has more to send than fits one tick."""
        self._to_pump[session] = None
        self.ring()

    def commit(self) -> bool:
        """The log first: what the store has of a publication (a packet id of QoS 2) would keep it out of the log."""
        try:
            if self.recorder.dirty:
                self.recorder.commit()
            if self.store.dirty:
                self.store.commit()
                self.metrics.store_commits += 1
        except (StoreError, LogError) as error:
            self.metrics.store_failures += 1
            if not self.degraded:
                self.degraded = True
                self.log.critical("%s; QoS 1 and 2 are refused until it can be written again", error)
                self.timers.at(self.now() + STORE_RETRY_S, self._retry_store)
            return False
        if self.degraded:
            self.degraded = False
            self.log.warning("the store can be written again")
            for connection in self.connections:
                if connection.session is not None and connection.session.backlog is not None:
                    self.pump_later(connection.session)
        return True

    def _retry_store(self) -> None:
        if self.degraded and not self.commit():
            self.timers.at(self.now() + STORE_RETRY_S, self._retry_store)


def _nothing() -> None:
    """Whoever asked first will flush."""
