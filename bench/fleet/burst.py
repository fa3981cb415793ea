"""Every device publishes once: topics that nobody has heard of, and a subscriber of all of them at another broker.

The rate is that of deliveries, from the first publication to the last delivery. It is compared with the same number of
messages on one topic that is known. Then new topics come one by one, and each message is timed. What a broker does with
such a burst when publishers and subscriber are its own shows what is the braid's part in it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from bench.fleet.brokers import Site
from bench.fleet.figures import Figure, Say, Sizes, at_least, at_most, exactly
from bench.fleet.load import Clients, Received, Times, milliseconds

BROKERS = 3
GATEWAYS = 100
"""Connections that the devices publish over."""
WINDOW = {0: 0, 1: 5_000}
"""Deliveries outstanding, by QoS; 0 is any number. Of QoS 1 a broker lets 10,000 wait for a session."""
FIRST_PER_S = 200
"""New topics a second on the unloaded fleet."""
ARRIVE_S = 120.0
QUIET_S = 10.0
"""Nothing more is waited for once nothing has come for so long."""
RATIO_MIN = 0.5
FIRST_P99_MAX_US = 50_000
FILTER = "dev/+/telemetry"
TOPIC = "dev/%/telemetry"
ONE_TOPIC = "dev/one/telemetry"
OWN_FILTER, OWN_TOPIC, OWN_ONE_TOPIC = (name.replace("dev/", "own/") for name in (FILTER, TOPIC, ONE_TOPIC))


class Burst(msgspec.Struct, frozen=True, kw_only=True):
    """Rates are deliveries a second."""

    qos: int
    devices: int
    received: int
    twice: int
    wrong: int
    per_s: float
    again_received: int
    again_per_s: float
    one_topic_received: int
    one_topic_per_s: float
    alone_per_s: float
    """At one broker: the burst."""
    alone_one_topic_per_s: float
    """At one broker: as many on one topic, the second time."""
    first_sent: int
    first_received: int
    first: Times
    """From publication to delivery, of messages on topics that are new."""

    @property
    def ratio(self) -> float:
        return self.per_s / self.one_topic_per_s if self.one_topic_per_s else 0.0


def steps(sizes: Sizes) -> list[int]:
    """Numbers of devices that are measured."""
    return [*(step for step in sizes.burst_steps if step < sizes.devices), sizes.devices]


def measure(sites: Sequence[Site], devices: int, first_s: float, qos: int, say: Say) -> Burst:
    with Clients() as clients:
        clients.connect(sites[1].port, 1, "wants", id="wants", filter=FILTER, qos=qos)
        clients.connect(sites[0].port, GATEWAYS, "devices", id="gateway")
        say(f"QoS {qos}: {devices:,} topics, each once")
        burst, per_s = _play(clients, TOPIC, devices, qos)
        say(f"QoS {qos}: {burst.received:,} delivered, {per_s:,.0f}/s; the same topics again")
        again, again_per_s = _play(clients, TOPIC, devices, qos)
        say(f"QoS {qos}: {again.received:,} delivered, {again_per_s:,.0f}/s; as many on one topic, twice")
        _play(clients, ONE_TOPIC, devices, qos)
        one, one_per_s = _play(clients, ONE_TOPIC, devices, qos)
        say(f"QoS {qos}: {one.received:,} delivered, {one_per_s:,.0f}/s; {FIRST_PER_S} new topics a second")
        sent = round(FIRST_PER_S * first_s)
        first, _ = _play(clients, TOPIC, sent, qos, first=devices, rate=FIRST_PER_S)
        clients.connect(sites[2].port, 1, "own", id="own", filter=OWN_FILTER, qos=qos)
        clients.connect(sites[2].port, GATEWAYS, "own-devices", id="own-gateway")
        say(f"QoS {qos}: the same within one broker")
        _, alone_per_s = _play(clients, OWN_TOPIC, devices, qos, "own-devices")
        _play(clients, OWN_ONE_TOPIC, devices, qos, "own-devices")
        _, alone_one_per_s = _play(clients, OWN_ONE_TOPIC, devices, qos, "own-devices")
    return Burst(
        qos=qos,
        devices=devices,
        received=burst.received,
        twice=burst.twice + again.twice + one.twice + first.twice,
        wrong=burst.wrong + again.wrong + one.wrong + first.wrong,
        per_s=per_s,
        again_received=again.received,
        again_per_s=again_per_s,
        one_topic_received=one.received,
        one_topic_per_s=one_per_s,
        alone_per_s=alone_per_s,
        alone_one_topic_per_s=alone_one_per_s,
        first_sent=sent,
        first_received=first.received,
        first=first.deliveries,
    )


def _play(
    clients: Clients, topic: str, count: int, qos: int, group: str = "devices", **words: int
) -> tuple[Received, float]:
    """What came, and how much a second."""
    clients.expect(count)
    sent = clients.publish(group, topic, count, qos=qos, window=WINDOW[qos], **words)
    got = clients.wait_for(count, ARRIVE_S, QUIET_S)
    return got, got.received / max(1e-9, (got.last_ns - sent.began_ns) / 1e9) if got.received else 0.0


def figures(found: Burst) -> list[Figure]:
    return [
        exactly("delivered at first", found.received, found.devices),
        exactly("delivered twice, or to the wrong client", found.twice + found.wrong, 0),
        Figure("rate of the burst", f"{found.per_s:,.0f}/s"),
        Figure("the same burst again", f"{found.again_per_s:,.0f}/s ({found.again_received:,} delivered)"),
        Figure(
            "as many on one topic, the second time",
            f"{found.one_topic_per_s:,.0f}/s ({found.one_topic_received:,} delivered)",
        ),
        Figure(
            "rate of the burst to that of the same topics again", f"{found.per_s / max(1.0, found.again_per_s):.2f}"
        ),
        at_least("rate of the burst to that of one topic", found.ratio, RATIO_MIN, f"{found.ratio:.2f}"),
        Figure(
            "within one broker: the burst, one topic, ratio",
            f"{found.alone_per_s:,.0f}/s, {found.alone_one_topic_per_s:,.0f}/s, "
            f"{found.alone_per_s / max(1.0, found.alone_one_topic_per_s):.2f}",
        ),
        exactly(
            f"first messages at {FIRST_PER_S} new topics a second, delivered", found.first_received, found.first_sent
        ),
        at_most(
            "their time from publication to delivery, p50 / p99",
            found.first.p99_us if found.first.count else math.inf,
            FIRST_P99_MAX_US,
            found.first.shown,
            f"{milliseconds(FIRST_P99_MAX_US)} (p99)",
        ),
    ]
