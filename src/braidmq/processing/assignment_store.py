"""The files of a site's processors: where each topic was processed, spools on their way to Spark, work to resume.

    placements.jsonl   a line for each interval that began; read at the start, except a last line that was cut short,
                       and then written anew
    handed/            the spools of topics that went to Spark, until they come back
    left               what a clean end saves for the next start: spools, and messages that waited for a worker
    offsets            up to which number messages that are not logged may have been counted: it is written for many
                       messages at once, and after a crash the count goes on behind it, so no number is used twice

Without a folder (a broker without a store) nothing is kept.
"""

from __future__ import annotations

import hashlib
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from braidmq.processing.work_queue import QueuedMessage
from braidmq.processors.placement import Interval, Intervals, Location, with_interval
from braidmq.processors.processor import SpoolState

OFFSETS_RESERVED: Final = 1 << 20
"""Offsets that are reserved with one write."""
PLACEMENTS_MAX: Final = 100_000
"""Topics of which intervals are remembered; then those that never left the edge are forgotten, the oldest first."""
SUFFIX_PART: Final = ".part"

Key = tuple[str, str]
"""A processor and a topic."""

_log = logging.getLogger("braidmq.processing")


class _PlacementLine(msgspec.Struct, frozen=True):
    processor: str
    topic: str
    first: int
    location: Location = msgspec.field(name="place")


class SavedSpool(msgspec.Struct, frozen=True, array_like=True):
    """A spool from before the start; its messages are encoded as workers get them."""

    topic: str
    is_logged: bool
    """Whether its offsets are those of the log."""
    last: int
    messages: tuple[bytes, ...]
    used_at: float
    """When its last message came."""


class SavedWork(msgspec.Struct, frozen=True, array_like=True):
    """What a processor had when the broker ended: its spools, and the messages that it had not finished."""

    spools: list[SavedSpool]
    queue: list[tuple[QueuedMessage, bool]]
    """Each message, and whether its offset is the log's."""


_decode_line = msgspec.json.Decoder(_PlacementLine).decode
_decode_saved = msgspec.msgpack.Decoder(dict[str, SavedWork]).decode


class AssignmentStore:
    def __init__(self, folder: Path | None, sync: bool = False) -> None:
        self._folder = folder
        self._sync = sync
        self._intervals: dict[Key, Intervals] = {}
        self._next_offset = 0
        self._reserved = 0
        self._journal: int | None = None
        if folder is not None:
            self._next_offset = self._reserved = self._read_offset(folder / "offsets")
            self._read_intervals(folder / "placements.jsonl")

    def close(self) -> None:
        if self._journal is not None:
            os.close(self._journal)
            self._journal = None
        if self._folder is not None and self._next_offset:
            self._reserve(self._next_offset)

    # Offsets of what is not logged

    def take_offsets(self, count: int) -> int:
        """Reserves `count` offsets that were never used, and returns the first."""
        first = self._next_offset
        self._next_offset += count
        if self._next_offset > self._reserved and self._folder is not None:
            self._reserve(self._next_offset + OFFSETS_RESERVED)
        return first

    def _reserve(self, reserved: int) -> None:
        assert self._folder is not None
        self._reserved = reserved
        self._replace(self._folder / "offsets", str(reserved).encode())

    def _read_offset(self, path: Path) -> int:
        with suppress(FileNotFoundError):
            text = path.read_text()
            if not text.isascii() or not text.strip().isdigit():
                raise OSError(f"{path} holds no number: it was written by something else. Restore it from a copy")
            return int(text)
        return 0

    # Intervals

    def intervals(self, key: Key) -> Intervals:
        return self._intervals.get(key, ())

    def all(self) -> dict[Key, Intervals]:
        return self._intervals

    def begin(self, key: Key, interval: Interval) -> Intervals:
        """Writes down that an interval begins; it is on record when this returns."""
        intervals = with_interval(self._intervals.get(key, ()), interval)
        if intervals != self._intervals.get(key):
            if key not in self._intervals and len(self._intervals) >= PLACEMENTS_MAX:
                self._forget_one()
            if self._folder is not None:
                self._write_interval(self._folder / "placements.jsonl", key, interval)
            self._intervals[key] = intervals
        return intervals

    def _forget_one(self) -> None:
        for key, intervals in self._intervals.items():
            if len(intervals) == 1 and intervals[0].location == "edge":
                del self._intervals[key]
                return

    def _write_interval(self, path: Path, key: Key, interval: Interval) -> None:
        if self._journal is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._journal = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(self._journal, _line_of(key, interval))
        if self._sync:
            os.fsync(self._journal)

    def _read_intervals(self, path: Path) -> None:
        if not path.exists():
            return
        lines = path.read_bytes().split(b"\n")
        for number, line in enumerate(lines, 1):
            if not line:
                continue
            try:
                one = _decode_line(line)
                key = (one.processor, one.topic)
                self._intervals[key] = with_interval(self._intervals.get(key, ()), Interval(one.first, one.location))
            except (msgspec.MsgspecError, ValueError) as error:
                if number < len(lines):  # otherwise a crash has cut it short
                    _log.error("%s, line %d is left out: %s", path, number, error)
        kept = [_line_of(key, interval) for key, intervals in self._intervals.items() for interval in intervals]
        self._replace(path, b"".join(kept))

    # Spools on their way to Spark

    def hand_over(self, key: Key, state: SpoolState) -> None:
        """Keeps a spool for Spark. One that is empty need not be kept."""
        if self._folder is not None and state.messages:
            self._replace(self._handed(key), state.encode())

    def handed(self, key: Key) -> SpoolState | None:
        """The spool with which Spark's last interval began; None if it began with none."""
        if self._folder is None:
            return None
        try:
            return SpoolState.decode(self._handed(key).read_bytes())
        except FileNotFoundError:
            return None

    def drop_handed(self, key: Key) -> None:
        if self._folder is not None:
            self._handed(key).unlink(missing_ok=True)

    def _handed(self, key: Key) -> Path:
        assert self._folder is not None
        return self._folder / "handed" / hashlib.sha256("\0".join(key).encode()).hexdigest()[:32]

    # From a clean end to the next start

    def save(self, work: dict[str, SavedWork]) -> None:
        if self._folder is not None and work:
            self._replace(self._folder / "left", msgspec.msgpack.encode(work))

    def take_saved(self) -> dict[str, SavedWork]:
        """What a clean end saved. It is read once and removed: after a crash it would be out of date."""
        if self._folder is None:
            return {}
        path = self._folder / "left"
        try:
            return _decode_saved(path.read_bytes())
        except FileNotFoundError:
            return {}
        except msgspec.MsgspecError as error:
            _log.error("%s cannot be read, so processors begin with empty spools: %s", path, error)
            return {}
        finally:
            path.unlink(missing_ok=True)

    def _replace(self, path: Path, content: bytes) -> None:
        """Writes a file as a whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(path.name + SUFFIX_PART)
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            if self._sync:
                os.fsync(file.fileno())
        part.replace(path)


def _line_of(key: Key, interval: Interval) -> bytes:
    return msgspec.json.encode(_PlacementLine(key[0], key[1], interval.first, interval.location)) + b"\n"
