"""What brokers cost while nothing happens."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from bench.fleet.brokers import Site

QUIET_WINDOW_S = 3.0
QUIET_MAX_S = 120.0
STILL_FALLING = 0.8
SETTLE_S = 2.0


class Idle(msgspec.Struct, frozen=True):
    """A stretch in which nothing happens; lists are by broker."""

    topics: int
    filters: int
    seconds: float
    cpu_s: list[float]
    upkeep_bytes: list[float]
    """On links, both directions."""
    resident_bytes: list[int]

    @property
    def cpu_part(self) -> float:
        """Of a core, a broker."""
        return sum(self.cpu_s) / len(self.cpu_s) / self.seconds

    @property
    def bytes_per_s(self) -> float:
        """A broker."""
        return sum(self.upkeep_bytes) / len(self.upkeep_bytes) / self.seconds


def wait_until_quiet(sites: Sequence[Site]) -> float:
    """Seconds until the brokers use the processor no less than a moment before."""
    began, last_s = time.monotonic(), float("inf")
    while (waited_s := time.monotonic() - began) < QUIET_MAX_S:
        before_s = sum(site.cpu_s for site in sites)
        time.sleep(QUIET_WINDOW_S)
        used_s = sum(site.cpu_s for site in sites) - before_s
        if used_s >= STILL_FALLING * last_s:
            break
        last_s = used_s
    time.sleep(SETTLE_S)
    return waited_s


def idle(sites: Sequence[Site], topics: int, filters: int, seconds: float) -> Idle:
    sent = [site.upkeep_bytes for site in sites]
    began, cpu_s = time.monotonic(), [site.cpu_s for site in sites]
    time.sleep(seconds)
    used_s = [site.cpu_s - past for site, past in zip(sites, cpu_s, strict=True)]
    took_s = time.monotonic() - began
    bytes_ = [site.upkeep_bytes - past for site, past in zip(sites, sent, strict=True)]
    return Idle(topics, filters, took_s, used_s, bytes_, [site.resident_bytes for site in sites])


def shown(one: Idle) -> str:
    return f"{100 * one.cpu_part:.2f} % of a core, {one.bytes_per_s:,.0f} bytes/s"
