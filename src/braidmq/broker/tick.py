"""The tick: what all connections did since the last one is kept, and then told.

Everything that a connection wants to send is collected. `flush`, called once a loop tick, first commits log and store
and then writes, so that no acknowledgement leaves before what it acknowledges is kept. If the commit fails, the
clients that waited for it are cut off without an answer, and ask again; the changes stay for the next try.

Where other brokers hold copies of the store, what waits for a commit waits for them, too (`delayed_output`). A tick
that took a publication of QoS 2 holds back everything until its packet id is in the copies: if this broker were
destroyed, the publisher would send it again elsewhere, and nobody must have had it already. A broker that stood still
may have been taken for gone, and what it reads then from a client be old: it is not looked at before the mirrors have
said that the session is still here (`sure_until`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import inf
from typing import Protocol

from braidmq.broker.delayed_output import HELD_BYTES_MAX, DelayedOutput, DelayedStep
from braidmq.broker.metrics import Metrics
from braidmq.broker.recorder import NoRecorder, Recorder
from braidmq.broker.store import Store, StoreError
from braidmq.broker.store_copies import NoCopies, StoreCopies
from braidmq.broker.timers import Timers
from braidmq.broker.transport import Transport
from braidmq.log.errors import LogError

STORE_RETRY_S = 1.0
"""How often a store that could not be written is tried again."""

STORE_REFUSAL = "the broker's store cannot be written at the moment"


class TickConnection(Protocol):
    """What a tick needs of a connection."""

    link: Transport
    out: list[bytes]
    """What it has to send."""
    awaits_commit: bool
    """Whether that must not leave unless the commit succeeds."""
    connack_goes_first: bool
    """Whether the first of it is a CONNACK that need not wait for copies: the broker that had the session has it until
    these do, and there is nothing else that would be lost."""

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

    def take(self) -> Callable[[], None]:
        """Instead of `flush`: what was collected leaves when the function that this returns is called."""
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
        self.copies: StoreCopies = NoCopies()
        """Of the store, at other brokers."""
        self._wants_flush = wants_flush
        self._on_recovered = on_recovered
        self._log = logging.getLogger("braidmq.broker")
        self.metrics = Metrics()
        self.timers = Timers()
        self.degraded = False
        """True while store or log cannot be written: then nothing is acknowledged that would need them."""
        self._lack = ""
        """Why there are too few copies, if there are."""
        self.refusal = ""
        """Why publications of QoS 1 and 2, and sessions that stay, are refused; empty if they are not."""
        self.delayed = DelayedOutput(clock)
        self.is_delaying = False
        """Whether anything waits for copies: then nothing may leave but by `flush`."""
        self.took_once = False
        """Whether this tick took a publication that must not be published a second time at another broker."""
        self.sure_until = inf
        """Until when, by the clock, no other broker acts for sessions that are here."""
        self._unsure: dict[TickConnection, None] = {}
        """Connections that are not read before that is sure again."""
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
        if self.is_delaying or self.copies.is_behind:
            self._delay(touched, committed)
        else:
            self._write(touched, committed)
        self.took_once = False
        if self._to_pump or self._to_go_on:
            self._continue()

    def _write(self, touched: list[TickConnection], committed: bool) -> None:
        """Everything leaves: what has the longer way first."""
        self.outgoing.flush()
        sent = 0
        for connection in touched:
            if connection.awaits_commit:
                connection.awaits_commit = connection.connack_goes_first = False
                if not committed:
                    connection.cut()
            out = connection.out
            if out:
                data = out[0] if len(out) == 1 else b"".join(out)
                out.clear()
                sent += len(data)
                connection.link.write(data)
        self.metrics.bytes_sent += sent
        if self._to_close:
            closing, self._to_close = self._to_close, []
            for connection in closing:
                connection.link.close()

    # StoreCopies

    def _delay(self, touched: list[TickConnection], committed: bool) -> None:
        """What rests on something that the copies lack waits for them, and so does what is to leave behind it."""
        delayed = self.delayed
        step: DelayedStep | None = None
        if self.took_once and self.copies.is_behind:
            step = delayed.step(self.copies.end)
            delayed.hold_all(step)
        for connection in touched:
            awaits, connection.awaits_commit = connection.awaits_commit, False
            if awaits and not committed:
                connection.cut()
            elif awaits and step is None and self.copies.is_behind:
                step = delayed.step(self.copies.end)
            if connection.out and connection.connack_goes_first and not delayed.has(connection):
                connack = connection.out.pop(0)
                self.metrics.bytes_sent += len(connack)
                connection.link.write(connack)
            connection.connack_goes_first = False
            if connection.out:
                data = b"".join(connection.out)
                connection.out.clear()
                if not delayed.add(connection, connection.link, data, step if awaits else None):
                    self.metrics.bytes_sent += len(data)
                    connection.link.write(data)
        if delayed.barrier is None:
            self.outgoing.flush()
        else:
            delayed.barrier.actions.append(self.outgoing.take())
        closing, self._to_close = self._to_close, []
        for connection in closing:
            if not delayed.close(connection, connection.link):
                connection.link.close()
        self.is_delaying = bool(delayed)
        if delayed.size > HELD_BYTES_MAX:
            self.copies.give_up(f"{delayed.size} bytes wait for it")

    def on_copied(self, position: int) -> None:
        """The copies have come to a position."""
        if self.is_delaying:
            self.metrics.bytes_sent += self.delayed.release(position)
            self.is_delaying = bool(self.delayed)

    def commit_once(self, action: Callable[[], None]) -> bool:
        """Commits what was done so far. Whether nothing of it must wait for the copies before it may leave: if it must,
        this calls when they have it."""
        self.flush()
        if self.delayed.barrier is None:
            return True
        self.delayed.barrier.actions.append(action)
        return False

    def when_copied(self, action: Callable[[], None]) -> None:
        """Calls when the copies have what was committed last; at once, if they are not waited for."""
        if self.copies.is_behind:
            self.delayed.step(self.copies.end).actions.append(action)
            self.is_delaying = True
        else:
            action()

    def wait_until_sure(self, connection: TickConnection) -> bool:
        """The connection goes on when it is sure that its session is still here; False if it waits already."""
        is_new = connection not in self._unsure
        self._unsure[connection] = None
        return is_new

    def be_sure(self, until: float) -> None:
        """No other broker acts for sessions that are here, up to a time."""
        self.sure_until = until
        if self._unsure:
            waiting, self._unsure = self._unsure, {}
            for connection in waiting:
                connection.go_on()

    def forget(self, connection: TickConnection) -> None:
        """The connection is gone: it is sent nothing any more."""
        if self.is_delaying:
            self.delayed.forget(connection)

    def require_copies(self, lack: str) -> None:
        """From now on there are fewer copies than are required, as the text says; or enough, if it is empty."""
        self._lack = lack
        if not self.degraded:
            self.refusal = lack

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
                self.refusal = STORE_REFUSAL
                self._log.critical("%s; QoS 1 and 2 are refused until it can be written again", error)
                self.timers.at(self.now() + STORE_RETRY_S, self._retry_store)
            return False
        if self.degraded:
            self.degraded = False
            self.refusal = self._lack
            self._log.warning("the store can be written again")
            self._on_recovered()
        return True

    def commit_early(self) -> bool:
        """In the middle of a tick: what has changed so far is kept before another broker hears of it; whether it is."""
        self.outgoing.before_commit()
        self.request_flush()
        return not (self.store.dirty or self.recorder.dirty) or self.commit()

    def _retry_store(self) -> None:
        if self.degraded and not self.commit():
            self.timers.at(self.now() + STORE_RETRY_S, self._retry_store)


def _nothing() -> None:
    """The first that asked will flush."""
