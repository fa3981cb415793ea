"""What the process with the brokers tells the process with the buses."""

from __future__ import annotations

from typing import Final

import msgspec

PROCESSOR: Final = "braidmq.processors.examples.passengers"
"""The module with the processor."""
NAME: Final = "passengers"
SPOOL: Final = 20
LOGGED: Final = "bus/#"

BUSES_A_SITE: Final = 3
SITES_WITH_BUSES_MAX: Final = 2
ROOM_TOPICS: Final = 2
"""Buses that a site's edge has room for while Spark takes part: the rest are Spark's."""
COMPUTE_MAX: Final = ROOM_TOPICS * SPOOL + SPOOL // 2
"""Enough for two topics, and not for a third."""

ROOM_WORD: Final = b"room\n"
"""What the process with the buses sends when the edge is to have room for all."""


class DemoSite(msgspec.Struct, frozen=True):
    name: str
    mqtt: str
    admin: str


class DemoPlan(msgspec.Struct, frozen=True):
    """`no_spark` says why Spark takes no part; empty if it does. After the summary of `once`, the brokers end."""

    sites: list[DemoSite]
    token: str | None
    seconds: float
    no_spark: str
    master: str | None
    data: str
    program: str
    json_lines: bool
    once: bool

    @property
    def bus_sites(self) -> list[DemoSite]:
        """Where buses are: at the first sites, and not where the control room is, if there are several."""
        return (self.sites[:-1] or self.sites)[:SITES_WITH_BUSES_MAX]

    @property
    def control_site(self) -> DemoSite:
        return self.sites[-1]
