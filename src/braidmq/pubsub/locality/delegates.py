"""Which clusters have subscribers of a topic, and to which subscriber of each a message is handed.

The keys of a topic's subscribers are in the order of their clusters, a parent before its children. So the owner of the
key at which a cluster would begin has the first subscriber from there on as its right neighbour, and one question after
another, each asked at the end of the cluster that was found last, finds them all:

    │ a/sub/x  a/sub/y │ b/sub/z │            │ d/sub/w │
    ▲ asks here, finds a         ▲ here, b    ▲ here, d ▲ here, nobody

The owner of such a key is remembered and asked directly the next time, one hop instead of a lookup: that is the check
of each period, and it misses nothing, as a right link is what a node itself decides on. A first subscriber in a cluster
is therefore known to a publisher after CHECK_S, the time of the questions added; aggregates would need T · log² n. It
is known sooner where it says so itself (`hear`), and nothing that was asked before that makes it unknown again.

Clusters are seen from a broker's own: of another tree of clusters only the root counts, as one area; of its
own tree every branch that leaves the way to its own cluster is an area, and each cluster on that way is one without its
children (`ClusterArea.alone`). So areas never overlap, and a delegate does the same again within its area.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from math import inf
from typing import NamedTuple

import msgspec

from braidmq.bounded import BoundedDict
from braidmq.host import Host, Message, Reply, Service, ask, handles
from braidmq.keys import LEVEL, Key, Role, is_within, parts_of, segment
from braidmq.overlay import Acquaintances, FoundOwner, Overlay, Peer
from braidmq.overlay.key_ranges import JUST_AFTER, KeyRange
from braidmq.overlay.ring import CALL_TIMEOUT_S, owns
from braidmq.pubsub.method import ignore

CHECK_S = 30.0
"""How often a publisher looks for clusters: the longest that one is unknown to it, or still known and gone."""

EXPIRY_S = 60.0
"""How old a directory may be when it is used; an older one is learnt again first, while publications wait."""

DIRECTORIES_MAX = 1024
"""Directories that a broker keeps, besides those of the topics that it advertises; the one used longest ago goes."""

WAITING_MAX = 1024
"""Publications that wait for a directory to be learnt."""

LEARN_TRIES = 3
LEARN_WAIT_S = 1.0
"""The pause after a question that nobody answered."""


class AskOwner(Message, tag="Beside", frozen=True, array_like=True, gc=False):
    """Does your node `to` still own this key, and what is its right neighbour?"""

    to: Key
    key: Key


class NotOwner(Message, tag="NotBeside", frozen=True, array_like=True, gc=False):
    """No: another node does, or this one is gone."""


class ClusterArea(NamedTuple):
    """A cluster and all below it, or `alone`."""

    path: str
    alone: bool

    def range_of(self, topic: str) -> KeyRange:
        low, high = segment(topic, Role.SUBSCRIBER, self.path)
        return (low, low[:-1] + LEVEL) if self.alone else (low, high)


def area_of(cluster: str, own: str, scope: str | None) -> ClusterArea:
    """The area that a cluster in a scope belongs to, seen from the own cluster. From outside a scope is one area."""
    if scope is not None and not is_within(own, scope):
        return ClusterArea(scope, False)
    if is_within(own, cluster):
        return ClusterArea(cluster, True)
    theirs, mine = cluster.split("/"), own.split("/")
    common = 0
    while common < min(len(theirs), len(mine)) and theirs[common] == mine[common]:
        common += 1
    return ClusterArea("/".join(theirs[: common + 1]), False)


class Delegate(msgspec.Struct, frozen=True, gc=False):
    """Where an area's messages are handed to: its first subscriber, or if that is silent its last, if it is known."""

    area: ClusterArea
    low: Key
    first: Peer
    last: Peer | None = None

    def candidates(self, silent: Acquaintances, now: float) -> list[Peer]:
        """Brokers that have answered lately come first."""
        peers = [self.first] if self.last in (None, self.first) else [self.first, self.last]
        return sorted((peer for peer in peers if peer), key=lambda peer: silent.is_suspected(peer.key, now))


class ClusterDirectory:
    """The areas of a topic within a scope that have subscribers, in the order of keys."""

    __slots__ = ("delegates", "heard", "is_learning", "learnt_at", "owners", "range", "scope", "topic", "waiting")

    def __init__(self, topic: str, scope: str | None) -> None:
        self.topic = topic
        self.scope = scope
        self.range: KeyRange = segment(topic, Role.SUBSCRIBER, scope)
        self.delegates: list[Delegate] = []
        self.learnt_at: float | None = None
        self.heard: dict[ClusterArea, tuple[float, Delegate]] = {}
        """The subscribers that have said so themselves, and when: newer than what was asked for before."""
        self.owners: dict[Key, Peer] = {}
        """The owner of each key that was asked about, the last time."""
        self.waiting: list[Callable[[ClusterDirectory], None]] = []
        """What is to be done once it has been learnt."""
        self.is_learning = False

    def is_fresh(self, now: float) -> bool:
        return self.learnt_at is not None and now - self.learnt_at <= EXPIRY_S

    def expire(self) -> None:
        """What it says did not do: it must be learnt again."""
        if self.learnt_at is not None:
            self.learnt_at = -inf

    def of(self, area: ClusterArea) -> Delegate | None:
        return next((delegate for delegate in self.delegates if delegate.area == area), None)

    def put(self, delegate: Delegate) -> None:
        self.remove(delegate.area)
        index = bisect_left([other.low for other in self.delegates], delegate.low)
        self.delegates.insert(index, delegate)

    def remove(self, area: ClusterArea) -> None:
        self.delegates = [delegate for delegate in self.delegates if delegate.area != area]

    def add_heard(self, since: float) -> None:
        """Adds subscribers heard of since a time, where no other of their area is known; forgets those heard before."""
        self.heard = {area: (at, one) for area, (at, one) in self.heard.items() if at >= since}
        for area, (_, delegate) in self.heard.items():
            if self.of(area) is None:
                self.put(delegate)

    def split(self, low: Key, high: Key) -> list[tuple[Delegate, KeyRange]]:
        """The areas in [low, high), with their ranges."""
        ranges = [(delegate, delegate.area.range_of(self.topic)) for delegate in self.delegates]
        return [(delegate, part) for delegate, part in ranges if low <= part[0] < high]

    def split_at_firsts(self, low: Key, high: Key) -> tuple[KeyRange, list[tuple[Delegate, KeyRange]]]:
        """Parts [low, high) without remainder: each area's begins with its first subscriber; and what is before all."""
        inside = [delegate for delegate in self.delegates if low <= delegate.first.key < high]
        starts = [*(delegate.first.key for delegate in inside), high]
        parts = [(delegate, (starts[index], starts[index + 1])) for index, delegate in enumerate(inside)]
        return (low, starts[0]), parts


class ClusterDirectories(Service):
    """A broker's directories, and its answers to the questions of other brokers."""

    def __init__(self, overlay: Overlay, cluster: str) -> None:
        self._overlay = overlay
        self._host: Host = overlay.host
        self._cluster = cluster
        self.on_learnt: Callable[[ClusterDirectory], None] = ignore
        """Called when a directory has been learnt, or could not be, and when an area was found to be gone."""
        self._kept: dict[str, ClusterDirectory] = {}
        self._others: BoundedDict[tuple[str, str | None], ClusterDirectory] = BoundedDict(DIRECTORIES_MAX)
        self._host.serve(self)

    def keep(self, topic: str) -> ClusterDirectory:
        """The directory of all clusters, for as long as the topic is advertised."""
        directory = self._kept[topic] = self.of(topic, None)
        self._others.pop((topic, None), None)
        return directory

    def release(self, topic: str) -> None:
        self._kept.pop(topic, None)

    def forget(self, topic: str) -> None:
        """While this broker had no key for a topic, it was told nothing of it: what was known may be old."""
        for name in [name for name in self._others if name[0] == topic]:
            del self._others[name]

    def hear(self, topic: str, subscriber: Peer) -> None:
        """There is a new subscriber, which may be the first of its cluster."""
        known = [directory for (of, _), directory in self._others.items() if of == topic]
        if topic in self._kept:
            known.append(self._kept[topic])
        for directory in known:
            delegate = self._delegate(directory, subscriber)
            if delegate is not None:
                now = self._host.now()
                directory.heard[delegate.area] = (now, delegate)
                if directory.of(delegate.area) is None:
                    directory.put(delegate)
                    self.on_learnt(directory)

    def of(self, topic: str, scope: str | None) -> ClusterDirectory:
        """What is known of a topic's clusters within a scope: nothing at first."""
        if scope is None and topic in self._kept:
            return self._kept[topic]
        directory = self._others.get((topic, scope)) or ClusterDirectory(topic, scope)
        self._others.renew((topic, scope), directory)
        return directory

    # Learning

    def when_known(self, directory: ClusterDirectory, action: Callable[[ClusterDirectory], None]) -> bool:
        """Does something with a directory, once it is fresh, one after the other; False if too much waits for that.

        If it cannot be learnt, the action sees one that is older, or that never was.
        """
        if directory.is_fresh(self._host.now()) and not directory.waiting:
            action(directory)
            return True
        if len(directory.waiting) >= WAITING_MAX:
            return False
        directory.waiting.append(action)
        if not directory.is_learning:
            directory.is_learning = True
            self._host.spawn(self._learn_and_go_on(directory))
        return True

    async def _learn_and_go_on(self, directory: ClusterDirectory) -> None:
        await self.learn(directory)
        directory.is_learning = False
        waiting, directory.waiting = directory.waiting, []
        for action in waiting:
            action(directory)

    async def learn(self, directory: ClusterDirectory) -> None:
        """Finds all areas with subscribers; if that is not possible, nothing is changed."""
        for attempt in range(LEARN_TRIES):
            if attempt:
                await self._host.sleep(LEARN_WAIT_S)
            if await self._find_areas(directory):
                break
        self.on_learnt(directory)

    async def _find_areas(self, directory: ClusterDirectory) -> bool:
        began_at = self._host.now()
        delegates: list[Delegate] = []
        owners: dict[Key, Peer] = {}
        at, end = directory.range
        me = self._as_first(directory)
        if me is not None:
            area = ClusterArea(self._cluster, True)
            delegates.append(Delegate(area, at, me))
            at = area.range_of(directory.topic)[1]
        while at < end:
            found = await self._owner(at, directory.owners.get(at))
            if found is None:
                return False
            owners[at] = found.owner
            if delegates and delegates[-1].low <= found.owner.key < at:
                delegates[-1] = msgspec.structs.replace(delegates[-1], last=found.owner)
            if not at <= found.right.key < end:
                break
            delegate = self._delegate(directory, found.right)
            if delegate is None:
                at = found.right.key + JUST_AFTER
                continue
            delegates.append(delegate)
            at = delegate.area.range_of(directory.topic)[1]
        if directory.learnt_at is None or directory.learnt_at <= began_at:
            directory.delegates, directory.owners, directory.learnt_at = delegates, owners, began_at
            directory.add_heard(began_at)
        return True

    def _as_first(self, directory: ClusterDirectory) -> Peer | None:
        """This broker's subscriber, if it is the first of its cluster, and only that cluster and those below count.

        So it is with a delegate, which then need not ask outside its cluster.
        """
        low, high = directory.range
        own = self._overlay.view.own_from(low)
        is_first = own is not None and low <= own.me.key < high and not low <= own.left.key < own.me.key
        return own.me if own is not None and is_first and directory.scope == self._cluster else None

    async def find_again(self, directory: ClusterDirectory, area: ClusterArea) -> None:
        """Makes sure of one area's delegate, which did not do; if it is the same, of another one beside it."""
        low, high = area.range_of(directory.topic)
        began_at = self._host.now()
        before = await self._owner(low, directory.owners.get(low))
        if before is None:
            return
        first, old = before.right, directory.of(area)
        if not low <= first.key < high:
            directory.remove(area)
            directory.add_heard(began_at)
            self.on_learnt(directory)
            return
        last = old.last if old is not None else None
        if old is not None and old.first == first:
            behind = await self._owner(high, directory.owners.get(high))
            last = behind.owner if behind is not None and low <= behind.owner.key < high else None
        directory.put(Delegate(area, low, first, last))

    async def is_empty(self, directory: ClusterDirectory, low: Key, high: Key) -> bool:
        """Whether it is certain that no key is in a range."""
        found = await self._owner(low, directory.owners.get(low))
        return found is not None and not any(low <= peer.key < high for peer in (found.owner, found.right))

    def _delegate(self, directory: ClusterDirectory, first: Peer) -> Delegate | None:
        """None if no subscriber can have its key: it gets nothing."""
        try:
            area = area_of(parts_of(first.key)[2], self._cluster, directory.scope)
        except ValueError:
            return None
        low, high = area.range_of(directory.topic)
        return Delegate(area, low, first) if low <= first.key < high else None

    async def _owner(self, key: Key, hint: Peer | None) -> FoundOwner | None:
        """The owner of a key: here, where it was the last time, or where a lookup leads."""
        own = self._overlay.view.own_up_to(key)
        if own is not None and own.is_in and owns(own, key):
            return FoundOwner(own.me, own.right, 0)
        if hint is not None and hint.address != self._host.address:
            answer = await ask(self._host, hint.address, AskOwner(hint.key, key), FoundOwner, timeout_s=CALL_TIMEOUT_S)
            if answer is not None:
                return answer
        return await self._overlay.lookup(key)

    @handles(AskOwner)
    def on_ask_owner(self, _origin: object, asked: AskOwner) -> Reply:
        node = self._overlay.view.own.get(asked.to)
        if node is None or not node.is_in or not owns(node, asked.key):
            return NotOwner()
        return FoundOwner(node.me, node.right, 0)
