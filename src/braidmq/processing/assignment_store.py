"""Who has processed what, written down: the turns of each (processor, topic), and states on their way to Spark.

`placements.jsonl` has a line for each turn that began; it is read at the start, without a last line that was cut short,
and then written anew. A spool that goes to Spark lies in `handed/` until it comes back. `left` is what a clean end left
for the next start: spools, and what waited for a worker. `offsets` says up to where the count of messages whose topic
is not logged may have come: it is written for many messages at once, and after a crash goes on behind them, so that no
number is ever used twice.

Without a folder (a broker without a store) nothing is kept, as with everything else.
"""

from __future__ import annotations

import hashlib
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from braidmq.processing.work_queue import Item
from braidmq.processors.placement import Place, Turn, Turns, with_turn
from braidmq.processors.processor import SpoolState

OFFSETS_RESERVED: Final = 1 << 20
"""Offsets that are written down at once."""
PLACEMENTS_MAX: Final = 100_000
"""Topics of which turns are remembered; then those that never left the edge are forgotten, the oldest first."""
SUFFIX_PART: Final = ".part"

Key = tuple[str, str]
"""A processor and a topic."""

_log = logging.getLogger("braidmq.processing")


class _Line(msgspec.Struct, frozen=True):
    processor: str
    topic: str
    first: int
    place: Place


class SavedSpool(msgspec.Struct, frozen=True, array_like=True):
    topic: str
    is_logged: bool
    """Whether its offsets are those of the log."""
    last: int
    messages: tuple[bytes, ...]
    used_at: float
    """When its last message came."""


class Left(msgspec.Struct, frozen=True, array_like=True):
    """What a processor had when the broker ended: its spools, and the messages that it was not done with."""

    spools: list[SavedSpool]
    queue: list[tuple[Item, bool]]
    """Each with whether its offset is the log's."""


_decode_line = msgspec.json.Decoder(_Line).decode
_decode_left = msgspec.msgpack.Decoder(dict[str, Left]).decode


class AssignmentStore:
    def __init__(self, folder: Path | None, sync: bool = False) -> None:
        self._folder = folder
        self._sync = sync
        self._turns: dict[Key, Turns] = {}
        self._next_offset = 0
        self._reserved = 0
        self._journal: int | None = None
        if folder is not None:
            self._next_offset = self._reserved = self._read_offset(folder / "offsets")
            self._read_turns(folder / "placements.jsonl")

    def close(self) -> None:
        if self._journal is not None:
            os.close(self._journal)
            self._journal = None
        if self._folder is not None and self._next_offset:
            self._reserve(self._next_offset)

    # Offsets of what is not logged

    def take_offsets(self, count: int) -> int:
        """The first of so many offsets that nobody has had."""
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

    # Turns

    def turns(self, key: Key) -> Turns:
        return self._turns.get(key, ())

    def all(self) -> dict[Key, Turns]:
        return self._turns

    def begin(self, key: Key, turn: Turn) -> Turns:
        """Writes down that a turn begins; it holds when this returns."""
        turns = with_turn(self._turns.get(key, ()), turn)
        if turns != self._turns.get(key):
            if key not in self._turns and len(self._turns) >= PLACEMENTS_MAX:
                self._forget_one()
            if self._folder is not None:
                self._write_turn(self._folder / "placements.jsonl", key, turn)
            self._turns[key] = turns
        return turns

    def _forget_one(self) -> None:
        for key, turns in self._turns.items():
            if len(turns) == 1 and turns[0].place == "edge":
                del self._turns[key]
                return

    def _write_turn(self, path: Path, key: Key, turn: Turn) -> None:
        if self._journal is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._journal = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(self._journal, _line_of(key, turn))
        if self._sync:
            os.fsync(self._journal)

    def _read_turns(self, path: Path) -> None:
        if not path.exists():
            return
        lines = path.read_bytes().split(b"\n")
        for number, line in enumerate(lines, 1):
            if not line:
                continue
            try:
                one = _decode_line(line)
                key = (one.processor, one.topic)
                self._turns[key] = with_turn(self._turns.get(key, ()), Turn(one.first, one.place))
            except (msgspec.MsgspecError, ValueError) as error:
                if number < len(lines):  # else it is what a crash has cut short
                    _log.error("%s, line %d is left out: %s", path, number, error)
        self._replace(path, b"".join([_line_of(key, turn) for key, turns in self._turns.items() for turn in turns]))

    # States

    def hand_over(self, key: Key, state: SpoolState) -> None:
        """Keeps a spool for Spark. One that is empty need not be kept."""
        if self._folder is not None and state.messages:
            self._replace(self._handed(key), state.encode())

    def handed(self, key: Key) -> SpoolState | None:
        """What was handed over with the last turn of Spark; None if that began with nothing."""
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

    def leave(self, left: dict[str, Left]) -> None:
        if self._folder is not None and left:
            self._replace(self._folder / "left", msgspec.msgpack.encode(left))

    def take_left(self) -> dict[str, Left]:
        """What a clean end left, once: after a crash it would be old."""
        if self._folder is None:
            return {}
        path = self._folder / "left"
        try:
            return _decode_left(path.read_bytes())
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


def _line_of(key: Key, turn: Turn) -> bytes:
    return msgspec.json.encode(_Line(key[0], key[1], turn.first, turn.place)) + b"\n"
