"""Where strangers come in: a listening socket, and the connections that have not said hello.

Not asyncio's server, so that strangers are bounded, and seen, from their first byte on. When there are too many, the
oldest has to go: a host of the braid says hello within some round trips, so a connection that waits there longer is
not one, and cannot keep hosts of the braid out.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time

from braidmq.net.addresses import is_everywhere, parse_address
from braidmq.net.faults import Fault, LinkError
from braidmq.net.link import Link, LinkOwner

_log = logging.getLogger("braidmq.net")

BACKLOG = 128
"""Connections that the system holds until they are accepted."""

ACCEPT_PAUSE_S = 0.1
"""The wait after the system could not give a connection: out of file descriptors, say."""


class LinkAcceptor:
    def __init__(self, links: LinkOwner) -> None:
        self.strangers: dict[Link, asyncio.Task[None]] = {}
        """Accepted, but not open; each with what brings it as far as its first byte. The oldest comes first."""
        self._links = links
        self._listener: socket.socket | None = None

    async def open(self, listen: str, advertise: str | None) -> tuple[str, int]:
        """Listens; returns the host as it was given, and the port. OSError if it cannot, ValueError if it must not."""
        host, port = parse_address(listen, port_min=0)
        if advertise is None and is_everywhere(host):
            raise ValueError(f"{listen} is no address that peers can reach: say with `advertise` which one is")
        if advertise is not None:
            parse_address(advertise)
        loop = asyncio.get_running_loop()
        family, kind, protocol, _, where = (
            await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        )[0]
        if not self._links.security.allows(str(where[0])):
            raise ValueError(
                f"{listen} can be reached from other machines: peers are heard there only with a braid key or TLS "
                "(or without both if `insecure` is said, where the network itself keeps strangers out)"
            )
        listener = self._listener = socket.socket(family, kind, protocol)
        try:
            listener.setblocking(False)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(where)
            listener.listen(BACKLOG)
        except OSError as error:
            listener.close()
            raise OSError(error.errno, f"cannot listen on {listen}: {error.strerror}") from None
        self._links.keep(self._accept(listener))
        return host, listener.getsockname()[1]

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        links = self._links
        while True:
            try:
                connection, where = await loop.sock_accept(listener)
            except OSError as error:
                _log.error("%s cannot accept connections: %s", links.describe(), error)
                await asyncio.sleep(ACCEPT_PAUSE_S)
                continue
            if len(self.strangers) >= links.bounds.strangers_max:
                self._turn_out_oldest()
            link = Link(links, None, f"{where[0]} port {where[1]}")
            link.deadline = time.monotonic() + links.bounds.connect_timeout_s
            self.strangers[link] = links.keep(self._take(link, connection))
            await asyncio.sleep(0)  # it begins, so cancelling it ends the connection, too

    def _turn_out_oldest(self) -> None:
        link, task = next(iter(self.strangers.items()))
        text = f"{len(self.strangers)} connections that have not said hello are enough (strangers_max)"
        self._links.on_fault(link, LinkError(Fault.CROWD, text))
        task.cancel()

    async def _take(self, link: Link, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        contexts = self._links.security.contexts
        context = contexts.server if contexts is not None else None
        timeout_s = self._links.bounds.connect_timeout_s if context is not None else None
        try:
            await loop.connect_accepted_socket(lambda: link, connection, ssl=context, ssl_handshake_timeout=timeout_s)
        except (ConnectionResetError, BrokenPipeError):
            link.abort("the other side went away")  # no fault: it may have given up its dial for ours
        except OSError as error:
            if not link.is_closed:
                self._links.on_fault(link, LinkError(Fault.TLS, f"the TLS handshake failed: {error}"))
