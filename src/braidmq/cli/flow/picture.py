"""A flow drawn: its components from the devices on, each with where it runs, how much comes through, and how soon."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import msgspec
from paho.mqtt.client import MQTTMessage
from paho.mqtt.subscribeoptions import SubscribeOptions

from braidmq.cli import output
from braidmq.cli.errors import CliError
from braidmq.cli.flow.notices import REPORTS, SITES, InstanceReport, SiteNotice
from braidmq.cli.mqtt_client.client import ConnectRefused, Disconnected, MqttClient, StreamBroken, SubscribeAnswered
from braidmq.cli.mqtt_client.options import ConnectionOptions
from braidmq.flows import Dataflow, FlowComponent

if TYPE_CHECKING:
    from rich.tree import Tree

QUIET_S: Final = 0.3
"""When nothing has come for so long, all retained messages have."""


class FlowState(msgspec.Struct, frozen=True):
    sites: tuple[SiteNotice, ...]
    instances: tuple[InstanceReport, ...]

    def of(self, component: str) -> list[InstanceReport]:
        return [one for one in self.instances if one.component == component]


class FlowReader:
    """Reads what sites and instances say of themselves, and stays informed."""

    def __init__(self, flow: Dataflow, connection: ConnectionOptions) -> None:
        self._flow = flow
        self._sites: dict[str, SiteNotice] = {}
        self._reports: dict[str, InstanceReport] = {}
        self._client = MqttClient(connection, "flow")
        self._client.open()
        filters = [f"flow/{flow.name}/{SITES}/+", f"flow/{flow.name}/{REPORTS}/+/+"]
        self._client.subscribe(filters, SubscribeOptions(1), None)

    def close(self) -> None:
        self._client.close()

    def read(self) -> FlowState:
        """What is known, once no more news comes at once."""
        ends_at = time.monotonic() + QUIET_S
        while (event := self._client.next_event(max(0.0, ends_at - time.monotonic()))) is not None:
            self._on_event(event)
        sites = tuple(one for _, one in sorted(self._sites.items()))
        return FlowState(sites, tuple(one for _, one in sorted(self._reports.items())))

    def _on_event(self, event: Any) -> None:
        match event:
            case MQTTMessage():
                self._client.ack(event)
                self._on_message(event.topic, bytes(event.payload))
            case SubscribeAnswered() if any(reason >= 0x80 for reason in event.reasons):
                raise CliError(f"{self._client.address} refused the subscription: {event.words}")
            case Disconnected() | StreamBroken() | ConnectRefused():
                raise CliError(f"{self._client.address} ended the connection: {event.words}")

    def _on_message(self, topic: str, payload: bytes) -> None:
        is_site = topic.split("/")[2] == SITES
        if not payload:
            self._sites.pop(topic, None)
            self._reports.pop(topic, None)
            return
        try:
            if is_site:
                self._sites[topic] = msgspec.json.decode(payload, type=SiteNotice)
            else:
                self._reports[topic] = msgspec.json.decode(payload, type=InstanceReport)
        except msgspec.MsgspecError:
            return  # not of this version


def show_flow(flow: Dataflow, state: FlowState) -> None:
    from rich.tree import Tree

    console = output.console()
    sites = ", ".join(f"{one.site.name} ({one.site.layer})" for one in state.sites) or "no site"
    tree = Tree(f"[bold]{output.plain(flow.name)}[/bold] at {output.plain(sites)}")
    for component in flow.in_order():
        if not component.sources:
            _add(tree, flow, component, state, set())
    console.print(tree)
    table = output.table(
        "component",
        "instance",
        "site",
        "in/s",
        "out/s",
        "p50",
        "p99",
        "failed",
        numbers=("in/s", "out/s", "p50", "p99", "failed"),
    )
    for one in state.instances:
        table.add_row(
            output.plain(one.component),
            str(one.number),
            output.plain(one.site),
            f"{one.received_s:.1f}",
            f"{one.published_s:.1f}",
            _time(one.delay_p50_s),
            _time(one.delay_p99_s),
            f"{one.failed:,}",
        )
    if state.instances:
        console.print(table)
    for one in state.instances:
        if one.problem:
            output.say(f"{one.component} {one.number}: {one.problem}", "red")


def _add(tree: Tree, flow: Dataflow, component: FlowComponent, state: FlowState, shown: set[str]) -> None:
    branch = tree.add(_words(component, state))
    if component.name in shown:
        return  # it takes messages from several, and was drawn below one of them
    shown.add(component.name)
    for taker in flow.takers_of(component.name):
        _add(branch, flow, taker, state, shown)


def _words(component: FlowComponent, state: FlowState) -> str:
    name = f"[bold]{output.plain(component.name)}[/bold]"
    if component.is_external:
        return f"{name}  [dim]a client of its own[/dim]"
    reports = state.of(component.name)
    if not reports:
        return f"{name}  [red]nothing runs[/red]"
    sites = [one.site for one in reports]
    where = ", ".join(f"{sites.count(site)} × {output.plain(site)}" for site in dict.fromkeys(sites))
    rate = sum(one.received_s for one in reports)
    slowest = max((one.delay_p99_s or 0.0 for one in reports), default=0.0)
    return f"{name}  {component.use}, {where}  [cyan]{rate:.1f}/s[/cyan], p99 {_time(slowest)}"


def _time(seconds: float | None) -> str:
    if not seconds:
        return ""
    return f"{1000 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"
