"""How links are made: a peer is dialled as long as something waits for it, after longer and longer waits."""

from __future__ import annotations

import asyncio
import ssl
import time

from braidmq.host import Chance
from braidmq.net.addresses import parse_address
from braidmq.net.faults import Fault, LinkError
from braidmq.net.link import Link, LinkOwner
from braidmq.net.link_notices import LinkNotices
from braidmq.net.peer import PeerState


class Dialler:
    def __init__(self, links: LinkOwner, notices: LinkNotices, chance: Chance) -> None:
        self._links = links
        self._notices = notices
        self._chance = chance
        self._waits: dict[PeerState, asyncio.Event] = {}
        """Peers that are dialled again later, and what ends that."""

    def wake(self, peer: PeerState) -> None:
        """A peer that would be dialled later is dialled when it is to be by now."""
        if peer in self._waits:
            self._waits[peer].set()

    def dial_if_wanted(self, peer: PeerState) -> None:
        if peer.waiting and peer.link is None and peer.dial is None and not self._links.is_stopping:
            if peer.has_left and time.monotonic() < peer.dial_at:
                peer.drop_waiting()
            else:
                peer.dial = self._links.keep(self._dial(peer))

    def dial_beside(self, peer: PeerState) -> None:
        """Tries once whether there can be another link to a peer."""
        if peer.dial is None and not self._links.is_stopping:
            peer.dial = self._links.keep(self._dial_once(peer))

    async def _dial_once(self, peer: PeerState) -> None:
        try:
            await self._try(peer)
        finally:
            peer.dial = None
            self.dial_if_wanted(peer)

    async def _dial(self, peer: PeerState) -> None:
        """Tries until there is a link or nothing waits for one."""
        try:
            while peer.link is None and peer.waiting:
                wait_s = peer.dial_at - time.monotonic()
                if wait_s > 0:
                    await self._wait(peer, wait_s)
                else:
                    failure = await self._try(peer)
                    if failure is None:
                        return
                    peer.postpone(time.monotonic(), self._chance)
                    self._notices.unreachable(peer, failure, time.monotonic())
                    if peer.has_left:
                        peer.rest(time.monotonic())
                        return
                peer.drop_waiting(time.monotonic() - self._links.bounds.wait_s_max)
        finally:
            peer.dial = None

    async def _wait(self, peer: PeerState, wait_s: float) -> None:
        woken = self._waits[peer] = asyncio.Event()
        try:
            async with asyncio.timeout(wait_s):
                await woken.wait()
        except TimeoutError:
            return
        finally:
            del self._waits[peer]

    async def _try(self, peer: PeerState) -> str | None:
        """Dials once; returns why there is no link, or None if there is."""
        link = peer.trying = Link(self._links, peer, peer.names[0])
        try:
            await self.connect(link)
        finally:
            peer.trying = None
        if not link.is_refused:
            peer.refusal = ""
        return None if link.peer is not None else link.failure

    async def connect(self, link: Link) -> None:
        """Until it is open, or has failed, or has its answer."""
        links = self._links
        host, port = parse_address(link.where)
        context = links.security.contexts.client if links.security.contexts is not None else None
        try:
            async with asyncio.timeout(links.bounds.connect_timeout_s):
                await asyncio.get_running_loop().create_connection(
                    lambda: link, host, port, ssl=context, server_hostname=host if context is not None else None
                )
                await link.settled.wait()
        except TimeoutError:
            link.failure = link.failure or f"no hello within {links.bounds.connect_timeout_s} s"
            if link.peer is not None:  # the hello came in the last moment, but the loop has closed the connection
                link.abort(link.failure)
                links.on_lost(link)
        except ssl.SSLError as error:
            if not link.is_closed:
                links.on_fault(link, LinkError(Fault.TLS, f"the TLS handshake failed: {error}"))
        except OSError as error:
            link.failure = link.failure or str(error)
        finally:
            if link.peer is None:
                link.abort("given up")
                links.on_lost(link)  # a loop whose connecting is cancelled may not say so
