"""What is to leave for other brokers at the end of a tick, after its commit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from braidmq.broker.broker import Broker
from braidmq.host import Address, Host, Message


class Outbox:
    def __init__(self, broker: Broker, host: Host) -> None:
        self._broker = broker
        self._host = host
        self._out: list[tuple[Address, Message]] = []
        self._when_written: list[tuple[Address, Message]] = []

    def __bool__(self) -> bool:
        return bool(self._out or self._when_written)

    def add(self, to: Address, message: Message) -> None:
        self._out.append((to, message))
        self._broker.request_flush()

    def add_when_written(self, to: Address, message: Message) -> None:
        """For what may only be said once all that was changed before is in the store."""
        self._when_written.append((to, message))
        self._broker.request_flush()

    def take(self) -> Callable[[], None]:
        """What is in it leaves when this is called; what must be written first, when it is, and copied."""
        out, self._out = self._out, []
        if self._when_written and not self._broker.store.dirty:
            written, self._when_written = self._when_written, []
            self._broker.tick.when_copied(partial(self._send, written))
        return partial(self._send, out)

    def flush(self) -> None:
        if self:
            self.take()()

    def _send(self, out: list[tuple[Address, Message]]) -> None:
        for to, message in out:
            self._host.send(to, message)
