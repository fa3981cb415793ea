"""What is measured, what BraidMQ is meant to reach, and the order of the runs.

Runs are interleaved: in each round every scenario goes once through all brokers before the next scenario begins. What
else the machine does then falls on all of them alike, and the median of the rounds leaves the odd one out.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from bench import loader
from bench.loader import Load, LoadError, Sample
from bench.process import Broker, StartError


class Target(msgspec.Struct, frozen=True):
    """A bound on the ratio to the baseline: of deliveries a second (at least) or of the median latency (at most)."""

    measure: Literal["out_per_s", "p50_us"]
    bound: float

    def __str__(self) -> str:
        return f"{'≥' if self.measure == 'out_per_s' else '≤'} {self.bound:g}×"

    def is_reached(self, ratio: float) -> bool:
        return ratio >= self.bound if self.measure == "out_per_s" else ratio <= self.bound


class Scenario(msgspec.Struct, frozen=True):
    name: str
    load: Load
    target: Target | None = None

    @property
    def measure(self) -> Literal["out_per_s", "p50_us"]:
        """What its ratio compares: with one message in flight the latency, else the rate."""
        return "p50_us" if self.load.window == 1 else "out_per_s"


THREEFOLD = Target("out_per_s", 3.0)
TWOFOLD = Target("out_per_s", 2.0)
NO_SLOWER = Target("p50_us", 1.0)

SCENARIOS = (
    Scenario("QoS 0, 1→1", Load(publishers=1, subscribers=1, topics=1, qos=0), THREEFOLD),
    Scenario("QoS 0, 10→10, 10 topics", Load(publishers=10, subscribers=10, topics=10, qos=0), THREEFOLD),
    Scenario("QoS 0, 10→10, 1 topic", Load(publishers=10, subscribers=10, topics=1, qos=0), THREEFOLD),
    Scenario("QoS 0, 1→1, mixed sizes", Load(publishers=1, subscribers=1, topics=1, qos=0, jitter_bytes=50)),
    Scenario("QoS 0, 1→100", Load(publishers=1, subscribers=100, topics=1, qos=0), THREEFOLD),
    Scenario("QoS 1, 10→10, 10 topics", Load(publishers=10, subscribers=10, topics=10, qos=1), TWOFOLD),
    Scenario("QoS 1, 10→10, 1 topic", Load(publishers=10, subscribers=10, topics=1, qos=1), TWOFOLD),
    Scenario("QoS 2, 10→10, 10 topics", Load(publishers=10, subscribers=10, topics=10, qos=2)),
    Scenario("QoS 0, one in flight", Load(publishers=1, subscribers=1, topics=1, qos=0, window=1), NO_SLOWER),
    Scenario("QoS 1, one in flight", Load(publishers=1, subscribers=1, topics=1, qos=1, window=1), NO_SLOWER),
)


class Run(msgspec.Struct, frozen=True):
    """One scenario on one broker in one round: its figures, or why there are none."""

    round: int
    scenario: str
    peer: str
    sample: Sample | None = None
    failure: str | None = None

    def __str__(self) -> str:
        figures = "failed" if self.sample is None else f"{self.sample.out_per_s:,}/s, p50 {self.sample.p50_us} µs"
        return f"{self.scenario}: {self.peer}: {figures}"


def measure(scenarios: Sequence[Scenario], brokers: Sequence[Broker], rounds: int, seconds: int) -> Iterator[Run]:
    for number in range(1, rounds + 1):
        for scenario in scenarios:
            for broker in brokers:
                yield _measure_once(number, scenario, broker, seconds)


def _measure_once(number: int, scenario: Scenario, broker: Broker, seconds: int) -> Run:
    name = broker.peer.name
    try:
        broker.restart_if_dead()
        return Run(number, scenario.name, name, sample=loader.run(scenario.load, broker.port, seconds))
    except StartError as error:
        return Run(number, scenario.name, name, failure=str(error))
    except LoadError as error:
        reason = str(error)
        if broker.exit_code is not None:
            reason = f"the broker ended with exit code {broker.exit_code}: {broker.last_words()}"
        return Run(number, scenario.name, name, failure=reason)


def median(samples: Sequence[Sample]) -> Sample | None:
    """Field by field; but what was lost is added up, as a loss in one round is a loss."""
    if not samples:
        return None
    return Sample(
        in_per_s=round(statistics.median(sample.in_per_s for sample in samples)),
        out_per_s=round(statistics.median(sample.out_per_s for sample in samples)),
        p50_us=round(statistics.median(sample.p50_us for sample in samples)),
        p99_us=round(statistics.median(sample.p99_us for sample in samples)),
        max_us=max(sample.max_us for sample in samples),
        lost=sum(sample.lost for sample in samples),
    )
