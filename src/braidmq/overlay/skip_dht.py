"""Routing by numeric ID: the Skip Graph as a DHT, in about log2 N hops.

Membership vectors are random, so they can serve as IDs. Who shares h first digits with the ID that is sought walks along
its list of level h until it meets a node that shares more, and so on from there. Where the walk comes round without one,
the list holds all nodes that share most digits, and the owner is the one among them whose vector is closest to the ID;
of equals (siblings), the one with the smallest key.
"""

from __future__ import annotations

from braidmq.host import Address, CallError, Forward, Message, Reply, Service, handles
from braidmq.keys import Key, in_arc
from braidmq.overlay.membership import DIGITS_MAX, Vector, common_digits
from braidmq.overlay.peers import Peer
from braidmq.overlay.skip_graph import FIND_TIMEOUT_S, FIND_TRIES, SkipGraph

HOPS_MAX = 256


class FindId(Message, frozen=True, array_like=True, gc=False):
    """Walks to the right on level `level`, from `start` once round; `best` is the closest node so far."""

    id: Vector
    to: Key | None
    level: int
    start: Key
    best: Peer | None
    best_vector: Vector
    hops: int


class FoundId(Message, frozen=True, array_like=True, gc=False):
    """The owner of an ID; it was named after so many hops."""

    owner: Peer
    hops: int


class LostId(Message, frozen=True, array_like=True, gc=False):
    """The walk met a node that is not there, or went on for too long: try again."""


class NumericLookup(Service):
    """A broker's part in routing by ID."""

    def __init__(self, graph: SkipGraph) -> None:
        self.graph = graph
        graph.host.serve(self)

    async def lookup(self, sought: Vector) -> FoundId | None:
        """The owner of an ID of DIGITS_MAX digits; None if nobody answered."""
        if not 0 <= sought < 1 << DIGITS_MAX:
            raise ValueError(f"an ID has {DIGITS_MAX} binary digits, {sought} has more or is negative")
        host = self.graph.host
        for _ in range(FIND_TRIES):
            reply = self.on_find_id(host.address, FindId(sought, None, -1, b"", None, 0, 0))
            if isinstance(reply, Forward) and reply.message is not None:
                try:
                    reply = await host.call(reply.to, reply.message, FIND_TIMEOUT_S)
                except CallError:
                    continue
            if isinstance(reply, FoundId):
                return reply
        return None

    @handles(FindId)
    def on_find_id(self, origin: Address, find: FindId) -> Reply:
        graph = self.graph
        own = graph.view.own_keys
        key = own[0] if find.to is None and own else find.to
        if key is None or find.hops > HOPS_MAX:
            return LostId()
        level = common_digits(graph.vector, find.id)
        if level > find.level:  # a list of nodes that share more begins here
            find = FindId(find.id, key, level, key, None, 0, find.hops)
        while True:
            node = graph.nodes.get(key)
            if node is None or not node.is_linked(0):
                return LostId()
            best, best_vector = self._better(find, node.levels[0].me)
            find = FindId(find.id, key, find.level, find.start, best, best_vector, find.hops)
            if level == find.level and not node.is_linked(level):
                return FoundId(self._first_sibling(best), find.hops)  # it shares this level with siblings alone
            if not node.is_linked(find.level):
                return LostId()
            right = node.levels[find.level].right
            if right.key == key or in_arc(key, find.start, right.key) and key != find.start or right.key == find.start:
                return FoundId(best, find.hops)
            key = right.key
            if right.address != graph.host.address:
                on = FindId(find.id, key, find.level, find.start, best, best_vector, find.hops + 1)
                return Forward(right.address, on)

    def _better(self, find: FindId, mine: Peer) -> tuple[Peer, Vector]:
        """The closer one to the ID of the best so far and a node of this broker."""
        vector = self.graph.vector
        if find.best is None:
            return mine, vector
        ours, best = (abs(vector - find.id), mine.key), (abs(find.best_vector - find.id), find.best.key)
        return (mine, vector) if ours < best else (find.best, find.best_vector)

    def _first_sibling(self, best: Peer) -> Peer:
        own = self.graph.view.own
        return own[min(own)].me if best.key in own else best
