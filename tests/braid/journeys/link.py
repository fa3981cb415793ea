"""A connection between a client and its broker in virtual time: bytes take a moment, and are lost with it."""

from __future__ import annotations

from collections.abc import Callable

from braidmq.broker.receiving import accept
from braidmq.security.identity import Origin
from tests.braid.sites import Site
from tests.conformance import wire
from tests.conformance.wire import Received

ON_THE_WAY_S = 0.001


class ClientLink:
    """The transport under a connection, and the client's end of it."""

    def __init__(
        self,
        site: Site,
        version: int,
        on_packet: Callable[[ClientLink, Received], None],
        on_closed: Callable[[ClientLink], None],
    ) -> None:
        self.site = site
        self._sim = site.sites.sim
        self._version = version
        self._on_packet = on_packet
        self._on_closed = on_closed
        self._stream = b""
        self._inbox = b""
        self._is_paused = False
        self.is_open = True
        """Whether the broker has a connection still, as far as it knows."""
        self.is_attended = True
        """Whether the client still reads and writes."""
        self.connection = accept(site.broker, self, Origin())

    # The broker's end

    def write(self, data: bytes) -> None:
        """A broker that has died writes nothing, though parts of it are still taken down."""
        data = bytes(data)
        if self.site.host.alive:
            self._later(lambda: self._receive(data))

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self._sim.at(self._sim.now, self._tell_lost)
            self._later(self._end)

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return not self.is_open

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        self._sim.at(self._sim.now, self._pump)

    def get_write_buffer_size(self) -> int:
        return 0

    def _tell_lost(self) -> None:
        if at := self._thaws_at:
            self._sim.at(at, self._tell_lost)
        elif self.site.host.alive:
            self.connection.lost(None)

    @property
    def _thaws_at(self) -> float:
        """When the broker goes on that stands still; 0 if it does not."""
        return self.site.sites.thaws_at(self.site.number)

    # The client's end

    def send(self, data: bytes) -> None:
        """Bytes to the broker."""
        if self.is_attended:
            self._later(lambda: self._arrive(data))

    def drop(self) -> None:
        """The connection breaks, and the broker notices."""
        self.vanish()
        if self.is_open:
            self.is_open = False
            self._later(self._tell_lost)

    def vanish(self) -> None:
        """The client is gone, and the broker does not notice."""
        self.is_attended = False

    def finish(self, last: bytes) -> None:
        """The client says its last word, and closes the connection."""
        self.send(last)
        self.is_attended = False

    def on_site_gone(self) -> None:
        """The broker has died."""
        self.is_open = False
        self._later(self._end)

    def _later(self, action: Callable[[], None]) -> None:
        self._sim.at(self._sim.now + ON_THE_WAY_S, action)

    def _arrive(self, data: bytes) -> None:
        if at := self._thaws_at:
            self._sim.at(at, lambda: self._arrive(data))
        elif self.is_open and self.site.host.alive:
            self._inbox += data
            self._pump()

    def _pump(self) -> None:
        if self._inbox and not self._is_paused and self.is_open and self.site.host.alive:
            data, self._inbox = self._inbox, b""
            self.connection.receive(data)

    def _receive(self, data: bytes) -> None:
        if self.is_attended:
            packets, self._stream = wire.split(self._stream + data)
            for packet in packets:
                if self.is_attended:
                    self._on_packet(self, wire.decode(packet, self._version))

    def _end(self) -> None:
        if self.is_attended:
            self.is_attended = False
            self._on_closed(self)
