"""The broker's log lines: for people on a terminal, or one JSON object a line for machines."""

from __future__ import annotations

import json
import logging
import sys
from typing import Final

from braidmq.broker.notices import one_line
from braidmq.config.settings import LogConfig

LINE_CHARS_MAX: Final = 4_000
"""Characters of one message; text from outside is cut shorter than that where it is logged."""


class TextLines(logging.Formatter):
    """A message is one line. An exception is indented below it, so that nothing in it looks like a line of its own."""

    def format(self, record: logging.LogRecord) -> str:
        message = one_line(record.getMessage(), LINE_CHARS_MAX)
        line = f"{self.formatTime(record, '%H:%M:%S')} {record.levelname:<8} {message}"
        if record.exc_info:
            told = self.formatException(record.exc_info).splitlines()
            line += "".join(f"\n    {one_line(each, LINE_CHARS_MAX)}" for each in told)
        return line


class JsonLines(logging.Formatter):
    """One object a line, in ASCII: some programs end a line at characters that JSON does not escape."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": one_line(record.getMessage(), LINE_CHARS_MAX),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def configure(settings: LogConfig) -> None:
    """Sends the lines of this package, and of no other, to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    if settings.format == "json":
        handler.setFormatter(JsonLines())
    else:
        handler.setFormatter(TextLines())
    logger = logging.getLogger("braidmq")
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(settings.level.upper())
