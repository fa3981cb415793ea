"""Explicit multicast: one message to exactly the brokers of a list.

Few brokers get a copy each, directly. To reach many, the list is cut into parts, and one broker of each part gets its
copy together with the rest of the part, for which it does the same: a tree in which only receivers pass on, so nobody
handles a message that it does not want.

A cluster that is not the sender's own gets one copy, however many of its brokers are on the list: the one that gets it
passes it on inside. Clusters are paths (`eu/fr`), so of a cluster seen from outside, those below it are parts: one copy
goes into `eu`, one from there into `eu/fr`. No part has brokers that are nearer to the sender together with brokers
that are further away, or a message would leave the sender's own cluster and come back.

`send` only tells. `deliver` also proves: every receiver says to the root that it has the message, and those that have
not said so get it again, directly. A copy that comes a second time is not handed over again, and not passed on again,
since the root sees to all that are missing; but it is acknowledged again, for the first acknowledgement may be lost.

Publications of many topics that are for the same brokers can go as one message (`pack`): a fleet in which each device
has a topic of its own would else take a message for each.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable
from zlib import crc32

import msgspec

from braidmq.host import Address, Host, Reply, Service, handles
from braidmq.pubsub.covers.multicast_messages import MANY_TOPICS, CopyReceived, Listed, MulticastCopy
from braidmq.pubsub.method import Method, OnMessage, Publication

DIRECT_MAX = 8
"""Copies that a broker sends one each, before it lets receivers pass on."""

FANOUT = 8
"""Parts that a longer list is cut into, those of each distance for themselves."""

OPEN_MAX = 65536
"""Proven deliveries of its own that a host waits for at a time."""

RESEND_S = 1.0
RESEND_S_MAX = 8.0
"""How long the root waits before it sends again to those missing: twice as long each time, up to a bound."""

SWEEP_S = 0.5
"""How often the root looks for deliveries that are due."""

ACKNOWLEDGE_S = 0.02
"""How long a receiver lets acknowledgements come together, which then leave in one piece: a small part of the time
after which the root would send again."""

ACKNOWLEDGED_AT_ONCE = 256
"""With so many it does not wait."""

SEEN_MAX = 4096
"""Copies of each kind that a broker tells from new ones. One that comes again after so many others counts as new."""


_log = logging.getLogger("braidmq.braid")


class Receiver(NamedTuple):
    """A broker that is to get a message."""

    name: str
    address: Address
    cluster: str


Publishing = tuple[str, bytes]
"""A topic, and what is published to it."""

OnMissing = Callable[[tuple[Receiver, ...]], None]
"""Called once, with those that have not said that they have the message."""

BeginCopy = Callable[[bytes, float], MulticastCopy | None]
"""Given a body and the time: its copy, if there is room for one more delivery."""

OnHop = Callable[[Address, MulticastCopy], None]
"""The host that it comes from, and the copy."""


class _Unacknowledged(msgspec.Struct):
    """A proven delivery of this host's own that not all have acknowledged yet."""

    copy: MulticastCopy
    missing: dict[Address, Receiver]
    on_outcome: OnMissing
    again_at: float
    ends_at: float
    wait_s: float = RESEND_S


class Multicast(Service):
    """One broker's part: it sends to lists, passes on for others, and hands over what is for it."""

    def __init__(self, host: Host, cluster: str, on_message: OnMessage) -> None:
        """`on_message` is called once for each message that comes here."""
        self.host = host
        self.cluster = cluster
        self.on_message = on_message
        self.on_hop: OnHop | None = None
        """Called when a copy has come here from another host, before it is passed on: to follow it."""
        self._number = host.chance.getrandbits(60) | 1 << 60
        """Of the last message: not one of an earlier life of this host, and always written in eight bytes."""
        self._seen = _RecentCopies(SEEN_MAX)
        self._seen_proven = _RecentCopies(SEEN_MAX)
        self._open: dict[int, _Unacknowledged] = {}
        self._is_sweeping = False
        self._received: list[tuple[Address, int]] = []
        """Roots and numbers of copies that are to be acknowledged."""
        host.serve(self)

    # Sending

    def send(self, topic: str, body: bytes, receivers: Sequence[Receiver]) -> None:
        """Tells these brokers, which are others than this one, and none of them listed twice."""
        self._number += 1
        self._spread(MulticastCopy(self.host.address, self._number, topic, 1, (), False, body), receivers)

    def deliver(
        self, topic: str, body: bytes, receivers: Sequence[Receiver], timeout_s: float, on_outcome: OnMissing
    ) -> None:
        """As `send`, and says when all of them have it, or which may not when time is over."""
        if len(self._open) >= OPEN_MAX:
            raise RuntimeError(f"{OPEN_MAX} deliveries are under way: wait for their outcomes before beginning more")
        if not receivers:
            on_outcome(())
            return
        missing = {receiver.address: receiver for receiver in receivers}
        copy = self._begin(self.host.address, topic, body, missing, self.host.now(), timeout_s, on_outcome)
        self._spread(copy, receivers)

    def _begin(
        self,
        root: Address,
        topic: str,
        body: bytes,
        missing: dict[Address, Receiver],
        now: float,
        timeout_s: float,
        on_outcome: OnMissing,
    ) -> MulticastCopy:
        """The copy of a delivery that is proven from now on."""
        self._number = number = self._number + 1
        copy = MulticastCopy(root, number, topic, 1, (), True, body)
        self._open[number] = _Unacknowledged(copy, missing, on_outcome, now + RESEND_S, now + timeout_s)
        if not self._is_sweeping:
            self._is_sweeping = True
            self.host.spawn(self._sweep())
        return copy

    def repeater(self, number: int, timeout_s: float) -> BeginCopy | None:
        """What begins further deliveries like one that is under way, to the same brokers: whoever has it sends the copy
        to these. It gives None while too many are under way."""
        mine = self._open.get(number)
        if mine is None:
            return None
        root, topic, missing, on_outcome = mine.copy.root, mine.copy.topic, dict(mine.missing), mine.on_outcome

        def begin(body: bytes, now: float) -> MulticastCopy | None:
            if len(self._open) >= OPEN_MAX:
                return None
            return self._begin(root, topic, body, missing.copy(), now, timeout_s, on_outcome)

        return begin

    def _spread(self, copy: MulticastCopy, receivers: Sequence[Receiver]) -> None:
        if len(receivers) <= DIRECT_MAX:
            for receiver in receivers:
                if receiver.cluster and receiver.cluster != self.cluster and len(receivers) > 1:
                    break
            else:
                for receiver in receivers:
                    self.host.send(receiver.address, copy)
                return
        self._pass_on(copy, [(receiver.address, receiver.cluster) for receiver in receivers])

    def _pass_on(self, copy: MulticastCopy, to: Sequence[Listed]) -> None:
        """One copy for each part, to one of its brokers, with the others of the part."""
        turn = crc32(copy.topic.encode())  # so the topics share out what there is to pass on
        for part in parts_of(self.cluster, to):
            address, _ = part.pop(turn % len(part))
            self.host.send(address, msgspec.structs.replace(copy, to=tuple(part)) if part else copy)

    # Arriving

    @handles(MulticastCopy)
    def on_copy(self, origin: Address, copy: MulticastCopy) -> Reply:
        if self.on_hop is not None:
            self.on_hop(origin, copy)
        seen = self._seen_proven if copy.is_proven else self._seen
        if seen.is_new((copy.root, copy.number)):
            if copy.to:
                self._pass_on(msgspec.structs.replace(copy, hops=copy.hops + 1, to=()), copy.to)
            self._hand_over(copy)
        if copy.is_proven:
            self._acknowledge_later(copy.root, copy.number)
        return None

    def note_received(self, root: Address, number: int) -> None:
        """A proven copy for this broker alone came a short way, and was handed over: as if it had come here."""
        self._seen_proven.is_new((root, number))
        self._acknowledge_later(root, number)

    def _acknowledge_later(self, root: Address, number: int) -> None:
        self._received.append((root, number))
        if len(self._received) == 1:
            self.host.spawn(self._acknowledge_soon())
        elif len(self._received) >= ACKNOWLEDGED_AT_ONCE:
            self._acknowledge()

    async def _acknowledge_soon(self) -> None:
        await self.host.sleep(ACKNOWLEDGE_S)
        self._acknowledge()

    def _acknowledge(self) -> None:
        """Says of all that has come since the last time that it is here."""
        received, self._received = self._received, []
        for root, number in received:
            self.host.send(root, CopyReceived(number))

    def _hand_over(self, copy: MulticastCopy) -> None:
        if copy.topic != MANY_TOPICS:
            self.on_message(Publication(copy.topic, copy.body, copy.root, copy.number, copy.hops))
            return
        try:
            publications = _unpack(copy.body)
        except msgspec.MsgspecError as error:
            _log.warning("%s sent publications that cannot be read: %s", copy.root, error)
            return
        for topic, body in publications:
            self.on_message(Publication(topic, body, copy.root, copy.number, copy.hops))

    # Proving

    @handles(CopyReceived)
    def on_received(self, origin: Address, told: CopyReceived) -> Reply:
        mine = self._open.get(told.number)
        if mine is not None and mine.missing.pop(origin, None) is not None and not mine.missing:
            self._conclude(told.number, mine)
        return None

    async def _sweep(self) -> None:
        """Sends again to those missing, and ends what takes too long."""
        try:
            while self._open:
                await self.host.sleep(SWEEP_S)
                now = self.host.now()
                for number, mine in list(self._open.items()):
                    if now >= mine.ends_at:
                        self._conclude(number, mine)
                    elif now >= mine.again_at:
                        mine.wait_s = min(RESEND_S_MAX, 2 * mine.wait_s)
                        mine.again_at = now + mine.wait_s
                        for address in mine.missing:
                            self.host.send(address, mine.copy)
        finally:
            self._is_sweeping = False

    def _conclude(self, number: int, mine: _Unacknowledged) -> None:
        if self._open.pop(number, None) is not None:
            mine.on_outcome(tuple(mine.missing.values()))


@runtime_checkable
class MulticastMethod(Method, Protocol):
    """A method that sends publications to the brokers that want them by multicast."""

    @property
    def multicast(self) -> Multicast: ...


def pack(publications: Sequence[Publishing]) -> bytes:
    """What is sent as the body of a copy with the topic MANY_TOPICS."""
    return _encode(publications)


_encode = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[Publishing]).decode


class _RecentCopies:
    """Which copies have come: at least the last half of `length_max`, and at most so many.

    Two sets, of which the older is given up when the younger is full, cost a fraction of one that gives up its oldest
    each time; and this is asked for every copy that comes.
    """

    __slots__ = ("_half_max", "_older", "_younger")

    def __init__(self, length_max: int) -> None:
        self._half_max = length_max // 2
        self._younger: set[tuple[Address, int]] = set()
        self._older = self._younger

    def is_new(self, name: tuple[Address, int]) -> bool:
        """True the first time."""
        if name in self._younger or name in self._older:
            return False
        if len(self._younger) >= self._half_max:
            self._older = self._younger
            self._younger = set()
        self._younger.add(name)
        return True


# Parts of a list


def parts_of(cluster: str, to: Sequence[Listed]) -> list[list[Listed]]:
    """The parts of a list, each for one copy, as a broker in this cluster sends them.

    All brokers of another cluster are in one part. If there are more such groups and single brokers than copies to be
    sent directly, those that are equally near are put together.
    """
    if {one[1] for one in to} in ({""}, {cluster}):  # the common case, at a fraction of the cost
        count = len(to) if len(to) <= DIRECT_MAX else FANOUT
        return [list(to[len(to) * index // count : len(to) * (index + 1) // count]) for index in range(count)]
    own = cluster.split("/") if cluster else []
    kinds: dict[str, tuple[int, str]] = {}
    near: dict[tuple[int, bool], dict[str | int, list[Listed]]] = {}
    """By nearness, and whether they are other clusters: groups of brokers, by cluster or one by one."""
    for index, one in enumerate(to):
        kind = kinds.get(one[1])
        if kind is None:
            kind = kinds[one[1]] = _kind_of(own, cluster, one[1])
        shared, other = kind
        near.setdefault((shared, bool(other)), {}).setdefault(other or index, []).append(one)
    if sum(map(len, near.values())) <= DIRECT_MAX:
        return [group for groups in near.values() for group in groups.values()]
    return [part for groups in near.values() for part in _joined(list(groups.values()))]


def _kind_of(own: list[str], cluster: str, other: str) -> tuple[int, str]:
    """How many levels two clusters share, and which cluster, seen from one, the other is in; "" if it is no other."""
    if not other or other == cluster:
        return (len(own) if other else 0), ""
    levels = other.split("/")
    shared = 0
    while shared < min(len(own), len(levels)) and own[shared] == levels[shared]:
        shared += 1
    return shared, "/".join(levels[: shared + 1])


def _joined(groups: list[list[Listed]]) -> list[list[Listed]]:
    """At most FANOUT parts of whole groups, in their order and about equally long."""
    left = sum(map(len, groups))
    parts: list[list[Listed]] = []
    part: list[Listed] = []
    for group in groups:
        parts_left = FANOUT - len(parts)
        if part and parts_left > 1 and len(part) + len(group) / 2 > (left + len(part)) / parts_left:
            parts.append(part)
            part = []
        part += group
        left -= len(group)
    parts.append(part)
    return parts
