"""Which of two it is: two processes that claim one address, and two that claim one name or one identity.

Neither clocks nor the order of hellos can tell which of two is right, but addresses can: the process that
answers at one has it. So the host that knows both asks.

- One address. A hello with another nonce than that of the link to the same address is turned away, and the address is
  asked. If a newcomer answers there, the old link is cut, and the newcomer is let in when it comes again.
- One name or identity at two addresses. The new hello waits while the old address is asked. If no host
  with the name answers there, then the host has moved, and the old address is forgotten. If one does, the newcomer is
  refused, unless it is in the braid and the other is not: a host that took a name by mistake must not keep its owner
  out.
"""

from __future__ import annotations

import logging

from braidmq.net.dialler import Dialler
from braidmq.net.faults import Fault, LinkError
from braidmq.net.hello import Hello, clash, disagreement
from braidmq.net.link import Link, LinkOwner
from braidmq.net.peer import PeerState
from braidmq.net.peers import Peers

_log = logging.getLogger("braidmq.net")


class Claims:
    def __init__(self, links: LinkOwner, peers: Peers, dialler: Dialler) -> None:
        self._links = links
        self._peers = peers
        self._dialler = dialler

    async def _ask(self, peer: PeerState) -> Link:
        """Asks at the address of a peer who is there."""
        link = Link(self._links, peer, peer.address, is_question=True)
        await self._dialler.connect(link)
        return link

    # An address

    def is_contested(self, link: Link, hello: Hello) -> bool:
        """Whether another process than the one that is linked claims its address, and was not reached there."""
        known = self._peers.get(hello.address)
        if known is None or known.link is None or known.link.nonce == hello.nonce:
            return False
        return link.dialled is None or link.where != hello.address

    def ask_who_is_there(self, peer: PeerState, claimant: str) -> None:
        if peer.question is None:
            peer.question = self._links.keep(self._settle_address(peer, claimant))

    async def _settle_address(self, peer: PeerState, claimant: str) -> None:
        """Asks at an address that two processes claim, and cuts the link of one that is not there."""
        links = self._links
        try:
            link = await self._ask(peer)
            held = peer.link
            if held is None or links.is_stopping:
                return
            if link.answer is None or link.answer.address != peer.address:
                _log.info("%s asked at %s who is there, for nothing: %s", links.describe(), peer.address, link.failure)
            elif link.answer.nonce != held.nonce:
                held.abort("another process has its address now")
            else:
                links.faults[Fault.ADDRESS] += 1
                _log.warning(
                    "%s turned %s away: it says that it is %s, but there another process answers",
                    links.describe(),
                    claimant,
                    peer.address,
                )
        finally:
            peer.question = None

    # A name

    def check(self, own: Hello, hello: Hello) -> None:
        """A LinkError if this host and another cannot be in one braid."""
        if text := disagreement(own, hello):
            raise LinkError(Fault.TERMS, text)
        if own.is_namesake_of(hello):
            raise LinkError(Fault.NAME, clash(own, hello))
        if hello.refusal:
            raise LinkError(Fault.REFUSED, hello.refusal)

    def rival(self, hello: Hello) -> PeerState | None:
        """The peer at another address that has the same name or identity."""
        for peer in self._peers.all():
            known = peer.greeting
            if known is not None and known.address != hello.address and known.is_namesake_of(hello):
                return peer
        return None

    def settle_name(self, link: Link, hello: Hello, rival: PeerState) -> None:
        """Lets a link wait until it is known who is at the other address; one that was dialled is open for the other
        side already, and comes again."""
        self._links.keep(self._settle_name(link, hello, rival))
        if link.dialled is not None:
            link.abort(f"another has its name: first {rival.address} is asked")

    async def _settle_name(self, link: Link, hello: Hello, rival: PeerState) -> None:
        heard = rival.counters.frames_in
        there = None if rival.has_left else (await self._ask(rival)).answer
        if there is None and rival.link is not None and rival.counters.frames_in > heard:
            there = rival.greeting  # it is only slow to answer
        if there is not None and there.is_namesake_of(hello) and (there.is_member or not hello.is_member):
            link.refuse(LinkError(Fault.NAME, clash(there, hello)))
            return
        self._links.on_moved(rival, hello)
        if not link.is_closed:
            try:
                self._links.on_hello(link, hello)
            except LinkError as error:
                link.refuse(error)
