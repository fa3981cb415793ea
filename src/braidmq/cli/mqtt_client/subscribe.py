"""`braidmq sub`: subscribes and prints what arrives, until it is told to stop."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from braidmq.cli import output
from braidmq.cli.ending import interrupt_at_sigterm
from braidmq.cli.errors import CliError, ExitCode, UsageError
from braidmq.cli.mqtt_client.options import (
    ConnectionOptions,
    check_filter,
    parse_pairs,
    qos_option,
)
from braidmq.cli.option_groups import with_option_groups

if TYPE_CHECKING:
    from paho.mqtt.properties import Properties
    from paho.mqtt.subscribeoptions import SubscribeOptions

    from braidmq.cli.mqtt_client.client import Connected, MqttClient, SubscribeAnswered
    from braidmq.cli.mqtt_client.messages import Received

app = typer.Typer(add_completion=False)

_WHAT: Final = "Subscription"
_HOW_LONG: Final = "How long"
_OUTPUT: Final = "Output"

HELP: Final = (
    "Subscribe to topics and print the messages.\n\n"
    "Ctrl-C is the normal end: the exit code is 0 then. It is 1 if the broker refuses a filter or ends the connection, "
    "3 if there is no connection, 4 if the time of --wait was up before the messages came."
)
EXAMPLES: Final = output.examples(
    ("Everything under sensors, with the topics in colour", "braidmq sub 'sensors/#'"),
    ("The next message alone, within 5 seconds, for a script", "braidmq sub sensors/kitchen -C 1 -W 5 --json"),
    ("In a custom format", "braidmq sub '+/temperature' --format '{time}\\t{topic}\\t{payload}'"),
    ("Share the work with others of the group", "braidmq sub 'jobs/#' --share workers -q 1"),
    ("Go on where the last time ended", "braidmq sub 'orders/#' -q 1 -i printer --keep-session --reconnect"),
    (
        "Over TLS, to a broker that wants a password",
        "BRAIDMQ_PASSWORD=secret braidmq sub 'a/#' --url mqtts://ada@broker.example --cafile ca.pem",
    ),
    (
        "Over WebSocket, the payloads as they are, into a file",
        "braidmq sub camera --url ws://localhost:8083/mqtt --raw > out",
    ),
)


@dataclass(frozen=True)
class SubscriptionOptions:
    """What is subscribed to, and how."""

    topic: Annotated[
        list[str] | None,
        typer.Option("-t", "--topic", help="A filter, as an option; may be repeated.", rich_help_panel=_WHAT),
    ] = None
    qos: Annotated[int, qos_option("-q", "--qos", what="Highest quality of service", panel=_WHAT)] = 0
    share: Annotated[
        str | None,
        typer.Option(
            "--share", metavar="GROUP", help="Each message goes to one of the group only.", rich_help_panel=_WHAT
        ),
    ] = None
    no_retained: Annotated[
        bool, typer.Option("-R", "--no-retained", help="Leave out retained messages.", rich_help_panel=_WHAT)
    ] = False
    retain_handling: Annotated[
        int | None,
        typer.Option(
            "--retain-handling",
            min=0,
            max=2,
            help="Retained messages: 0 send, 1 only for a new subscription, 2 never (MQTT 5).",
            rich_help_panel=_WHAT,
        ),
    ] = None
    retain_as_published: Annotated[
        bool,
        typer.Option(
            "--retain-as-published",
            help="Show the retain flag as the publisher set it (MQTT 5).",
            rich_help_panel=_WHAT,
        ),
    ] = False
    no_local: Annotated[
        bool,
        typer.Option("--no-local", help="Leave out messages of this client itself (MQTT 5).", rich_help_panel=_WHAT),
    ] = False
    subscription_id: Annotated[
        int | None,
        typer.Option(
            "--subscription-id",
            min=1,
            max=268_435_455,
            help="A number that comes back with each message (MQTT 5).",
            rich_help_panel=_WHAT,
        ),
    ] = None
    user_property: Annotated[
        list[str] | None,
        typer.Option(
            "--user-property",
            metavar="KEY=VALUE",
            help="Sent with the subscription (MQTT 5); may be repeated.",
            rich_help_panel=_WHAT,
        ),
    ] = None
    keep_session: Annotated[
        bool,
        typer.Option(
            "-c",
            "--keep-session",
            help="The broker keeps collecting messages after the end, for the next run; needs --client-id. "
            "Kept for a day, or as --session-expiry says.",
            rich_help_panel=_WHAT,
        ),
    ] = False

    def check(self) -> None:
        if self.no_retained and self.retain_handling not in (None, 2):
            raise UsageError(f"--no-retained, but --retain-handling {self.retain_handling}", "Choose one.")

    @property
    def by_flag(self) -> dict[str, Any]:
        """Those that only MQTT 5 has."""
        return {
            "--no-local": self.no_local,
            "--retain-handling": self.retain_handling,
            "--retain-as-published": self.retain_as_published,
            "--subscription-id": self.subscription_id,
            "--user-property": self.user_property,
        }

    def filters(self, words: list[str]) -> list[str]:
        """The filters to subscribe to: those without an option, and those of -t."""
        wanted = [*words, *(self.topic or [])]
        if not wanted:
            raise UsageError("no topic filter", "For everything: braidmq sub '#'")
        if self.share is not None:
            if not self.share or any(character in "/+#" for character in self.share):
                raise UsageError(f"--share {self.share}: a group's name is not empty and has no / + # in it")
            if self.no_local:
                raise UsageError("--share with --no-local", "MQTT does not allow the two together.")
            wanted = [f"$share/{self.share}/{name}" for name in wanted]
        for name in wanted:
            check_filter(name)
        return wanted

    def as_paho(self, level: int) -> tuple[SubscribeOptions, Properties | None]:
        from paho.mqtt.packettypes import PacketTypes
        from paho.mqtt.subscribeoptions import SubscribeOptions

        from braidmq.cli.mqtt_client.client import new_properties

        handling = 2 if self.no_retained else self.retain_handling or 0
        options = SubscribeOptions(self.qos, self.no_local, self.retain_as_published, handling)
        pairs = parse_pairs(self.user_property or [], "--user-property")
        if level != 5:
            return options, None
        properties = new_properties(PacketTypes.SUBSCRIBE)
        if self.subscription_id is not None:
            properties.SubscriptionIdentifier = self.subscription_id
        for pair in pairs:
            properties.UserProperty = pair
        return options, properties


@dataclass(frozen=True)
class UntilOptions:
    """When to end."""

    count: Annotated[
        int | None,
        typer.Option("-C", "--count", min=1, help="End after this many messages.", rich_help_panel=_HOW_LONG),
    ] = None
    wait_s: Annotated[
        float | None,
        typer.Option(
            "-W",
            "--wait",
            min=0.001,
            help="End after this many seconds: exit code 4 if fewer messages than --count (or none) came.",
            rich_help_panel=_HOW_LONG,
        ),
    ] = None
    reconnect: Annotated[
        bool,
        typer.Option(
            "--reconnect", help="When the connection is lost, come back instead of ending.", rich_help_panel=_HOW_LONG
        ),
    ] = False


@dataclass(frozen=True)
class FormatOptions:
    """How messages are printed, unless as JSON."""

    verbose: Annotated[
        bool,
        typer.Option("-v", "--verbose", help="Show QoS, properties, and what is subscribed.", rich_help_panel=_OUTPUT),
    ] = False
    line_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="TEXT",
            help="A custom line, with {topic} {payload} {hex} {base64} {length} {qos} {retain} {dup} {time} "
            "{properties}.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None
    raw: Annotated[
        bool,
        typer.Option("--raw", help="Payloads alone, byte by byte, each with a newline.", rich_help_panel=_OUTPUT),
    ] = False


@app.command("sub", help=HELP, epilog=EXAMPLES, no_args_is_help=True)
@with_option_groups
def subscribe(
    *,
    filters: Annotated[
        list[str] | None, typer.Argument(metavar="FILTER...", help="Topic filters: + is one level, # all that follow.")
    ] = None,
    subscription: SubscriptionOptions,
    until: UntilOptions,
    form: FormatOptions,
    json_lines: output.JsonOption = False,
    color: output.ColorOption = output.Color.AUTO,
    connection: ConnectionOptions,
) -> None:
    if sum([json_lines, form.raw, form.line_format is not None]) > 1:
        raise UsageError("--json, --raw and --format are three ways to print a message", "Choose one.")
    if subscription.keep_session and connection.client_id is None:
        raise UsageError(
            "--keep-session without --client-id", "The broker finds the session by the client id: add -i NAME."
        )
    connection.require_version_5(subscription.by_flag)
    wanted = subscription.filters(filters or [])

    from braidmq.cli.mqtt_client.client import MqttClient
    from braidmq.cli.mqtt_client.messages import printer

    options, properties = subscription.as_paho(connection.level)
    show = printer(json_lines=json_lines, raw=form.raw, line_format=form.line_format, verbose=form.verbose)
    client = MqttClient(connection, "sub", keep_session=subscription.keep_session, reconnect=until.reconnect)
    listener = MessageListener(
        client,
        wanted,
        lambda: client.subscribe(wanted, options, properties),
        show,
        timeout_s=connection.timeout_s,
        count=until.count,
        wait_s=until.wait_s,
        skip_retained=subscription.no_retained and connection.level != 5,
        reconnect=until.reconnect,
        announce=form.verbose or (sys.stdout.isatty() and sys.stderr.isatty()),
    )
    interrupt_at_sigterm()
    try:
        welcome = client.open()
        try:
            listener.run(welcome)
        finally:
            client.close()
    except KeyboardInterrupt:
        pass  # the normal end of a subscriber


class MessageListener:
    """Subscribes, prints what arrives and acknowledges what was printed; subscribes again after each reconnection."""

    def __init__(
        self,
        client: MqttClient,
        filters: list[str],
        subscribe: Callable[[], int | None],
        show: Callable[[Received], None],
        *,
        timeout_s: float,
        count: int | None,
        wait_s: float | None,
        skip_retained: bool,
        reconnect: bool,
        announce: bool,
    ) -> None:
        self._client = client
        self._filters = filters
        self._subscribe = subscribe
        self._show = show
        self._timeout_s = timeout_s
        self._count = count
        self._wait_s = wait_s
        self._skip_retained = skip_retained
        self._reconnect = reconnect
        self._announce = announce
        self._shown = 0
        self._suback_deadline: float | None = None

    def run(self, welcome: Connected) -> None:
        """Returns when it has received what it waits for; raises a CliError if it cannot."""
        from paho.mqtt.client import MQTTMessage

        from braidmq.cli.mqtt_client.client import (
            Connected,
            ConnectRefused,
            Disconnected,
            StreamBroken,
            SubscribeAnswered,
        )

        self._ask()
        end = None if self._wait_s is None else time.monotonic() + self._wait_s
        while self._count is None or self._shown < self._count:
            event = self._client.next_event(self._left_s(end))
            match event:
                case MQTTMessage():
                    self._on_message(event)
                case SubscribeAnswered():
                    self._on_subscribed(event)
                case Connected():
                    output.note("Connected again.", "green")
                    if not event.session_present:
                        self._ask()
                case Disconnected() if self._reconnect:
                    self._suback_deadline = None
                    output.note(
                        f"The connection to {self._client.address} is lost: {event.words}. Trying again.", "yellow"
                    )
                case Disconnected() | StreamBroken():
                    raise CliError(
                        f"{self._client.address} ended the connection: {event.words}", hint="See --reconnect."
                    )
                case ConnectRefused():
                    raise CliError(f"{self._client.address} refused the connection: {event.words}")
                case None if self._suback_deadline is not None and time.monotonic() >= self._suback_deadline:
                    raise CliError("the broker did not answer the subscription in time", ExitCode.TIMEOUT)
                case None if end is not None and time.monotonic() >= end:
                    return self._on_time_up()
        return None

    def _ask(self) -> None:
        self._subscribe()
        self._suback_deadline = time.monotonic() + self._timeout_s

    def _left_s(self, end: float | None) -> float | None:
        deadlines = [deadline for deadline in (end, self._suback_deadline) if deadline is not None]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def _on_message(self, message: Any) -> None:
        from braidmq.cli.mqtt_client.messages import received

        if not (message.retain and self._skip_retained):
            self._show(received(message))
            self._shown += 1
        self._client.ack(message)

    def _on_subscribed(self, event: SubscribeAnswered) -> None:
        self._suback_deadline = None
        refused = [name for name, reason in zip(self._filters, event.reasons, strict=False) if reason >= 0x80]
        if refused:
            raise CliError(f"the broker refused {', '.join(refused)}: {event.words}")
        if self._announce:
            granted = ", ".join(
                f"{name} (QoS {reason})" for name, reason in zip(self._filters, event.reasons, strict=False)
            )
            output.note(f"Subscribed to {granted}. Ctrl-C ends.", "green")

    def _on_time_up(self) -> None:
        if self._shown == 0 or self._count is not None:
            expected = f" of {self._count}" if self._count is not None else ""
            raise CliError(f"only {self._shown}{expected} messages came in {self._wait_s:g} s", ExitCode.TIMEOUT)
