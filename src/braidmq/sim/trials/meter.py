"""Measuring publications: a message belongs to one if it carries its body, whatever the method calls it.

The bodies of a trial end with a mark and a number, by which the meter knows them on the network and on arrival. What is
noted of a publication is kept until it is over, and then added to a `Tally`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from braidmq.host import Address, Message
from braidmq.pubsub.method import Publication
from braidmq.sim.checkers.complaints import Complaints
from braidmq.sim.checkers.pubsub import each_got_it_once, nobody_else_was_bothered
from braidmq.sim.engine import Simulator

BODY_BYTES = 100
MARK = b"\xfe\xffbraid\xfe"
NUMBER_BYTES = 8


class Tally(msgspec.Struct):
    """What publications add up to."""

    publications: int = 0
    suspended: int = 0
    """Of the publications, those that their method did not send, for lack of subscribers."""
    expected: int = 0
    deliveries: int = 0
    missed: int = 0
    duplicates: int = 0
    bothered: int = 0
    """How often a broker was sent a publication whose topic it neither publishes nor subscribes to."""
    messages: int = 0
    messages_without_subscribers: int = 0
    crossings: int = 0
    """Of the messages, those from one cluster to another."""
    bytes: int = 0
    forwards_max: int = 0
    """The most messages that one node sent for one publication."""
    children_max: int = 0
    """The most nodes that one node sent one publication to."""
    hops: Counter[int] = msgspec.field(default_factory=Counter)
    delay_sum_s: float = 0.0
    delay_max_s: float = 0.0


class _Open(msgspec.Struct):
    """A publication that is not over."""

    name: str
    publisher: int
    subscribers: tuple[int, ...]
    members: tuple[int, ...]
    published_at: float
    sent: dict[Address, list[Address]] = msgspec.field(default_factory=dict)
    got: list[int] = msgspec.field(default_factory=list)
    bytes: int = 0
    hops: list[int] = msgspec.field(default_factory=list)
    delays_s: list[float] = msgspec.field(default_factory=list)


class Meter:
    """Listens to a simulator from now on. `heard_at` is when it last heard of a publication."""

    def __init__(self, sim: Simulator, clusters: int = 1) -> None:
        self.heard_at = sim.now
        self._clusters = clusters
        self.late_deliveries = 0
        """Deliveries of publications that had counted as over."""
        self._sim = sim
        self._open: dict[int, _Open] = {}
        self._number = 0
        self._encode = msgspec.msgpack.Encoder().encode
        sim.on_send = self._sent

    def begin(self, topic: str, publisher: int, subscribers: tuple[int, ...], members: tuple[int, ...]) -> bytes:
        """The body of a new publication; `members` are all brokers that may see it."""
        self._number += 1
        name = f"publication {self._number} of broker {publisher} on {topic}"
        self._open[self._number] = _Open(name, publisher, subscribers, members, self._sim.now)
        self.heard_at = self._sim.now
        return body_of(self._number)

    def under_way(self) -> Iterable[_Open]:
        """The publications that were begun and are not over."""
        return self._open.values()

    def received(self, broker: int, publication: Publication) -> None:
        mine = self._open.get(number_of(publication.body) or 0)
        if mine is None:
            self.late_deliveries += 1
            return
        mine.got.append(broker)
        if broker != mine.publisher:
            mine.hops.append(publication.hops)
            mine.delays_s.append(self._sim.now - mine.published_at)
        self.heard_at = self._sim.now

    def _sent(self, sender: Address, to: Address, message: Message, hops: int, delays: tuple[float, ...]) -> None:
        if sender == to:
            return
        mine = self._open.get(publication_of(message) or 0)
        if mine is not None:
            mine.sent.setdefault(sender, []).append(to)
            mine.bytes += len(self._encode((0, hops, message)))  # as a Tell travels between brokers
            self.heard_at = self._sim.now

    def close(self, tally: Tally, complaints: Complaints | None, relay_free: bool) -> None:
        """Counts all publications that were begun as over."""
        for mine in self._open.values():
            _add(tally, mine, self._clusters)
            if complaints is not None:
                complaints.add(each_got_it_once(mine.name, mine.subscribers, mine.got))
                if relay_free:
                    reached = [int(to) for receivers in mine.sent.values() for to in receivers]
                    complaints.add(nobody_else_was_bothered(mine.name, mine.members, reached))
        self._open.clear()


def body_of(number: int) -> bytes:
    """What a publication with this number carries."""
    return bytes(BODY_BYTES - len(MARK) - NUMBER_BYTES) + MARK + number.to_bytes(NUMBER_BYTES)


def publication_of(message: Message) -> int | None:
    """Which publication a message carries, itself or within what it hands over; None if none."""
    body: bytes | None = getattr(message, "body", None)
    if body is None:
        body = getattr(getattr(message, "carried", None), "body", None)
    return None if body is None else number_of(body)


def number_of(body: bytes) -> int | None:
    """Which publication a body is of; None if of none."""
    return int.from_bytes(body[-NUMBER_BYTES:]) if body[-len(MARK) - NUMBER_BYTES : -NUMBER_BYTES] == MARK else None


def _add(tally: Tally, mine: _Open, clusters: int) -> None:
    expected = dict.fromkeys(mine.subscribers)
    members = dict.fromkeys(mine.members)
    once = dict.fromkeys(mine.got)
    messages = sum(map(len, mine.sent.values()))
    tally.publications += 1
    tally.expected += len(expected)
    tally.deliveries += len(mine.got)
    tally.missed += sum(broker not in once for broker in expected)
    tally.duplicates += len(mine.got) - len(once)
    tally.bothered += sum(to not in members for to in {to: None for some in mine.sent.values() for to in some})
    tally.messages += messages
    if not expected:
        tally.messages_without_subscribers += messages
    if clusters > 1:
        ways = [(int(sender), int(to)) for sender, receivers in mine.sent.items() for to in receivers]
        tally.crossings += sum(sender % clusters != to % clusters for sender, to in ways)
    tally.bytes += mine.bytes
    for receivers in mine.sent.values():
        tally.forwards_max = max(tally.forwards_max, len(receivers))
        tally.children_max = max(tally.children_max, len(set(receivers)))
    tally.hops.update(mine.hops)
    tally.delay_sum_s += sum(mine.delays_s)
    tally.delay_max_s = max(tally.delay_max_s, *mine.delays_s, 0.0)
