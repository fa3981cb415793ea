"""Sites of a simulated braid that share spools: real brokers, the real way into spools, workers that take no time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from braidmq.broker.feed import TopicFeed
from braidmq.config.settings import ProcessingConfig, ProcessorConfig
from braidmq.mqtt.topics import matches
from braidmq.processing.assignment_store import AssignmentStore
from braidmq.processing.assignments import TopicAssignments
from braidmq.processing.context import ProcessingContext
from braidmq.processing.feed import ProcessorFeed
from braidmq.processing.homes import Homes
from braidmq.processing.intake import Intake
from braidmq.processing.reassignment import Reassignment
from braidmq.processing.runner import Counts, ProcessorRunner
from braidmq.processing.work_queue import QueuedMessage, WorkQueue
from braidmq.processors.placement import Capacity
from braidmq.processors.processor import Message, Spool, SpoolState, order_of
from braidmq.processors.spool_order import Order
from braidmq.processors.worker_messages import decode_message
from braidmq.sim.network import Uniform
from tests.braid.sites import Site, Sites

FILTER = "in/+"
TOPIC = "in/1"
TIMERS_S = 0.1
"""How late timers may be."""


class InstantRunner(ProcessorRunner):
    """Processes a message as soon as it has it; without a process."""

    def __init__(self, scope: str, spool: int) -> None:
        self.config = ProcessorConfig(file="none.py", name="tell", spool=spool, spool_scope=scope)  # type: ignore[arg-type]
        self.ready = None
        self.queue = WorkQueue(spool)
        self.counts = Counts()
        self.spools: dict[str, Spool] = {}
        """As the worker has them."""
        self.processed: list[tuple[bytes, list[bytes]]] = []
        """Each message, and the spool that the function saw with it."""
        self.is_slow = False
        """Whether it leaves what comes in its queue."""

    def put(self, item: QueuedMessage) -> None:
        self.queue.put(item)
        if not self.is_slow:
            self.work()

    def work(self) -> None:
        for item in self.queue.next_batch():
            message = decode_message(item.raw)
            spool = self.spools.setdefault(item.topic, Spool(self.queue.spool))
            if item.is_copy:
                spool.insert(message)
            elif spool.put(message):
                self.processed.append((message.payload, [one.payload for one in spool]))
            self.queue.done(1)

    def fill(self, topic: str, last: int, messages: list[bytes]) -> None:
        super().fill(topic, last, messages)
        state = SpoolState(last, tuple([decode_message(raw) for raw in messages]))
        self.spools[topic] = Spool(self.queue.spool, state)

    def forget(self, topic: str) -> None:
        self.queue.spools.pop(topic, None)
        self.spools.pop(topic, None)

    @property
    def calls(self) -> list[bytes]:
        return [payload for payload, _ in self.processed]


class HomeSite:
    """A processor at a site."""

    def __init__(self, site: Site, scope: str, spool: int, folder: Path | None = None) -> None:
        broker = site.broker
        self.site = site
        self.assignments = TopicAssignments(AssignmentStore(folder), Capacity(1e9, 1e9))
        name = f"site{site.number}"
        self.context = ProcessingContext(broker.now, ProcessingConfig(), name, self.assignments)
        self.homes = Homes(broker, self.context, site.cluster)
        self.reassignment = Reassignment(self.context, self.homes, self._is_publisher)
        self.intake = Intake(self.context, self.reassignment, self.homes, self._on_error)
        self.runner = InstantRunner(scope, spool)
        self.homes.stand(self.runner)
        broker.router.feed_for = self._feed_for
        broker.on_wants = self.homes.on_wants
        broker.router.forget_all()

    def _feed_for(self, topic: str) -> TopicFeed | None:
        home = self.homes.feed_for(topic)
        if home is not None:
            return home
        return ProcessorFeed(self.intake, topic, [self.runner]) if matches(FILTER, topic) else None

    def _is_publisher(self, client: str) -> bool:
        session = self.site.broker.sessions.get(client)
        return session is not None and session.connection is not None

    def _on_error(self, runner: ProcessorRunner, what: str, text: str, message: QueuedMessage | None) -> None:
        raise AssertionError(f"{what}: {text}")

    def sweep(self) -> None:
        self.assignments.sweep_publishers(self.context.now(), self._is_publisher)
        self.homes.sweep()
        self.site.settle()

    @property
    def spool(self) -> list[Message]:
        """Of TOPIC, as the worker has it; the broker has the same."""
        found = list(self.runner.spools.get(TOPIC, ()))
        assert [decode_message(raw) for raw in self.runner.queue.state_of(TOPIC)[1]] == found
        return found

    @property
    def orders(self) -> list[Order]:
        return [order_of(one) for one in self.spool]

    @property
    def payloads(self) -> list[bytes]:
        return [one.payload for one in self.spool]


class HomeSites(Sites):
    """Several sites with the same processor."""

    def __init__(self, count: int, spool: int = 4, scope: str = "braid", **options: Any) -> None:
        super().__init__(count, **{"network": Uniform(0.0002, 0.002)} | options)
        self.spool = spool
        self.scope = scope
        self.at = {number: HomeSite(site, scope, spool) for number, site in self.all.items()}
        self.run(5.0)

    def run(self, seconds: float) -> None:
        """In steps, so that the brokers' timers are on time."""
        ends_at = self.sim.now + seconds
        while self.sim.now < ends_at:
            super().run(min(TIMERS_S, ends_at - self.sim.now))

    def start_again(self, number: int, **options: Any) -> HomeSite:
        """A site that has crashed is there again, without what it had in memory."""
        site = self.add(number, **options)
        self.run(15.0)
        self.at[number] = HomeSite(site, self.scope, self.spool)
        return self.at[number]

    def work(self) -> None:
        """All that waits is done, wherever it is."""
        for one in self.at.values():
            one.runner.work()


def same(sites: HomeSites, numbers: Sequence[int]) -> list[bytes]:
    """What is in the spools of these sites, which is the same and in order."""
    first, *others = [sites.at[number] for number in numbers]
    assert first.orders == sorted(first.orders)
    for other in others:
        assert other.orders == first.orders
        assert other.payloads == first.payloads
    return first.payloads
