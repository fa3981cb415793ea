"""One node of a ring: its two links, how it joins and leaves, and how it mends what was lost.

Each node owns its right link; the left link of a node is only told to it. A join or leave asks one node, the left
neighbour, to move its right link from the successor it is expected to have to a new one: a compare-and-swap, so of two
nodes that want the same position one is refused and tries again (`status` has the states in between). The left link of
the node behind follows by `SetLeft`, in the order of link sequence numbers (repair, n): what arrives late is older and
is ignored.

Repair: every node makes sure of its left link now and then, and at once when a message to it got lost. It asks the
nearest node on the left that it knows of for nearer ones, until the one that answers is the nearest itself, and claims
that node's right link under a higher repair number. Everything else, a lost `SetLeft` included, is mended by this.

Every request can be lost, delayed, repeated and overtaken. A node remembers the grants it gave (`GRANTS_MAX`), so the
same request twice gets the same answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from braidmq.bounded import BoundedDict
from braidmq.host import Address, Event, Host
from braidmq.keys import Key, in_arc, strictly_between
from braidmq.overlay.peers import Acquaintances, Peer
from braidmq.overlay.ring.messages import (
    ZERO,
    AskLeft,
    Gap,
    LinkGranted,
    LinkRefused,
    LinkSequence,
    Neighbours,
    SetLeft,
    SetRight,
    TellLeft,
)
from braidmq.overlay.ring.nearness import nearest_left, peers_between
from braidmq.overlay.ring.status import TRANSITIONS, LinkEvent, RingStatus
from braidmq.overlay.silent_hosts import SilentHosts

NEIGHBOURS_MAX = 4
"""Nodes to the left that a node knows of, to go on with when the nearest is gone."""

CALL_TIMEOUT_S = 2.0
CALL_TRIES = 3
"""How often a request is repeated before its receiver is suspected."""

PATIENCE_S = (0.3, 0.7, CALL_TIMEOUT_S)
"""How long it is waited for each time, for a node's links."""

CHECK_INTERVAL_S = 10.0
"""How often a node makes sure of its left link."""

SUSPECTS_ASKED_MAX = 2
"""Of the silent peers that would be nearer to the left, so many are asked again at each check."""

LOOK_AROUND_CHECKS = 6
"""Every so many checks a node also looks for another ring beside its own, which a partition can leave behind."""

JOIN_SOON_S, JOIN_WAIT_S = 0.25, 1.0
"""The longest random pause before a join or leave that was refused is tried again; of a join at first."""

GRANTS_MAX = 16
"""Answers to compare-and-swaps that a node remembers, so that a repetition gets the same one."""

REPAIR_STEPS_MAX = 64
"""Questions of one check of the left link."""


Locate = Callable[[Key], Awaitable[Gap | None]]
"""Finds the gap that a key belongs into; None if no node answered. Every overlay has its own way.

It raises `JoinAbandoned` to end a join.
"""


class JoinAbandoned(Exception):
    """A join that has lost its purpose: the key is to leave again."""


class RingNode:
    """One key's position in one ring."""

    __slots__ = (
        "_check",
        "_grants",
        "_insertion_over",
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
        "silent",
        "status",
    )

    def __init__(self, host: Host, ring: int, me: Peer, silent: SilentHosts) -> None:
        """`silent` are the hosts that did not answer just now."""
        self.host = host
        self.silent = silent
        self.ring = ring
        self.me = me
        self.status = RingStatus.OUT
        self.left = self.right = me
        self.lseq = self.rseq = ZERO
        self.neighbours: tuple[Peer, ...] = ()
        self.known = Acquaintances()
        self.on_change: Callable[[], None] = nothing
        """Called when a link has changed: for the layers above."""
        self.heard = b""
        """The note of the left neighbour when this node was inserted."""
        self._grants: BoundedDict[tuple[Key, int, int], LinkGranted] | None = None
        self._number = host.chance.getrandbits(31)  # so that a node made anew does not repeat an earlier one's wishes
        self.occupant: Peer | None = None
        """While it joins: the node that is in the ring under the same key, and answers."""
        self._insertion_over: Event | None = None
        """Made when something waits for it."""
        self._check: object = None
        self._locate: Locate | None = None

    # States

    def become(self, event: LinkEvent) -> None:
        """Something has happened to the node: its next state is what the table says."""
        before = self.status
        self.status = TRANSITIONS[before, event]
        if before is RingStatus.INSERTING and self._insertion_over is not None:
            self._insertion_over.set()
            self._insertion_over = None

    @property
    def is_in(self) -> bool:
        return self.status is RingStatus.IN

    @property
    def is_linked(self) -> bool:
        """It has neighbours, though it may be about to leave them."""
        return self.status is RingStatus.IN or self.status is RingStatus.DELETING

    def insertion_over(self) -> Event:
        """Happens when the node is no longer being inserted: for a node that is."""
        if self._insertion_over is None:
            self._insertion_over = self.host.event()
        return self._insertion_over

    # Becoming part of the ring

    def found(self, locate: Locate | None = None) -> None:
        """The first node: a ring of its own."""
        self._locate = locate
        self.become(LinkEvent.FOUNDED)
        self._watch()

    async def join(self, locate: Locate) -> None:
        """Inserts this node; returns when it is in, however long that takes."""
        self._locate = locate
        gap: Gap | None = None
        pause_s = JOIN_SOON_S
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
                await self._pause(pause_s)
                pause_s = min(2 * pause_s, JOIN_WAIT_S)
        self.occupant = None
        self._watch()

    async def _look_at_occupant(self, gap: Gap | None) -> None:
        """Sees what has this node's key: an earlier incarnation that none misses yet, or another node, that answers."""
        found = [] if gap is None else [peer for peer in (gap.left, gap.right) if peer.key == self.me.key]
        others = [peer for peer in found if peer.address != self.host.address]
        told = await self._ask_left(others[0], (CALL_TIMEOUT_S,)) if others else None
        self.occupant = others[0] if told is not None and told.is_in else None

    async def _insert(self, gap: Gap) -> Gap | None:
        """Tries one gap; if it was taken, returns the one next to it, if that is known."""
        self.become(LinkEvent.ASKED_IN)
        self.left, self.right = gap.left, gap.right
        self.lseq = self.rseq = ZERO
        answer = await self._swap(gap.left, self.me, gap.right, ZERO, joining=True)
        if isinstance(answer, LinkGranted):
            self.rseq = answer.seq
            self.heard = answer.note
            self.become(LinkEvent.LINKED)
            self._learn(answer.neighbours)
            self.on_change()
            return None
        self.become(LinkEvent.NOT_LINKED)
        if isinstance(answer, LinkRefused) and answer.hint is not None:
            hint = answer.hint
            if strictly_between(hint.left.key, self.me.key, hint.right.key):
                return hint
        return None

    async def leave(self) -> None:
        """Takes this node out; returns when it is out."""
        while self.status is not RingStatus.OUT:
            if not self.is_in:  # it is just being linked, or unlinked
                await self._pause()
            elif self.left.key == self.me.key and self.right.key == self.me.key:
                self.become(LinkEvent.DISSOLVED)
            else:
                await self._ask_out()

    async def _ask_out(self) -> None:
        self.become(LinkEvent.ASKED_OUT)
        seq = (self.rseq[0], self.rseq[1] + 1)
        answer = await self._swap(self.left, self.right, self.me, seq, joining=False)
        if isinstance(answer, LinkGranted):
            self.become(LinkEvent.UNLINKED)
            return
        self.become(LinkEvent.NOT_UNLINKED)
        await self._pause()
        await self.check_left()

    async def _swap(
        self, at: Peer, new: Peer, expected: Peer, seq: LinkSequence, joining: bool
    ) -> LinkGranted | LinkRefused | None:
        """Asks until there is an answer, or the node is suspected; the same request each time."""
        self._number += 1
        request = SetRight(self.ring, at.key, new, expected, seq, joining, self._number)
        replies: tuple[type[LinkGranted | LinkRefused], ...] = (LinkGranted, LinkRefused)
        answer = await self.silent.ask(at.address, request, replies, PATIENCE_S)
        if answer is None:
            self.known.suspect(at, self.host.now())
        return answer

    async def _pause(self, most_s: float = JOIN_WAIT_S) -> None:
        await self.host.sleep(self.host.chance.uniform(0.1, most_s))

    # What others ask

    def on_set_right(self, origin: Address, wish: SetRight) -> LinkGranted | LinkRefused:
        """The compare-and-swap of the right link."""
        node = wish.new if wish.joining else wish.expected
        asker = (node.key, node.incarnation, wish.number)
        granted = self._grants.get(asker) if self._grants is not None else None
        if granted is not None:
            return granted
        if self.status is not RingStatus.IN:
            return LinkRefused(None)
        if self.right != wish.expected:
            return self._refusal(wish)
        old, old_seq = self.right, self.rseq
        following = (old_seq[0], old_seq[1] + 1)
        answer = LinkGranted(following, self._neighbours_of_right())
        if wish.new == old:
            pass  # a repair that only renews the number
        elif wish.joining:
            self._tell_left(old, wish.new, following, (wish.new, *self._neighbours_of_right()))
        else:
            self._tell_left(wish.new, self.me, wish.seq, self._neighbours_of_right())
        self.right, self.rseq = wish.new, wish.seq
        if wish.joining:
            self.known.trust(wish.new)
        if wish.new.key == self.me.key:  # the last but one has left; its wish may be older than a repair since
            self.left, self.lseq = self.me, max(self.lseq, wish.seq)
            self.rseq = self.lseq
        if self._grants is None:
            self._grants = BoundedDict(GRANTS_MAX)
        self._grants[asker] = answer
        self.on_change()
        return answer

    def _refusal(self, wish: SetRight) -> LinkRefused:
        if not wish.joining:
            return LinkRefused(None)
        if strictly_between(self.me.key, wish.new.key, self.right.key):
            return LinkRefused(Gap(self.me, self.right))
        return LinkRefused(None)

    def _tell_left(self, to: Peer, left: Peer, seq: LinkSequence, neighbours: tuple[Peer, ...]) -> None:
        told = SetLeft(self.ring, to.key, left, seq, neighbours[:NEIGHBOURS_MAX])
        if to.key == self.me.key:
            self.on_set_left(told)
        else:
            self.host.send(to.address, told)

    def on_set_left(self, told: SetLeft) -> None:
        if self.status is RingStatus.OUT or told.seq <= self.lseq:
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
        if self.status is RingStatus.IN and self.right.key != self.me.key:
            told = Neighbours(self.ring, self.right.key, self.me, self._neighbours_of_right())
            self.host.send(self.right.address, told)

    # Repair

    def _watch(self) -> None:
        self._check = self.host.spawn(self._check_regularly())

    async def _check_regularly(self) -> None:
        checks = 0
        while self.status is not RingStatus.OUT:
            await self.host.sleep(self.host.chance.uniform(0.5, 1.0) * CHECK_INTERVAL_S)
            checks += 1
            if self.is_in and checks % LOOK_AROUND_CHECKS == 0:
                await self._look_around()
            if self.is_in:
                await self.check_left()
            if self.is_in and await self._ask_suspects():
                await self.check_left()

    async def _ask_suspects(self) -> bool:
        """Whether a nearer node on the left is back: a link may only have been down for a moment."""
        now, mine = self.host.now(), self.me.key
        nearer = [peer for peer in self.known.suspects(now) if strictly_between(self.left.key, peer.key, mine)]
        nearer.sort(key=lambda peer: (peer.key < mine, peer.key), reverse=True)
        back = False
        for peer in nearer[:SUSPECTS_ASKED_MAX]:
            told = await self._ask_left(peer, (CALL_TIMEOUT_S,))
            if told is not None and told.is_in:
                self.known.trust(peer)
                self.known.meet((peer,))
                back = True
        return back

    async def _look_around(self) -> None:
        """Asks for its own position as a stranger would: the answer differs if there are two rings instead of one."""
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
            if self.status is not RingStatus.IN:
                return
            if self.lseq != began:
                continue  # it was told better meanwhile
            if told is None or not told.is_in:
                incarnation = best.incarnation if told is None else max(best.incarnation, told.incarnation)
                self.known.suspect(Peer(best.key, best.address, incarnation), self.host.now())
                continue
            self.known.trust(best)
            self.known.meet((*told.nearer, told.right))
            found = Peer(best.key, best.address, told.incarnation)
            self.known.meet((found,))
            if self._nearest(told.nearer, found) != found:
                continue
            if await self._claim(found, told.right, told.seq):
                return

    def _ask_left(self, peer: Peer, timeouts_s: tuple[float, ...] = PATIENCE_S) -> Awaitable[TellLeft | None]:
        return self.silent.ask(peer.address, AskLeft(self.ring, peer.key, self.me), TellLeft, timeouts_s)

    async def _claim(self, left: Peer, its_right: Peer, its_seq: LinkSequence) -> bool:
        """True if the link to the left is as it should be now, with the same number at both ends."""
        if its_right == self.me and self.left == left and self.lseq == its_seq:
            return True
        seq = (max(self.lseq, its_seq)[0] + 1, 0)
        answer = await self._swap(left, self.me, its_right, seq, joining=True)
        if not isinstance(answer, LinkGranted) or self.status is not RingStatus.IN:
            return False
        if self.lseq < seq:
            self.left, self.lseq = left, seq
            self._learn(answer.neighbours)
            self.on_change()
        return True

    def on_ask_left(self, origin: Address, asked: AskLeft) -> TellLeft:
        peers = (self.right, self.left, *self.neighbours, *self.known)
        nearer = peers_between(peers, self.me.key, asked.me.key, self.known, self.host.now())
        self.known.meet((asked.me,))
        self.known.trust(asked.me)
        return TellLeft(self.is_in, self.me.incarnation, self.right, self.rseq, nearer[: 2 * NEIGHBOURS_MAX])

    def _best_left(self) -> Peer | None:
        return self._nearest((self.left, *self.neighbours, self.right, *self.known), None)

    def _nearest(self, peers: tuple[Peer, ...], best: Peer | None) -> Peer | None:
        """The unsuspected one that is nearest to the left of this node."""
        return nearest_left(peers, best, self.me.key, self.known, self.host.now())

    def _alone(self) -> None:
        if self.left.key != self.me.key or self.right.key != self.me.key:
            self.left = self.right = self.me
            self.lseq = self.rseq = (self.lseq[0] + 1, 0)
            self.on_change()


def nothing() -> None:
    """What is done about a change that concerns no other part."""


def link_all(nodes: list[RingNode]) -> None:
    """Makes a closed ring of nodes in the order of their keys, without a message: for nodes that no host knows yet."""
    peers = [node.me for node in nodes]
    count = len(nodes)
    near = min(NEIGHBOURS_MAX, count - 1)
    for index, node in enumerate(nodes):
        node.left = peers[index - 1]
        node.right = peers[index + 1 - count]
        node.neighbours = tuple([peers[index - back] for back in range(1, near + 1)])


def owns(node: RingNode, key: Key) -> bool:
    """A node owns the keys from its own up to, not including, its successor's."""
    return in_arc(node.me.key, key, node.right.key)
