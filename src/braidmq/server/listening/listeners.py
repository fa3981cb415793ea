"""All listeners of a broker: where clients come in."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from braidmq.broker.notices import ClientNotices, address, described
from braidmq.security.identity import Origin
from braidmq.server.listening.connect_rate import ConnectRate
from braidmq.server.listening.listener import LINGER_S, ActiveListener
from braidmq.server.listening.tls import load_tls

if TYPE_CHECKING:
    from braidmq.broker.broker import Broker
    from braidmq.config.settings import Config
    from braidmq.server.listening.accepting import ClientProtocol

COMPLAINT_INTERVAL_S: Final = 60.0
"""The same complaint is written to the log at most this often."""

_log = logging.getLogger("braidmq.listeners")


class Listeners:
    """They open together, share one connect rate, and close together."""

    def __init__(self, config: Config, broker: Broker) -> None:
        self.broker = broker
        self.limits = config.limits
        self.rate = ConnectRate(config.limits.connect_rate_max)
        self.active = [ActiveListener(settings, self) for settings in config.listeners]
        self._resume: asyncio.TimerHandle | None = None
        self._sweep: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()
        self._complained_at: dict[str, float] = {}
        self._notices = ClientNotices(_log, broker.now, broker.timers.at)

    async def start(self) -> None:
        """Opens all of them, or none: a ListenError says which one would not open and why."""
        try:
            for listener in self.active:
                # A host name may have to be looked up, which takes its time.
                await asyncio.to_thread(listener.open)
        except BaseException:
            self.stop_accepting()
            raise
        for listener in self.active:
            listener.resume()
        self._sweep_later()

    @property
    def addresses(self) -> list[str]:
        """Where clients can connect, as URLs with the ports that are really open."""
        return [address for listener in self.active for address in listener.addresses]

    @property
    def connections_count(self) -> int:
        return sum(len(listener.connections) for listener in self.active)

    def trouble(self) -> str | None:
        """Why clients cannot connect now, or None if they can."""
        closed = [listener.settings.name for listener in self.active if not listener.listening]
        return f"not listening: {', '.join(closed)}" if closed else None

    def stop_accepting(self) -> None:
        for listener in self.active:
            listener.close()
        if self._resume is not None:
            self._resume.cancel()
            self._resume = None

    async def stop(self, grace_s: float) -> None:
        """Accepts no more connections, gives clients the time to leave, and cuts off those that are left then."""
        self.stop_accepting()
        await self._wait_until_empty(grace_s)
        for protocol in list(self._connections()):
            protocol.abort()
        await self._wait_until_empty(1.0)
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None

    def reload(self, config: Config) -> None:
        """Applies new rules to connections that come from now on, and re-reads the TLS files.

        `config` is what a ReloadPlan says is effective: its listeners keep their sockets. A broken file raises TlsError
        and changes nothing.
        """
        wanted = {settings.name: settings for settings in config.listeners}
        changes = [
            (listener, new, load_tls(new) if new.tls else None)
            for listener in self.active
            if (new := wanted.get(listener.settings.name))
        ]
        for listener, new, tls in changes:
            listener.apply(new, tls)
        self.limits = config.limits
        self.rate.per_s = config.limits.connect_rate_max

    # What a listener asks for: a ListenerGroup

    def pause(self, pause_s: float) -> None:
        """Accepts nothing for a while; clients wait in the kernel's queue."""
        if self._resume is None:
            for listener in self.active:
                listener.pause()
            self._resume = asyncio.get_running_loop().call_later(pause_s, self._on_resume)

    def on_closed(self) -> None:
        if not self.connections_count:
            self._empty.set()

    def on_handshake_failed(self, listener: str, peer: str, problem: str) -> None:
        self.broker.metrics.tls_handshakes_failed += 1
        origin = Origin(listener, peer)
        who = described(None, None, origin)
        self._notices.say(address(origin), who, "the TLS handshake on listener %r failed: %s", listener, problem)

    def complain(self, text: str) -> None:
        now = time.monotonic()
        if now - self._complained_at.get(text, -COMPLAINT_INTERVAL_S) >= COMPLAINT_INTERVAL_S:
            self._complained_at[text] = now
            _log.warning(text)

    def _on_resume(self) -> None:
        self._resume = None
        for listener in self.active:
            listener.resume()

    def _connections(self) -> Iterator[ClientProtocol]:
        for listener in self.active:
            yield from listener.connections

    async def _wait_until_empty(self, timeout_s: float) -> None:
        self._empty.clear()
        if not self.connections_count:
            return
        try:
            await asyncio.wait_for(self._empty.wait(), timeout_s)
        except TimeoutError:
            return

    def _sweep_later(self) -> None:
        self._sweep = asyncio.get_running_loop().call_later(LINGER_S, self._on_sweep)

    def _on_sweep(self) -> None:
        for listener in self.active:
            listener.cut_off_lingering()
        self._sweep_later()
