"""Between MQTT and processors: a publication as a processor gets it, and what it says as a publication."""

from __future__ import annotations

import base64
import binascii
from contextlib import suppress
from typing import Final

from braidmq.mqtt.properties import PUBLISH, Properties, property_bytes, read_properties
from braidmq.mqtt.topics import has_wildcard
from braidmq.mqtt.wire import Reader, varint
from braidmq.processors.hops import HOPS
from braidmq.processors.processor import Properties as Pairs

CONTENT_TYPE: Final = "content-type"
RESPONSE_TOPIC: Final = "response-topic"
CORRELATION_DATA: Final = "correlation-data"
PAYLOAD_FORMAT: Final = "payload-format-indicator"


def pairs_of(forward: bytes) -> Pairs:
    """The properties that travel with a message, as pairs: user properties in order, then those that MQTT names."""
    if not forward:
        return ()
    block = varint(len(forward)) + forward
    properties = read_properties(Reader(block, 0, len(block)), PUBLISH)
    pairs = [(name, value) for name, value in properties.user_properties]
    if properties.content_type is not None:
        pairs.append((CONTENT_TYPE, properties.content_type))
    if properties.response_topic is not None:
        pairs.append((RESPONSE_TOPIC, properties.response_topic))
    if properties.correlation_data is not None:
        pairs.append((CORRELATION_DATA, base64.b64encode(properties.correlation_data).decode()))
    if properties.payload_format_indicator is not None:
        pairs.append((PAYLOAD_FORMAT, str(int(properties.payload_format_indicator))))
    return tuple(pairs)


def forward_of(pairs: Pairs, hops: int) -> bytes:
    """The same way back, with the number of processors that it came through; what MQTT cannot say stays a pair."""
    properties = Properties()
    for name, value in pairs:
        if name == HOPS:
            continue
        if name == CONTENT_TYPE:
            properties.content_type = value
        elif name == RESPONSE_TOPIC and value and not has_wildcard(value):
            properties.response_topic = value
        elif name == CORRELATION_DATA and (data := _base64(value)) is not None:
            properties.correlation_data = data
        elif name == PAYLOAD_FORMAT and value in ("0", "1"):
            properties.payload_format_indicator = int(value)
        else:
            properties.user_properties.append((name, value))
    properties.user_properties.append((HOPS, str(hops)))
    return property_bytes(properties, PUBLISH)


def _base64(text: str) -> bytes | None:
    with suppress(binascii.Error, ValueError):
        data = base64.b64decode(text, validate=True)
        return data if len(data) <= 65_535 else None
    return None
