"""What a fleet costs when nothing happens, and what it takes up in memory.

The same brokers are measured twice, with a few topics and filters and with all of them. Topics are published at the
first broker, and the second has a subscriber of all. Filters are the third broker's, and the first one publishes below
them, so that it knows them.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from bench.fleet.brokers import Site
from bench.fleet.figures import Figure, Say, Sizes, at_most
from bench.fleet.idle import Idle, idle, shown, wait_until_quiet
from bench.fleet.load import Clients

BROKERS = 3
FEW = 100
GATEWAYS = 100
FILTERS_EACH = 1_000
"""Filters of one client: what clients cost is not the question here."""
FILTERS_UNDER_WAY = 50
PUBLISH_PER_S = 5_000
"""Topics are published no faster: what a burst makes wait for a moment is not the question either."""
LIMIT_S = 1_200.0
RATIO_MAX = 2.0
TOPIC_BYTES_MAX = 400
TOPIC_ELSEWHERE_BYTES_MAX = 200


class Upkeep(msgspec.Struct, frozen=True, kw_only=True):
    few: Idle
    many: Idle
    topic_bytes: float
    """Resident memory for each topic at the broker where it is published."""
    topic_elsewhere_bytes: float
    """At the broker that has a subscriber."""
    filter_bytes: float
    """For each filter at the broker of its client."""
    filter_elsewhere_bytes: float
    """At the broker that publishes below it."""
    quiet_after_s: float
    """From the last SUBACK until the processor is used no less any more."""


def measure(sites: Sequence[Site], sizes: Sizes, say: Say) -> Upkeep:
    with Clients() as clients:
        clients.connect(sites[0].port, GATEWAYS, "devices", id="gateway")
        clients.connect(sites[1].port, 1, "wants", id="wants", filter="dev/+/telemetry")
        subscribers = max(1, -(-sizes.filters // FILTERS_EACH))
        clients.connect(sites[2].port, subscribers, "subscribers", id="subscriber")
        _publish(clients, 0, FEW)
        _subscribe(clients, 0, FEW)
        clients.publish("devices", "cmd/%/go", FEW, qos=1)
        wait_until_quiet(sites)
        few = idle(sites, FEW, FEW, sizes.idle_s)
        say(f"{FEW} topics and filters: {shown(few)}; now {sizes.devices:,} topics")
        before = few.resident_bytes
        _publish(clients, FEW, sizes.devices)
        wait_until_quiet(sites)
        with_topics = [site.resident_bytes for site in sites]
        say(f"{sizes.devices:,} topics: {_grown(before, with_topics)}; now {sizes.filters:,} filters")
        _subscribe(clients, FEW, sizes.filters)
        quiet_after_s = wait_until_quiet(sites)
        with_filters = [site.resident_bytes for site in sites]
        say(f"{sizes.filters:,} filters: {_grown(with_topics, with_filters)}; now nothing for {sizes.idle_s:.0f} s")
        many = idle(sites, sizes.devices, sizes.filters, sizes.idle_s)
        say(f"{sizes.devices:,} topics and {sizes.filters:,} filters: {shown(many)}")
    topics, filters = max(1, sizes.devices - FEW), max(1, sizes.filters - FEW)
    return Upkeep(
        few=few,
        many=many,
        topic_bytes=(with_topics[0] - before[0]) / topics,
        topic_elsewhere_bytes=(with_topics[1] - before[1]) / topics,
        filter_bytes=(with_filters[2] - with_topics[2]) / filters,
        filter_elsewhere_bytes=(with_filters[0] - with_topics[0]) / filters,
        quiet_after_s=quiet_after_s,
    )


def _publish(clients: Clients, first: int, end: int) -> None:
    if end > first:
        clients.expect(end)
        clients.publish("devices", "dev/%/telemetry", end - first, first=first, rate=PUBLISH_PER_S, limit_s=LIMIT_S)
        clients.wait_for(end - first, 60.0, 5.0)


def _subscribe(clients: Clients, first: int, end: int) -> None:
    if end > first:
        words = {"first": first, "under_way": FILTERS_UNDER_WAY, "qos": 1}
        clients.subscribe("subscribers", "cmd/%/#", end - first, limit_s=LIMIT_S, **words)


def _grown(before: Sequence[int], after: Sequence[int]) -> str:
    grown = [f"{(now - past) / 2**20:+.1f}" for past, now in zip(before, after, strict=True)]
    return f"memory {', '.join(grown)} MiB"


def figures(found: Upkeep) -> list[Figure]:
    few, many = found.few, found.many
    cpu_ratio = many.cpu_part / few.cpu_part if few.cpu_part else 0.0
    bytes_ratio = many.bytes_per_s / few.bytes_per_s if few.bytes_per_s else 0.0
    return [
        Figure(f"a broker with {FEW} topics and filters", shown(few)),
        Figure("a broker with all of them", shown(many)),
        at_most("CPU time, ratio", cpu_ratio, RATIO_MAX, f"{cpu_ratio:.2f}", f"{RATIO_MAX:g}"),
        at_most("bytes on links, ratio", bytes_ratio, RATIO_MAX, f"{bytes_ratio:.2f}", f"{RATIO_MAX:g}"),
        Figure("quiet after the last SUBACK", f"{found.quiet_after_s:.0f} s"),
        _bytes("memory a topic at its own broker", found.topic_bytes, TOPIC_BYTES_MAX),
        _bytes("memory a topic at the subscriber's broker", found.topic_elsewhere_bytes, TOPIC_ELSEWHERE_BYTES_MAX),
        Figure("memory a filter at its own broker", f"{found.filter_bytes:,.0f} bytes"),
        Figure("memory a filter at the publisher's broker", f"{found.filter_elsewhere_bytes:,.0f} bytes"),
    ]


def _bytes(name: str, value: float, bound: int) -> Figure:
    return at_most(name, value, bound, f"{value:,.0f} bytes", f"{bound} bytes")
