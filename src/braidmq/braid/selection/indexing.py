"""Index values: the members of a group divide the range from 0 to 1 among them, and a publisher picks one by a number.

A client says so by the topic, `$index/0.37/<topic>`, or by the MQTT 5 user property `index`. Members stand in the order
of their clusters, brokers and client ids, each with an equal part (IOTS 2019, §2.1). How many members a broker has is
asked while such publications come, so the division follows members that come and go; which of its own members is meant
a broker decides when the publication is there. What is for a member elsewhere is published to a topic of that broker.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from braidmq.bounded import BoundedDict
from braidmq.braid.interest.scope import may_see
from braidmq.braid.selection.messages import AskMemberCount, MemberCount
from braidmq.braid.shares.group_records import GroupRecords
from braidmq.broker.broker import Broker
from braidmq.broker.component_topics import level_of
from braidmq.broker.federation import ScopeError
from braidmq.broker.message import Message, Reached, forwarded
from braidmq.broker.session import Session
from braidmq.broker.shares import ShareGroup
from braidmq.host import Address, Host, Reply, Service, ask, handles, run_all
from braidmq.mqtt.packets import Publish, Will
from braidmq.mqtt.properties import PUBLISH, Properties, property_bytes, read_properties
from braidmq.mqtt.reasons import Reason
from braidmq.mqtt.wire import Reader, string, varint

INDEX_PREFIX: Final = "$index/"
PROPERTY: Final = "index"
ENVELOPE: Final = "$index"
"""The user property that tells a member's broker what it is about; clients cannot publish to its topic."""

GROUPS_MAX: Final = 1_000
"""Groups of which is known how many members they have where."""

ASK_EVERY_S: Final = 1.0
"""How old that may be before it is asked again."""

ASK_TIMEOUT_S: Final = 2.0

_MARK: Final = b"\x26" + string(PROPERTY)
_decode: Final = msgspec.json.Decoder(tuple[str, str, float]).decode


class _Counts(msgspec.Struct):
    """By the identities of brokers: how many members they have, as they said at a time."""

    at: float = -math.inf
    members: dict[str, int] = msgspec.field(default_factory=dict)


class IndexedDelivery(Service):
    def __init__(self, broker: Broker, host: Host, records: GroupRecords, identity: str, cluster: str) -> None:
        self._broker = broker
        self._host = host
        self._records = records
        self._identity = identity
        self._cluster = cluster
        self._counts: BoundedDict[str, _Counts] = BoundedDict(GROUPS_MAX)
        self.topic = _topic_of(identity)
        """Where publications for members here come."""
        self.delivered = 0
        self._is_held = False
        host.serve(self)

    def stand(self) -> None:
        """There are members here, or have been."""
        if not self._is_held:
            self._is_held = True
            self._broker.router.hold(self.topic)

    # Publications of clients here

    def resolve(self, packet: Publish | Will) -> None:
        """Gives `$index/0.37/<topic>` its plain topic, and the property instead; a ScopeError if that is no index."""
        if not packet.topic.startswith(INDEX_PREFIX):
            return
        text, _, topic = packet.topic.removeprefix(INDEX_PREFIX).partition("/")
        if _number(text) is None or not topic or topic.startswith(INDEX_PREFIX):
            expected = "expected $index/<number from 0 to 1>/<topic>, as in $index/0.37/frames"
            raise ScopeError(Reason.TOPIC_NAME_INVALID, f"{packet.topic!r}: {expected}")
        packet.topic = topic
        others = [pair for pair in packet.properties.user_properties if pair[0] != PROPERTY]
        packet.properties.user_properties = [*others, (PROPERTY, text)]

    def deliver(self, message: Message, group: ShareGroup) -> bool:
        """Gives a publication with an index to the member of a group that it names; False if it names none."""
        index = index_of(message.forward)
        if index is None:
            return False
        found = self._member_at(index, message, group)
        if found is None:
            return False
        identity, part = found
        if identity == self._identity:
            session = _nth(group, part)
            if session is None:
                return False
            self._broker.sessions.shares.give(message, group, session)
        elif self._broker.publish(_enclosed(message, identity, group.full_filter, part)) is Reached.NOBODY:
            return False
        self.delivered += 1
        return True

    def _member_at(self, index: float, message: Message, group: ShareGroup) -> tuple[str, float] | None:
        """The broker of the member that an index names, and where in that broker's part it is, from 0 to 1."""
        counts = self._counts_of(group.full_filter)
        places = [(self._cluster, self._identity, len(_present(group)))]
        for record in self._records.members_of(group.full_filter):
            count = counts.members.get(record.identity, record.members)
            places.append((record.cluster, record.identity, count))
        places = sorted(place for place in places if place[2] and may_see(place[0], message.forward))
        left = index * sum(count for *_, count in places)
        for number, (_, identity, count) in enumerate(places):
            if left < count or number == len(places) - 1:
                return identity, min(left / count, 1.0)
            left -= count
        return None

    def _counts_of(self, full_filter: str) -> _Counts:
        """As it was said last; asked again if that was not just now."""
        counts = self._counts.get(full_filter)
        if counts is None:
            counts = self._counts[full_filter] = _Counts()
        if self._host.now() >= counts.at + ASK_EVERY_S:
            counts.at = self._host.now()
            self._host.spawn(self._ask(full_filter, counts))
        return counts

    async def _ask(self, full_filter: str, counts: _Counts) -> None:
        async def ask_one(identity: str, address: Address) -> None:
            told = await ask(self._host, address, AskMemberCount(full_filter), MemberCount, timeout_s=ASK_TIMEOUT_S)
            if told is not None:
                counts.members[identity] = told.count

        known = [(one.identity, one.address) for one in self._records.members_of(full_filter)]
        for identity in [one for one in counts.members if one not in dict(known)]:
            del counts.members[identity]
        await run_all(self._host, [ask_one(*one) for one in known])

    @handles(AskMemberCount)
    def on_ask(self, origin: Address, asked: AskMemberCount) -> Reply:
        group = self._broker.router.group(asked.full_filter)
        return MemberCount(0 if group is None else len(_present(group)))

    # Publications for members here

    def on_foreign(self, message: Message) -> None:
        """For one of the members here; for the group, if there is none any more."""
        opened = _opened(message)
        if opened is None:
            return
        plain, full_filter, part = opened
        group = self._broker.router.group(full_filter)
        session = None if group is None else _nth(group, part)
        shares = self._broker.sessions.shares
        if group is not None and session is not None:
            shares.give(plain, group, session)
        else:
            shares.deliver(plain, self._broker.router.group_for(full_filter))

    def on_publication(self, message: Message, is_logged: bool) -> None:
        """Nobody publishes to this topic here."""

    def on_run(self, payloads: Sequence[bytes], sender: str, is_logged: bool) -> None:
        """As before."""

    def on_foreign_run(self, payloads: Sequence[bytes]) -> None:
        """What comes has properties, and so comes one by one."""


def index_of(forward: bytes) -> float | None:
    """The index of a publication with these properties; a property of that name which is no such number is none."""
    if _MARK not in forward:
        return None
    pairs = _read(forward).user_properties
    return next((_number(value) for name, value in pairs if name == PROPERTY), None)


def _number(text: str) -> float | None:
    try:
        index = float(text)
    except ValueError:
        return None
    return index if 0.0 <= index <= 1.0 else None


def _read(forward: bytes) -> Properties:
    return read_properties(Reader(varint(len(forward)) + forward), PUBLISH)


def _present(group: ShareGroup) -> list[Session]:
    """The members that are connected, in the order in which they divide their broker's part."""
    present = [session for session in group.members if session.connection is not None]
    return sorted(present, key=lambda session: session.client_id)


def _nth(group: ShareGroup, part: float) -> Session | None:
    present = _present(group)
    return present[min(int(part * len(present)), len(present) - 1)] if present else None


def _topic_of(identity: str) -> str:
    return INDEX_PREFIX + level_of(identity)


def _enclosed(message: Message, identity: str, full_filter: str, part: float) -> Message:
    """A publication on its way to the broker of its member."""
    about = msgspec.json.encode((full_filter, message.topic, part)).decode()
    envelope = property_bytes(Properties(user_properties=[(ENVELOPE, about)]), PUBLISH)
    topic = _topic_of(identity)
    return msgspec.structs.replace(
        message, topic=topic, name=string(topic), forward=message.forward + envelope, retain=False, row=0, holders=0
    )


def _opened(message: Message) -> tuple[Message, str, float] | None:
    """What it was, the group it is for, and which of its members here."""
    properties = _read(message.forward)
    pairs = properties.user_properties
    if not pairs or pairs[-1][0] != ENVELOPE:
        return None
    try:
        full_filter, topic, part = _decode(pairs[-1][1])
    except msgspec.MsgspecError:
        return None
    properties.user_properties = pairs[:-1]
    plain = msgspec.structs.replace(
        message, topic=topic, name=string(topic), forward=forwarded(properties), row=0, holders=0
    )
    return plain, full_filter, part
