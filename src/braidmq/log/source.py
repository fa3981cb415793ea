"""What can be asked of a log, whether its files are here (`LogReader`) or behind an admin port (`RemoteLog`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class LogState:
    """A log at one moment. The rows in it have offsets from `first_offset` up to, and without, `next_offset`."""

    broker: str
    """The broker's name, which stands as `origin` in each row."""
    id: str
    """Identifies this log: a folder that was made anew has another id, and its offsets begin again."""
    partitions: int
    first_offset: int
    """From here on retention has removed nothing."""
    next_offset: int
    """The offset of the next row. All rows below it can be read."""
    format: int


class LogSource(Protocol):
    def state(self) -> LogState: ...

    def offset_at(self, at: datetime) -> int:
        """The offset of the first row that was received then or later; the next one if there is none yet."""
        ...

    def offset_after(self, start: int, rows: int) -> int:
        """Where to stop so that, from `start`, at most so many rows are read: for rate limits. Above `start`, unless
        there is nothing to read."""
        ...

    def read(
        self,
        partition: int,
        start: int,
        until: int,
        filters: Sequence[str] = (),
        *,
        columns: Sequence[str] | None = None,
        batch_bytes: int = ...,
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a partition with `start` <= offset < `until`, in the order of their offsets.

        Only those whose topic matches one of the filters, if there are any; only some columns, if any are named: the
        offset is always among them. Batches of about `batch_bytes`. The same call gives the same rows again, until
        retention removes them; what is damaged is left out, counted and reported.
        """
        ...


def microseconds(at: datetime) -> int:
    """Unix time; a datetime without a zone is taken as UTC."""
    aware = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    delta = aware - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds
