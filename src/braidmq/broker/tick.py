"""The tick: what all connections did since the last one is kept, and then told.

Everything that a connection wants to send is collected. `flush`, called once a loop tick, first commits log and store
and then writes, so that no acknowledgement leaves before what it acknowledges is kept. If the commit fails, the
clients that waited for it are cut off without an answer, and ask again; the changes stay for the next try.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from braidmq.broker.metrics import Metrics
from braidmq.broker.recorder import NoRecorder, Recorder
from braidmq.broker.store import Store, StoreError
from braidmq.broker.timers import Timers
from braidmq.broker.transport import Transport
from braidmq.log.errors import LogError

STORE_RETRY_S = 1.0
"""How often a store that could not be written is tried again."""


class TickConnection(Protocol):
    """What a tick needs of a connection."""

    link: Transport
    out: list[bytes]
    """What it has to send."""
    awaits_commit: bool
    """Whether that must not leave unless the commit succeeds."""

    def cut(self) -> None:
        """What it was about to be told is not true: it is told nothing, and will ask again."""
        ...

    def go_on(self) -> None:
        """Goes on with packets that are here already."""
        ...


class TickSession(Protocol):
    """What a tick needs of a session."""

    def pump(self) -> None:
        """Sends what waits."""
        ...


class Outgoing(Protocol):
    """What a tick needs of the way to other brokers."""

    @property
    def has_output(self) -> bool:
        """Whether something waits for `flush`."""
        ...

    def before_commit(self) -> None:
        """The end of a tick, before the store commits."""
        ...

    def flush(self) -> None:
        """The end of a tick, after the commit: what was collected leaves."""
        ...


class Tick:
    """The time of a broker, and the order of what happens in it."""

    def __init__(
        self,
        clock: Callable[[], float],
        wall: Callable[[], float],
        store: Store,
        outgoing: Outgoing,
        wants_flush: Callable[[], None],
        on_recovered: Callable[[], None],
    ) -> None:
        """`wants_flush` is called when the end of a tick has something to do, `on_recovered` when the store can be
        written again."""
        self.clock = clock
        self._epoch = wall() - clock()
        self.store = store
        self.recorder: Recorder = NoRecorder()
        """Keeps publications that are read later."""
        self.outgoing = outgoing
        self._wants_flush = wants_flush
        self._on_recovered = on_recovered
        self._log = logging.getLogger("braidmq.broker")
        self.metrics = Metrics()
        self.timers = Timers()
        self.degraded = False
        """True while store or log cannot be written: then nothing is acknowledged that would need them."""
        self.number = 0
        self.read_bytes = 0
        """What was read from clients in this tick."""
        self.flush_wanted = False
        self.touched: list[TickConnection] = []
        """The connections that have something to send."""
        self._to_close: list[TickConnection] = []
        self._to_pump: dict[TickSession, None] = {}
        self._to_go_on: list[TickConnection] = []

    def now(self) -> float:
        """Unix time that never goes back while the broker runs."""
        return self.clock() + self._epoch

    def request_flush(self) -> None:
        """Asks for a flush at the end of this tick."""
        if not self.flush_wanted:
            self.flush_wanted = True
            self._wants_flush()

    def begin_read(self) -> Callable[[], None]:
        """Something is read that may lead to much: it is flushed when the function that this returns is called."""
        if self.flush_wanted:
            return _nothing
        self.flush_wanted = True
        return self.flush

    def end_first_read(self) -> None:
        """The first read of a tick is done: if it left something to do, the tick's end will do it."""
        unsaved = self.store.dirty or self.recorder.dirty
        later = self._to_close or self._to_pump or self._to_go_on
        if self.touched or unsaved or later or self.outgoing.has_output:
            self._wants_flush()
        else:
            self.flush_wanted = False

    def touch(self, connection: TickConnection) -> None:
        """The connection has something to send; called before it is put there."""
        self.touched.append(connection)
        if not self.flush_wanted:
            self.request_flush()

    def close_later(self, connection: TickConnection) -> None:
        """The connection's socket is to be closed behind what it still has to send."""
        self._to_close.append(connection)
        self.request_flush()

    def go_on_later(self, connection: TickConnection) -> None:
        """The connection has more packets than are handled in one tick."""
        self._to_go_on.append(connection)
        self.request_flush()

    def pump_later(self, session: TickSession) -> None:
        """The session has more to send than fits one tick."""
        self._to_pump[session] = None
        self.request_flush()

    def flush(self) -> None:
        """The end of a tick: one commit, then everything that was waiting for it is written."""
        metrics = self.metrics
        self.flush_wanted = False
        self.number += 1
        metrics.bytes_received += self.read_bytes
        self.read_bytes = 0
        self.outgoing.before_commit()
        committed = not (self.store.dirty or self.recorder.dirty) or self.commit()
        touched = self.touched
        self.touched = []
        sent = 0
        for connection in touched:
            if connection.awaits_commit:
                connection.awaits_commit = False
                if not committed:
                    connection.cut()
            out = connection.out
            if out:
                data = out[0] if len(out) == 1 else b"".join(out)
                out.clear()
                sent += len(data)
                connection.link.write(data)
        metrics.bytes_sent += sent
        self.outgoing.flush()
        if self._to_close:
            closing, self._to_close = self._to_close, []
            for connection in closing:
                connection.link.close()
        if self._to_pump or self._to_go_on:
            self._continue()

    def _continue(self) -> None:
        """What was too much for one tick goes on, now that its first part is written."""
        self.request_flush()  # what comes of it is the next tick's
        sessions, self._to_pump = self._to_pump, {}
        for session in sessions:
            session.pump()
        connections, self._to_go_on = self._to_go_on, []
        for connection in connections:
            connection.go_on()

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
                self._log.critical("%s; QoS 1 and 2 are refused until it can be written again", error)
                self.timers.at(self.now() + STORE_RETRY_S, self._retry_store)
            return False
        if self.degraded:
            self.degraded = False
            self._log.warning("the store can be written again")
            self._on_recovered()
        return True

    def _retry_store(self) -> None:
        if self.degraded and not self.commit():
            self.timers.at(self.now() + STORE_RETRY_S, self._retry_store)


def _nothing() -> None:
    """The first that asked will flush."""
