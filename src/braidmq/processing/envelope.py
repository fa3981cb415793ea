"""What a processor says, as a publication: the way back of `log.properties`."""

from __future__ import annotations

import base64
import binascii
from contextlib import suppress

from braidmq.log.properties import CONTENT_TYPE, CORRELATION_DATA, PAYLOAD_FORMAT, RESPONSE_TOPIC
from braidmq.mqtt.properties import PUBLISH, Properties, property_bytes
from braidmq.mqtt.topics import has_wildcard
from braidmq.processors.hops import HOPS
from braidmq.processors.processor import Properties as Pairs


def forward_of(pairs: Pairs, hops: int) -> bytes:
    """A publication's properties, with the number of processors it came through; what MQTT cannot say stays a pair."""
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
