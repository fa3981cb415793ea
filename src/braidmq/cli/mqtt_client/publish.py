"""`braidmq pub`: publishes one message, or many, and says what the broker answered."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from braidmq.cli import output
from braidmq.cli.errors import UsageError
from braidmq.cli.mqtt_client.options import (
    ConnectionOptions,
    check_text,
    check_topic,
    parse_pairs,
    qos_option,
)
from braidmq.cli.option_groups import with_option_groups

app = typer.Typer(add_completion=False)

PAYLOAD_BYTES_MAX: Final = 268_435_455
"""The largest packet of MQTT (§1.5.5); the broker's own limit is smaller."""

_MESSAGE: Final = "Message"
_SOURCE: Final = "Where the message comes from"
_PROPERTIES: Final = "Properties (MQTT 5)"

HELP: Final = (
    "Publish a message.\n\n"
    "With --qos 1 or 2 the exit code is 0 only if the broker acknowledged every message. It is 1 if it refused one or "
    "the connection was lost, 3 if there is no connection, 4 if an acknowledgement did not come in time."
)
EXAMPLES: Final = output.examples(
    ("A message", "braidmq pub sensors/kitchen 21.5"),
    ("Retained, and only done when the broker has it", "braidmq pub sensors/kitchen 21.5 --retain --qos 1"),
    ("Remove what is retained", "braidmq pub sensors/kitchen --null --retain"),
    ("A message a line, from another program", "tail -f log | braidmq pub logs/web --stdin-lines -q 1"),
    (
        "A file, to a broker with TLS and a password",
        "braidmq pub photos/1 -f cat.jpg --url mqtts://ada@broker.example --ask-password",
    ),
    ("Once a second, ten times", "braidmq pub clock tick --repeat 10 --interval 1"),
    (
        "A request whose answer is expected elsewhere",
        "braidmq pub ask now --response-topic answers/7 --correlation-data 42",
    ),
    ("Does anyone listen? (for a script)", "braidmq pub alarm test -q 1 --json"),
    ("Only to the brokers of a cluster", "braidmq pub valves/7 close --scope cloud1/edge1"),
)


@dataclass(frozen=True)
class MessageOptions:
    """How often, and with what flags, the message is published."""

    topic_option: Annotated[
        str | None, typer.Option("-t", "--topic", help="The topic, as an option.", rich_help_panel=_MESSAGE)
    ] = None
    qos: Annotated[int, qos_option("-q", "--qos", what="Quality of service", panel=_MESSAGE)] = 0
    retain: Annotated[
        bool,
        typer.Option("-r", "--retain", help="The broker keeps it for later subscribers.", rich_help_panel=_MESSAGE),
    ] = False
    repeat: Annotated[
        int, typer.Option("--repeat", min=1, help="Publish it this many times.", rich_help_panel=_MESSAGE)
    ] = 1
    interval_s: Annotated[
        float, typer.Option("--interval", min=0.0, help="Seconds between two of them.", rich_help_panel=_MESSAGE)
    ] = 0.0
    scope: Annotated[
        str | None,
        typer.Option(
            "--scope",
            metavar="CLUSTER",
            help="Only to brokers of the braid in this cluster and below; . is the broker's own.",
            rich_help_panel=_MESSAGE,
        ),
    ] = None

    def check(self) -> None:
        if self.scope is not None:
            check_topic(self.scope, "--scope")


@dataclass(frozen=True)
class SourceOptions:
    """Where the message comes from."""

    message: Annotated[
        str | None, typer.Option("-m", "--message", help="The text to publish.", rich_help_panel=_SOURCE)
    ] = None
    file: Annotated[
        Path | None, typer.Option("-f", "--file", help="Publish what is in the file.", rich_help_panel=_SOURCE)
    ] = None
    stdin_lines: Annotated[
        bool,
        typer.Option("-l", "--stdin-lines", help="A message for each line of standard input.", rich_help_panel=_SOURCE),
    ] = False
    stdin: Annotated[
        bool, typer.Option("-s", "--stdin", help="All of standard input as one message.", rich_help_panel=_SOURCE)
    ] = False
    null: Annotated[
        bool, typer.Option("-n", "--null", help="A message without a payload.", rich_help_panel=_SOURCE)
    ] = False

    def payload(self, text: str | None) -> bytes | None:
        """The one payload to publish; None if the lines of standard input are the payloads."""
        given = [text is not None, self.file is not None, self.stdin, self.null, self.stdin_lines]
        if sum(given) == 0:
            raise UsageError("nothing to publish", "Give a MESSAGE, --file, --stdin, --stdin-lines or --null.")
        if sum(given) > 1:
            raise UsageError(
                "more than one source of messages", "Choose one: MESSAGE, --file, --stdin, --stdin-lines, --null."
            )
        if self.stdin_lines:
            return None
        payload = b""
        if text is not None:
            payload = os.fsencode(text)
        elif self.file is not None:
            try:
                payload = self.file.read_bytes()
            except OSError as error:
                raise UsageError(f"--file {self.file} cannot be read: {error.strerror}") from None
        elif self.stdin:
            payload = sys.stdin.buffer.read(PAYLOAD_BYTES_MAX + 1)
        if len(payload) > PAYLOAD_BYTES_MAX:
            raise UsageError(f"the message is larger than {PAYLOAD_BYTES_MAX} bytes", "MQTT has no larger packets.")
        return payload


@dataclass(frozen=True)
class PropertyOptions:
    """The properties of a PUBLISH (MQTT 5 §3.3.2.3)."""

    expiry_s: Annotated[
        int | None,
        typer.Option("--expiry", min=0, max=0xFFFFFFFF, help="Seconds until it expires.", rich_help_panel=_PROPERTIES),
    ] = None
    content_type: Annotated[
        str | None, typer.Option("--content-type", help="As in application/json.", rich_help_panel=_PROPERTIES)
    ] = None
    response_topic: Annotated[
        str | None, typer.Option("--response-topic", help="Where the answer should go.", rich_help_panel=_PROPERTIES)
    ] = None
    correlation_data: Annotated[
        str | None, typer.Option("--correlation-data", help="Comes back with the answer.", rich_help_panel=_PROPERTIES)
    ] = None
    payload_format_utf8: Annotated[
        bool, typer.Option("--payload-format-utf8", help="Say that the payload is text.", rich_help_panel=_PROPERTIES)
    ] = False
    user_property: Annotated[
        list[str] | None,
        typer.Option("--user-property", metavar="KEY=VALUE", help="May be repeated.", rich_help_panel=_PROPERTIES),
    ] = None
    topic_alias: Annotated[
        int | None,
        typer.Option(
            "--topic-alias",
            min=1,
            max=65535,
            help="A number that replaces the topic from the second message on.",
            rich_help_panel=_PROPERTIES,
        ),
    ] = None

    def check(self) -> None:
        if self.content_type is not None:
            check_text(self.content_type, "--content-type")
        if self.response_topic is not None:
            check_topic(self.response_topic, "--response-topic")

    @property
    def by_flag(self) -> dict[str, Any]:
        return {
            "--expiry": self.expiry_s,
            "--content-type": self.content_type,
            "--response-topic": self.response_topic,
            "--correlation-data": self.correlation_data,
            "--payload-format-utf8": self.payload_format_utf8,
            "--user-property": self.user_property,
            "--topic-alias": self.topic_alias,
        }

    @property
    def as_paho(self) -> dict[str, Any]:
        """Those that were given, by the names that paho has for them."""
        properties = {
            "MessageExpiryInterval": self.expiry_s,
            "ContentType": self.content_type,
            "ResponseTopic": self.response_topic,
            "CorrelationData": None if self.correlation_data is None else os.fsencode(self.correlation_data),
            "PayloadFormatIndicator": 1 if self.payload_format_utf8 else None,
            "UserProperty": parse_pairs(self.user_property or [], "--user-property") or None,
            "TopicAlias": self.topic_alias,
        }
        return {name: value for name, value in properties.items() if value is not None}


@app.command("pub", help=HELP, epilog=EXAMPLES, no_args_is_help=True)
@with_option_groups
def publish(
    *,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="TOPIC [MESSAGE]", help="Where to publish, and what.")
    ] = None,
    message: MessageOptions,
    source: SourceOptions,
    properties: PropertyOptions,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Say nothing if all went well.", rich_help_panel="Output")
    ] = False,
    json_lines: output.JsonOption = False,
    color: output.ColorOption = output.Color.AUTO,
    connection: ConnectionOptions,
) -> None:
    topic, text = _topic_and_text(words or [], message.topic_option, source.message)
    payload = source.payload(text)
    check_topic(topic, "TOPIC")
    if source.stdin_lines and message.repeat != 1:
        raise UsageError("--repeat with --stdin-lines", "Lines are published once.")
    connection.require_version_5(properties.by_flag)
    sent = properties.as_paho
    if message.scope is not None:
        from braidmq.braid.interest.scope import END, PREFIX, PROPERTY

        if connection.level == 5:
            sent["UserProperty"] = [*sent.get("UserProperty", []), (PROPERTY, message.scope)]
        else:
            topic = f"{PREFIX}{message.scope}/{END}/{topic}"

    from braidmq.cli.mqtt_client.client import MqttClient
    from braidmq.cli.mqtt_client.outgoing import OutgoingMessages

    client = MqttClient(connection, "pub")
    outgoing = OutgoingMessages(
        client,
        topic,
        message.qos,
        message.retain,
        sent,
        version_5=connection.level == 5,
        timeout_s=connection.timeout_s,
        each=(lambda result: output.print_json(result.as_json())) if json_lines else None,
    )
    welcome = client.open()
    try:
        outgoing.check(welcome)
        if payload is None:
            outgoing.publish_lines(sys.stdin.fileno())
        else:
            outgoing.publish(payload, message.repeat, message.interval_s)
        outgoing.finish()
    finally:
        client.close()
    outgoing.report(quiet=quiet or json_lines)


def _topic_and_text(words: list[str], topic: str | None, message: str | None) -> tuple[str, str | None]:
    """The positional words fill what -t and -m left open."""
    left = list(words)
    if topic is None:
        if not left:
            raise UsageError("no topic", "As in: braidmq pub sensors/kitchen 21.5")
        topic = left.pop(0)
    if left and message is None:
        message = left.pop(0)
    if left:
        raise UsageError(f"{left[0]!r} is one word too many", "Put a message of several words into quotes.")
    return topic, message
