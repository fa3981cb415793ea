"""A site of a flow: says that it is there, hears who else is, and runs the instances that fall to it.

Nobody is in charge. Every site knows all others by their retained notices, and the layout follows from the flow and
the sites that are there; so all agree on it. When a site goes, its notice goes with it, and the others run what it ran.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from paho.mqtt.client import MQTTMessage
from paho.mqtt.subscribeoptions import SubscribeOptions

from braidmq.cli import output
from braidmq.cli.errors import CliError
from braidmq.cli.flow.instance import InstancePlan, SparkPlan
from braidmq.cli.flow.instance_process import InstanceProcess
from braidmq.cli.flow.notices import SiteNotice, digest_of, site_topic
from braidmq.cli.mqtt_client.client import (
    Connected,
    ConnectRefused,
    Disconnected,
    MqttClient,
    StreamBroken,
    SubscribeAnswered,
)
from braidmq.cli.mqtt_client.options import ConnectionOptions
from braidmq.flows import Dataflow, FlowError, FlowSite, Layout, Placed, lay_out
from braidmq.mqtt.reasons import Reason

SETTLE_S: Final = 1.0
"""How long it is waited for more news of sites before instances are started or ended."""
SITES_MAX: Final = 1_000
"""Sites of a flow that are known."""


@dataclass(frozen=True)
class FlowFile:
    flow: Dataflow
    text: str
    folder: str


class SiteAgent:
    def __init__(
        self, file: FlowFile, site: FlowSite, url: str, options: dict[str, Any], spark: SparkPlan | None = None
    ) -> None:
        self.site = site
        self.layout: Layout | None = None
        """The one that was last found."""
        self._file = file
        self._url = url
        self._options = options
        self._spark = spark
        self._digest = digest_of(file.flow)
        self._sites: dict[str, SiteNotice] = {}
        self._settles_at: float | None = None
        self._instances: dict[Placed, InstanceProcess] = {}
        self._client = MqttClient(
            ConnectionOptions(
                **options,
                url=url,
                client_id=f"flow-{file.flow.name}-site-{site.name}",
                will_topic=site_topic(file.flow, site.name),
                will_qos=1,
                will_retain=True,
            ),
            "flow",
            reconnect=True,
        )

    def begin(self) -> None:
        self._client.open()
        self._announce()

    def step(self) -> None:
        """Does what there is to do now; called again and again."""
        while (event := self._client.next_event(0.0)) is not None:
            self._on_event(event)
        if self._settles_at is not None and time.monotonic() >= self._settles_at:
            self._settles_at = None
            self._lay_out()
        for process in self._instances.values():
            process.keep()

    def end(self) -> None:
        """Ends the instances here; the site's notice goes first, so that others begin."""
        with contextlib.suppress(CliError):  # without a connection, the will has said it
            self._client.publish(site_topic(self._file.flow, self.site.name), b"", 1, True, None)
        self._client.close()
        for process in self._instances.values():
            process.end()
        self._instances.clear()

    def _announce(self) -> None:
        flow = self._file.flow
        self._client.subscribe([site_topic(flow, "+")], SubscribeOptions(1), None)
        notice = SiteNotice(self.site, self._digest)
        self._client.publish(site_topic(flow, self.site.name), msgspec.json.encode(notice), 1, True, None)

    def _on_event(self, event: Any) -> None:
        match event:
            case MQTTMessage():
                self._client.ack(event)
                self._on_notice(event.topic.rpartition("/")[2], bytes(event.payload))
            case Connected():
                self._announce()  # again, after the connection was lost
            case SubscribeAnswered() if event.reasons[0] >= 0x80:
                raise CliError(f"{self._client.address} refused the subscription of {self.site.name}: {event.words}")
            case ConnectRefused() | StreamBroken():
                raise CliError(f"{self._client.address} ended the connection of {self.site.name}: {event.words}")
            case Disconnected() if event.reason == Reason.SESSION_TAKEN_OVER:
                raise CliError(
                    f"another command runs {self._file.flow.name} as the site {self.site.name}",
                    hint="End one of the two, or give this one another name.",
                )
            case Disconnected():
                output.note(f"{self.site.name} has lost its broker: {event.words}; it tries again", "yellow")

    def _on_notice(self, name: str, payload: bytes) -> None:
        if not payload:
            changed = self._sites.pop(name, None) is not None
        else:
            try:
                notice = msgspec.json.decode(payload, type=SiteNotice)
            except msgspec.MsgspecError as error:
                output.note(f"what the site {name} says of itself cannot be read: {error}", "yellow")
                return
            if notice.digest != self._digest:
                output.note(
                    f"{name} has another {self._file.flow.name} than {self.site.name}: it takes no part", "yellow"
                )
            changed = self._sites.get(name) != notice and (name in self._sites or len(self._sites) < SITES_MAX)
            if changed:
                self._sites[name] = notice
        if changed:
            self._settles_at = time.monotonic() + SETTLE_S

    def _lay_out(self) -> None:
        known = [one.site for one in self._sites.values() if one.digest == self._digest]
        try:
            self.layout = lay_out(self._file.flow, known)
        except FlowError as error:
            output.note(f"{self.site.name}: {error}", "red")
            return
        wanted = self.layout.at(self.site.name)
        for placed in [one for one in self._instances if one not in wanted]:
            self._instances.pop(placed).end()
        for placed in wanted:
            if placed not in self._instances or self._instances[placed].is_given_up:
                self._instances[placed] = InstanceProcess(self._plan(placed))

    def _plan(self, placed: Placed) -> InstancePlan:
        file = self._file
        spark = self._spark if file.flow.component(placed.component).is_on_spark else None
        return InstancePlan(
            file.text, file.folder, placed.component, placed.number, self.site.name, self._url, self._options, spark
        )
