"""Clients that come and go, all the time: are the last minutes like the first?

A cycle is a new client at one of the brokers that connects, subscribes to a filter of its own, publishes below it twice
with QoS 1, gets both and disconnects. Beside them, streams of QoS 1 go from broker to broker, to subscribers that stay.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from bench.fleet.brokers import Site
from bench.fleet.figures import Figure, Grid, Say, Sizes, at_least, at_most, exactly
from bench.fleet.load import Churned, Clients, Published, Times, milliseconds

BROKERS = 3
WINDOW_MAX_S = 60.0
WINDOWS_MIN = 10
COMPARED = 6
"""The last sixth of the time is compared with the first: five minutes of thirty."""
STREAMS = 10
STREAM_PER_S = 20
"""Messages a second of all streams of a pair of brokers."""
ARRIVE_S = 15.0
CYCLE_TIMEOUT_S = 10.0
SPARE_S = 60.0
RATE_MIN = 0.95
LATENCY_MAX = 1.25
MEMORY_MAX = 1.1


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """A minute, as a rule. The counts of streams are from the beginning on."""

    ends_s: float
    cycles: int
    failed: int
    per_s: float
    latency: Times
    subacks: Times
    resident_bytes: list[int]
    """By broker."""
    sent: int
    received: int
    late: int
    twice: int
    disordered: int
    stream: Times
    """From publication to delivery in the streams; the slower pair's."""


class Churn(msgspec.Struct, frozen=True):
    asked_per_s: int
    windows: list[Window]


def measure(sites: Sequence[Site], sizes: Sizes, say: Say) -> Churn:
    seconds = sizes.minutes * 60
    window_s = min(WINDOW_MAX_S, seconds / WINDOWS_MIN)
    windows: list[Window] = []
    count = round(seconds / window_s)
    with Clients() as churning, Clients() as one, Clients() as other:
        pairs = ((one, sites[0], sites[1]), (other, sites[2], sites[0]))
        for index, (clients, publisher, subscriber) in enumerate(pairs):
            clients.connect(subscriber.port, 1, "wants", id=f"wants{index}-", filter=f"steady/{index}/#", qos=1)
            clients.connect(publisher.port, 1, "streams", id=f"streams{index}-")
            clients.expect(round(seconds * STREAM_PER_S) + STREAMS, topics=STREAMS)
        ports = ",".join(str(site.port) for site in sites)
        say(f"{sizes.churn_per_s} clients a second come and go for {sizes.minutes:g} minutes")
        for number in range(count):
            first = number * round(sizes.churn_per_s * window_s)
            words = {"first": first, "rate": sizes.churn_per_s, "seconds": window_s, "timeout": CYCLE_TIMEOUT_S}
            churning.send("churn", window_s + SPARE_S, ports=ports, filter="churn/%/+", topic="churn/%/a", **words)
            windows.append(_window(sites, churning, [one, other], number, window_s))
            say(_told(windows[-1]))
    return Churn(sizes.churn_per_s, windows)


def _window(
    sites: Sequence[Site], churning: Clients, streams: Sequence[Clients], number: int, window_s: float
) -> Window:
    each = round(STREAM_PER_S * window_s)
    for index, clients in enumerate(streams):
        words = {"start": number * each, "topics": STREAMS, "qos": 1, "rate": STREAM_PER_S}
        clients.send("publish", window_s + SPARE_S, group="streams", topic=f"steady/{index}/%", count=each, **words)
    for clients in streams:
        clients.answer(Published)
    cycles = churning.answer(Churned)
    got = [clients.wait_for((number + 1) * each, ARRIVE_S, ARRIVE_S) for clients in streams]
    return Window(
        ends_s=(number + 1) * window_s,
        cycles=cycles.cycles,
        failed=cycles.failed,
        per_s=cycles.cycles / cycles.seconds,
        latency=cycles.latency,
        subacks=cycles.subacks,
        resident_bytes=[site.resident_bytes for site in sites],
        sent=len(streams) * (number + 1) * each,
        received=sum(one.received for one in got),
        late=sum(one.late for one in got),
        twice=sum(one.twice + one.wrong for one in got),
        disordered=sum(one.disordered for one in got),
        stream=max((one.deliveries for one in got), key=lambda one: one.p99_us),
    )


def _told(one: Window) -> str:
    mib = ", ".join(f"{bytes_ / 2**20:.0f}" for bytes_ in one.resident_bytes)
    streams = f"missing {one.sent - one.received}, late {one.late}, twice {one.twice}, disordered {one.disordered}"
    return (
        f"{one.ends_s / 60:4.1f} min: {one.per_s:,.0f}/s, {one.failed} failed, cycle {one.latency.shown}, "
        f"SUBACK {one.subacks.shown}, memory {mib} MiB; streams {one.stream.shown}, {streams}"
    )


def _parts(found: Churn) -> tuple[list[Window], list[Window], list[Window]]:
    """The first windows, those in the middle, and the last."""
    count = max(1, len(found.windows) // COMPARED)
    middle = (len(found.windows) - count) // 2
    return found.windows[:count], found.windows[middle : middle + count], found.windows[-count:]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def figures(found: Churn) -> list[Figure]:
    first, middle, last = _parts(found)
    end = found.windows[-1]
    rates = [_mean([one.per_s for one in some]) for some in (first, last)]
    cycle = [_mean([one.latency.p50_us for one in some]) for some in (first, last)]
    cycle_p99 = [_mean([one.latency.p99_us for one in some]) for some in (first, last)]
    suback = [_mean([one.subacks.p50_us for one in some]) for some in (first, last)]
    memory = [_mean([max(one.resident_bytes) for one in some]) / 2**20 for some in (first, middle, last)]

    def flat(name: str, pair: list[float], bound: float) -> Figure:
        ratio = pair[1] / max(1.0, pair[0])
        shown = f"{milliseconds(pair[0])} → {milliseconds(pair[1])}, {ratio:.2f}"
        return at_most(name, ratio, bound, shown, f"{bound:g}")

    return [
        Figure("asked for", f"{found.asked_per_s:,} cycles/s, {end.ends_s / 60:g} minutes"),
        at_least(
            "cycles a second, first → last part, ratio",
            rates[1] / max(1.0, rates[0]),
            RATE_MIN,
            f"{rates[0]:,.0f}/s → {rates[1]:,.0f}/s, {rates[1] / max(1.0, rates[0]):.2f}",
        ),
        exactly("cycles that failed", sum(one.failed for one in found.windows), 0),
        flat("median of a cycle", cycle, LATENCY_MAX),
        flat("p99 of a cycle", cycle_p99, LATENCY_MAX),
        flat("median of SUBACK", suback, LATENCY_MAX),
        at_most(
            "memory of the largest broker, first → middle → last part, ratio of these two",
            memory[2] / memory[1],
            MEMORY_MAX,
            f"{memory[0]:.0f} → {memory[1]:.0f} → {memory[2]:.0f} MiB, {memory[2] / memory[1]:.2f}",
            f"{MEMORY_MAX:g}",
        ),
        Figure("messages of the streams", f"{end.sent:,}"),
        exactly("… missing", end.sent - end.received, 0),
        exactly("… late by more than a second", end.late, 0),
        exactly("… twice", end.twice, 0),
        exactly("… out of order", end.disordered, 0),
    ]


def grid(found: Churn) -> Grid:
    """A row for each window."""
    rows = [
        (
            f"{one.ends_s / 60:.1f}",
            f"{one.per_s:,.0f}",
            f"{one.failed:,}",
            one.latency.shown,
            one.subacks.shown,
            one.stream.shown,
            ", ".join(f"{bytes_ / 2**20:.0f}" for bytes_ in one.resident_bytes),
        )
        for one in found.windows
    ]
    return Grid(
        "clients that come and go, by time",
        ("minute", "cycles/s", "failed", "cycle", "SUBACK", "streams", "MiB a broker"),
        rows,
    )
