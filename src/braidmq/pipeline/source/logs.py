"""The logs that a query reads: found once, by the names of their brokers, and asked for their state.

A log is a folder or a broker's admin port. A broker that is down is asked again for as long as the query allows, and
then named in an error. What a log no longer has, or never had, counts as lost rows: the option `failOnDataLoss` decides
whether that ends the query.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, TypeVar

from braidmq.log.errors import LogError
from braidmq.log.opening import open_log
from braidmq.log.reader import INFO_NAME, Damage, LogReader
from braidmq.log.remote import AwayError
from braidmq.log.source import LogSource, LogState
from braidmq.pipeline.errors import PipelineError
from braidmq.pipeline.source.options import EARLIEST, LATEST, OptionError, Position, ReadOptions

LOG_FOLDER: Final = "log"
"""Where a broker keeps its log, below its data folder."""
STARTING: Final = "startingOffsets"
RETRY_PAUSE_S: Final = 0.2
RETRY_PAUSE_S_MAX: Final = 5.0
ASKED_AT_ONCE_MAX: Final = 16
"""Brokers whose state is asked for at the same time."""

T = TypeVar("T")


class SourceError(PipelineError):
    """The rows that were asked for cannot be read."""


class RowsLost(SourceError):
    """The log does not have them any more, or was replaced by another log."""


@dataclass(frozen=True)
class LogLocation:
    """Where a log is."""

    where: str
    token: str | None
    retry_s: float

    @property
    def is_remote(self) -> bool:
        return self.where.startswith(("http://", "https://"))

    def open(self, on_damage: Callable[[Damage], None] | None = None) -> LogSource:
        if self.is_remote:
            return open_log(self.where, self.token)
        return LogReader(self.where, on_damage)

    def ask(self, question: Callable[[LogSource], T]) -> T:
        """An answer of the log; if its broker is down, waits for it as long as the query allows."""
        patience = Patience(self)
        while True:
            try:
                return question(self.open())
            except LogError as error:
                patience.wait(error)


class Patience:
    """How long to wait for a broker that is down or too busy. What waiting cannot mend is raised at once."""

    def __init__(self, location: LogLocation) -> None:
        self._location = location
        self._pause_s = RETRY_PAUSE_S
        self._ends_at = time.monotonic() + location.retry_s

    def wait(self, error: LogError) -> None:
        if not isinstance(error, AwayError):  # it answered, and did not ask for patience
            raise SourceError(str(error)) from None
        if time.monotonic() + self._pause_s > self._ends_at:
            where = self._location.where
            raise SourceError(
                f"the broker at {where} is down: it did not answer for {self._location.retry_s:g} s ({error})",
                "Start it and the query again; a stream goes on where it was. `retrySeconds` is how long to wait",
            ) from None
        time.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, RETRY_PAUSE_S_MAX)


class Logs:
    """All logs of a query, by the names of their brokers."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        wheres = options.brokers or folders(options.path or "")
        found = [LogLocation(where, options.token, options.retry_s) for where in wheres]
        self._locations: dict[str, LogLocation] = {}
        for location, state in zip(found, self._ask_all(found), strict=True):
            if state.broker in self._locations:
                other = self._locations[state.broker].where
                raise SourceError(
                    f"{other} and {location.where} are both logs of a broker named {state.broker!r}",
                    "Name each once, and give each broker of a braid a name of its own",
                )
            self._locations[state.broker] = location

    def location(self, broker: str) -> LogLocation:
        return self._locations[broker]

    def states(self) -> dict[str, LogState]:
        """The state of each log now."""
        states = self._ask_all(list(self._locations.values()))
        for broker, state in zip(self._locations, states, strict=True):
            if state.broker != broker:
                where = self._locations[broker].where
                raise SourceError(f"{where} was the log of {broker!r}, and is that of {state.broker!r} now")
        return dict(zip(self._locations, states, strict=True))

    def offsets(self, position: Position, states: Mapping[str, LogState], default: str) -> dict[str, int]:
        """What a position means for each broker; `default` is for those that it does not name."""
        if isinstance(position, datetime):
            at = position
            return {broker: self._locations[broker].ask(lambda log: log.offset_at(at)) for broker in states}
        if isinstance(position, str):
            return {broker: _named(position, state) for broker, state in states.items()}
        unknown = sorted(set(position) - set(states))
        if unknown:
            raise OptionError(f"offsets for {unknown[0]!r}, which is none of the brokers", f"There are {_list(states)}")
        found = {}
        for broker, state in states.items():
            value = position.get(broker, default)
            found[broker] = _named(value, state) if isinstance(value, str) else self.bounded(broker, value, state)
        return found

    def offset_after(self, broker: str, start: int, rows: int) -> int:
        """The offset after so many rows."""
        return self._locations[broker].ask(lambda log: log.offset_after(start, rows))

    def bounded(self, broker: str, offset: int, state: LogState) -> int:
        """An offset that a user or a checkpoint asks for, moved to one that the log has."""
        if offset > state.next_offset:
            text = f"{broker!r} has no offset {offset} yet: its next one is {state.next_offset}"
            return self._lost(text, state.next_offset)
        if offset < state.first_offset:
            text = f"retention has removed the offsets {offset} to {state.first_offset - 1} of {broker!r}"
            return self._lost(text, state.first_offset)
        return offset

    def lost_log(self, broker: str, state: LogState) -> int:
        """The log of a checkpoint was replaced by another one, in which its offsets mean nothing."""
        text = f"the log of {broker!r} is another one than that of the checkpoint: its folder was made anew"
        return self._lost(text, state.first_offset)

    def _lost(self, text: str, go_on_at: int) -> int:
        if self._options.fail_on_data_loss:
            raise RowsLost(text, LOSS_HINT)
        return go_on_at

    def _ask_all(self, locations: list[LogLocation]) -> list[LogState]:
        if len(locations) < 2 or not locations[0].is_remote:
            return [location.ask(_state) for location in locations]
        with ThreadPoolExecutor(min(len(locations), ASKED_AT_ONCE_MAX)) as pool:
            return list(pool.map(lambda location: location.ask(_state), locations))


def with_starting_offsets(options: Mapping[str, str]) -> dict[str, str]:
    """The options of a stream with the offsets that "latest" means now. Spark would find them when it gets to it, which
    can be half a minute after it was told to start; it would not see what is published until then."""
    read = ReadOptions.parse(options)
    position = read.starting or LATEST
    if position == EARLIEST or isinstance(position, datetime):
        return dict(options)
    logs = Logs(read)
    starts = logs.offsets(position, logs.states(), EARLIEST)
    others = {name: value for name, value in options.items() if name.lower() != STARTING.lower()}
    return others | {STARTING: json.dumps(starts)}


LOSS_HINT: Final = (
    'With .option("failOnDataLoss", "false") the query goes on with what is there; '
    "with a new checkpoint it starts where `startingOffsets` says"
)


def folders(path: str) -> tuple[str, ...]:
    """The logs at a path: the log itself, that of a broker's data folder, or those of all brokers in a folder."""
    root = Path(path)
    if not root.exists():
        raise SourceError(f"there is no folder {path}", "A log is where the broker's `data` folder is, in `log`")
    for found in ([root], [root / LOG_FOLDER], sorted(root.glob(f"*/{LOG_FOLDER}")), sorted(root.glob("*"))):
        logs = [folder for folder in found if (folder / INFO_NAME).exists()]
        if logs:
            return tuple(map(str, logs))
    raise SourceError(
        f"{path} is no log, and there is none below it",
        'A broker keeps one if its configuration names topics: [log] topics = ["telemetry/#"]',
    )


def _state(log: LogSource) -> LogState:
    return log.state()


def _named(word: str, state: LogState) -> int:
    return {EARLIEST: state.first_offset, LATEST: state.next_offset}[word]


def _list(states: Mapping[str, LogState]) -> str:
    return ", ".join(sorted(states))
