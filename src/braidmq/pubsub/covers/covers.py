"""Interest by covers: brokers stand in the overlay for few, broad filters, and tell each other exactly what they want.

A key a topic is too much where every device has topics of its own. So a broker derives few covers of what its clients
publish, and few of what they want (`cover_set`), and stands in the overlay for these (`rendezvous`). Two brokers whose
covers can overlap meet once. From then on the one that wants tells the other, the publisher, all its filters that can
match what that one publishes, and each change (`told_wants`); and the publisher knows for each topic who wants it,
without a message (`known_wants`). Publications go to exactly those brokers (`multicast`).

    B: cmd/+/#  ──── meets ────  A: cmd/+/go            covers, in the overlay
    B: cmd/1/#, cmd/7/#, …  ──────────▶  A              filters, from broker to broker
    B  ◀──────  cmd/7/go  ──────────────  A             publications, to brokers that want them

What is published after `subscribe` has returned arrives: either the publisher was met and has acknowledged the filter,
or it has yet to meet this broker, and holds what it publishes until it has. Topics of the braid itself, to which all or
many brokers subscribe and nothing flows, go by a key each as in SG-TBPS (`relay_free`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from braidmq.bounded import BoundedDict
from braidmq.host import Address, Host, Reply, Service, ask, handles
from braidmq.keys import Role, is_within, key_of
from braidmq.overlay import Overlay
from braidmq.overlay.key_ranges import JUST_AFTER
from braidmq.overlay.ranges import Cut, OnOutcome, Outcome, RangeArrival
from braidmq.pubsub.covers.known_wants import KnownWants
from braidmq.pubsub.covers.messages import (
    PUBLISHER_MET,
    SUBSCRIBER_MET,
    AskWanting,
    NotWanting,
    PublishesNoMore,
    PublishingBroker,
    WantingAnswer,
)
from braidmq.pubsub.covers.multicast import Multicast, Receiver, pack
from braidmq.pubsub.covers.multicast_messages import MANY_TOPICS
from braidmq.pubsub.covers.rendezvous import Rendezvous
from braidmq.pubsub.covers.told_wants import ToldWants
from braidmq.pubsub.method import HOME, INTERNAL, OnDemand, OnMessage, OnQuestion, Publication, ignore, no_answer
from braidmq.pubsub.relay_free import RelayFree

HEARTBEAT_S = 5.0
"""How often a broker says to each that it tells its wants that it is there."""

EMPTY_PERIODS = 12
"""Brokers that publish nothing that is wanted here hear it so many times less often: they need not know."""

HEARTBEATS_A_SECOND_MAX = 40
"""With more brokers to say so to, each hears it less often."""

PERIOD_GROWTH = 1.5
"""How much longer the time from one heartbeat to the next may be than it was: less than others wait for it."""

SWEEP_S = 300.0
"""How often covers are given up that are not needed any more."""

MEET_AGAIN_S = 60.0
"""How often all brokers are met once more; some may have come by a way that this one could not see."""

LINKS_CHANGED_S, MEET_AGAIN_S_MIN = 3.0, 15.0
"""How soon, when neighbours in the overlay have changed, and how often at most: two parts of a braid may have become
one."""

TOGETHER_BYTES_MAX = 64 << 10
"""Publications of several topics that go as one message; one of them may be larger."""

STRANGERS_MAX = 1024
STRANGER_S = 1.0
"""Brokers that send what was not asked of them are told so, each once in a while; so many are remembered."""


class Covers(Service):
    """One broker's part."""

    def __init__(
        self, overlay: Overlay, name: str, cluster: str = "", cut: Cut = Cut.SFB, incarnation: int = 0
    ) -> None:
        """`incarnation` grows from one start of the broker to the next."""
        self.overlay = overlay
        self.host: Host = overlay.host
        self.name = name
        self.cluster = cluster
        self.on_message: OnMessage = ignore
        self.on_demand: OnDemand = ignore
        self.on_question: OnQuestion = no_answer
        self.on_wants: Callable[[str], None] = ignore
        self.relay_free = RelayFree(overlay, name, cluster, cut)
        """For the topics of the braid itself."""
        self.ranges = self.relay_free.ranges
        self.multicast = Multicast(self.host, cluster, self._on_copy)
        self._epoch = incarnation << 24 | self.host.chance.getrandbits(24)
        publishes = Rendezvous(overlay, self.ranges, name, cluster, Role.PUBLISHER)
        wants = Rendezvous(overlay, self.ranges, name, cluster, Role.SUBSCRIBER)
        self.known = KnownWants(self.host, publishes, name, self._epoch, self._on_wants)
        self.told = ToldWants(self.host, wants, name, cluster, self._epoch)
        self._strangers: BoundedDict[Address, float] = BoundedDict(STRANGERS_MAX)
        self._is_kept = False
        self._met_at = self._meets_at = 0.0
        self.relay_free.on_message = self._on_internal
        self.relay_free.on_demand = self._on_internal_demand
        self.relay_free.on_question = self._on_internal_question
        self.relay_free.on_other_delivery = self._on_met
        overlay.on_change = self._on_links_changed
        self.host.serve(self)

    # What the broker asks for

    async def subscribe(self, topic: str) -> None:
        if _is_internal(topic):
            await self.relay_free.subscribe(topic)
        else:
            self._begin_upkeep()
            await self.told.subscribe(topic)

    async def unsubscribe(self, topic: str) -> None:
        if _is_internal(topic):
            await self.relay_free.unsubscribe(topic)
        else:
            self.told.unsubscribe(topic)

    async def advertise(self, topic: str) -> None:
        if _is_internal(topic):
            await self.relay_free.advertise(topic)
        else:
            self._begin_upkeep()
            await self.known.covers.until_effective(topic)

    async def withdraw(self, topic: str) -> None:
        """Covers of what is not published any more are given up when they have been idle for long."""
        if _is_internal(topic):
            await self.relay_free.withdraw(topic)

    def adopt(self, wanted: Iterable[str], published: Iterable[str]) -> None:
        """Stands in a laid-out network for these filters and topics; nobody knows of them before they are asked for."""
        self.told.covers.adopt(wanted)
        self.known.covers.adopt(published)

    async def leave(self) -> None:
        """Nothing is wanted or published here any more."""
        await self.told.leave()
        await self.known.leave()

    # What is known

    def knows(self, topic: str) -> bool:
        return self.known.knows(topic)

    def is_wanted(self, topic: str) -> bool:
        return self.known.is_wanted(topic)

    def was_wanted(self, topic: str) -> bool:
        return self.known.was_wanted(topic)

    def may_be_wanted(self, topic: str, cluster: str) -> bool:
        return bool(self._receivers(topic, cluster))

    @property
    def publication_covers(self) -> list[str]:
        return list(self.known.covers.all)

    @property
    def want_covers(self) -> list[str]:
        return list(self.told.covers.all)

    @property
    def watchers(self) -> int:
        """Brokers that are told what clients here want."""
        return len(self.told.watchers)

    @property
    def subscribers(self) -> int:
        """Brokers that have told what their clients want."""
        return len(self.known.subscribers)

    @property
    def wants_known(self) -> int:
        """Filters of other brokers."""
        return len(self.known)

    def _on_wants(self, topic_filter: str) -> None:
        self.on_wants(topic_filter)

    # Publishing

    def publish(self, topic: str, body: bytes) -> bool:
        if _is_internal(topic):
            return self.relay_free.publish(topic, body)
        return self._send(topic, body, self.known.receivers(topic))

    def publish_within(self, topic: str, body: bytes, cluster: str) -> bool:
        return self._send(topic, body, self._receivers(topic, cluster))

    def _send(self, topic: str, body: bytes, receivers: Sequence[Receiver]) -> bool:
        if receivers:
            self.multicast.send(topic, body, receivers)
        return bool(receivers)

    def publish_surely(
        self, topic: str, body: bytes, timeout_s: float, on_outcome: OnOutcome, cluster: str | None = None
    ) -> bool:
        if _is_internal(topic):
            return self.relay_free.publish_surely(topic, body, timeout_s, on_outcome, cluster)
        receivers = self._receivers(topic, cluster)
        if receivers:
            self._deliver(topic, body, receivers, timeout_s, on_outcome)
        return bool(receivers)

    def _deliver(
        self, topic: str, body: bytes, receivers: Sequence[Receiver], timeout_s: float, on_outcome: OnOutcome
    ) -> None:
        def on_missing(missing: tuple[Receiver, ...]) -> None:
            keys = [self._key(topic, one) for one in missing]
            on_outcome(Outcome(tuple([(key, key + JUST_AFTER) for key in keys]), (), 0.0, {}))

        try:
            self.multicast.deliver(topic, body, receivers, timeout_s, on_missing)
        except RuntimeError:  # too many are under way: it is told, and not proven
            self.multicast.send(topic, body, receivers)
            on_missing(tuple(receivers))

    def publish_many(self, publications: Sequence[tuple[str, bytes]]) -> None:
        for receivers, topic, body in self._together(publications):
            self.multicast.send(topic, body, receivers)

    def publish_many_surely(
        self, publications: Sequence[tuple[str, bytes]], timeout_s: float, on_outcome: OnOutcome
    ) -> None:
        for receivers, topic, body in self._together(publications):
            self._deliver(topic, body, receivers, timeout_s, on_outcome)

    def _together(self, publications: Sequence[tuple[str, bytes]]) -> Iterator[tuple[tuple[Receiver, ...], str, bytes]]:
        """The messages that publications take: receivers, topic and body. Those of one topic stay in their order."""
        by_receivers: dict[tuple[Receiver, ...], list[tuple[str, bytes]]] = {}
        sizes: dict[tuple[Receiver, ...], int] = {}
        for publication in publications:
            receivers = tuple(self.known.receivers(publication[0]))
            if not receivers:
                continue
            some = by_receivers.setdefault(receivers, [])
            size = sizes.get(receivers, 0) + len(publication[1])
            if some and size > TOGETHER_BYTES_MAX:
                yield receivers, *_as_one(some)
                some = by_receivers[receivers] = []
                size = len(publication[1])
            some.append(publication)
            sizes[receivers] = size
        for receivers, some in by_receivers.items():
            yield receivers, *_as_one(some)

    def _receivers(self, topic: str, cluster: str | None) -> list[Receiver]:
        return [one for one in self.known.receivers(topic) if is_within(one.cluster, cluster)]

    @staticmethod
    def _key(topic: str, receiver: Receiver) -> bytes:
        return key_of(topic, Role.SUBSCRIBER, receiver.cluster, receiver.name)

    # Asking those that want a topic

    def ask(self, topic: str, body: bytes, timeout_s: float, on_outcome: OnOutcome) -> None:
        if _is_internal(topic):
            self.relay_free.ask(topic, body, timeout_s, on_outcome)
        else:
            self.host.spawn(self._ask(topic, body, timeout_s, on_outcome))

    async def _ask(self, topic: str, body: bytes, timeout_s: float, on_outcome: OnOutcome) -> None:
        await self.advertise(topic)
        receivers = self.known.receivers(topic)
        answers: dict[bytes, bytes] = {}
        missing: list[bytes] = []
        through = self.host.event()
        left = len(receivers)

        async def ask_one(receiver: Receiver) -> None:
            nonlocal left
            key = self._key(topic, receiver)
            question = AskWanting(topic, body)
            answer = await ask(self.host, receiver.address, question, WantingAnswer, timeout_s=timeout_s)
            if answer is None:
                missing.append(key)
            elif answer.body is not None:
                answers[key] = answer.body
            left -= 1
            if not left:
                through.set()

        own = self._answer(topic, body)
        if own is not None:
            answers[self._key(topic, Receiver(self.name, self.host.address, self.cluster))] = own
        for receiver in receivers:
            self.host.spawn(ask_one(receiver))
        if receivers:
            await through.wait()
        on_outcome(Outcome(tuple([(key, key + JUST_AFTER) for key in missing]), (), 0.0, answers))

    def _answer(self, topic: str, body: bytes) -> bytes | None:
        return self.on_question(topic, body) if self.told.filters.overlapping([topic]) else None

    @handles(AskWanting)
    def on_ask_wanting(self, _origin: Address, asked: AskWanting) -> Reply:
        return WantingAnswer(self._answer(asked.topic, asked.body))

    # What arrives

    def _on_copy(self, publication: Publication) -> None:
        if not self.told.is_known_to(publication.origin):
            if not self.told.is_watched_by(publication.origin):
                self._on_stranger(publication.origin)
            if not self.told.filters.overlapping([publication.topic]):
                return  # it was for this broker's last process
        self.on_message(publication)

    def _on_stranger(self, origin: Address) -> None:
        """A broker that this one has told nothing may know what its last process wanted."""
        now = self.host.now()
        if now - self._strangers.get(origin, -STRANGER_S) >= STRANGER_S:
            self._strangers.renew(origin, now)
            self.host.send(origin, NotWanting(self.name, self._epoch))

    def _on_met(self, delivery: RangeArrival) -> bytes | None:
        """A broker introduces itself to this one's covers."""
        kind, body = delivery.body[:1], delivery.body[1:]
        if kind == PUBLISHER_MET:
            try:
                broker = _decode(body)
            except msgspec.MsgspecError:
                return None
            self.told.meet(broker)
            return self.name.encode()
        return _encode(self.known.described) if kind == SUBSCRIBER_MET else None

    @handles(PublishesNoMore)
    def on_publishes_no_more(self, _origin: Address, told: PublishesNoMore) -> Reply:
        self.told.forget(told.name, told.epoch)
        return None

    def _on_internal(self, publication: Publication) -> None:
        self.on_message(publication)

    def _on_internal_demand(self, topic: str, wanted: bool) -> None:
        self.on_demand(topic, wanted)

    def _on_internal_question(self, topic: str, body: bytes) -> bytes | None:
        return self.on_question(topic, body)

    # Upkeep

    def _on_links_changed(self) -> None:
        self.relay_free.on_links_changed()
        soon = max(self.host.now() + LINKS_CHANGED_S, self._met_at + MEET_AGAIN_S_MIN)
        self._meets_at = min(self._meets_at, soon)

    def on_reached(self, address: Address) -> None:
        self.told.on_reached(address)

    def _begin_upkeep(self) -> None:
        if not self._is_kept:
            self._is_kept = True
            self._meets_at = self.host.now() + MEET_AGAIN_S
            self.host.spawn(self._keep_greeting(is_wanted=True))
            self.host.spawn(self._keep_greeting(is_wanted=False))
            self.host.spawn(self._keep_meeting())

    async def _keep_greeting(self, is_wanted: bool) -> None:
        """Greets all watchers that publish something that is wanted here, or all others; one after the other.

        With more of them it takes longer until one is greeted again. That grows step by step: each was told how long it
        would be, and takes this broker for silent after some times that (`known_wants`).
        """
        least_s = HEARTBEAT_S if is_wanted else EMPTY_PERIODS * HEARTBEAT_S
        period_s = least_s
        while True:
            watchers = [one for one in self.told.watchers if bool(one.digest) == is_wanted]
            needed_s = max(least_s, len(watchers) / HEARTBEATS_A_SECOND_MAX)
            period_s = min(needed_s, PERIOD_GROWTH * period_s)
            if is_wanted:
                self.told.period_s = period_s
            for watcher in watchers:
                await self.host.sleep(period_s / len(watchers))
                self.host.spawn(self.told.greet(watcher, period_s))
            if not watchers:
                await self.host.sleep(period_s)
            if is_wanted:
                self.known.sweep()

    async def _keep_meeting(self) -> None:
        sweeps_at = self.host.now() + SWEEP_S
        while True:
            await self.host.sleep(self.host.chance.uniform(0.5, 1.0) * LINKS_CHANGED_S)
            now = self.host.now()
            if now >= self._meets_at:
                self._met_at = now
                self._meets_at = now + MEET_AGAIN_S * self.host.chance.uniform(0.8, 1.2)
                await self.told.covers.meet_again()
                await self.known.covers.meet_again()
            if self.told.covers.is_unsure or self.known.covers.is_unsure:
                self._meets_at = min(self._meets_at, self._met_at + MEET_AGAIN_S_MIN)
            if now >= sweeps_at:
                sweeps_at = now + SWEEP_S
                self.told.sweep()


def _as_one(publications: Sequence[tuple[str, bytes]]) -> tuple[str, bytes]:
    return publications[0] if len(publications) == 1 else (MANY_TOPICS, pack(publications))


def _is_internal(topic: str) -> bool:
    return topic == HOME or topic.startswith(INTERNAL)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(PublishingBroker).decode
