"""What a topic takes in memory, where it is published and where it arrives: a fleet has a hundred thousand of them.

The bounds that are promised are 400 and 200 bytes, all in. Here only objects are counted, not what the allocator adds.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator

import pytest

from braidmq.braid.transfer.batch import PublicationBatch
from tests.conformance import wire
from tests.conformance.wire import V5

from .sites import Sites

COUNT = 5_000
PUBLISHED_BYTES_MAX = 400
ARRIVING_BYTES_MAX = 200


@pytest.fixture
def taken() -> Iterator[Callable[[], int]]:
    """The bytes that are allocated now and were not before the test."""

    def count() -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        yield count
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("wanted", "qos"), [(False, 1), (True, 0)])
def test_topics_that_are_published(
    wanted: bool, qos: int, taken: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a history keeps of each publication has a bound of its own, and is left out."""
    monkeypatch.setattr("braidmq.braid.catch_up.history.HISTORY_MESSAGES_MAX", 1000)
    sites = Sites(2, method="covers")
    subscriber, publisher = sites.client(1, "subscriber"), sites.client(0, "publisher")
    if wanted:
        subscriber.subscribe("dev/+/telemetry", 0)
    topics = [f"dev/{number:06}/telemetry" for number in range(2 * COUNT)]

    got = 0

    def publish(some: list[str]) -> None:
        nonlocal got
        for begin in range(0, len(some), 100):
            packets = [
                wire.publish(topic, b"x", version=V5, qos=qos, packet_id=number if qos else None)
                for number, topic in enumerate(some[begin : begin + 100], 1)
            ]
            publisher.connection.receive(b"".join(packets))
            sites.run(0.05)
            publisher.take()
            got += len(subscriber.take())
            sites.sent.clear()
        sites.run(2)

    publish(topics[:COUNT])
    before = taken()
    publish(topics[COUNT:])
    both = (taken() - before) / COUNT
    assert len(sites[0].braid.transfer.outbound) == 2 * COUNT
    assert got + len(subscriber.take()) == (2 * COUNT if wanted else 0)
    assert both <= PUBLISHED_BYTES_MAX + (ARRIVING_BYTES_MAX if wanted else 0)


def test_topics_that_arrive(taken: Callable[[], int]) -> None:
    sites = Sites(1, method="covers")
    subscriber = sites.client(0, "subscriber")
    subscriber.subscribe("dev/+/telemetry", 0)
    inbound = sites[0].braid.transfer.inbound

    def arrive(numbers: range) -> None:
        for number in numbers:
            topic = f"dev/{number:06}/telemetry"
            run = wire.publish(topic, b"x", version=V5)
            inbound.receive(PublicationBatch("there", 1 << 40, topic, 1, 1, V5, run, ()))
            if number % 100 == 0:
                sites[0].broker.flush()
                subscriber.take()
        sites[0].broker.flush()
        subscriber.take()

    arrive(range(COUNT))
    before = taken()
    arrive(range(COUNT, 2 * COUNT))
    assert (taken() - before) / COUNT <= ARRIVING_BYTES_MAX
