"""The broker's log lines: for people on a terminal, or one JSON object a line for machines."""

from __future__ import annotations

import logging
import sys

import msgspec

from braidmq.broker.config.settings import Log


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def configure(settings: Log) -> None:
    """Sends the lines of this package, and of no other, to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    if settings.format == "json":
        handler.setFormatter(JsonLines())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-8s %(message)s", "%H:%M:%S"))
    logger = logging.getLogger("braidmq")
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(settings.level.upper())
