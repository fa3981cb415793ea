"""`braidmq pub`: publishes one message, or many, and says what the broker answered."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from braidmq.cli import output
from braidmq.cli.errors import UsageError
from braidmq.cli.mqtt_client.options import (
    ConnectionOptions,
    check_text,
    check_topic,
    parse_pairs,
    qos_option,
    with_connection_options,
)

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


@app.command("pub", help=HELP, epilog=EXAMPLES, no_args_is_help=True)
@with_connection_options
def publish(
    connection: ConnectionOptions,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="TOPIC [MESSAGE]", help="Where to publish, and what.")
    ] = None,
    topic_option: Annotated[
        str | None, typer.Option("-t", "--topic", help="The topic, as an option.", rich_help_panel=_MESSAGE)
    ] = None,
    qos: Annotated[int, qos_option("-q", "--qos", what="Quality of service", panel=_MESSAGE)] = 0,
    retain: Annotated[
        bool,
        typer.Option(
            "-r", "--retain", help="The broker keeps it for those who subscribe later.", rich_help_panel=_MESSAGE
        ),
    ] = False,
    repeat: Annotated[
        int, typer.Option("--repeat", min=1, help="Publish it this many times.", rich_help_panel=_MESSAGE)
    ] = 1,
    interval_s: Annotated[
        float, typer.Option("--interval", min=0.0, help="Seconds between two of them.", rich_help_panel=_MESSAGE)
    ] = 0.0,
    scope: Annotated[
        str | None,
        typer.Option(
            "--scope",
            metavar="CLUSTER",
            help="Only to brokers of the braid in this cluster and below; . is the broker's own.",
            rich_help_panel=_MESSAGE,
        ),
    ] = None,
    message: Annotated[
        str | None, typer.Option("-m", "--message", help="The text to publish.", rich_help_panel=_SOURCE)
    ] = None,
    file: Annotated[
        Path | None, typer.Option("-f", "--file", help="Publish what is in the file.", rich_help_panel=_SOURCE)
    ] = None,
    stdin_lines: Annotated[
        bool,
        typer.Option("-l", "--stdin-lines", help="A message for each line of standard input.", rich_help_panel=_SOURCE),
    ] = False,
    stdin: Annotated[
        bool, typer.Option("-s", "--stdin", help="All of standard input as one message.", rich_help_panel=_SOURCE)
    ] = False,
    null: Annotated[
        bool, typer.Option("-n", "--null", help="A message without a payload.", rich_help_panel=_SOURCE)
    ] = False,
    expiry_s: Annotated[
        int | None,
        typer.Option(
            "--expiry", min=0, max=0xFFFFFFFF, help="Seconds until it is worthless.", rich_help_panel=_PROPERTIES
        ),
    ] = None,
    content_type: Annotated[
        str | None, typer.Option("--content-type", help="As in application/json.", rich_help_panel=_PROPERTIES)
    ] = None,
    response_topic: Annotated[
        str | None, typer.Option("--response-topic", help="Where the answer should go.", rich_help_panel=_PROPERTIES)
    ] = None,
    correlation_data: Annotated[
        str | None, typer.Option("--correlation-data", help="Comes back with the answer.", rich_help_panel=_PROPERTIES)
    ] = None,
    payload_format_utf8: Annotated[
        bool, typer.Option("--payload-format-utf8", help="Say that the payload is text.", rich_help_panel=_PROPERTIES)
    ] = False,
    user_property: Annotated[
        list[str] | None,
        typer.Option("--user-property", metavar="KEY=VALUE", help="May be repeated.", rich_help_panel=_PROPERTIES),
    ] = None,
    topic_alias: Annotated[
        int | None,
        typer.Option(
            "--topic-alias",
            min=1,
            max=65535,
            help="A number that stands for the topic from the second message on.",
            rich_help_panel=_PROPERTIES,
        ),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Say nothing if all went well.", rich_help_panel="Output")
    ] = False,
    json_lines: output.JsonOption = False,
    color: output.ColorOption = output.Color.AUTO,
) -> None:
    topic, text = _topic_and_text(words or [], topic_option, message)
    payload = _payload(text, file, stdin=stdin, null=null, lines=stdin_lines)
    check_topic(topic, "TOPIC")
    if scope is not None:
        check_topic(scope, "--scope")
    if stdin_lines and repeat != 1:
        raise UsageError("--repeat with --stdin-lines", "Lines are published once.")
    five = {
        "--expiry": expiry_s,
        "--content-type": content_type,
        "--response-topic": response_topic,
        "--correlation-data": correlation_data,
        "--payload-format-utf8": payload_format_utf8,
        "--user-property": user_property,
        "--topic-alias": topic_alias,
    }
    connection.require_version_5(five)
    if content_type is not None:
        check_text(content_type, "--content-type")
    if response_topic is not None:
        check_topic(response_topic, "--response-topic")
    pairs = parse_pairs(user_property or [], "--user-property")
    if scope is not None:
        from braidmq.braid.interest.scope import END, PREFIX, PROPERTY

        if connection.level == 5:
            pairs.append((PROPERTY, scope))
        else:
            topic = f"{PREFIX}{scope}/{END}/{topic}"
    properties = {
        "MessageExpiryInterval": expiry_s,
        "ContentType": content_type,
        "ResponseTopic": response_topic,
        "CorrelationData": None if correlation_data is None else os.fsencode(correlation_data),
        "PayloadFormatIndicator": 1 if payload_format_utf8 else None,
        "UserProperty": pairs or None,
        "TopicAlias": topic_alias,
    }

    from braidmq.cli.mqtt_client.client import Link
    from braidmq.cli.mqtt_client.outgoing import Publishing

    link = Link(connection, "pub")
    publishing = Publishing(
        link,
        topic,
        qos,
        retain,
        {name: value for name, value in properties.items() if value is not None},
        version_5=connection.level == 5,
        timeout_s=connection.timeout_s,
        each=(lambda result: output.print_json(result.as_json())) if json_lines else None,
    )
    welcome = link.open()
    try:
        publishing.check(welcome)
        if payload is None:
            publishing.publish_lines(sys.stdin.fileno())
        else:
            publishing.publish(payload, repeat, interval_s)
        publishing.finish()
    finally:
        link.close()
    publishing.report(quiet=quiet or json_lines)


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


def _payload(text: str | None, file: Path | None, *, stdin: bool, null: bool, lines: bool) -> bytes | None:
    """The one payload to publish; None if the lines of standard input are the payloads."""
    given = [text is not None, file is not None, stdin, null, lines]
    if sum(given) == 0:
        raise UsageError("nothing to publish", "Give a MESSAGE, --file, --stdin, --stdin-lines or --null.")
    if sum(given) > 1:
        raise UsageError(
            "more than one source of messages", "Choose one: MESSAGE, --file, --stdin, --stdin-lines, --null."
        )
    if lines:
        return None
    payload = b""
    if text is not None:
        payload = os.fsencode(text)
    elif file is not None:
        try:
            payload = file.read_bytes()
        except OSError as error:
            raise UsageError(f"--file {file} cannot be read: {error.strerror}") from None
    elif stdin:
        payload = sys.stdin.buffer.read(PAYLOAD_BYTES_MAX + 1)
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise UsageError(f"the message is larger than {PAYLOAD_BYTES_MAX} bytes", "MQTT has no larger packets.")
    return payload
