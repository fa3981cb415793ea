"""What processors on Spark say, on its way into the brokers: each notification once, each error told.

The answers of one partition of one log in one micro-batch are a batch of a writer of their own for the broker's
ledger, named by the query, the broker and the partition. Run again, in whatever task, it is the same batch, and is not
published again. Errors go to the broker as well, which tells them on `$processor/<name>/errors` as it does its own;
they are not worth a failed query, so they are tried once.
"""

from __future__ import annotations

import http.client
import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from braidmq.pipeline.batches import RETRY_S, Batch
from braidmq.pipeline.delegation import ERRORS_TIMEOUT_S, request
from braidmq.pipeline.errors import MissingExtra
from braidmq.pipeline.sink import SinkError, Written, query_and_batch

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError as error:
    raise MissingExtra(error.name) from None

ERRORS_MAX: Final = 100
"""Errors that a task tells one broker."""

_log = logging.getLogger("braidmq.pipeline")


class AnswerSink(DataSourceStreamArrowWriter):
    """Options: `urls` (admin ports by the names of brokers, as JSON), `processor`, `token`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._urls: dict[str, str] = json.loads(options["urls"])
        self._processor = options["processor"]
        self._token = options.get("token")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        query, batch = query_and_batch()
        going: dict[tuple[str, int], Batch] = {}
        errors: dict[str, list[dict[str, Any]]] = {}
        rows = 0
        try:
            for part in iterator:
                for row in part.to_pylist():
                    broker, partition = row["broker"], row["partition"]
                    if row["error"] is not None:
                        errors.setdefault(broker, []).append(row)
                        continue
                    key = (broker, partition)
                    if key not in going:
                        name = f"{query}/{broker}/{partition}"
                        going[key] = Batch(self._url(broker), self._token, name, batch, RETRY_S)
                    pairs = [(one["name"], one["value"]) for one in row["properties"] or ()]
                    going[key].add((row["topic"], row["payload"], row["qos"], row["retain"], pairs))
                    rows += 1
            for each in going.values():
                each.finish()
        finally:
            for each in going.values():
                each.close()
        for broker, found in errors.items():
            self._tell(broker, found)
        return Written(rows, any(each.is_repeated for each in going.values()))

    def _url(self, broker: str) -> str:
        if broker not in self._urls:
            raise SinkError(f"it is not known where {broker!r} is", "Start the query again: it joined since")
        return self._urls[broker]

    def _tell(self, broker: str, errors: list[dict[str, Any]]) -> None:
        told = [
            {"what": row["error"], "message": row["payload"].decode(), "topic": row["of"], "offset": row["offset"]}
            for row in errors[:ERRORS_MAX]
        ]
        for one in told:
            where = f" at {one['topic']} (offset {one['offset']})" if one["topic"] else ""
            _log.warning("processor %s: %s%s: %s", self._processor, one["what"], where, one["message"])
        body = json.dumps({"processor": self._processor, "errors": told}).encode()
        try:
            url = self._url(broker)
            status, _ = request(
                url, self._token, "POST", "/processing/errors", body, "application/json", ERRORS_TIMEOUT_S
            )
            if status != http.client.OK:
                _log.warning("%s does not take errors of processors (status %d)", url, status)
        except (OSError, http.client.HTTPException, SinkError) as error:
            _log.warning("errors of %s could not be told to %s: %s", self._processor, broker, error)
