"""All nodes of one host in all its rings: what comes for one of them is given to it."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from braidmq.host import Address, Forward, Host, Reply, Service, handles
from braidmq.keys import Key
from braidmq.overlay.peers import Peer
from braidmq.overlay.ring.messages import (
    ZERO,
    AskLeft,
    CheckLinks,
    FindGap,
    Gap,
    LinkGranted,
    LinkRefused,
    Neighbours,
    SetLeft,
    SetRight,
    TellLeft,
)
from braidmq.overlay.ring.node import RingNode, owns
from braidmq.overlay.ring.status import RingStatus
from braidmq.overlay.silent_hosts import SilentHosts

LOOK_S, LOOK_LONG_S = (0.2, 0.3), (0.3, 0.7, 1.0)
"""How long a host has to answer, each time that it is asked, of which another one says that it is silent; and where no
host has answered before, so that it may be far away."""


class Ring(Service):
    """All nodes of one host in all its rings: finds the one that a message is for."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.nodes: dict[tuple[int, Key], RingNode] = {}
        self.silent = SilentHosts(host)
        """Hosts that did not answer just now: for all that is asked in an overlay."""
        self._looking: dict[Address, None] = {}
        """Hosts of which it is being found out whether they answer."""
        self.note: Callable[[Key], bytes] | None = None
        """What a node, named by its key, has to say to a new right neighbour: for the layers above."""
        self.on_part: Callable[[Address], None] | None = None
        """Called when all nodes of a host have left: for the layers above."""
        host.serve(self)

    def node(self, ring: int, me: Peer) -> RingNode:
        node = self.nodes[ring, me.key] = RingNode(self.host, ring, me, self.silent)
        return node

    def part(self, address: Address) -> None:
        """All nodes of a host have left: none of them is looked for any more."""
        for node in self.nodes.values():
            node.known.part(address)
            node.neighbours = tuple([peer for peer in node.neighbours if peer.address != address])
        if self.on_part is not None:
            self.on_part(address)

    def forget(self, node: RingNode) -> None:
        self.nodes.pop((node.ring, node.me.key), None)

    def is_inserting(self, key: Key) -> bool:
        """Whether a node of this host waits to be linked in the ring of all: others may know it before it knows."""
        return self.inserting(key) is not None

    def inserting(self, key: Key) -> RingNode | None:
        node = self.nodes.get((0, key))
        return node if node is not None and node.status is RingStatus.INSERTING else None

    # Hosts that are gone

    @handles(CheckLinks)
    def on_check_links(self, origin: Address, told: CheckLinks) -> Reply:
        address = told.address
        if address == origin:
            self._lose(address, told.before)
        elif address not in self._looking and address != self.host.address:
            near = (peer for node in self.nodes.values() for peer in (node.left, *node.neighbours))
            peer = next((peer for peer in near if peer.address == address), None)
            if peer is not None:
                self._looking[address] = None
                self.host.spawn(self._look_for(peer))
        return None

    async def _look_for(self, peer: Peer) -> None:
        timeouts_s = LOOK_S if self.silent.slowest_s else LOOK_LONG_S
        told = await self.silent.ask(peer.address, AskLeft(0, peer.key, peer), TellLeft, timeouts_s)
        del self._looking[peer.address]
        if told is None:
            self._lose(peer.address)

    def _lose(self, address: Address, before: float = inf) -> None:
        """No node of a host is there any more, of incarnations before one: links that lead to it are mended."""
        for node in list(self.nodes.values()):
            near = (node.left, *node.neighbours)
            lost = [peer for peer in near if peer.address == address and peer.incarnation < before]
            for peer in lost:
                node.known.suspect(peer, self.host.now())
            if node.is_in and node.left in lost:
                self.host.spawn(node.check_left())

    # One node

    @handles(SetRight)
    def on_set_right(self, origin: Address, wish: SetRight) -> Reply:
        node = self.nodes.get((wish.ring, wish.to))
        if node is None:
            return LinkRefused(None)
        answer = node.on_set_right(origin, wish)
        if self.note is not None and wish.joining and isinstance(answer, LinkGranted):
            return LinkGranted(answer.seq, answer.neighbours, self.note(wish.to))
        return answer

    @handles(SetLeft)
    def on_set_left(self, origin: Address, told: SetLeft) -> Reply:
        node = self.nodes.get((told.ring, told.to))
        if node:
            node.on_set_left(told)
        return None

    @handles(Neighbours)
    def on_neighbours(self, origin: Address, told: Neighbours) -> Reply:
        node = self.nodes.get((told.ring, told.to))
        if node:
            node.on_neighbours(told)
        return None

    @handles(FindGap)
    def on_find_gap(self, origin: Address, find: FindGap) -> Reply:
        node = self.nodes.get((find.ring, find.to))
        if node is None or node.status is not RingStatus.IN:
            return None
        if owns(node, find.key):
            return Gap(node.me, node.right)
        return Forward(node.right.address, FindGap(find.ring, node.right.key, find.key))

    @handles(AskLeft)
    def on_ask_left(self, origin: Address, asked: AskLeft) -> Reply:
        node = self.nodes.get((asked.ring, asked.to))
        if node and node.status is RingStatus.INSERTING:
            return None  # its left neighbour may have linked it: a node that hears it is not in would link past it
        if node:
            return node.on_ask_left(origin, asked)
        absent = Peer(asked.to, self.host.address)
        return TellLeft(False, 0, absent, ZERO, ())
