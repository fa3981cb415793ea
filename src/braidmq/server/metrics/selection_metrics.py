"""The numbers of components and reservations for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from braidmq.braid.selection.selection import SelectionParts

PREFIX: Final = "braidmq_braid_"


def collect_selection(parts: SelectionParts) -> Iterator[Metric]:
    members = parts.instances.members.values()
    components = [one for member in members for one in member.components.values()]
    reservations = parts.reservations
    for name, text, value in (
        ("components_instances", "Clients here that are instances of a component.", len(list(parts.instances))),
        ("components_slots", "How often these can be reserved at a time.", sum(one.slots for one in components)),
        ("components_taken", "How often they are reserved now.", len(parts.holds)),
        ("reservations_held", "Reservations that clients have through this broker.", len(reservations)),
        (
            "shortages_expected",
            "Components that may run short, where this is their delegate.",
            parts.shortages.expected,
        ),
        ("reservations_under_way", "Requests that are worked on.", reservations.under_way),
    ):
        yield GaugeMetricFamily(f"{PREFIX}{name}", text, value=value)
    for name, text, value in (
        ("reservations_made", "Reservations for clients here.", reservations.made),
        ("reservations_refused", "Requests for which nothing could be reserved.", reservations.refused),
        ("reservations_ended", "Reservations that ended before they were released.", reservations.ended),
        ("requests_malformed", "Requests of clients that made no sense.", parts.requests_refused),
        ("indexed", "Publications here that picked a member of a group by an index.", parts.indexed.delivered),
        ("shortages", "Forecasts of shortage that were published here.", parts.shortages.told),
        ("loads", "Reports of load.", parts.loads),
        ("loads_refused", "Reports of load that made no sense, or came too often.", parts.loads_refused),
    ):
        yield CounterMetricFamily(f"{PREFIX}{name}", text, value=value)
