"""The log's numbers for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from braidmq.server.log_recorder import LogRecorder

PREFIX: Final = "braidmq_log_"


class LogCollector(Collector):
    """Reads the numbers of the log that there is, if there is one."""

    def __init__(self, recorder: Callable[[], LogRecorder | None]) -> None:
        self._recorder = recorder

    def collect(self) -> Iterable[Metric]:
        recorder = self._recorder()
        if recorder is None:
            return
        log = recorder.log
        damaged_batches, damaged_rows = recorder.damaged
        for name, text, value in (
            ("rows", "Publications that were written to the log.", log.rows),
            ("written_bytes", "Bytes that were written to the log.", log.bytes_written),
            ("rows_dropped", "Publications that were not kept: the log could not be written.", recorder.dropped),
            ("failures", "Times that the log could not be written.", recorder.failures),
            ("corrupt_batches", "Damaged parts that a reader came upon and left out.", damaged_batches),
            ("corrupt_rows", "Rows in them, as far as that is known.", damaged_rows),
        ):
            yield CounterMetricFamily(PREFIX + name, text, value=value)
        for name, text, value in (
            ("bytes", "What the log takes up on the disk.", log.bytes),
            ("first_offset", "From here on nothing was taken away by retention.", log.first_offset),
            ("next_offset", "The offset of the next row.", log.next_offset),
            ("cut_bytes", "What was unfinished when the log was opened, and was cut off.", log.cut_bytes),
        ):
            yield GaugeMetricFamily(PREFIX + name, text, value=value)
