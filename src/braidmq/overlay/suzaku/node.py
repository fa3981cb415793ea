"""One node of Suzaku: its two tables of fingers, how it learns them, and what they add up to (see `suzaku`)."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from typing import Protocol

from braidmq.bounded import BoundedDict
from braidmq.host import Host, ask
from braidmq.keys import Key, strictly_between
from braidmq.overlay.aggregates import Aggregate, cut_to, merged
from braidmq.overlay.peers import Acquaintances, Peer
from braidmq.overlay.ring import CALL_TIMEOUT_S, RingNode, RingStatus
from braidmq.overlay.suzaku.messages import AskSum, Finger, Leaving, Revised, TellSum, Update, Updated
from braidmq.overlay.suzaku.totals import RangeTotal, packed, unpacked
from braidmq.overlay.view import RoutingEntry

UPDATE_TRIES = 2
LEVELS_MAX = 40
BACKUP_LEVELS = 5
"""So many levels from below, a lookup may go to a finger's backups, too."""
REVISE_EVERY_S = 1.0
"""A node whose value changes tells those that point at it, at most so often."""
POINTERS_MAX = 64
"""Nodes known to point at this one; they are told when it leaves."""


class Owner(Protocol):
    """What a node needs of the overlay that it belongs to, and shares with its siblings."""

    @property
    def host(self) -> Host: ...

    @property
    def period_s(self) -> float:
        """How long until the next level of the forward table is asked."""
        ...

    @property
    def both_ways(self) -> bool:
        """Whether there are fingers to the left, too."""
        ...

    @property
    def plain(self) -> bool:
        """Whether routing goes by fingers and links alone, not by backups."""
        ...

    def value_of(self, key: Key) -> Aggregate:
        """What the node at a key adds to the aggregates."""
        ...

    def labels_of(self, mine: Key, theirs: Key) -> tuple[str, ...] | None:
        """The labels that the node at one key wants of a range that begins at another: None is all, () is none."""
        ...

    def wanted(self, key: Key, labels: tuple[str, ...]) -> None:
        """The node at a key was asked for these labels."""
        ...

    def changed(self) -> None:
        """A finger has changed."""
        ...


class SuzakuNode:
    """One key's fingers, over its position in the ring."""

    __slots__ = (
        "_is_revising",
        "_left",
        "_level",
        "_overlay",
        "_right",
        "backward",
        "forward",
        "host",
        "link",
        "pointers",
        "silent",
    )

    def __init__(self, overlay: Owner, link: RingNode) -> None:
        self._overlay = overlay
        self.host = overlay.host
        self.link = link
        self.forward: list[Finger] = []
        """Levels 1 and up, without holes; level 0 is the ring's right link."""
        self.backward: list[Finger] = []
        self.pointers: BoundedDict[Key, Peer] | None = None
        """Nodes that point at this one, once there are some."""
        self.silent = Acquaintances()
        """Fingers that did not answer. The ring has its own: a finger may be passed over lightly, a neighbour not."""
        self._level = 0
        self._is_revising = False
        self._right: Finger | None = None
        """What the right neighbour has told of itself."""
        self._left: Finger | None = None
        """What the left neighbour has told of itself."""

    @property
    def me(self) -> Peer:
        return self.link.me

    def value(self) -> Aggregate:
        """What this node adds to the aggregates."""
        return self._overlay.value_of(self.me.key)

    def finger(self, level: int, forward: bool) -> Finger | None:
        if level == 0:
            peer = self.link.right if forward else self.link.left
            if peer.key == self.me.key:
                return None
            told = self._right if forward else self._left
            return told if told is not None and told.peer == peer else Finger(peer)
        table = self.forward if forward else self.backward
        return table[level - 1] if level <= len(table) else None

    def know(self, forward: list[Finger], backward: list[Finger]) -> None:
        """Takes up whole tables, from level 0 on: those of a network that is laid out."""
        self._right, *self.forward = forward
        self._left, *self.backward = backward
        self._overlay.changed()

    def peers(self) -> Iterator[Peer]:
        """All that this node could pass a message to."""
        yield from (self.link.right, self.link.left, *self.link.neighbours)
        for table in (self.forward, self.backward):
            for finger in table:
                yield finger.peer
                yield from finger.backups

    def entries(self) -> list[RoutingEntry]:
        """The same, as what they are for routing: a finger has the aggregate of those from it up to the next.

        In a quiet network most backups are fingers or neighbours themselves: these are left out.
        """
        link, silent = self.link, self.silent
        neighbours = () if self._overlay.plain else link.neighbours
        found = [RoutingEntry(peer, 0, link.known) for peer in (link.left, *neighbours)]
        if self._left is not None and self._left.peer == link.left:
            found[0] = _entry(self._left, 0, link.known)
        right = self.finger(0, True)
        if right is not None:
            found.append(_entry(right, 1, link.known))
        found += [_entry(finger, level, silent) for level, finger in enumerate(self.forward, 2)]
        found += [_entry(finger, level, silent) for level, finger in enumerate(self.backward, 1)]
        if self._overlay.plain:
            return found
        backups = {peer.key: peer for finger in (*self.forward, *self.backward) for peer in finger.backups}
        for entry in found:
            backups.pop(entry.peer.key, None)
        return [*found, *[RoutingEntry(peer, 0, silent) for peer in backups.values()]]

    def ways(self) -> Iterator[Peer]:
        """Where a lookup may go on from here; of two with one key the later is the more certain.

        The backups of a near finger fill the gap to the one before it, which saves hops; in a wide gap they are lost.
        """
        if not self._overlay.plain:
            for finger in (*self.backward[:BACKUP_LEVELS], *self.forward[:BACKUP_LEVELS]):
                yield from finger.backups
        for finger in (*self.backward, *self.forward):
            yield finger.peer
        yield self.link.left
        yield self.link.right

    # Asking

    async def learn_all(self, both_ways: bool) -> None:
        """The zigzag of a node that has just joined: every level of both tables, one after the other."""
        ahead: Peer | None = self.link.right
        behind: Peer | None = self.link.left if both_ways else None
        for level in range(LEVELS_MAX):
            ahead = await self._update(level, True, ahead) if ahead else None
            behind = await self._update(level, False, behind) if behind else None
            if ahead is None and behind is None:
                return

    async def keep_learning(self) -> None:
        """One level of the forward table each period, round and round."""
        beyond: Peer | None = None
        while self.link.status is not RingStatus.OUT:
            await self.host.sleep(self.host.chance.uniform(0.9, 1.1) * self._overlay.period_s)
            if not self.link.is_in:
                continue
            if beyond is None:
                self._level = 0
                beyond = self.link.right
            beyond = await self._update(self._level, True, beyond)
            self._level += 1

    async def _update(self, level: int, forward: bool, target: Peer) -> Peer | None:
        """Asks the node at a level, and notes it there; returns what stands at the next level, as far as it knows."""
        candidates = [target]
        known = self.finger(level, forward)
        if known is not None:
            candidates += (known.peer, *known.backups)
        for peer in candidates:
            if peer.key == self.me.key or self.silent.is_suspected(peer.key, self.host.now()):
                continue
            answer = await self._ask(peer, level, forward)
            if answer is None:
                self.silent.suspect(peer, self.host.now())
                continue
            beyond = answer.beyond
            is_last = beyond is None or not self._is_between(answer.me, beyond, forward)
            total = unpacked(answer.total, self._labels(peer), None if beyond is None else beyond.key)
            if is_last and forward and (total is None or total.until != self.me.key):
                total = await self._sum_from(answer.me)
            self._note(level, forward, Finger(answer.me, answer.backups, total, self.host.now()))
            if is_last:
                self._trim(level)
            return None if is_last else beyond
        return None

    def _ask(self, peer: Peer, level: int, forward: bool) -> Awaitable[Updated | None]:
        labels = self._labels(peer)
        told = self.total_below(level, labels) if forward else None
        total = packed(told, labels, peer.key if level == 0 else None, is_known=True)
        request = Update(peer.key, self.me, self.link.neighbours, level, forward, total, labels)
        return ask(self.host, peer.address, request, Updated, timeout_s=CALL_TIMEOUT_S, tries=UPDATE_TRIES)

    def _note(self, level: int, forward: bool, finger: Finger) -> None:
        if level:
            self._put(level, forward, finger)
            return
        if forward:
            self._right = finger
        else:
            self._left = finger
        self._overlay.changed()

    def _labels(self, peer: Peer) -> tuple[str, ...] | None:
        """The labels that this node wants of a range that begins at a peer."""
        return self._overlay.labels_of(self.me.key, peer.key)

    async def _sum_from(self, start: Peer) -> RangeTotal | None:
        """What the nodes from the last finger up to this node add up to: its own table would reach past us."""
        labels = self._labels(start)
        if labels == ():
            return None
        parts: list[Aggregate] = []
        age_s = 0.0
        began_at = self.host.now()
        rest: Peer | None = start
        for _ in range(LEVELS_MAX):
            if rest is None:
                return RangeTotal(merged(parts), self.me.key, age_s + self.host.now() - began_at)
            question = AskSum(rest.key, self.me.key, labels)
            answer = await ask(self.host, rest.address, question, TellSum, timeout_s=CALL_TIMEOUT_S)
            if answer is None:
                return None
            parts.append(answer.aggregate)
            age_s = max(age_s, answer.age_s)
            rest = answer.rest
        return None

    def on_sum(self, asked: AskSum) -> TellSum:
        """Adds up whole fingers, each of which must reach exactly to the next, and not past the end."""
        parts = [self.value()]
        age_s = 0.0
        now = self.host.now()
        rest: Peer | None = None
        level = 0
        while (finger := self.finger(level, True)) is not None:
            if not strictly_between(self.me.key, finger.peer.key, asked.until):
                break
            total, following = finger.total, self.finger(level + 1, True)
            is_whole = total is not None and following is not None and total.until == following.peer.key
            if total is None or not is_whole or not self._reaches(total.until, asked.until):
                rest = finger.peer
                break
            parts.append(total.aggregate)
            age_s = max(age_s, finger.age_s(now))
            level += 1
        return TellSum(cut_to(asked.labels, merged(parts)), age_s, rest)

    def _reaches(self, key: Key, end: Key) -> bool:
        """Whether a key lies up to an end, seen from here."""
        return key == end or strictly_between(self.me.key, key, end)

    def _is_between(self, near: Peer, far: Peer, forward: bool) -> bool:
        """Whether `far` lies behind `near`, seen from here, and not once around."""
        if forward:
            return strictly_between(near.key, far.key, self.me.key)
        return strictly_between(self.me.key, far.key, near.key)

    def _put(self, level: int, forward: bool, finger: Finger) -> None:
        """Notes a finger; one above a level that is still missing is learnt later."""
        table = self.forward if forward else self.backward
        table[level - 1 : level] = [finger] if level <= len(table) + 1 else []
        self._overlay.changed()

    def _trim(self, level: int) -> None:
        """No node stands further off than this level."""
        del self.forward[level:]
        del self.backward[level:]
        self._overlay.changed()

    # Being asked

    def on_update(self, asked: Update) -> Updated | None:
        if not self.link.is_in:
            return None
        self._remember_pointer(asked.asker)
        if asked.labels:
            self._overlay.wanted(self.me.key, asked.labels)
        end = self.finger(asked.level - 1, False) if asked.level else None
        total = unpacked(asked.total, asked.labels, end.peer.key if end else None if asked.level else self.me.key)
        asker = Finger(asked.asker, asked.backups, total, self.host.now())
        if 0 < asked.level <= LEVELS_MAX and self._overlay.both_ways:
            self._put(asked.level, not asked.forward, asker)
        elif asked.level == 0 and asked.forward and self._overlay.both_ways:
            self._note(0, False, asker)
        beyond = self.finger(asked.level, asked.forward)
        known = self.total_below(asked.level + asked.forward, asked.labels)
        told = packed(known, asked.labels, beyond.peer.key if beyond else None)
        return Updated(self.me, self.link.neighbours, told, beyond.peer if beyond else None)

    def _remember_pointer(self, peer: Peer) -> None:
        if self.pointers is None:
            self.pointers = BoundedDict(POINTERS_MAX)
        self.pointers.renew(peer.key, peer)

    def total_below(self, level: int, labels: tuple[str, ...] | None = None) -> RangeTotal | None:
        """What this node and the fingers below a level add up to: 2^(level − 1) nodes, this one alone at 0.

        None if a part is not known, or if two parts do not meet: what goes by the sum must not be told a smaller one. A
        part that begins where this node wants none of the labels, though it wants them of itself, has none of them.
        """
        if labels == ():
            return None
        parts = [self.value()]
        until = self.link.right.key
        age_s = 0.0
        now = self.host.now()
        for below in range(level - 1):
            finger = self.finger(below, True)
            if finger is not None and self._has_none_of(labels, finger.peer.key):
                end = self.finger(level - 1, True)
                until = finger.peer.key if end is None else end.peer.key
                break
            if finger is None or finger.total is None or finger.peer.key != until:
                return None
            parts.append(finger.total.aggregate)
            until = finger.total.until
            age_s = max(age_s, finger.age_s(now))
        return RangeTotal(cut_to(labels, merged(parts)), until, age_s)

    def _has_none_of(self, labels: tuple[str, ...] | None, start: Key) -> bool:
        """Whether no node from a key on, up to this one, has any of the labels."""
        mine = self._overlay.labels_of(self.me.key, self.me.key)
        theirs = self._overlay.labels_of(self.me.key, start)
        if labels is None or mine is None or theirs is None:
            return False
        return all(label in mine and label not in theirs for label in labels)

    # Telling at once

    def revise(self) -> None:
        """The value of this node has changed: those that point here are told, those that point at them are not."""
        if not self._is_revising:
            self._is_revising = True
            self.host.spawn(self._revise())

    async def _revise(self) -> None:
        self._tell_pointers()
        await self.host.sleep(REVISE_EVERY_S)
        self._is_revising = False

    def _tell_pointers(self) -> None:
        """The node 2^p to the left has this one at level p of its forward table, and the other way round."""
        for forward in (True, False):
            for level in range(LEVELS_MAX):
                finger = self.finger(level, not forward)
                if finger is None:
                    break
                labels = self._overlay.labels_of(finger.peer.key, self.me.key)
                total = self.total_below(level + forward, labels)
                if total is not None and finger.peer.key != self.me.key:
                    told = Revised(finger.peer.key, self.me, level, forward, packed(total, None, None))
                    self.host.send(finger.peer.address, told)

    def on_revised(self, told: Revised) -> None:
        finger = self.finger(told.level, told.forward)
        if finger is not None and finger.peer == told.me:
            total = unpacked(told.total, None, None)
            self._note(told.level, told.forward, Finger(told.me, finger.backups, total, self.host.now()))

    # Leaving

    def say_goodbye(self) -> None:
        """Tells those that point here which node stands in for this one."""
        for peer in (self.pointers or {}).values():
            if peer.key != self.me.key:
                self.host.send(peer.address, Leaving(peer.key, self.me, self.link.left))

    def on_leaving(self, told: Leaving) -> None:
        for table in (self.forward, self.backward):
            for index, finger in enumerate(table):
                if finger.peer == told.gone:
                    table[index:] = [Finger(told.instead), *table[index + 1 :]] if told.instead != self.me else []
                    break
        self._overlay.changed()


def _entry(finger: Finger, level: int, known: Acquaintances) -> RoutingEntry:
    total = finger.total
    if total is None:
        return RoutingEntry(finger.peer, level, known)
    return RoutingEntry(finger.peer, level, known, total.until, total.aggregate, finger.learnt_at - total.age_s)
