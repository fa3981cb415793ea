"""Routing by numeric ID: the Skip Graph as a DHT, in about log2 N hops.

Membership vectors are random, so they can serve as IDs. Who shares h first digits with the ID that is sought walks
along its list of level h until it meets a node that shares more, and so on from there. Where the walk comes round
without one, the list holds all nodes that share most digits, and the owner is the one among them whose vector is
closest to the ID; of equals (siblings), the one with the smallest key.
"""

from __future__ import annotations

from braidmq.host import Address, CallError, Forward, Message, Reply, Service, handles
from braidmq.keys import Key, strictly_between
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
        graph, own = self.graph, self.graph.view.own
        key = min(own) if find.to is None and own else find.to
        if key not in own or key is None or find.hops > HOPS_MAX:
            return LostId()
        level, start = find.level, find.start
        best: tuple[Peer | None, Vector] = (find.best, find.best_vector)
        shared = common_digits(graph.vector, find.id)
        if shared > level:  # a list of nodes that share more begins here
            level, start, best = shared, key, (None, 0)
            if not graph.nodes[key].is_linked(level):
                return FoundId(own[min(own)].me, find.hops)  # nobody else shares as much
        while True:
            node = graph.nodes.get(key)
            if node is None or not node.is_linked(level):
                return LostId()
            closest = self._closer(find.id, *best, node.levels[0].me)
            best = closest
            right = node.levels[level].right
            if right.key in (key, start) or strictly_between(key, start, right.key):
                return FoundId(closest[0], find.hops)
            key = right.key
            if right.address != graph.host.address:
                on = FindId(find.id, key, level, start, *closest, find.hops + 1)
                return Forward(right.address, on)

    def _closer(self, sought: Vector, best: Peer | None, best_vector: Vector, mine: Peer) -> tuple[Peer, Vector]:
        """Of the best so far and a node of this broker, the one closer to an ID."""
        vector = self.graph.vector
        if best is None or (abs(vector - sought), mine.key) < (abs(best_vector - sought), best.key):
            return mine, vector
        return best, best_vector
