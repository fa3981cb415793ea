"""How long a SUBACK takes at one broker while many topics are published at another.

Filters are new, one after the other: a plain topic, one with `+`, one with `#`, below topics that are published and, to
compare, below none.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from bench.fleet.brokers import Site
from bench.fleet.figures import Figure, Grid, Say, Sizes, at_most
from bench.fleet.load import Clients, Times, milliseconds

BROKERS = 3
STEPS = (0, 100, 1_000, 10_000, 100_000)
GATEWAYS = 100
SETTLE_S = 2.0
MEDIAN_MAX_US = 10_000
TOPIC = "dev/%/telemetry"
KINDS = {
    "plain": "dev/%/telemetry",
    "+": "dev/%/+",
    "#": "dev/%/#",
    "without publishers": "unpublished/%/#",
}


class Suback(msgspec.Struct, frozen=True):
    topics: int
    kind: str
    times: Times


def steps(devices: int) -> list[int]:
    """Numbers of topics up to that of the devices."""
    return [*(step for step in STEPS if step < devices), devices]


def measure(sites: Sequence[Site], sizes: Sizes, say: Say) -> list[Suback]:
    found: list[Suback] = []
    published = first = 0
    with Clients() as clients:
        clients.connect(sites[0].port, GATEWAYS, "devices", id="gateway")
        clients.connect(sites[1].port, 1, "subscribers", id="subscriber")
        for topics in steps(sizes.devices):
            if topics > published:
                clients.publish("devices", TOPIC, topics - published, first=published)
            published = topics
            time.sleep(SETTLE_S)
            for kind, filter_ in KINDS.items():
                made = clients.subscribe("subscribers", filter_, sizes.subscriptions, first=first, limit_s=600.0)
                found.append(Suback(topics, kind, made.subacks))
            shown = ", ".join(f"{one.kind} {one.times.shown}" for one in found[-len(KINDS) :])
            say(f"{topics:,} topics: SUBACK {shown}")
            first += sizes.subscriptions
    return found


def figures(found: Sequence[Suback]) -> list[Figure]:
    slowest = max(found, key=lambda one: one.times.p50_us)
    return [
        at_most(
            "the slowest median",
            slowest.times.p50_us,
            MEDIAN_MAX_US,
            f"{milliseconds(slowest.times.p50_us)} ({slowest.topics:,} topics, {slowest.kind})",
            milliseconds(MEDIAN_MAX_US),
        )
    ]


def grid(found: Sequence[Suback]) -> Grid:
    """A row for each number of topics."""
    kinds = list(dict.fromkeys(one.kind for one in found))
    rows = [
        (f"{topics:,}", *(one.times.shown for one in found if one.topics == topics))
        for topics in dict.fromkeys(one.topics for one in found)
    ]
    return Grid("SUBACK by the number of topics, p50 / p99", ("topics", *kinds), rows)
