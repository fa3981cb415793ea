"""MQTT 5 properties as the log and processors have them: pairs of texts."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from braidmq.log.run import Property
from braidmq.log.source import microseconds
from braidmq.mqtt.properties import PUBLISH, Properties, read_properties
from braidmq.mqtt.wire import Reader, varint

CONTENT_TYPE: Final = "content-type"
RESPONSE_TOPIC: Final = "response-topic"
CORRELATION_DATA: Final = "correlation-data"
PAYLOAD_FORMAT: Final = "payload-format-indicator"
PUBLISHED_AT: Final = "published_at"
"""The user property with which a device says when it published: ISO 8601, or microseconds of Unix time."""

TIME_US_MAX: Final = 253_402_300_799_999_999
"""The end of the year 9999, beyond which no reader could show it."""


def pairs_of(block: bytes) -> tuple[Property, ...]:
    """The properties in a block without its length: the user's in their order, then those that MQTT names.

    Correlation data is bytes, and is given in base64.
    """
    if not block:
        return ()
    found: Properties = read_properties(Reader(varint(len(block)) + block), PUBLISH)
    pairs: list[Property] = [*found.user_properties]
    if found.content_type is not None:
        pairs.append((CONTENT_TYPE, found.content_type))
    if found.response_topic is not None:
        pairs.append((RESPONSE_TOPIC, found.response_topic))
    if found.correlation_data is not None:
        pairs.append((CORRELATION_DATA, b64encode(found.correlation_data).decode()))
    if found.payload_format_indicator is not None:
        pairs.append((PAYLOAD_FORMAT, str(found.payload_format_indicator)))
    return tuple(pairs)


def published_us_of(pairs: Sequence[Property]) -> int | None:
    """When the device says that it published; None if it says nothing, or nothing that is a time."""
    for name, value in pairs:
        if name == PUBLISHED_AT:
            return _time_of(value)
    return None


def _time_of(text: str) -> int | None:
    try:
        time_us = int(text) if text.isascii() and text.isdigit() else microseconds(datetime.fromisoformat(text))
    except (ValueError, OverflowError):
        return None
    return time_us if 0 <= time_us <= TIME_US_MAX else None
