"""Publishes what processors on Spark say: each notification once, and their errors.

The answers of one partition of one log in one micro-batch are a batch of a writer of their own, named by the query, the
broker and the partition. Run again, in whatever task, it is the same batch, and the broker does not publish it again.
Errors go to the broker as well, which publishes them on `$processor/<name>/errors` as it does its own; they are not
worth a failed query, so they are tried once.

The task that has the answers publishes them itself. A sink of Spark would take two more Python processes for each
batch: one that gets the answers by way of Java, and one that is told that they were written.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from braidmq.admin.client import AdminClient
from braidmq.admin.contract import FailureReport, ProcessorFailure
from braidmq.admin.errors import AdminError, AnswerRefused
from braidmq.pipeline.sink.batches import RETRY_S, PublishBatch
from braidmq.pipeline.sink.writers import query_and_batch

ERRORS_MAX: Final = 100
"""Errors that a task reports to one broker."""
ERRORS_TIMEOUT_S: Final = 5.0

_log = logging.getLogger("braidmq.pipeline")


class AnswerPublisher:
    """For the answers of one task. `urls`: admin ports by the names of brokers."""

    def __init__(self, processor: str, urls: Mapping[str, str], token: str | None) -> None:
        self._processor = processor
        self._urls = urls
        self._token = token

    def passed_on(self, parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same rows; when they end, they are published."""
        query, number = query_and_batch()
        going: dict[tuple[str, int], PublishBatch] = {}
        errors: dict[str, list[dict[str, Any]]] = {}
        try:
            for part in parts:
                for row in part.to_pylist():
                    broker, partition = row["broker"], row["partition"]
                    if row["error"] is not None:
                        errors.setdefault(broker, []).append(row)
                        continue
                    key = (broker, partition)
                    if key not in going:
                        writer = f"{query}/{broker}/{partition}"
                        going[key] = PublishBatch(self._urls[broker], self._token, writer, number, RETRY_S)
                    pairs = [(one["name"], one["value"]) for one in row["properties"] or ()]
                    going[key].add((row["topic"], row["payload"], row["qos"], row["retain"], pairs))
                yield part
            for each in going.values():
                each.finish()
        finally:
            for each in going.values():
                each.close()
        for broker, found in errors.items():
            self._report(broker, found)

    def _report(self, broker: str, errors: list[dict[str, Any]]) -> None:
        told = [
            ProcessorFailure(row["error"], row["payload"].decode(), row["of"], row["offset"])
            for row in errors[:ERRORS_MAX]
        ]
        for one in told:
            where = f" at {one.topic} (offset {one.offset})" if one.topic else ""
            _log.warning("processor %s: %s%s: %s", self._processor, one.what, where, one.message)
        url = self._urls[broker]
        try:
            with AdminClient(url, self._token, ERRORS_TIMEOUT_S) as admin:
                admin.report_failures(FailureReport(self._processor, told))
        except AnswerRefused as error:
            _log.warning("%s does not take errors of processors (status %d)", url, error.status)
        except AdminError as error:
            _log.warning("errors of %s could not be told to %s: %s", self._processor, broker, error.reason)
