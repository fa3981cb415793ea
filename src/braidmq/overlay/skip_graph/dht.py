"""Routing by numeric ID: the Skip Graph as a DHT, in about log2 N hops.

Membership vectors are random, so they can serve as IDs. A walk that has come to a node that shares h first digits
with the ID goes along that node's list of level h until it meets a node that shares more, and so on from there. Where
the walk comes round without one, the list holds all nodes that share most digits, and the owner is the one among them
whose vector is closest to the ID; of equals (siblings), the one with the smallest key.

Any message can travel so: it carries a `Walk`, and each broker that it comes to asks `IdRouter.step` where to go next.
Its handler sees it at every hop, as Scribe needs it. Until the last list, the next hop depends on the broker and the ID
alone, not on where the walk came from.
"""

from __future__ import annotations

from hashlib import sha256
from typing import NamedTuple

from braidmq.host import Address, Forward, Host, Message, Reply, Service, handles
from braidmq.keys import Key, strictly_between
from braidmq.overlay.lookup import FIND_TRIES, outcome
from braidmq.overlay.peers import Peer
from braidmq.overlay.skip_graph.graph import SkipGraph
from braidmq.overlay.vectors import DIGITS_MAX, Vector, common_digits

HOPS_MAX = 256


class Walk(Message, frozen=True, array_like=True, gc=False):
    """How far the way to an ID has come: to the right on level `level`, from `start` once round.

    `to` is the node that is meant, `best` the closest so far. `final`: the walk came round, `to` is the owner.
    """

    id: Vector
    to: Key | None = None
    level: int = -1
    start: Key = b""
    best: Peer | None = None
    best_vector: Vector = 0
    hops: int = 0
    final: bool = False


class Step(NamedTuple):
    """Where a walk goes from a broker; `to` is None if it has arrived: the broker is the owner."""

    to: Address | None
    walk: Walk


class FindId(Message, frozen=True, array_like=True, gc=False):
    """Asks for the owner of an ID."""

    walk: Walk


class FoundId(Message, frozen=True, array_like=True, gc=False):
    """The owner of an ID; it was named after so many hops."""

    owner: Peer
    hops: int


class LostId(Message, frozen=True, array_like=True, gc=False):
    """The walk met a node that is not there, or went on for too long: try again."""


def id_of(name: str) -> Vector:
    """The ID of a name: the first digits of its SHA-256."""
    return int.from_bytes(sha256(name.encode()).digest()) >> (256 - DIGITS_MAX)


class IdRouter(Service):
    """A broker's part in routing by ID. It must stand in the graph with a key, its name for example."""

    def __init__(self, graph: SkipGraph) -> None:
        self.graph = graph
        self.host: Host = graph.host
        self.host.serve(self)

    def step(self, walk: Walk) -> Step | None:
        """Where a walk that has come here goes next; None if it is lost."""
        graph = self.graph
        nodes = graph.nodes
        key = self._first_key() if walk.to is None else walk.to
        node = nodes.get(key) if key is not None else None
        if node is None or key is None or not node.is_linked(0) or walk.hops > HOPS_MAX:
            return None
        if walk.final:
            return Step(None, walk)
        level, start, best, best_vector = walk.level, walk.start, walk.best, walk.best_vector
        shared = common_digits(graph.vector, walk.id)
        if shared > level:  # a list of nodes that share more begins here
            level, start, best, best_vector = shared, key, None, 0
            if not node.is_linked(level):  # no other node shares as much
                return Step(None, Walk(walk.id, key, level, start, self.me(), graph.vector, walk.hops, True))
        elif not node.is_linked(level):
            return None  # it has left the list of this walk meanwhile
        while True:
            best, best_vector = self._closer(walk.id, best, best_vector, node.levels[0].me)
            right = node.levels[level].right
            if right.key in (key, start) or strictly_between(key, start, right.key):  # once round
                return self._last_step(Walk(walk.id, best.key, level, start, best, best_vector, walk.hops, True), best)
            key = right.key
            if right.address != self.host.address:
                return Step(right.address, Walk(walk.id, key, level, start, best, best_vector, walk.hops + 1))
            sibling = nodes.get(key)
            if sibling is None or not sibling.is_linked(level):
                return None
            node = sibling

    def walk_to(self, sought: Vector, owner: Peer) -> Walk:
        """A walk whose end is known already."""
        return Walk(sought, owner.key, 0, owner.key, owner, 0, 1, True)

    def me(self) -> Peer | None:
        """The node from which walks start here; None if there is none yet."""
        key = self._first_key()
        return self.graph.nodes[key].levels[0].me if key is not None else None

    async def lookup(self, sought: Vector) -> FoundId | None:
        """The owner of an ID of DIGITS_MAX digits; None if no broker answered."""
        if not 0 <= sought < 1 << DIGITS_MAX:
            raise ValueError(f"an ID has {DIGITS_MAX} binary digits, {sought} has more or is negative")
        for _ in range(FIND_TRIES):
            reply = await outcome(self.host, self.on_find_id(self.host.address, FindId(Walk(sought))))
            if isinstance(reply, FoundId):
                return reply
        return None

    @handles(FindId)
    def on_find_id(self, origin: Address, find: FindId) -> Reply:
        step = self.step(find.walk)
        if step is None:
            return LostId()
        if step.walk.final:
            assert step.walk.best is not None
            return FoundId(step.walk.best, find.walk.hops)
        assert step.to is not None
        return Forward(step.to, FindId(step.walk))

    def _first_key(self) -> Key | None:
        nodes = self.graph.nodes
        return min([key for key, node in nodes.items() if node.is_linked(0)], default=None)

    def _last_step(self, walk: Walk, owner: Peer) -> Step:
        if owner.address == self.host.address:
            return Step(None, walk)
        return Step(owner.address, Walk(walk.id, walk.to, walk.level, walk.start, owner, 0, walk.hops + 1, True))

    def _closer(self, sought: Vector, best: Peer | None, best_vector: Vector, mine: Peer) -> tuple[Peer, Vector]:
        """Of the best so far and a node of this broker, the one closer to an ID."""
        vector = self.graph.vector
        if best is None or (abs(vector - sought), mine.key) < (abs(best_vector - sought), best.key):
            return mine, vector
        return best, best_vector
