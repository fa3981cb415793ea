"""Who must not be harmed: an innocent client that is served all the time, and the broker's memory."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests import raw
from tests.raw import Client, wait_until

if TYPE_CHECKING:
    from tests.conftest import Broker

MB = 1024 * 1024


class Innocent(threading.Thread):
    """Publishes to itself, one message after the other; one that does not come round in time ends it."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(name="innocent", daemon=True)
        self.client = Client(broker, "innocent")
        self.client.subscribe("innocent/#", 1)
        self.rounds = 0
        self.wrong: BaseException | None = None
        self._enough = threading.Event()

    def run(self) -> None:
        try:
            while not self._enough.wait(0.002):
                payload = b"%d" % self.rounds
                self.client.publish("innocent/round", payload, self.rounds % 2)
                assert self.client.next_message().payload == payload
                self.rounds += 1
        except BaseException as wrong:
            self.wrong = wrong

    def check(self) -> None:
        """It has been served, and is served now."""
        before = self.rounds
        wait_until(lambda: self.wrong is not None or self.rounds > before + 2, "the innocent client is served")
        self._enough.set()
        self.join(raw.TIMEOUT_S)
        if self.wrong is not None:
            raise self.wrong
        self.client.socket.close()


@contextmanager
def bounded(broker: Broker, growth_max: int) -> Iterator[None]:
    """What happens inside must not make the broker larger than this."""
    before = raw.rss_bytes(broker)
    yield
    grown = raw.rss_bytes(broker) - before
    assert grown < growth_max, f"the broker has grown by {grown / MB:.0f} MB"
    assert "Traceback" not in broker.log, broker.log


@contextmanager
def attacked(broker: Broker, growth_max: int = 32 * MB) -> Iterator[None]:
    """What happens inside must harm nobody else, and leave the broker's memory alone."""
    innocent = Innocent(broker)
    innocent.start()
    with bounded(broker, growth_max):
        yield
        innocent.check()


def push(client: socket.socket, data: bytes, at_least: int, timeout_s: float = 10.0) -> int:
    """Sends without reading until so many bytes are gone, the broker closes, or takes no more for a second."""
    deadline = time.monotonic() + timeout_s
    sent = 0
    client.settimeout(1.0)
    while sent < at_least and time.monotonic() < deadline:
        try:
            sent += client.send(data[sent % len(data) :])
        except (TimeoutError, ConnectionError):
            break
    return sent
