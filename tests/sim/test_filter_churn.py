"""Filters and topics that come and go, by seeds; and the checker that watches: it sees what it should see."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from braidmq.host import Address, Message, Reply, Service, ask, handles
from braidmq.keys import is_within
from braidmq.mqtt.topics import matches
from braidmq.overlay import Introduce
from braidmq.overlay.ranges import OnOutcome, Outcome
from braidmq.pubsub.method import OnDemand, OnMessage, OnQuestion, Publication, ignore, no_answer
from braidmq.pubsub.registry import METHODS
from braidmq.sim.engine import SimHost
from tests.sim.filter_churn import BROKERS, Build, FilterChurn, wrong_after_churn


class TellWant(Message):
    topic_filter: str
    cluster: str
    wanted: bool
    version: int


class AskWants(Message):
    pass


class Told(Message):
    cluster: str = ""
    filters: tuple[str, ...] = ()


class Letter(Message):
    topic: str
    number: int
    body: bytes


class TellAll(Service):
    """The plainest method: every broker tells every other what it wants, and asks for what it does not know.

    It is right only where nothing is lost; it shows that the checkers are content then, and not when it is broken.
    """

    def __init__(self, host: SimHost, _introduce: Introduce, _name: str, cluster: str) -> None:
        self.host = host
        self.cluster = cluster
        self.on_message: OnMessage = ignore
        self.on_demand: OnDemand = ignore
        self.on_question: OnQuestion = no_answer
        self.on_wants: Callable[[str], None] = ignore
        self.own: dict[str, None] = {}
        self.others: dict[Address, tuple[str, dict[str, None]]] = {}
        self.number = 0
        self.version = host.incarnation << 32
        self.versions: dict[tuple[Address, str], int] = {}
        self.is_told = False
        host.serve(self)

    def peers(self) -> list[Address]:
        return [address for address in range(BROKERS[1]) if address != self.host.address]

    async def _tell(self, topic_filter: str, wanted: bool) -> None:
        self.version += 1
        for peer in self.peers():
            said = TellWant(topic_filter, self.cluster, wanted, self.version)
            if peer in self.host.sim.hosts and self.host.sim.hosts[peer].alive:  # type: ignore[attr-defined]
                self.host.send(peer, said)
        await self.host.sleep(0.2)

    async def subscribe(self, topic: str) -> None:
        self.own[topic] = None
        await self._tell(topic, True)

    async def unsubscribe(self, topic: str) -> None:
        self.own.pop(topic, None)
        await self._tell(topic, topic in self.own)

    async def advertise(self, topic: str) -> None:
        if self.is_told:
            return
        for peer in self.peers():
            found = await ask(self.host, peer, AskWants(), Told, timeout_s=0.3)
            if found is not None:
                fresh = [one for one in found.filters if (peer, one) not in self.versions]
                self.others.setdefault(peer, (found.cluster, {}))[1].update(dict.fromkeys(fresh))
                self.on_wants("#")
        self.is_told = True

    async def withdraw(self, topic: str) -> None:
        """There is nothing to give back."""

    def knows(self, topic: str) -> bool:
        return self.is_told

    def wanting(self, topic: str, cluster: str | None = None) -> list[Address]:
        return [
            peer
            for peer, (place, filters) in self.others.items()
            if is_within(place, cluster) and any(matches(one, topic) for one in filters)
        ]

    def is_wanted(self, topic: str) -> bool:
        return bool(self.wanting(topic))

    def was_wanted(self, topic: str) -> bool:
        return False

    def on_reached(self, address: Address) -> None:
        """All are reached, always."""

    async def leave(self) -> None:
        for topic_filter in list(self.own):
            await self.unsubscribe(topic_filter)

    def may_be_wanted(self, topic: str, cluster: str) -> bool:
        return bool(self.wanting(topic, cluster))

    def publish(self, topic: str, body: bytes) -> bool:
        return self._send(topic, body, None)

    def publish_within(self, topic: str, body: bytes, cluster: str) -> bool:
        return self._send(topic, body, cluster)

    def publish_surely(
        self, topic: str, body: bytes, timeout_s: float, on_outcome: OnOutcome, cluster: str | None = None
    ) -> bool:
        on_outcome(Outcome((), (), 0.0, {}))
        return self._send(topic, body, cluster)

    def publish_many(self, publications: Sequence[tuple[str, bytes]]) -> None:
        for topic, body in publications:
            self._send(topic, body, None)

    def publish_many_surely(
        self, publications: Sequence[tuple[str, bytes]], timeout_s: float, on_outcome: OnOutcome
    ) -> None:
        self.publish_many(publications)
        on_outcome(Outcome((), (), 0.0, {}))

    def ask(self, topic: str, body: bytes, timeout_s: float, on_outcome: OnOutcome) -> None:
        on_outcome(Outcome((), (), 0.0, {}))

    def _send(self, topic: str, body: bytes, cluster: str | None) -> bool:
        self.number += 1
        receivers = self.wanting(topic, cluster)
        for peer in receivers:
            self.host.send(peer, Letter(topic, self.number, body))
        return bool(receivers)

    @handles(TellWant)
    def on_want(self, origin: Address, told: TellWant) -> Reply:
        _, filters = self.others.setdefault(origin, (told.cluster, {}))
        if told.version < self.versions.get((origin, told.topic_filter), 0):
            return None
        self.versions[origin, told.topic_filter] = told.version
        if told.wanted:
            filters[told.topic_filter] = None
        else:
            filters.pop(told.topic_filter, None)
        self.on_wants(told.topic_filter)
        return None

    @handles(AskWants)
    def on_ask(self, _origin: Address, _asked: AskWants) -> Reply:
        return Told(self.cluster, tuple(self.own))

    @handles(Letter)
    def on_letter(self, origin: Address, letter: Letter) -> Reply:
        self.on_message(Publication(letter.topic, letter.body, origin, letter.number, 1))
        return None


class ToldToAll(TellAll):
    """Sends everything to everybody."""

    def wanting(self, topic: str, cluster: str | None = None) -> list[Address]:
        return [*self.others]


class KeptForEver(TellAll):
    """Does not say that it wants something no longer."""

    async def unsubscribe(self, topic: str) -> None:
        self.own.pop(topic, None)


class SaidTooSoon(TellAll):
    """Says that a subscription has taken effect, and tells of it later."""

    async def subscribe(self, topic: str) -> None:
        self.host.spawn(self._subscribe_late(topic))

    async def _subscribe_late(self, topic: str) -> None:
        await self.host.sleep(3.0)
        await super().subscribe(topic)


class SentTwice(TellAll):
    def _send(self, topic: str, body: bytes, cluster: str | None) -> bool:
        return super()._send(topic, body, cluster) and super()._send(topic, body, cluster)


class WithoutScope(TellAll):
    def publish_within(self, topic: str, body: bytes, cluster: str) -> bool:
        return self.publish(topic, body)


class NeverAsked(TellAll):
    """Believes that nobody wanted anything before it came."""

    async def advertise(self, topic: str) -> None:
        self.is_told = True


class NotSaid(TellAll):
    """Knows what others want, and does not say when that changes."""

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, ignore if name == "on_wants" else value)


class NeverProven(TellAll):
    def publish_surely(
        self, topic: str, body: bytes, timeout_s: float, on_outcome: OnOutcome, cluster: str | None = None
    ) -> bool:
        return self._send(topic, body, cluster)


CALM_SEED = 3


def complaints(build: Build) -> list[str]:
    return FilterChurn(CALM_SEED, build, has_faults=False).run()


def test_a_method_that_tells_everybody_everything_is_right_as_long_as_nothing_is_lost() -> None:
    run = FilterChurn(CALM_SEED, TellAll, has_faults=False)
    assert run.run() == []
    assert run.checker.publications > 1_000
    assert run.checker.arrivals == run.checker.handed_over > 1_000


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (ToldToAll, "nobody wants it there"),
        (KeptForEver, "nobody wants it there"),
        (SaidTooSoon, "did not reach broker"),
        (SentTwice, "came more than once to the clients of broker"),
        (WithoutScope, "outside of its scope"),
        (NeverAsked, "did not reach broker"),
        (NotSaid, "was not told that demand"),
        (NeverProven, "came 0 times"),
    ],
)
def test_a_broken_method_is_found_out(build: type[TellAll], words: str) -> None:
    assert any(words in complaint for complaint in complaints(build))


FILTERED = [name for name, entry in METHODS.items() if entry.takes_filters]


@pytest.mark.parametrize("seed", [*range(4), 252])
@pytest.mark.parametrize("method", FILTERED)
def test_filters_and_topics_come_and_go(method: str, seed: int) -> None:
    assert wrong_after_churn(method, seed) == [], (
        f"python -m tests.soak --overlay filters:{method} --first {seed} --seeds 1"
    )


def test_a_run_is_a_function_of_its_seed() -> None:
    def told(seed: int) -> list[tuple[float, int, int]]:
        run = FilterChurn(seed, TellAll, has_faults=True)
        wrong = run.run()
        return [(run.sim.now, run.sim.messages, run.checker.arrivals), (0.0, len(wrong), run.complaints.count)]

    assert told(1) == told(1) != told(2)
