"""A processor that runs in the command line's own process: over what a broker publishes now, or over a log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from braidmq.bounded import BoundedDict
from braidmq.cli import output
from braidmq.cli.ending import interrupt_at_sigterm
from braidmq.cli.errors import CliError, ExitCode
from braidmq.processors.processor import Failure, Message, Output, Processor, Spool, spool_step

if TYPE_CHECKING:
    from braidmq.cli.mqtt_client.options import ConnectionOptions

TOPICS_MAX: Final = 100_000
"""Topics whose spools a trial keeps; with one more, the oldest is forgotten."""


class ProcessorTrial:
    """Runs a processor over messages, and prints its notifications."""

    def __init__(self, processor: Processor, *, json_lines: bool, count: int | None) -> None:
        self.processor = processor
        self.messages = 0
        self.notifications = 0
        self.failures = 0
        self._json = json_lines
        self._count = count
        self._spools: BoundedDict[str, Spool] = BoundedDict(TOPICS_MAX)

    @property
    def is_over(self) -> bool:
        return self._count is not None and self.messages >= self._count

    def step(self, message: Message) -> Output | None:
        """Runs the function and prints the outcome; returns what is to be published, if anything."""
        spool = self._spools.get(message.topic)
        if spool is None:
            spool = self._spools[message.topic] = Spool(self.processor.spool)
        self.messages += 1
        outcome = spool_step(self.processor, spool, message)
        if isinstance(outcome, Failure):
            self.failures += 1
            output.note(f"{message.topic} (offset {message.offset}): {outcome.what}: {outcome.text}", "red")
            return None
        if outcome is not None:
            self.notifications += 1
            self._show(message, outcome)
        return outcome

    def _show(self, message: Message, said: Output) -> None:
        try:
            text = said.payload.decode()
            is_text = text.isprintable()
        except UnicodeDecodeError:
            is_text = False
        shown = text if is_text else said.payload.hex()
        if self._json:
            content: dict[str, Any] = {"topic": said.topic, "payload" if is_text else "hex": shown, "qos": said.qos}
            content |= {"retain": said.retain, "of": message.topic, "offset": message.offset}
            output.print_json(content)
        else:
            output.say(f"{said.topic}  {shown}")

    def sum_up(self) -> None:
        said = output.counted(self.notifications, "notification")
        output.note(f"{output.counted(self.messages, 'message')}, {said}, {self.failures:,} failed.", "dim")


# Over a broker


def over_broker(trial: ProcessorTrial, connection: ConnectionOptions, *, publish: bool, wait_s: float | None) -> None:
    """Runs the trial as a client that subscribes to the processor's topic."""
    from paho.mqtt.client import MQTTMessage
    from paho.mqtt.subscribeoptions import SubscribeOptions

    from braidmq.cli.mqtt_client.client import ConnectRefused, Disconnected, MqttClient, StreamBroken, SubscribeAnswered

    interrupt_at_sigterm()
    client = MqttClient(connection, "process")
    client.open()
    ends_at = None if wait_s is None else time.monotonic() + wait_s
    try:
        options = SubscribeOptions(1, retainHandling=2) if connection.level == 5 else SubscribeOptions(1)
        client.subscribe([trial.processor.topic], options, None)
        while not trial.is_over:
            left_s = None if ends_at is None else max(0.0, ends_at - time.monotonic())
            event = client.next_event(left_s)
            match event:
                case MQTTMessage():
                    said = trial.step(_message(event, trial.messages, str(client.address)))
                    if publish and said is not None:
                        client.publish(said.topic, said.payload, said.qos, said.retain, None)
                    client.ack(event)
                case SubscribeAnswered() if event.reasons[0] >= 0x80:
                    raise CliError(f"the broker refused {trial.processor.topic}: {event.words}")
                case SubscribeAnswered():
                    output.note(f"{trial.processor.name} takes {trial.processor.topic}. Ctrl-C ends.", "green")
                case Disconnected() | StreamBroken() | ConnectRefused():
                    raise CliError(f"{client.address} ended the connection: {event.words}")
                case None:
                    return
    finally:
        client.close()


def _message(message: Any, offset: int, origin: str) -> Message:
    from braidmq.cli.mqtt_client.messages import received

    one = received(message)
    at = round(one.received_at.timestamp(), 6)
    pairs = tuple([(str(name), str(value)) for name, value in one.properties.get("user_properties", ())])
    return Message(one.topic, one.payload, one.qos, one.retain, at, at, origin, None, pairs, offset)


# Over a log


def over_log(trial: ProcessorTrial, where: str, token: str | None) -> None:
    """Runs the trial over all rows of a log, by partitions, so that each topic comes in the order of its offsets."""
    for message in _logged(where, token, trial.processor.topic):
        trial.step(message)
        if trial.is_over:
            return


def _logged(where: str, token: str | None, topic_filter: str) -> Iterator[Message]:
    try:
        from braidmq.log.errors import LogError
        from braidmq.log.opening import open_log
    except ModuleNotFoundError as error:
        hint = "Install the extra: pip install 'braidmq[log]'"
        raise CliError(f"{error.name} is not installed, and a log cannot be read without it", hint=hint) from None
    try:
        log = open_log(where, token)
        state = log.state()
        for partition in range(state.partitions):
            for batch in log.read(partition, state.first_offset, state.next_offset, (topic_filter,)):
                yield from _rows(batch.to_pydict())
    except LogError as error:
        raise CliError(str(error), ExitCode.UNAVAILABLE) from None


def _rows(columns: dict[str, list[Any]]) -> Iterator[Message]:
    for number, topic in enumerate(columns["topic"]):
        row = {name: values[number] for name, values in columns.items()}
        pairs = tuple([(one["name"], one["value"]) for one in row["properties"] or ()])
        yield Message(
            topic,
            row["payload"],
            row["qos"],
            row["retain"],
            round(row["published_at"].timestamp(), 6),
            round(row["received_at"].timestamp(), 6),
            row["origin"],
            row["client"],
            pairs,
            row["offset"],
        )
