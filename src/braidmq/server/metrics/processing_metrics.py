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
    ("busy_seconds", "busy_s", "Time that a processor's function took."),
)


class ProcessingCollector(Collector):
    def __init__(self, processing: Processing) -> None:
        self._processing = processing

    def collect(self) -> Iterable[Metric]:
        stations = [station for station in self._processing.stations if station.ready is not None]
        for name, attribute, text in _COUNTS:
            counter = CounterMetricFamily(PREFIX + name, text, labels=["processor"])
            for station in stations:
                counter.add_metric([station.name], getattr(station.counts, attribute))
            yield counter
        queue = GaugeMetricFamily(f"{PREFIX}queue", "Messages that wait for a processor.", labels=["processor"])
        up = GaugeMetricFamily(f"{PREFIX}up", "1 while a processor's worker runs, else 0.", labels=["processor"])
        for station in self._processing.stations:
            queue.add_metric([station.name], len(station.line))
            up.add_metric([station.name], int(station.state == "running"))
        yield queue
        yield up
        places = self._processing.places
        for name, text, value in (
            ("storage_bytes", "What the spools at the edge take when they are full.", places.use.storage),
            ("compute", "Spooled messages times publishers at the edge (v_l).", places.use.compute),
            ("local_share", "What the edge could process of all that it manages (theta_l).", places.share),
        ):
            yield GaugeMetricFamily(PREFIX + name, text, value=value)
