"""A batch of rows on its way into a broker, part by part, over its admin port.

The broker publishes a batch of one writer and number once, however often it is sent (see `broker.transactions`).
"""

from __future__ import annotations

import time
from typing import Final

from braidmq.admin.client import AdminClient
from braidmq.admin.contract import BatchPart, BatchRow, Receipt
from braidmq.admin.errors import AdminError, AnswerRefused, Unanswered, Unreachable, WrongToken

PART_ROWS: Final = 2_000
PART_BYTES: Final = 4 * 2**20
"""A part is sent when it has so many rows, or payloads of so many bytes."""

RETRY_S: Final = 60.0
"""For how long a broker that is down, or that asks for patience, is tried again."""

PAUSE_S: Final = 0.25

Row = tuple[str, bytes, int, bool, list[tuple[str, str]]]
"""Topic, payload, QoS, retain, user properties."""


class BatchError(Exception):
    """The batch could not be published; the text says why."""


class PublishBatch:
    """One writer's batch: rows are added, and `finish` makes them count. Sent again, it is published only once."""

    def __init__(self, url: str, token: str | None, writer: str, number: int, retry_s: float = RETRY_S) -> None:
        self._url = url
        self._client = AdminClient(url, token)
        self._writer = writer
        self._number = number
        self._retry_s = retry_s
        self._part = 0
        self._rows: list[BatchRow] = []
        self._bytes = 0
        self.is_repeated = False
        """Whether the broker had it already."""

    def add(self, row: Row) -> None:
        if len(self._rows) >= PART_ROWS or self._bytes >= PART_BYTES:
            self._send(is_last=False)
        topic, payload, qos, retain, properties = row
        self._rows.append(BatchRow(topic, payload, qos, retain, tuple(properties)))
        self._bytes += len(payload)

    def finish(self) -> None:
        """Sends what is left. Once it returns, the broker has the whole batch and will not lose it."""
        self._send(is_last=True)
        self.close()

    def close(self) -> None:
        self._client.close()

    def _send(self, is_last: bool) -> None:
        part = BatchPart(self._writer, self._number, self._part, is_last, tuple(self._rows))
        self._rows = []
        self._bytes = 0
        self._part += 1
        if not self.is_repeated:
            self.is_repeated = self._post(part) is Receipt.REPEATED

    def _post(self, part: BatchPart) -> Receipt:
        """Tries until the broker has taken it, or refuses it for good, or time is over."""
        ends_at = time.monotonic() + self._retry_s
        while True:
            try:
                return self._client.publish(part).receipt
            except AdminError as error:
                text = f"the broker at {self._url} did not take batch {self._number} of {self._writer}"
                if isinstance(error, WrongToken):
                    how = "it wants the token of its admin port: give it with the option token"
                    raise BatchError(f"{text}: {how}") from None
                is_final = isinstance(error, AnswerRefused) and error.is_broker and not error.is_for_now
                if is_final or time.monotonic() >= ends_at:
                    is_silent = isinstance(error, Unreachable | Unanswered)
                    reason = f"it does not answer ({error.reason})" if is_silent else error.reason
                    raise BatchError(f"{text}: {reason}") from None
            time.sleep(PAUSE_S)
