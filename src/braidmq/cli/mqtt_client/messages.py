"""A received message as a line of output: for a person, for a script (JSON), in a format of one's own, or as raw bytes.

A payload that is text is shown as text; anything else in hexadecimal, so that no message can play with the terminal.
"""

from __future__ import annotations

import base64
import json
import string
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from braidmq.cli import output
from braidmq.cli.errors import UsageError

FIELDS: Final = ("topic", "payload", "hex", "base64", "length", "qos", "retain", "dup", "time", "properties")
"""What `--format` may have in braces."""

_PROPERTIES: Final = {
    "PayloadFormatIndicator": "payload_format_indicator",
    "MessageExpiryInterval": "message_expiry_s",
    "ContentType": "content_type",
    "ResponseTopic": "response_topic",
    "CorrelationData": "correlation_data",
    "UserProperty": "user_properties",
}


@dataclass(frozen=True, slots=True)
class Received:
    """A message as it arrived. `properties` are the MQTT 5 ones, by the names that `--json` shows them with."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    dup: bool
    received_at: datetime
    properties: dict[str, Any]
    subscription_ids: list[int]


def received(message: Any) -> Received:
    """From paho's MQTTMessage."""
    properties = {
        name: getattr(message.properties, attribute)
        for attribute, name in _PROPERTIES.items()
        if hasattr(message.properties, attribute)
    }
    if "correlation_data" in properties:
        properties["correlation_data"] = base64.b64encode(properties["correlation_data"]).decode()
    if "user_properties" in properties:
        properties["user_properties"] = [list(pair) for pair in properties["user_properties"]]
    return Received(
        message.topic,
        bytes(message.payload),
        message.qos,
        bool(message.retain),
        bool(message.dup),
        datetime.now(UTC),
        properties,
        list(getattr(message.properties, "SubscriptionIdentifier", [])),
    )


def as_text(payload: bytes) -> str | None:
    """The payload as text; None if it is binary, or would move the cursor about."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return None
    return text if all(character.isprintable() or character in "\n\t" for character in text) else None


def as_json(message: Received) -> dict[str, Any]:
    try:
        payload, encoding = message.payload.decode(), "utf-8"
    except UnicodeDecodeError:
        payload, encoding = base64.b64encode(message.payload).decode(), "base64"
    return {
        "topic": message.topic,
        "payload": payload,
        "encoding": encoding,
        "qos": message.qos,
        "retain": message.retain,
        "dup": message.dup,
        "received_at": message.received_at.isoformat(),
        "properties": message.properties,
        "subscription_ids": message.subscription_ids,
    }


def check_format(text: str) -> str:
    """The format with \\n, \\t and \\0 resolved; a UsageError if it has a field that does not exist."""
    try:
        names = [name for _, name, _, _ in string.Formatter().parse(text) if name is not None]
        unknown = [name for name in names if name not in FIELDS]
        if not unknown:
            text.format(**dict.fromkeys(FIELDS, ""))
    except ValueError as error:
        raise UsageError(f"--format {text}: {error}", "Write literal braces twice: {{ and }}.") from None
    if unknown:
        raise UsageError(
            f"--format has {{{unknown[0]}}}, which does not exist",
            "There are " + " ".join(f"{{{name}}}" for name in FIELDS),
        )
    return text.replace(r"\n", "\n").replace(r"\t", "\t").replace(r"\0", "\0")


def printer(
    *, json_lines: bool = False, raw: bool = False, line_format: str | None = None, verbose: bool = False
) -> Callable[[Received], None]:
    """The function that prints a message, and flushes it."""
    if json_lines:
        return lambda message: output.print_json(as_json(message))
    if raw:
        return _print_raw
    if line_format is not None:
        checked = check_format(line_format)
        return lambda message: _write(checked.format(**_fields(message)))
    console = output.console()
    if not console.is_terminal or console.no_color:
        return lambda message: _write("".join(text for text, _ in _parts(message, verbose)))
    from rich.text import Text

    return lambda message: console.print(Text.assemble(*_parts(message, verbose)))


def _write(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _print_raw(message: Received) -> None:
    sys.stdout.buffer.write(message.payload + b"\n")
    sys.stdout.buffer.flush()


def _parts(message: Received, verbose: bool) -> list[tuple[str, str]]:
    """The readable line, in pieces of (text, style)."""
    time = message.received_at.astimezone().strftime("%H:%M:%S.%f")[:-3]
    parts = [(time, "dim"), (" ", ""), (_safe(message.topic), "bold cyan"), (" ", "")]
    if verbose:
        marks = f"QoS {message.qos}" + (", retained" if message.retain else "") + (", again" if message.dup else "")
        parts += [(f"({marks}) ", "magenta")]
    elif message.retain:
        parts += [("(retained) ", "magenta")]
    text = as_text(message.payload)
    if text is None:
        parts += [(f"[{len(message.payload)} bytes] ", "dim"), (message.payload.hex(" "), "yellow")]
    else:
        parts += [(text, "")]
    if verbose:
        details: dict[str, Any] = dict(message.properties)
        if message.subscription_ids:
            details["subscription_ids"] = message.subscription_ids
        for name, value in details.items():
            parts += [(f"\n    {name}: ", "dim"), (json.dumps(value, ensure_ascii=False), "")]
    return parts


def _safe(text: str) -> str:
    return "".join(character if character.isprintable() else f"\\u{ord(character):04x}" for character in text)


def _fields(message: Received) -> dict[str, Any]:
    text = as_text(message.payload)
    return {
        "topic": message.topic,
        "payload": message.payload.hex() if text is None else text,
        "hex": message.payload.hex(),
        "base64": base64.b64encode(message.payload).decode(),
        "length": len(message.payload),
        "qos": message.qos,
        "retain": int(message.retain),
        "dup": int(message.dup),
        "time": message.received_at.astimezone().isoformat(timespec="milliseconds"),
        "properties": json.dumps(message.properties, ensure_ascii=False),
    }
