"""The process of `braidmq flow demo`: the example flow at all sites, and buses that drive from edge to edge.

Its standard input is a socket to the process with the brokers: the plan comes first, and when the socket is closed,
this process ends with all that it has started.
"""

from __future__ import annotations

import os
import secrets
import sys
import threading
import time
from importlib.resources import as_file, files
from typing import Any, Final

import msgspec
from paho.mqtt.client import MQTTMessage
from paho.mqtt.subscribeoptions import SubscribeOptions

from braidmq.cli import output
from braidmq.cli.demo.channel import BrokersEnded, open_channel, read_plan, watch
from braidmq.cli.errors import CliError
from braidmq.cli.flow.agent import FlowFile, SiteAgent
from braidmq.cli.flow.picture import FlowReader, FlowState, show_flow
from braidmq.cli.flow.recorders import FRAME_S, RecordingBus
from braidmq.cli.mqtt_client.client import MqttClient
from braidmq.cli.mqtt_client.options import ConnectionOptions
from braidmq.cli.up import ENDS
from braidmq.flows import Dataflow, FlowSite, layer_of, load_flow

BUSES_AN_EDGE: Final = 2
SITE_CPU: Final = 4.0
SITE_MEMORY: Final = 1024.0
START_S: Final = 60.0
"""How long instances may take to start."""
SETTLE_S: Final = 20.0
"""How long results may be missing in the end."""
MOVE_AT: Final = (0.3, 0.6)
"""The parts of the trip after which buses drive to the next edge."""
POLL_S: Final = 0.02


class FlowDemoSite(msgspec.Struct, frozen=True):
    name: str
    cluster: str
    mqtt: str


class FlowDemoPlan(msgspec.Struct, frozen=True):
    sites: list[FlowDemoSite]
    seconds: float
    program: str
    json_lines: bool
    once: bool


class FlowDemonstration:
    def __init__(self, plan: FlowDemoPlan, file: FlowFile, ending: threading.Event) -> None:
        self._plan = plan
        self._flow = file.flow
        self._ending = ending
        self._edges = [site for site in plan.sites if layer_of(site.cluster) == "edge"]
        self._agents = [
            SiteAgent(file, FlowSite(one.name, layer_of(one.cluster), SITE_CPU, SITE_MEMORY, one.cluster), one.mqtt, {})
            for one in plan.sites
        ]
        self._buses: list[RecordingBus] = []
        self._moves = 0
        self._counts: dict[str, int] = {}
        """By stream: counts that came to the database."""

    def run(self) -> dict[str, Any]:
        reader = FlowReader(self._flow, ConnectionOptions(url=self._plan.sites[0].mqtt))
        database = self._listen_to_database()
        for agent in self._agents:
            agent.begin()
        self._wait_for_instances(reader)
        trip = secrets.token_hex(3)
        for number in range(len(self._edges) * BUSES_AN_EDGE):
            site = self._edges[number % len(self._edges)]
            self._buses.append(RecordingBus(self._flow, number + 1, site.name, site.mqtt, trip))
        self._say(f"{len(self._buses)} buses drive, from edge to edge.", "bold")
        self._drive(database)
        self._settle(database)
        state = reader.read()
        summary = self._summary()
        self._show(state, summary)
        for bus in self._buses:
            bus.end()
        reader.close()
        database.close()
        return summary

    def stay(self) -> None:
        """The flow runs on."""
        while not self._ending.wait(POLL_S):
            for agent in self._agents:
                agent.step()

    def end(self) -> None:
        for agent in self._agents:
            agent.end()

    def _listen_to_database(self) -> MqttClient:
        client = MqttClient(ConnectionOptions(url=self._plan.sites[0].mqtt), "flow")
        client.open()
        topic = self._flow.output_filter(self._flow.component("database"))
        client.subscribe([topic], SubscribeOptions(1, retainHandling=2), None)
        return client

    def _wait_for_instances(self, reader: FlowReader) -> None:
        wanted = sum(one.instances for one in self._flow if not one.is_external)
        self._say(f"The {wanted} instances of the flow start.")
        ends_at = time.monotonic() + START_S
        while len(reader.read().instances) < wanted:
            if time.monotonic() > ends_at:
                raise CliError(f"the instances of the flow did not start within {START_S:g} s")
            self._turn()

    def _turn(self) -> None:
        if self._ending.is_set():
            raise BrokersEnded
        for agent in self._agents:
            agent.step()
        for bus in self._buses:
            bus.read_events()

    def _drive(self, database: MqttClient) -> None:
        began = next_at = time.monotonic()
        moves = [began + part * self._plan.seconds for part in MOVE_AT]
        while time.monotonic() - began < self._plan.seconds:
            self._turn()
            self._read_database(database)
            now = time.monotonic()
            if now >= next_at:
                next_at += FRAME_S
                for bus in self._buses:
                    bus.publish_frame()
            if moves and now >= moves[0]:
                moves.pop(0)
                self._move_all()
            time.sleep(POLL_S)

    def _move_all(self) -> None:
        """Each bus drives on to the next edge, as soon as all that it has sent is acknowledged."""
        for number, bus in enumerate(self._buses):
            if len(self._edges) < 2:
                return
            ends_at = time.monotonic() + SETTLE_S
            while not bus.is_settled and time.monotonic() < ends_at:
                self._turn()
                time.sleep(POLL_S)
            site = self._edges[(self._edges.index(self._site_of(bus)) + 1) % len(self._edges)]
            if not self._plan.json_lines and number < BUSES_AN_EDGE:
                output.say(f"  bus {bus.number} drives from {bus.site} to {site.name}")
            bus.move(site.name, site.mqtt)
            self._moves += 1

    def _site_of(self, bus: RecordingBus) -> FlowDemoSite:
        return next(one for one in self._edges if one.name == bus.site)

    def _settle(self, database: MqttClient) -> None:
        ends_at = time.monotonic() + SETTLE_S
        while time.monotonic() < ends_at and not self._is_all_there():
            self._turn()
            self._read_database(database)
            time.sleep(POLL_S)

    def _is_all_there(self) -> bool:
        return all(
            bus.is_settled
            and bus.warnings.keys() >= bus.brakings.keys()
            and self._counts.get(bus.stream, 0) == bus.changes
            for bus in self._buses
        )

    def _read_database(self, database: MqttClient) -> None:
        component = self._flow.component("database")
        while (event := database.next_event(0.0)) is not None:
            if isinstance(event, MQTTMessage):
                database.ack(event)
                stream = self._flow.stream_of(component, event.topic)
                self._counts[stream] = self._counts.get(stream, 0) + 1

    def _summary(self) -> dict[str, Any]:
        delays = sorted(delay for bus in self._buses for delay in bus.delays)
        counted = [self._counts.get(bus.stream, 0) for bus in self._buses]
        return {
            "event": "summary",
            "buses": len(self._buses),
            "moves": self._moves,
            "frames": sum(bus.frames for bus in self._buses),
            "acknowledged": sum(bus.acknowledged for bus in self._buses),
            "brakings": sum(len(bus.brakings) for bus in self._buses),
            "warnings": sum(len(bus.warnings) for bus in self._buses),
            "warnings_repeated": sum(bus.warnings.total() - len(bus.warnings) for bus in self._buses),
            "warning_p50_ms": round(1000 * delays[len(delays) // 2], 1) if delays else None,
            "changes": sum(bus.changes for bus in self._buses),
            "counts": sum(counted),
            "is_well": self._is_all_there(),
        }

    def _say(self, words: str, style: str = "") -> None:
        if not self._plan.json_lines:
            output.say(words, style)

    def _show(self, state: FlowState, summary: dict[str, Any]) -> None:
        if self._plan.json_lines:
            output.print_json(summary)
            return
        show_flow(self._flow, state)
        output.say(
            f"{summary['frames']:,} frames of {summary['buses']} buses, which changed their edge {summary['moves']} "
            f"times. {summary['warnings']} of {summary['brakings']} hard brakings were told to the driver, after "
            f"{summary['warning_p50_ms']} ms at the median; {summary['counts']} of {summary['changes']} changes were "
            "counted and stored.",
            "green" if summary["is_well"] else "red",
        )
        if not self._plan.once:
            output.say("Look further, while it runs:")
            for words in ("flow example bus && cd bus", f"flow show bus.toml --url {self._plan.sites[0].mqtt}"):
                output.say(f"  {self._plan.program} {words}", "bold")
            output.say(ENDS, "dim")


def _run(plan: FlowDemoPlan, ending: threading.Event) -> int:
    with as_file(files("braidmq.flows.examples")) as folder:
        path = folder / "bus.toml"
        flow: Dataflow = load_flow(path)
        demonstration = FlowDemonstration(plan, FlowFile(flow, path.read_text(), str(folder)), ending)
        try:
            summary = demonstration.run()
            if not plan.once:
                demonstration.stay()
            return 0 if summary["is_well"] else 1
        except BrokersEnded:
            return 0
        except CliError as error:
            if ending.is_set():
                return 0
            output.show_error(error.text, error.hint)
            return 1
        finally:
            demonstration.end()


def main() -> int:
    channel = open_channel()
    try:
        plan = read_plan(channel, FlowDemoPlan)
    except BrokersEnded:
        return 0
    return _run(plan, watch(channel))


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
