"""What a broker can say of its braid: itself, the ring, its topics, which brokers want one, and the way to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from braidmq.admin.contract import (
    BraidStatus,
    CoversStatus,
    CursorStatus,
    DemandAnswer,
    FilterInterest,
    HistoryStatus,
    HopTotals,
    InboundCounts,
    InterestedBroker,
    KeyCounts,
    PublishedTopic,
    TopicCounts,
    TopicsAnswer,
    TraceAnswer,
    TraceHop,
)
from braidmq.admin.ring_contract import DistancesAnswer, RingAnswer
from braidmq.braid.catch_up.catch_up import CatchUpParts
from braidmq.braid.inspect.answers import Unanswerable, check_passed_on, describe_peer
from braidmq.braid.inspect.distances import Distances
from braidmq.braid.inspect.group_survey import GroupSurvey
from braidmq.braid.inspect.probes import TRACE_S_MAX, Probes
from braidmq.braid.inspect.ring import RingWalk
from braidmq.braid.inspect.subscribers import SubscriberSurvey
from braidmq.braid.interest.interest import InterestParts
from braidmq.braid.membership.admission import NOT_IN
from braidmq.braid.membership.membership import MembershipParts
from braidmq.braid.membership.presence import Presence
from braidmq.braid.mirrors.mirrors import MirrorParts
from braidmq.braid.transfer.outbound import OutboundTopics
from braidmq.braid.transfer.outbound_topic import OutboundTopic
from braidmq.braid.transfer.transfer import TransferParts
from braidmq.broker.local_topics import LOCAL_PREFIXES, SPOOL_PREFIXES
from braidmq.detours.detours import Detours
from braidmq.host import Address
from braidmq.keys import SEPARATOR, Role
from braidmq.mqtt.errors import PacketError
from braidmq.mqtt.topics import check_filter, matches
from braidmq.overlay import Overlay
from braidmq.pubsub.covers.covers import Covers
from braidmq.pubsub.method import Method

TOPICS_MAX = 10_000
"""Topics in one answer; the busiest come first."""

LOOKED_AT_ONCE = 5_000
"""Topics or filters that are looked at in one turn, for one answer."""

COUNTED_AT_ONCE = 2_000
"""Topics that are looked at each time it is asked how many nobody wants: where there are more, that is counted a part
at a time."""

CURSORS_SHOWN_MAX = 256

SETTLE_S = 3.0
"""How long a probe waits until it is known which filters of its topic are wanted."""

_INTERNAL = tuple(prefix.encode() for prefix in LOCAL_PREFIXES)
_PUBLISHER = ord(str(int(Role.PUBLISHER)))

T = TypeVar("T")


class SuspendedCount:
    """How many of the topics that are published here nobody wants; counted a part at a time where they are many."""

    def __init__(self, outbound: OutboundTopics) -> None:
        self._outbound = outbound
        self._left: list[OutboundTopic] = []
        """Those that this count has yet to look at."""
        self._counted = 0
        self._last = 0

    def count(self) -> int:
        """As of the last time that all of them were looked at."""
        if not self._left:
            self._left, self._counted = list(self._outbound), 0
        some, self._left = self._left[-COUNTED_AT_ONCE:], self._left[:-COUNTED_AT_ONCE]
        self._counted += sum(not one.is_open for one in some)
        if not self._left:
            self._last = self._counted
        return self._last


class BraidInspector:
    """Reads the rooms of a braid, and changes nothing."""

    def __init__(
        self,
        overlay: Overlay,
        method: Method,
        method_name: str,
        name: str,
        identity: str,
        presence: Presence,
        interest: InterestParts,
        catch_up: CatchUpParts,
        transfer: TransferParts,
        membership: MembershipParts,
        probes: Probes,
        detours: Detours,
        mirrors: MirrorParts,
        groups: GroupSurvey,
    ) -> None:
        self._host = host = overlay.host
        self._overlay = overlay
        self._method = method
        self._method_name = method_name
        self._name = name
        self._identity = identity
        self._cluster = interest.clusters.own
        self._presence = presence
        self._interest = interest
        self._catch_up = catch_up
        self._transfer = transfer
        self._membership = membership
        self._probes = probes
        self._groups = groups
        self._suspended = SuspendedCount(transfer.outbound)
        self._ring = RingWalk(host, overlay, presence, membership.admission, detours, mirrors, name, self._cluster)
        self._distances = Distances(host, membership.records)
        self.subscribers = SubscriberSurvey(host, method, method_name, interest.shapes, interest.filters)

    # This broker

    def keys_by_kind(self) -> dict[str, int]:
        """How many keys this broker stands for: for all brokers, for the braid's own needs, for filters."""
        found = {"home": 0, "internal": 0, "publisher": 0, "subscriber": 0}
        for key in self._overlay.view.own_keys:  # may be many: looked at as bytes
            end = key.index(SEPARATOR)
            if not end:
                found["home"] += 1
            elif key.startswith(_INTERNAL):
                found["internal"] += 1
            else:
                found["publisher" if key[end + 1] == _PUBLISHER else "subscriber"] += 1
        return found

    @property
    def suspended(self) -> int:
        """Topics that are published here and that nobody wants."""
        return self._suspended.count()

    @property
    def covers(self) -> CoversStatus | None:
        """The covers by which this broker meets others, if its method has any."""
        method = self._method
        if not isinstance(method, Covers):
            return None
        return CoversStatus(
            method.publication_covers, method.want_covers, method.watchers, method.subscribers, method.wants_known
        )

    @property
    def repairs(self) -> int:
        """How often the ring was mended at this broker."""
        return self._ring.repairs

    def describe(self) -> BraidStatus:
        """This broker's part of the braid."""
        node = self._ring.home_node
        outbound, inbound, hops = self._transfer.outbound, self._transfer.inbound, self._transfer.hops
        return BraidStatus(
            name=self._name,
            identity=self._identity,
            address=str(self._host.address),
            cluster=self._cluster,
            method=self._method_name,
            is_in=self._presence.is_in,
            trouble=self._membership.admission.trouble,
            age_s=round(self._ring.age_s, 3),
            left=None if node is None else describe_peer(node.left),
            right=None if node is None else describe_peer(node.right),
            repairs=self.repairs,
            keys=KeyCounts(**self.keys_by_kind()),
            routing_entries=len(self._overlay.view.entries),
            introducers=[str(address) for address in self._membership.introducers.known],
            shapes=list(self._interest.shapes),
            filters=len(self._interest.filters),
            topics=TopicCounts(len(outbound), self.suspended, outbound.dropped),
            history=self._describe_history(),
            cursors=self._describe_cursors(),
            inbound=InboundCounts(inbound.duplicates, inbound.given_up),
            unproven=self._transfer.sender.unproven,
            fetched=self._catch_up.reconciler.fetched,
            hops=HopTotals(sum(hops.by_hops), hops.total),
            covers=self.covers,
        )

    def _describe_history(self) -> HistoryStatus:
        history = self._catch_up.history
        return HistoryStatus(self._identity, history.head, len(history), history.bytes, history.forgotten)

    def _describe_cursors(self) -> list[CursorStatus]:
        return [
            CursorStatus(origin, str(cursor.address), cursor.floor, len(cursor.seen), cursor.head)
            for origin, cursor in list(self._catch_up.cursors)[:CURSORS_SHOWN_MAX]
        ]

    async def topics(self, wanted: str = "#", count_max: int = TOPICS_MAX) -> TopicsAnswer:
        """The topics that are published here, the busiest first, and the filters of clients here."""
        try:
            check_filter(wanted)
        except PacketError as error:
            raise Unanswerable(str(error)) from None

        def is_meant(text: str) -> bool:
            if wanted == "#":
                return not text.startswith(SPOOL_PREFIXES)  # what brokers say to each other is shown if it is asked for
            return wanted == text or matches(wanted, text)

        published, published_in_all = await self._first(
            self._transfer.outbound,
            lambda one: is_meant(one.topic),
            lambda one: (-one.number, one.topic),
            count_max,
        )
        filters, filters_in_all = await self._first(self._interest.filters, is_meant, str, count_max)
        announcer, now = self._interest.announcer, self._host.now()
        groups, groups_in_all = self._groups.statuses(wanted)
        by_topic = self._groups.tree()
        return TopicsAnswer(
            self._name,
            [
                PublishedTopic(
                    one.topic,
                    one.number,
                    list(one.filters),
                    self._wanted_by(one),
                    one.is_settled,
                    round(now - one.used_at, 3),
                    [full_filter for some in by_topic.match(one.topic) for full_filter in some],
                )
                for one in published
            ],
            published_in_all,
            [FilterInterest(one, announcer.announces(one), announcer.pending(one) is None) for one in filters],
            filters_in_all,
            self.covers,
            groups[:count_max],
            groups_in_all,
        )

    def _wanted_by(self, outbound_topic: OutboundTopic) -> list[str]:
        """The filters of other brokers' clients that want a topic."""
        wanted = list(outbound_topic.wanted)
        return (
            self._method.known.filters(outbound_topic.topic) if wanted and isinstance(self._method, Covers) else wanted
        )

    async def _first(
        self, all_: Iterable[T], is_meant: Callable[[T], bool], order: Callable[[T], Any], count_max: int
    ) -> tuple[list[T], int]:
        """The first of those that are meant, in an order, and how many there are: there may be a great many, so others
        have their turn in between."""
        found: list[T] = []
        count = 0
        every = list(all_)
        for begin in range(0, len(every), LOOKED_AT_ONCE):
            some = [one for one in every[begin : begin + LOOKED_AT_ONCE] if is_meant(one)]
            count += len(some)
            found = sorted([*found, *some], key=order)[:count_max]
            await self._host.sleep(0)
        return found, count

    # Other brokers

    async def ring(self) -> RingAnswer:
        """All brokers in the order of their home keys, and whether neighbours agree that they are neighbours."""
        return await self._ring.walk()

    async def distances(self) -> DistancesAnswer:
        """How far all other brokers are."""
        return await self._distances.measure()

    async def demand(self, topic: str) -> DemandAnswer:
        """The brokers whose clients want a topic."""
        answer = await self.subscribers.ask(topic)
        by_broker = {(one.name, one.cluster): dict.fromkeys(one.filters) for one in answer.brokers}
        for broker, full_filters in self._groups.brokers_wanting(topic).items():
            by_broker.setdefault(broker, {}).update(dict.fromkeys(full_filters))
        brokers = [InterestedBroker(*broker, list(filters)) for broker, filters in sorted(by_broker.items())]
        return msgspec.structs.replace(answer, brokers=brokers)

    async def trace(self, topic: str, surely: bool = False, timeout_s: float = SETTLE_S) -> TraceAnswer:
        """Sends a probe where a publication on the topic would go; its way."""
        check_passed_on(topic)
        if not self._presence.is_in:
            raise Unanswerable(self._membership.admission.trouble or NOT_IN)
        if self._probes.is_full:
            raise Unanswerable("too many probes are under way")
        outbound = self._transfer.outbound
        outbound_topic = outbound.for_publication(topic)
        await outbound.until_settled(outbound_topic, SETTLE_S)
        wanted = list(outbound_topic.wanted)
        met = await self._probes.follow(wanted, surely, min(timeout_s, TRACE_S_MAX)) if wanted else []
        names: dict[Address, str] = {one.address: one.name for one in met}
        names[self._host.address] = self._name
        hops = [
            TraceHop(
                one.topic_filter,
                one.hops,
                None if one.sender is None else names.get(one.sender, str(one.sender)),
                one.name,
                one.cluster,
                one.is_taken,
                round(one.at_s * 1000, 3),
            )
            for one in met
        ]
        return TraceAnswer(
            topic=topic,
            origin=self._name,
            cluster=self._cluster,
            method=self._method_name,
            surely=surely,
            filters=wanted,
            is_settled=outbound_topic.is_settled,
            receivers=len(dict.fromkeys(one.name for one in met if one.is_taken)),
            hops=hops,
            groups=await self._groups.choices(topic, int(surely)),
        )
