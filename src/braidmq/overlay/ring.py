"""DDLL: a ring of nodes in the order of their keys, linked both ways, that joins, leaves and crashes do not break.

Each node owns its right link; the left link of a node is only told to it. A join or leave asks one node, the left
neighbour, to move its right link from the successor it is expected to have to a new one: a compare-and-swap, so of two
that want the same place one is refused and tries again. The left link of the node behind follows by `SetLeft`, in the
order of link sequence numbers (repair, n): what arrives late is older and is ignored.

    OUT ──join──▶ INSERTING ──Granted──▶ IN ──leave──▶ DELETING ──Granted──▶ OUT
                      ▲──Refused: look again              ▲──Refused: IN, wait, again

Repair: every node makes sure of its left link now and then, and at once when a message to it got lost. It asks the
nearest node on the left that it knows of for nearer ones, until the one that answers is the nearest itself, and claims
that node's right link under a higher repair number. Everything else, a lost `SetLeft` included, is mended by this.

Every request can be lost, delayed, repeated and overtaken. A node remembers the grants it gave (`GRANTS_MAX`), so the
same request twice gets the same answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum

from braidmq.host import Address, CallError, Forward, Host, Message, Reply, Service, handles
from braidmq.keys import Key, in_arc, strictly_between
from braidmq.overlay.peers import Acquaintances, Peer

Sequence = tuple[int, int]
"""A link sequence number: (repair, n)."""

ZERO: Sequence = (0, 0)

NEIGHBOURS_MAX = 4
"""Nodes to the left that a node knows of, to go on with when the nearest is gone."""

CALL_TIMEOUT_S = 2.0
CALL_TRIES = 3
"""How often a request is repeated before its receiver is suspected."""

CHECK_INTERVAL_S = 10.0
"""How often a node makes sure of its left link."""

SUSPECTS_ASKED_MAX = 2
"""Of those who would be nearer to the left had they not been silent, so many are asked again at each check."""

LOOK_AROUND_CHECKS = 6
"""Every so many checks a node also looks for another ring beside its own, which a partition can leave behind."""

JOIN_WAIT_S = 1.0
"""The longest random pause before a join or leave that was refused is tried again."""

GRANTS_MAX = 16
REPAIR_STEPS_MAX = 64


class Status(Enum):
    OUT = "out"
    INSERTING = "inserting"
    IN = "in"
    DELETING = "deleting"


class Gap(Message, frozen=True, array_like=True, gc=False):
    """Two nodes with nothing between them, as far as the left one knows."""

    left: Peer
    right: Peer


class SetRight(Message, frozen=True, array_like=True, gc=False):
    """Asks `to` to move its right link from `expected` to `new`; `number` tells a repetition from a new wish."""

    ring: int
    to: Key
    new: Peer
    expected: Peer
    seq: Sequence
    joining: bool
    number: int


class Granted(Message, frozen=True, array_like=True, gc=False):
    """`note` is what the layer above has to say to a new right neighbour."""

    seq: Sequence
    neighbours: tuple[Peer, ...]
    note: bytes = b""


class Refused(Message, frozen=True, array_like=True, gc=False):
    hint: Gap | None


class SetLeft(Message, frozen=True, array_like=True, gc=False):
    ring: int
    to: Key
    left: Peer
    seq: Sequence
    neighbours: tuple[Peer, ...]


class Neighbours(Message, frozen=True, array_like=True, gc=False):
    """The nodes to the left of the receiver, told by its left neighbour when they change."""

    ring: int
    to: Key
    left: Peer
    neighbours: tuple[Peer, ...]


class AskLeft(Message, frozen=True, array_like=True, gc=False):
    """Which nodes between `to` and `me` do you know?"""

    ring: int
    to: Key
    me: Peer


class FindGap(Message, frozen=True, array_like=True, gc=False):
    """Walks to the right until it meets the node that owns the key: the way of a ring without fingers."""

    ring: int
    to: Key
    key: Key


class TellLeft(Message, frozen=True, array_like=True, gc=False):
    """`is_in` is False for a node that is not (or no longer) part of the ring."""

    is_in: bool
    incarnation: int
    right: Peer
    seq: Sequence
    nearer: tuple[Peer, ...]


Locate = Callable[[Key], Awaitable[Gap | None]]
"""Finds the gap that a key belongs into; None if nobody answered. Every overlay has its own way."""


class RingNode:
    """One key's place in one ring."""

    __slots__ = (
        "_check",
        "_grants",
        "_locate",
        "_number",
        "heard",
        "host",
        "known",
        "left",
        "lseq",
        "me",
        "neighbours",
        "occupant",
        "on_change",
        "right",
        "ring",
        "rseq",
        "status",
    )

    def __init__(self, host: Host, ring: int, me: Peer) -> None:
        self.host = host
        self.ring = ring
        self.me = me
        self.status = Status.OUT
        self.left = self.right = me
        self.lseq = self.rseq = ZERO
        self.neighbours: tuple[Peer, ...] = ()
        self.known = Acquaintances()
        self.on_change: Callable[[], None] = nothing
        """Called when a link has changed: for the layers above."""
        self.heard = b""
        """The note of the left neighbour when this node was inserted."""
        self._grants: dict[tuple[Key, int, int], Granted] = {}
        self._number = host.chance.getrandbits(31)  # so that a node made anew does not repeat an earlier one's wishes
        self.occupant: Peer | None = None
        """While it joins: who is in the ring under the same key, and answers."""
        self._check: object = None
        self._locate: Locate | None = None

    # Becoming part of the ring

    def found(self, locate: Locate | None = None) -> None:
        """The first node: a ring of its own."""
        self._locate = locate
        self.status = Status.IN
        self._watch()

    async def join(self, locate: Locate) -> None:
        """Inserts this node; returns when it is in, however long that takes."""
        self._locate = locate
        gap: Gap | None = None
        while True:
            gap = gap or await locate(self.me.key)
            if gap is not None and gap.left.key != self.me.key and gap.right.key != self.me.key:
                gap = await self._insert(gap)
                if gap is None and self.is_in:
                    break
            else:
                await self._look_at_occupant(gap)
                gap = None
            if gap is None:
                await self._pause()
        self.occupant = None
        self._watch()

    async def _look_at_occupant(self, gap: Gap | None) -> None:
        """Sees who has this node's key: an earlier incarnation that nobody misses yet, or another that answers."""
        found = [] if gap is None else [peer for peer in (gap.left, gap.right) if peer.key == self.me.key]
        others = [peer for peer in found if peer.address != self.host.address]
        told = await self._ask_left(others[0], tries=1) if others else None
        self.occupant = others[0] if told is not None and told.is_in else None

    @property
    def is_in(self) -> bool:
        return self.status is Status.IN

    @property
    def is_linked(self) -> bool:
        """It has neighbours, though it may be about to leave them."""
        return self.status is Status.IN or self.status is Status.DELETING

    async def _insert(self, gap: Gap) -> Gap | None:
        """Tries one place; if it was taken, returns the one next to it, if that is known."""
        self.status = Status.INSERTING
        self.left, self.right = gap.left, gap.right
        self.lseq = self.rseq = ZERO
        answer = await self._swap(gap.left, self.me, gap.right, ZERO, joining=True)
        if isinstance(answer, Granted):
            self.rseq = answer.seq
            self.heard = answer.note
            self.status = Status.IN
            self._learn(answer.neighbours)
            self.on_change()
            return None
        self.status = Status.OUT
        if isinstance(answer, Refused) and answer.hint is not None:
            hint = answer.hint
            if strictly_between(hint.left.key, self.me.key, hint.right.key):
                return hint
        return None

    async def leave(self) -> None:
        """Takes this node out; returns when it is out."""
        while self.left.key != self.me.key or self.right.key != self.me.key:
            self.status = Status.DELETING
            seq = (self.rseq[0], self.rseq[1] + 1)
            answer = await self._swap(self.left, self.right, self.me, seq, joining=False)
            if isinstance(answer, Granted):
                break
            self.status = Status.IN
            await self._pause()
            await self.check_left()
        self.status = Status.OUT

    async def _swap(
        self, at: Peer, new: Peer, expected: Peer, seq: Sequence, joining: bool
    ) -> Granted | Refused | None:
        """Asks until there is an answer, or the node is suspected; the same request each time."""
        self._number += 1
        request = SetRight(self.ring, at.key, new, expected, seq, joining, self._number)
        for _ in range(CALL_TRIES):
            try:
                answer = await self.host.call(at.address, request, CALL_TIMEOUT_S)
            except CallError:
                continue
            return answer if isinstance(answer, Granted | Refused) else None
        self.known.suspect(at, self.host.now())
        return None

    async def _pause(self) -> None:
        await self.host.sleep(self.host.chance.uniform(0.1, JOIN_WAIT_S))

    # What others ask

    def on_set_right(self, origin: Address, wish: SetRight) -> Granted | Refused:
        """The compare-and-swap of the right link."""
        who = wish.new if wish.joining else wish.expected
        asker = (who.key, who.incarnation, wish.number)
        granted = self._grants.get(asker)
        if granted is not None:
            return granted
        if self.status is not Status.IN:
            return Refused(None)
        if self.right != wish.expected:
            return self._refusal(wish)
        old, old_seq = self.right, self.rseq
        following = (old_seq[0], old_seq[1] + 1)
        answer = Granted(following, self._neighbours_of_right())
        if wish.new == old:
            pass  # a repair that only renews the number
        elif wish.joining:
            self._tell_left(old, wish.new, following, (wish.new, *self._neighbours_of_right()))
        else:
            self._tell_left(wish.new, self.me, wish.seq, self._neighbours_of_right())
        self.right, self.rseq = wish.new, wish.seq
        if wish.joining:
            self.known.trust(wish.new)
        if wish.new.key == self.me.key:  # the last but one has left
            self.left, self.lseq = self.me, wish.seq
        self._remember(asker, answer)
        self.on_change()
        return answer

    def _refusal(self, wish: SetRight) -> Refused:
        if not wish.joining:
            return Refused(None)
        if strictly_between(self.me.key, wish.new.key, self.right.key):
            return Refused(Gap(self.me, self.right))
        return Refused(None)

    def _remember(self, asker: tuple[Key, int, int], answer: Granted) -> None:
        self._grants[asker] = answer
        if len(self._grants) > GRANTS_MAX:
            self._grants.pop(next(iter(self._grants)))

    def _tell_left(self, to: Peer, left: Peer, seq: Sequence, neighbours: tuple[Peer, ...]) -> None:
        told = SetLeft(self.ring, to.key, left, seq, neighbours[:NEIGHBOURS_MAX])
        if to.key == self.me.key:
            self.on_set_left(told)
        else:
            self.host.send(to.address, told)

    def on_set_left(self, told: SetLeft) -> None:
        if self.status is Status.OUT or told.seq <= self.lseq:
            return
        self.left, self.lseq = told.left, told.seq
        self.known.trust(told.left)  # it may have crashed before, and is back
        self._learn(told.neighbours)
        self.on_change()

    def on_neighbours(self, told: Neighbours) -> None:
        if told.left == self.left:
            self._learn(told.neighbours)

    def _neighbours_of_right(self) -> tuple[Peer, ...]:
        return (self.me, *self.neighbours)[:NEIGHBOURS_MAX]

    def _learn(self, neighbours: tuple[Peer, ...]) -> None:
        """Takes the nodes to the left over, and tells the right neighbour if that changes what it should know."""
        mine = []
        for peer in neighbours:
            if peer.key == self.me.key:
                break  # once around
            mine.append(peer)
        self.known.meet(mine)
        if tuple(mine) == self.neighbours:
            return
        self.neighbours = tuple(mine)
        self.on_change()
        if self.status is Status.IN and self.right.key != self.me.key:
            told = Neighbours(self.ring, self.right.key, self.me, self._neighbours_of_right())
            self.host.send(self.right.address, told)

    # Repair

    def _watch(self) -> None:
        self._check = self.host.spawn(self._check_regularly())

    async def _check_regularly(self) -> None:
        checks = 0
        while self.status is not Status.OUT:
            await self.host.sleep(self.host.chance.uniform(0.5, 1.0) * CHECK_INTERVAL_S)
            checks += 1
            if self.is_in and checks % LOOK_AROUND_CHECKS == 0:
                await self._look_around()
            if self.is_in:
                await self.check_left()
            if self.is_in and await self._ask_suspects():
                await self.check_left()

    async def _ask_suspects(self) -> bool:
        """Whether somebody is back who would be nearer to the left: a link may only have been down for a moment."""
        now, mine = self.host.now(), self.me.key
        nearer = [peer for peer in self.known.suspects(now) if strictly_between(self.left.key, peer.key, mine)]
        nearer.sort(key=lambda peer: (peer.key < mine, peer.key), reverse=True)
        back = False
        for peer in nearer[:SUSPECTS_ASKED_MAX]:
            told = await self._ask_left(peer, tries=1)
            if told is not None and told.is_in:
                self.known.trust(peer)
                self.known.meet((peer,))
                back = True
        return back

    async def _look_around(self) -> None:
        """Asks for its own place as a stranger would: the answer differs if there are two rings instead of one."""
        gap = await self._locate(self.me.key) if self._locate else None
        if gap is not None and gap.left.key != self.me.key:
            for peer in (gap.left, gap.right):
                self.known.meet((peer,))
                self.known.trust(peer)

    async def check_left(self) -> None:
        """Makes sure that the left link leads to the nearest living node, and that its right link leads here."""
        for _ in range(REPAIR_STEPS_MAX):
            began = self.lseq
            best = self._best_left()
            if best is None:
                self._alone()
                return
            told = await self._ask_left(best)
            if self.status is not Status.IN:
                return
            if self.lseq != began:
                continue  # somebody has told us better meanwhile
            if told is None or not told.is_in:
                self.known.suspect(best, self.host.now())
                continue
            self.known.trust(best)
            self.known.meet((*told.nearer, told.right))
            found = Peer(best.key, best.address, told.incarnation)
            self.known.meet((found,))
            if self._nearest(told.nearer, found) != found:
                continue
            if await self._claim(found, told.right, told.seq):
                return

    async def _ask_left(self, peer: Peer, tries: int = CALL_TRIES) -> TellLeft | None:
        for _ in range(tries):
            try:
                answer = await self.host.call(peer.address, AskLeft(self.ring, peer.key, self.me), CALL_TIMEOUT_S)
            except CallError:
                continue
            return answer if isinstance(answer, TellLeft) else None
        return None

    async def _claim(self, left: Peer, its_right: Peer, its_seq: Sequence) -> bool:
        """True if the link to the left is as it should be now, with the same number at both ends."""
        if its_right == self.me and self.left == left and self.lseq == its_seq:
            return True
        seq = (max(self.lseq, its_seq)[0] + 1, 0)
        answer = await self._swap(left, self.me, its_right, seq, joining=True)
        if not isinstance(answer, Granted) or self.status is not Status.IN:
            return False
        if self.lseq < seq:
            self.left, self.lseq = left, seq
            self._learn(answer.neighbours)
            self.on_change()
        return True

    def on_ask_left(self, origin: Address, asked: AskLeft) -> TellLeft:
        now, is_suspected = self.host.now(), self.known.is_suspected
        peers = (self.right, self.left, *self.neighbours, *self.known)
        start, end = self.me.key, asked.me.key
        if start < end:
            between = [peer for peer in peers if start < peer.key < end]
        else:
            between = [peer for peer in peers if peer.key > start or peer.key < end]
        nearer = tuple([peer for peer in between if not is_suspected(peer.key, now)])
        self.known.meet((asked.me,))
        self.known.trust(asked.me)
        return TellLeft(
            self.status is Status.IN, self.me.incarnation, self.right, self.rseq, nearer[: 2 * NEIGHBOURS_MAX]
        )

    def _best_left(self) -> Peer | None:
        return self._nearest((self.left, *self.neighbours, self.right, *self.known), None)

    def _nearest(self, peers: tuple[Peer, ...], best: Peer | None) -> Peer | None:
        """The unsuspected one that is nearest to the left of this node."""
        now, is_suspected, mine = self.host.now(), self.known.is_suspected, self.me.key
        for peer in peers:
            key = peer.key
            if best is None:
                is_nearer = key != mine
            elif best.key < mine:
                is_nearer = best.key < key < mine
            else:
                is_nearer = key > best.key or key < mine
            if is_nearer and not is_suspected(key, now):
                best = peer
        return best

    def _alone(self) -> None:
        if self.left.key != self.me.key or self.right.key != self.me.key:
            self.left = self.right = self.me
            self.lseq = self.rseq = (self.lseq[0] + 1, 0)
            self.on_change()


class Ring(Service):
    """All nodes of one host in all its rings: finds the one that a message is for."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.nodes: dict[tuple[int, Key], RingNode] = {}
        self.note: Callable[[Key], bytes] | None = None
        """What a node, named by its key, has to say to a new right neighbour: for the layers above."""
        self.on_part: Callable[[Address], None] | None = None
        """Called when all nodes of a host have left: for the layers above."""
        host.serve(self)

    def node(self, ring: int, me: Peer) -> RingNode:
        node = self.nodes[ring, me.key] = RingNode(self.host, ring, me)
        return node

    def part(self, address: Address) -> None:
        """All nodes of a host have left: nobody looks for them any more."""
        for node in self.nodes.values():
            node.known.part(address)
            node.neighbours = tuple([peer for peer in node.neighbours if peer.address != address])
        if self.on_part is not None:
            self.on_part(address)

    def forget(self, node: RingNode) -> None:
        self.nodes.pop((node.ring, node.me.key), None)

    def is_inserting(self, key: Key) -> bool:
        """Whether a node of this host waits for its place in the ring of all: others may know it before it knows."""
        node = self.nodes.get((0, key))
        return node is not None and node.status is Status.INSERTING

    @handles(SetRight)
    def on_set_right(self, origin: Address, wish: SetRight) -> Reply:
        node = self.nodes.get((wish.ring, wish.to))
        if node is None:
            return Refused(None)
        answer = node.on_set_right(origin, wish)
        if self.note is not None and wish.joining and isinstance(answer, Granted):
            return Granted(answer.seq, answer.neighbours, self.note(wish.to))
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
        if node is None or node.status is not Status.IN:
            return None
        if owns(node, find.key):
            return Gap(node.me, node.right)
        return Forward(node.right.address, FindGap(find.ring, node.right.key, find.key))

    @handles(AskLeft)
    def on_ask_left(self, origin: Address, asked: AskLeft) -> Reply:
        node = self.nodes.get((asked.ring, asked.to))
        if node and node.status is Status.INSERTING:
            return None  # its left neighbour may have linked it: who hears that it is not in would link past it
        if node:
            return node.on_ask_left(origin, asked)
        nobody = Peer(asked.to, self.host.address)
        return TellLeft(False, 0, nobody, ZERO, ())


def nothing() -> None:
    """What is done about a change that concerns nobody."""


def owns(node: RingNode, key: Key) -> bool:
    """A node owns the keys from its own up to, not including, its successor's."""
    return in_arc(node.me.key, key, node.right.key)
