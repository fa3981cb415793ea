"""Shared subscriptions as people can see them: which groups want a topic, and whom the next message would go to, and
why. Nothing is bound by asking, and nobody's turn is over.
"""

from __future__ import annotations

from typing import Final

from braidmq.admin.share_contract import GroupChoice, GroupPlace, GroupStatus
from braidmq.braid.membership.broker_records import BrokerRecords
from braidmq.braid.shares.messages import GroupRecord
from braidmq.braid.shares.shares import ShareParts
from braidmq.broker.broker import Broker
from braidmq.broker.message import Message as Publication
from braidmq.broker.shares import ShareGroup
from braidmq.host import Address, Host, Message, Reply, Service, ask, handles, run_all
from braidmq.mqtt.topics import matches, split_share
from braidmq.mqtt.trees import FilterTree
from braidmq.mqtt.wire import string

GROUPS_TOLD_MAX: Final = 1_000
"""Groups in one answer about topics."""

GROUPS_TRACED_MAX: Final = 16
BROKERS_ASKED_MAX: Final = 64
"""Groups of a topic that a trace follows, and brokers that are asked about each of them."""

ASK_S: Final = 2.0

_WHY: Final = {
    "round-robin": "it is the broker's turn",
    "balanced": "it is behind the others, in proportion to what its members can take",
    "least-loaded": "its members can take most",
    "hash": "it has the key of this message",
}


class AskGroup(Message, frozen=True, array_like=True, gc=False):
    """Whom would you give a message on this topic to, and how are your members?"""

    full_filter: str
    topic: str


class GroupTold(Message, frozen=True, array_like=True, gc=False):
    members: int
    free: int
    member: str


class GroupSurvey(Service):
    def __init__(self, broker: Broker, host: Host, shares: ShareParts, brokers: BrokerRecords, name: str) -> None:
        self._broker = broker
        self._host = host
        self._shares = shares
        self._records = shares.records
        self._brokers = brokers
        self._name = name
        host.serve(self)

    # What wants a topic

    def statuses(self, wanted: str) -> tuple[list[GroupStatus], int]:
        """The groups whose filters a filter matches, and how many there are."""
        groups = [one for one in self._there() if wanted == "#" or matches(wanted, _filter_of(one))]
        groups.sort(key=lambda one: one.full_filter)
        return [self._status(one) for one in groups[:GROUPS_TOLD_MAX]], len(groups)

    def tree(self) -> FilterTree[list[str]]:
        """All groups that anybody is in, to be found by topics."""
        tree: FilterTree[list[str]] = FilterTree()
        by_filter: dict[str, list[str]] = {}
        for group in self._there():
            by_filter.setdefault(_filter_of(group), []).append(group.full_filter)
        for topic_filter, full_filters in by_filter.items():
            tree.set(topic_filter, sorted(full_filters))
        return tree

    def brokers_wanting(self, topic: str) -> dict[tuple[str, str], list[str]]:
        """By name and cluster: the groups by which brokers want a topic."""
        found: dict[tuple[str, str], list[str]] = {}
        for group in self._of(topic):
            if group.members:
                found.setdefault((self._name, self._shares.cluster), []).append(group.full_filter)
            for record in self._records.known_of(group.full_filter):
                found.setdefault((self._name_at(record.address), record.cluster), []).append(group.full_filter)
        return found

    def _there(self) -> list[ShareGroup]:
        return [one for one in self._broker.router.groups() if one.has_anybody]

    def _of(self, topic: str) -> list[ShareGroup]:
        found = [one for one in self._there() if matches(_filter_of(one), topic)]
        return sorted(found, key=lambda one: one.full_filter)

    def _status(self, group: ShareGroup) -> GroupStatus:
        brokers = [self._name] if group.members else []
        brokers += [self._name_at(record.address) for record in self._records.known_of(group.full_filter)]
        return GroupStatus(group.full_filter, group.policy.name, group.connected, sorted(brokers), group.waiting)

    def _name_at(self, address: Address) -> str:
        return next((one.name for one in self._brokers if one.address == address), str(address))

    # Whom a message would go to

    async def choices(self, topic: str, qos: int) -> list[GroupChoice]:
        """For each group that wants a topic, where a message from here would go."""
        found: list[GroupChoice] = []
        for group in self._of(topic)[:GROUPS_TRACED_MAX]:
            found.append(await self._choice(group, _message(topic, qos)))
        return found

    async def _choice(self, group: ShareGroup, message: Publication) -> GroupChoice:
        record, is_here, why = self._decide(group, message)
        told: dict[str, GroupTold] = {}

        async def ask_one(one: GroupRecord) -> None:
            asked = AskGroup(group.full_filter, message.topic)
            answer = await ask(self._host, one.address, asked, GroupTold, timeout_s=ASK_S)
            if answer is not None:
                told[one.identity] = answer

        records = list(self._records.known_of(group.full_filter))[:BROKERS_ASKED_MAX]
        await run_all(self._host, [ask_one(one) for one in records])
        places = [self._place(one, told.get(one.identity)) for one in records]
        if group.members:
            own = self._tell(group, message)
            places.insert(0, GroupPlace(self._name, self._shares.cluster, 0, own.members, own.free, own.member))
        places.sort(key=lambda place: (place.levels_up, place.broker))
        chosen = self._name if is_here else "" if record is None else self._name_at(record.address)
        member = next((place.member for place in places if place.broker == chosen), "")
        return GroupChoice(group.full_filter, group.policy.name, chosen, member, why, group.waiting, places)

    def _place(self, record: GroupRecord, told: GroupTold | None) -> GroupPlace:
        name, levels_up = self._name_at(record.address), self._shares.lender.levels_up(record.cluster)
        if told is None:
            return GroupPlace(name, record.cluster, levels_up, None, None, "")
        return GroupPlace(name, record.cluster, levels_up, told.members, told.free, told.member)

    def _decide(self, group: ShareGroup, message: Publication) -> tuple[GroupRecord | None, bool, str]:
        """The broker that a message would be lent to, or whether it would stay here; and why."""
        if group.is_waiting and message.qos:
            counted = "one message waits" if group.waiting == 1 else f"{group.waiting:,} messages wait"
            return None, False, f"{counted} here before it"
        if not group.is_near and group.elsewhere:
            place = self._shares.lender.spreading.peek(group, message)
            if place is not None:
                return place.record, place.record is None, _WHY[group.policy.name]
        elif group.peek(message) is not None:
            return None, True, "a member here is free" if group.is_near else _WHY[group.policy.name]
        nearest = self._shares.lender.nearest(group) if group.is_near else []
        if nearest:
            levels_up, record, _ = nearest[0]
            how_near = (
                f"{levels_up} levels up" if levels_up > 1 else "one level up" if levels_up else "as near as can be"
            )
            here = "no member here is free" if group.connected else "no member is here"
            return record, False, f"{here}, and of the brokers whose members have room it is the nearest: {how_near}"
        if group.policy.name == "hash" and message.qos:
            return None, False, "who has its key is busy: it waits here"
        if not message.qos and group.connected:
            return None, True, "all are busy: at QoS 0 one here gets it all the same"
        if group.connected or self._records.members_of(group.full_filter):
            return None, False, "all members are busy: it waits here until one is free"
        return None, False, "no member is connected: it waits here for one that comes back"

    def _tell(self, group: ShareGroup, message: Publication) -> GroupTold:
        member = group.peek(message)
        return GroupTold(group.connected, group.offered, "" if member is None else member.client_id)

    @handles(AskGroup)
    def on_ask_group(self, _origin: Address, asked: AskGroup) -> Reply:
        group = self._broker.router.group(asked.full_filter)
        return GroupTold(0, 0, "") if group is None else self._tell(group, _message(asked.topic, 1))


def _filter_of(group: ShareGroup) -> str:
    return split_share(group.full_filter)[1]


def _message(topic: str, qos: int) -> Publication:
    return Publication(topic, string(topic), b"", qos)
