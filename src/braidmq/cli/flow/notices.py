"""What sites and instances of a flow say of themselves: retained messages that go when their sender does.

flow/<flow>/sites/<site>                        a site takes part, with so much room
flow/<flow>/reports/<component>/<number>        how an instance does
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from braidmq.flows import Dataflow, FlowComponent, FlowSite

SITES: Final = "sites"
REPORTS: Final = "reports"


class SiteNotice(msgspec.Struct, frozen=True):
    site: FlowSite
    digest: str
    """Of the flow as the site has it: sites that have another one take no part in the layout."""


class InstanceReport(msgspec.Struct, frozen=True):
    component: str
    number: int
    site: str
    received: int = 0
    published: int = 0
    failed: int = 0
    received_s: float = 0.0
    """Messages a second, since the report before."""
    published_s: float = 0.0
    delay_p50_s: float | None = None
    """From a device's message until the answer of this component was acknowledged; of the last ones."""
    delay_p99_s: float | None = None
    streams: int = 0
    problem: str = ""
    """The last failure."""


def digest_of(flow: Dataflow) -> str:
    return hashlib.blake2b(msgspec.json.encode(flow), digest_size=8).hexdigest()


def site_topic(flow: Dataflow, site: str) -> str:
    return f"flow/{flow.name}/{SITES}/{site}"


def report_topic(flow: Dataflow, component: FlowComponent, number: int) -> str:
    return f"flow/{flow.name}/{REPORTS}/{component.name}/{number}"
