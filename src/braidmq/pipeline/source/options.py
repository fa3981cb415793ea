"""The options of `spark.read` and `spark.readStream.format("braidmq")`: checked as a whole, with errors for people.

`path` or `brokers` says which logs; the rest says which rows of them, and how they come.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlsplit

from braidmq.log.filters import TopicFilters
from braidmq.log.schema import COLUMNS
from braidmq.pipeline.errors import PipelineError

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
RETRY_S: Final = 30.0
"""How long a broker that does not answer is tried again."""
RETRY_S_MAX: Final = 3600.0
TOKEN_VARIABLE: Final = "BRAIDMQ_TOKEN"  # noqa: S105 - a name
NAMES: Final = (
    *(
        "path",
        "brokers",
        "token",
        "topics",
        "columns",
        "startingOffsets",
        "endingOffsets",
        "startingTime",
        "endingTime",
    ),
    *("maxRowsPerTrigger", "failOnDataLoss", "retrySeconds", "tasks"),
)

Position = str | datetime | dict[str, str | int]
"""Where to start or end: "earliest", "latest", a time, or the offset (or one of these words) for each broker."""


class OptionError(PipelineError, ValueError):
    """An option that makes no sense."""


@dataclass(frozen=True)
class ReadOptions:
    path: str | None = None
    """A log's folder, a broker's data folder, or one with those of several brokers."""
    brokers: tuple[str, ...] = ()
    """Admin ports, as URLs."""
    token: str | None = field(default=None, repr=False)
    topics: tuple[str, ...] = ()
    """MQTT filters; none takes all."""
    columns: tuple[str, ...] = COLUMNS
    starting: Position | None = None
    """None: where a batch or a stream starts by default."""
    ending: Position | None = None
    rows_max: int | None = None
    """Of one micro-batch, before the filters."""
    fail_on_data_loss: bool = True
    retry_s: float = RETRY_S
    task_each: bool = False
    """A task for each partition of a log, however few its rows are."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ReadOptions:
        given = Given(options, NAMES)
        path, brokers = given.text("path"), given.words("brokers")
        if (path is None) == (not brokers):
            raise OptionError(
                "either `path` or `brokers` has to say which log to read",
                'Write .option("path", "data") for files, or .option("brokers", "http://127.0.0.1:9883")',
            )
        return cls(
            path=None if path is None else _absolute(path),
            brokers=tuple(map(admin_url, brokers)),
            token=given.token(),
            topics=_filters(given.words("topics")),
            columns=_columns(given.words("columns")),
            starting=given.position("starting"),
            ending=given.position("ending"),
            rows_max=given.count("maxRowsPerTrigger"),
            fail_on_data_loss=given.choice("failOnDataLoss", ("true", "false")) != "false",
            retry_s=given.seconds("retrySeconds", RETRY_S, RETRY_S_MAX),
            task_each=given.choice("tasks", ("auto", "partitions")) == "partitions",
        )


class Given:
    """The options as they were given; Spark ignores case. Only `names` are known."""

    def __init__(self, options: Mapping[str, str], names: tuple[str, ...]) -> None:
        self._values = {name.lower(): value for name, value in options.items()}
        known = {name.lower(): name for name in names}
        for name in self._values:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = f"Is `{known[near[0]]}` meant?" if near else f"There are {', '.join(names)}"
                raise OptionError(f"there is no option `{name}`", hint)

    def text(self, name: str) -> str | None:
        return self._values.get(name.lower(), "").strip() or None

    def token(self) -> str | None:
        """The token of the admin ports; it need not be written into a program."""
        return self.text("token") or os.environ.get(TOKEN_VARIABLE) or None

    def words(self, name: str) -> tuple[str, ...]:
        """With commas between, or a JSON list."""
        text = self.text(name) or ""
        if text.startswith("["):
            value = _json(name, text)
            if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
                raise OptionError(f"`{name}` is no list of texts: {text}")
            return tuple(value)
        return tuple(word for part in text.split(",") if (word := part.strip()))

    def position(self, side: str) -> Position | None:
        offsets, time = self.text(f"{side}Offsets"), self.text(f"{side}Time")
        if offsets is not None and time is not None:
            raise OptionError(f"`{side}Offsets` together with `{side}Time`", "Either of them says where")
        if time is not None:
            return _time(f"{side}Time", time)
        if offsets is None or offsets in (EARLIEST, LATEST):
            return offsets
        return _offsets(f"{side}Offsets", offsets)

    def count(self, name: str) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        if not text.isdecimal() or int(text) < 1:
            raise OptionError(f"`{name}` has to be a number above 0, not {text!r}")
        return int(text)

    def seconds(self, name: str, default: float, most: float) -> float:
        text = self.text(name)
        try:
            value = default if text is None else float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value <= most:
            raise OptionError(f"`{name}` has to be a number of seconds from 0 to {most:g}, not {text!r}")
        return value

    def choice(self, name: str, words: tuple[str, ...]) -> str | None:
        text = self.text(name)
        if text is not None and text.lower() not in words:
            raise OptionError(f"`{name}` has to be {' or '.join(words)}, not {text!r}")
        return None if text is None else text.lower()


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise OptionError(f"`{name}` is no JSON ({error}): {text}") from None


def _offsets(name: str, text: str) -> dict[str, str | int]:
    value = _json(name, text) if text.startswith("{") else None
    if not isinstance(value, dict) or not all(_is_offset(one) for one in value.values()):
        raise OptionError(
            f"`{name}` is neither earliest, latest nor an offset for each broker: {text}",
            f'Write .option("{name}", \'{{"site1": 4711, "site2": "earliest"}}\')',
        )
    return value


def _is_offset(value: object) -> bool:
    return value in (EARLIEST, LATEST) or (isinstance(value, int) and not isinstance(value, bool) and value >= 0)


def _time(name: str, text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise OptionError(f"`{name}` is no time: {text}", "Write it as 2026-11-16T08:30:00Z") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _filters(words: tuple[str, ...]) -> tuple[str, ...]:
    try:
        return TopicFilters(words).filters
    except ValueError as error:
        raise OptionError(f"`topics`: {error}", 'Write MQTT filters such as "plant1/#,plant2/+/state"') from None


def _columns(words: tuple[str, ...]) -> tuple[str, ...]:
    unknown = [word for word in words if word not in COLUMNS]
    if unknown:
        raise OptionError(f"`columns`: there is no column {unknown[0]!r}", f"There are {', '.join(COLUMNS)}")
    return words or COLUMNS


def admin_url(text: str) -> str:
    parts = urlsplit(text if "://" in text else f"http://{text}")
    try:
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port is not None
    except ValueError:
        usable = False
    if not usable:
        raise OptionError(f"`brokers`: {text} is no address of an admin port", "Write http://127.0.0.1:9883")
    return f"{parts.scheme}://{parts.netloc}"


def _absolute(path: str) -> str:
    return os.path.abspath(urlsplit(path).path if path.startswith("file:") else path)
