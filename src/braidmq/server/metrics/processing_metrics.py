"""The numbers of message processors for Prometheus, each by the processor's name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from braidmq.processing.processing import Processing

PREFIX: Final = "braidmq_processor_"

_COUNTS: Final = (
    ("processed", "processed", "Messages that a processor is done with."),
    ("notifications", "notified", "What a processor has published."),
    ("errors", "errors", "Messages that a processor failed on, and workers that ended."),
    ("dropped", "dropped", "Messages that a processor did not get because a bound was reached."),
    ("delegated", "delegated", "Messages that were left to Spark."),
    ("restarts", "restarts", "Workers that were started again."),
    ("copies_out", "copies_out", "Messages that were copied to spools of other brokers."),
    ("copies_in", "copies_in", "Messages that came from other brokers for spools here."),
    ("busy_seconds", "busy_s", "Time that a processor's function took."),
)


class ProcessingCollector(Collector):
    def __init__(self, processing: Processing) -> None:
        self._processing = processing

    def collect(self) -> Iterable[Metric]:
        runners = [runner for runner in self._processing.runners if runner.ready is not None]
        for name, attribute, text in _COUNTS:
            counter = CounterMetricFamily(PREFIX + name, text, labels=["processor"])
            for runner in runners:
                counter.add_metric([runner.name], getattr(runner.counts, attribute))
            yield counter
        queue = GaugeMetricFamily(f"{PREFIX}queue", "Messages that wait for a processor.", labels=["processor"])
        up = GaugeMetricFamily(f"{PREFIX}up", "1 while a processor's worker runs, else 0.", labels=["processor"])
        for runner in self._processing.runners:
            queue.add_metric([runner.name], len(runner.queue))
            up.add_metric([runner.name], int(runner.state == "running"))
        homes = GaugeMetricFamily(f"{PREFIX}homes", "Topics that this broker is a home of.", labels=["processor"])
        for runner in runners:
            homes.add_metric([runner.name], self._processing.homes.count(runner.name))
        yield homes
        yield queue
        yield up
        assignments = self._processing.assignments
        for name, text, value in (
            ("storage_bytes", "What the spools at the edge take when they are full.", assignments.load.storage),
            ("compute", "Spooled messages times publishers at the edge (v_l).", assignments.load.compute),
            ("local_share", "What the edge could process of all that it manages (theta_l).", assignments.share),
        ):
            yield GaugeMetricFamily(PREFIX + name, text, value=value)
