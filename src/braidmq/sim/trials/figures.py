"""What a trial measures. All figures but those of the machine are a function of the trial's parameters."""

from __future__ import annotations

import resource
import sys
from collections import Counter
from typing import Final

import msgspec


class FaultFigures(msgspec.Struct, frozen=True):
    """What became of publications while there were faults. None of it is promised."""

    publications: int
    expected: int
    deliveries: int
    duplicates: int


class FleetFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What a fleet takes (`fleet`); means and mosts are of brokers, delays in virtual time."""

    keys_mean: float
    keys_max: int
    """Keys under which a broker stands in the overlay."""
    table_mean: float
    table_max: int
    """Nodes of other brokers that a broker routes by."""
    wants_known_mean: float
    wants_known_max: int
    """Filters of other brokers that a broker knows of."""
    met_mean: float
    met_max: int
    """Brokers that tell a broker what they want."""
    upkeep_messages_per_s: float
    upkeep_bytes_per_s: float
    """What a broker sends in a second in which nothing changes."""
    first_p50_s: float
    first_p99_s: float
    """From a device's first message to each of its receivers."""
    command_p50_s: float
    command_p99_s: float
    new_topic_p50_s: float
    new_topic_p99_s: float
    """The same for topics that resemble none of their broker."""
    effect_p50_s: float
    effect_p99_s: float
    """Until a new subscription has taken effect."""
    grown_s: float
    """Until all brokers, subscriptions and topics were there."""


class SelectionFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What selections take (`selection`). Hops are of requests on their way; answers count as messages only."""

    reserved: int
    refused: int
    """Requests for which nothing was free."""
    missed_percent: float
    """Requests that found nothing though something was free."""
    messages_per_request: float
    request_messages_per_request: float
    """Without final answers: what the papers count."""
    traffic_kib: float
    """The latter, all of them, with the size of a message that was given."""
    bytes_per_request: float
    """Of all messages, as they travel."""
    upkeep_bytes_per_s: float
    """Of updates, a node."""
    hops_first_half: float
    hops_last_half: float
    hops_by_request: list[float]
    """Of the first request, the second …"""
    forward_levels: list[float]
    backward_levels: list[float]
    """How often a search went by each level of the tables, from −1 and 0 on: shares of all."""
    update_bytes: list[float]
    updated_bytes: list[float]
    """The mean size of updates and of their answers, by level."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured."""

    publications: int
    publications_of: int
    """How many there would be if every publisher published once."""
    suspended: int
    deliveries: int
    missed: int
    duplicates: int
    bothered: int
    hops_mean: float
    hops_p50: int
    hops_p99: int
    hops_max: int
    messages: int
    messages_without_subscribers: int
    crossings: int
    forwards_max: int
    children_max: int
    bytes: int
    delay_mean_s: float
    delay_max_s: float
    virtual_s: float
    build_messages: int
    """All that arrived until the network was there, as far as it was not laid out."""
    simulated_messages: int
    """All that arrived during the run, also those that belong to no publication."""
    simulated_messages_per_s: float
    build_s: float
    run_s: float
    wall_s: float
    rss_mib: float
    rough: FaultFigures | None = None
    fleet: FleetFigures | None = None
    selection: SelectionFigures | None = None


OF_THE_MACHINE: Final = ("simulated_messages_per_s", "build_s", "run_s", "wall_s", "rss_mib")
"""Figures that differ from run to run: seconds are of CPU time but for `wall_s`."""


def quantile(counts: Counter[int], share: float) -> int:
    """The least number that so large a share does not exceed."""
    left = share * sum(counts.values())
    for number in sorted(counts):
        left -= counts[number]
        if left <= 0:
            return number
    return 0


def resident_mib() -> float:
    """The memory of this process: now if the system tells, else the most that it has had."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize() / 2**20
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most / (2**20 if sys.platform == "darwin" else 2**10)
