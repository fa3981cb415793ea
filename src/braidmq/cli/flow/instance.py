"""The process of one instance: takes messages of its sources, runs the component's processor, and publishes.

It is an MQTT client like any other. A message is acknowledged when what came of it was: one that the instance does not
survive goes to another. Its standard input has the plan as one line; when that is closed, it ends.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from pathlib import Path
from statistics import quantiles
from typing import Any, Final

import msgspec
from paho.mqtt.client import MQTTMessage
from paho.mqtt.subscribeoptions import SubscribeOptions

from braidmq.bounded import BoundedDict
from braidmq.cli.errors import CliError
from braidmq.cli.flow.notices import InstanceReport, report_topic
from braidmq.cli.flow.stream_sender import TOPIC, Sending, StreamSender
from braidmq.cli.mqtt_client.client import (
    Connected,
    ConnectRefused,
    Disconnected,
    MqttClient,
    PublishAnswered,
    StreamBroken,
    SubscribeAnswered,
)
from braidmq.cli.mqtt_client.messages import received
from braidmq.cli.mqtt_client.options import ConnectionOptions
from braidmq.flows import Dataflow, FlowComponent, FlowError, read_flow
from braidmq.mqtt.reasons import Reason
from braidmq.mqtt.topics import matches
from braidmq.processors.loading import is_file, load_processor, split_source
from braidmq.processors.processor import Failure, Message, Output, ProcessorError, Spool, SpoolState, spool_step

REPORT_S: Final = 2.0
STEP_S: Final = 0.05
"""How often it is looked whether something has to be asked for again."""
RESERVED: Final = "reserved"
"""A level of topics on which nobody publishes: subscribing there makes a client a member of its group."""
DELAYS_MAX: Final = 1_000
"""The last messages that delays are reckoned over."""
STREAMS_MAX: Final = 10_000
"""Streams whose spools an instance keeps; with one more, the one that was not used for longest is forgotten."""
PROBLEM_MAX: Final = 200
SESSION_S: Final = 120
"""How long a broker keeps what is for an instance that is away: it is started again before."""
SINCE: Final = "flow-since"
"""The user property that says when a device's message came into the flow, Unix time."""
EXIT_TAKEN: Final = 5
"""Exit code: another instance of this number has come."""


StreamSpools = dict[str, SpoolState]
"""What an instance knows of streams."""


class SparkPlan(msgspec.Struct, frozen=True):
    """What a query on Spark is told: the admin ports of the brokers whose logs it reads, and where Spark is."""

    brokers: str
    master: str | None = None
    token: str | None = None


class InstancePlan(msgspec.Struct, frozen=True):
    """What the process is told by the one that starts it."""

    flow: str
    """The flow, as TOML."""
    folder: str
    """Where the flow's file is: files of processors are named from there."""
    component: str
    number: int
    site: str
    url: str
    options: dict[str, Any]
    """Fields of `ConnectionOptions`."""
    spark: SparkPlan | None = None
    """Of a component that runs on Spark."""


class FlowInstance:
    def __init__(self, plan: InstancePlan, flow: Dataflow, component: FlowComponent) -> None:
        self._flow = flow
        self._component = component
        self._plan = plan
        self._processor = load_processor(source_of(component, Path(plan.folder)))
        self._spools: BoundedDict[str, Spool] = BoundedDict(STREAMS_MAX)
        self._offset = 0
        self._delays: deque[float] = deque(maxlen=DELAYS_MAX)
        self._counts = {"received": 0, "published": 0, "failed": 0}
        self._reported = (0.0, 0, 0)
        self._problem = ""
        self._busy_since: float | None = None
        self._is_connected = True
        self._sources = [flow.component(name) for name in component.sources]
        client_id = f"flow-{flow.name}-{component.name}-{plan.number}"
        options = ConnectionOptions(
            **plan.options,
            url=plan.url,
            client_id=client_id,
            will_topic=report_topic(flow, component, plan.number),
            will_qos=1,
            will_retain=True,
            session_expiry_s=SESSION_S,
        )
        self._client = MqttClient(options, "flow", keep_session=True, reconnect=True, receive_max=component.slots)
        self._sender = StreamSender(self._client, client_id, flow, component)

    def run(self) -> int:
        self._client.open()
        self._begin()
        threading.Thread(target=self._watch, daemon=True).start()
        report_at = 0.0
        while True:
            event = self._client.next_event(STEP_S)
            if isinstance(event, Disconnected) and event.reason == Reason.SESSION_TAKEN_OVER:
                return EXIT_TAKEN
            if event is not None:
                self._on_event(event)
            now = time.monotonic()
            self._sender.step(now)
            if now >= report_at and self._is_connected:
                self._report()
                report_at = now + REPORT_S

    def _on_event(self, event: Any) -> None:
        match event:
            case MQTTMessage():
                if event.topic.startswith(("$reservation/", "$state/")):
                    self._on_reservation(event)
                elif not self._sender.on_message(event, time.monotonic()):
                    self._on_message(event)
            case PublishAnswered():
                self._sender.on_answered(event)
            case Connected():
                self._is_connected = True
                self._begin()  # again, after the connection was lost
            case SubscribeAnswered() if any(reason >= 0x80 for reason in event.reasons):
                raise CliError(f"the broker refused a subscription: {event.words}")
            case ConnectRefused():
                raise CliError(f"the broker refused the connection: {event.words}")
            case StreamBroken():
                raise CliError(f"the connection broke: {event.words}")
            case Disconnected():
                self._is_connected = False  # what was not acknowledged comes again, here or to others

    def _begin(self) -> None:
        group = self._flow.group_of(self._component)
        filters = [f"$share/{group}/{self._flow.output_filter(source)}" for source in self._sources]
        if self._component.use == "reserved":  # it is a member of its group, and gets what it is reserved for alone
            filters = [f"$share/{group}/flow/{self._flow.name}/{RESERVED}/{self._component.name}"]
            filters += [f"$reservation/{group}", f"$state/{group}/+"]
        self._client.subscribe(filters, SubscribeOptions(1), None)
        self._sender.begin()
        self._client.publish(f"$load/{group}", msgspec.json.encode({"slots": self._component.slots}), 1, False, None)

    # Reservations

    def _on_reservation(self, message: MQTTMessage) -> None:
        """A stream goes on at another instance, or comes from one: its spool goes along."""
        self._client.ack(message)
        try:
            if message.topic.startswith("$state/"):
                state = msgspec.msgpack.decode(bytes(message.payload), type=StreamSpools)
                for stream, known in state.items():
                    self._spools.renew(stream, Spool(self._processor.spool, known))
                    self._offset = max(self._offset, known.last)
                return
            event = msgspec.json.decode(bytes(message.payload), type=dict[str, Any])
        except msgspec.MsgspecError as error:
            self._fail(f"what came on {message.topic} cannot be read: {error}")
            return
        if event.get("event") == "handing-over":
            stream = str(event.get("key", ""))
            spool = self._spools.pop(stream, None)
            state = {} if spool is None else {stream: spool.state}
            self._client.publish(f"$state/{event.get('id')}", msgspec.msgpack.encode(state), 1, False, None)

    # Messages

    def _on_message(self, message: MQTTMessage) -> None:
        if not self._is_connected:
            return  # it comes again
        self._counts["received"] += 1
        one = received(message)
        properties = tuple((str(name), str(value)) for name, value in one.properties.get("user_properties", ()))
        topic = dict(properties).get(TOPIC, one.topic)
        source = next((each for each in self._sources if matches(self._flow.output_filter(each), topic)), None)
        if source is None:
            self._client.ack(message)
            return
        stream = self._flow.stream_of(source, topic)
        now = time.time()
        since = _since(properties, now)
        self._offset += 1
        given = Message(topic, one.payload, one.qos, one.retain, now, now, "", None, properties, self._offset)
        outcome = self._step(stream, given)
        if isinstance(outcome, Output):
            self._publish(outcome, stream, message, since)
            return
        if isinstance(outcome, Failure):
            self._fail(f"{topic}: {outcome.text}")
        self._client.ack(message)

    def _step(self, stream: str, message: Message) -> Output | Failure | None:
        spool = self._spools.get(stream)
        if spool is None:
            spool = Spool(self._processor.spool)
        self._spools.renew(stream, spool)
        own = self._processor.changed(topic=message.topic, output=self._flow.output_topic(self._component, stream))
        self._busy_since = time.monotonic()
        try:
            return spool_step(own, spool, message)
        finally:
            self._busy_since = None

    def _publish(self, output: Output, stream: str, message: MQTTMessage, since: float) -> None:
        def on_done(reason: int, words: str) -> None:
            self._client.ack(message)
            if reason:
                self._fail(f"the broker refused what {self._component.name} published: {words}")
            else:
                self._counts["published"] += 1
                self._delays.append(max(0.0, time.time() - since))

        pairs = [*output.properties, (SINCE, f"{since:.6f}")]
        sending = Sending(stream, output.payload, output.qos, output.retain, pairs, on_done)
        self._sender.send(sending, time.monotonic())

    def _fail(self, words: str) -> None:
        self._counts["failed"] += 1
        self._problem = words[:PROBLEM_MAX]

    def _watch(self) -> None:
        """Ends the process if the function does not come back: the message goes to another instance."""
        limit_s = self._processor.time_limit_s
        while True:
            time.sleep(limit_s / 4)
            since = self._busy_since
            if since is not None and time.monotonic() - since > limit_s:
                _say(f"a message took longer than {limit_s:g} s")
                os._exit(1)

    # Reports

    def _report(self) -> None:
        now = time.monotonic()
        at, received_before, published_before = self._reported
        took_s = now - at if at else REPORT_S
        counts = self._counts
        cuts = quantiles(self._delays, n=100) if len(self._delays) > 1 else []
        report = InstanceReport(
            self._component.name,
            self._plan.number,
            self._plan.site,
            **counts,
            received_s=round((counts["received"] - received_before) / took_s, 3),
            published_s=round((counts["published"] - published_before) / took_s, 3),
            delay_p50_s=round(cuts[49], 6) if cuts else None,
            delay_p99_s=round(cuts[98], 6) if cuts else None,
            streams=len(self._spools),
            problem=self._problem or self._sender.reserver.problem,
        )
        self._reported = (now, counts["received"], counts["published"])
        topic = report_topic(self._flow, self._component, self._plan.number)
        self._client.publish(topic, msgspec.json.encode(report), 0, True, None)


def source_of(component: FlowComponent, folder: Path) -> str:
    """A component's processor, as it is found from the flow's folder."""
    assert component.file is not None
    path_or_module, _ = split_source(component.file)
    return str(folder / component.file) if is_file(path_or_module) else component.file


def _since(properties: tuple[tuple[str, str], ...], now: float) -> float:
    for name, value in properties:
        if name == SINCE:
            try:
                return min(float(value), now)
            except ValueError:
                break
    return now


def _say(words: str) -> None:
    """To the process that has started this one."""
    sys.stderr.write(f"{words}\n")
    sys.stderr.flush()


def _end_with_input() -> None:
    while sys.stdin.buffer.read(4096):
        pass
    os._exit(0)


def main() -> int:
    plan = msgspec.json.decode(sys.stdin.buffer.readline(), type=InstancePlan)
    threading.Thread(target=_end_with_input, daemon=True).start()
    try:
        flow = read_flow(plan.flow)
        return FlowInstance(plan, flow, flow.component(plan.component)).run()
    except (FlowError, ProcessorError, CliError) as error:
        _say(str(error))
        return 1


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
