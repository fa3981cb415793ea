"""What a running braid says of itself on its admin ports: sites, how far they are from each other, and clients."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from braidmq.cli.errors import CliError, UsageError

if TYPE_CHECKING:
    from braidmq.admin.clients_contract import ClientStatus
    from braidmq.cli.admin_port import BrokerAdmin
    from braidmq.placement.observed import ObservedClient, ObservedProcessor, ObservedSite

LATENCIES_MAX: Final = 10_000_000
"""Rows of a file of latencies."""


@dataclass(frozen=True)
class ObservedSites:
    sites: list[ObservedSite]
    clients: list[ObservedClient]
    processors: list[ObservedProcessor]
    brokers: dict[str, BrokerAdmin]
    """By the name of the site."""
    topic_homes: list[tuple[str, str]]
    """Filters and sites, as the rules of the configurations have them."""


def observe(brokers: list[BrokerAdmin]) -> ObservedSites:
    """Asks all of them; a CliError says which does not answer."""
    from braidmq.placement.observed import ObservedProcessor, ObservedSite

    sites: list[ObservedSite] = []
    processors: dict[tuple[str, int, str | None], ObservedProcessor] = {}
    clients: dict[str, ObservedClient] = {}
    by_name: dict[str, BrokerAdmin] = {}
    topic_homes: dict[tuple[str, str], None] = {}
    for broker in brokers:
        name, trips = _distances(broker)
        if name in by_name:
            raise UsageError(f"{broker.url} and {by_name[name].url} are the same site, {name}")
        by_name[name] = broker
        homes = broker.ask(lambda client: client.homes())
        topic_homes.update({(one.topic, one.broker): None for one in homes.topics})
        processing = broker.ask(lambda client: client.processing())
        sites.append(ObservedSite(name, processing.storage.max, processing.compute.max, trips))
        for one in processing.processors:
            if one.topic is not None and one.spool is not None:
                processors[one.topic, one.spool, one.output] = ObservedProcessor(one.topic, one.spool, one.output)
        for status in broker.ask(lambda client: list(client.clients())):
            if status.connected or status.client not in clients:
                clients[status.client] = _client(status, name)
    missing = sorted({other for site in sites for other in site.round_trips_ms} - by_name.keys())
    if missing:
        raise CliError(
            f"the braid has sites that were not asked: {', '.join(missing[:5])}",
            hint="Name the admin ports of all of them: --brokers http://edge1:9883,http://edge2:9883",
        )
    found = [clients[name] for name in sorted(clients)]
    return ObservedSites(sites, found, [*processors.values()], by_name, [*topic_homes])


def _distances(broker: BrokerAdmin) -> tuple[str, dict[str, float | None]]:
    told = broker.ask(lambda client: client.distances())
    return told.broker, {one.broker: one.round_trip_ms for one in told.distances}


def _client(status: ClientStatus, site: str) -> ObservedClient:
    from braidmq.placement.observed import ObservedClient

    can_move = status.version != "3.1.1"
    return ObservedClient(status.client, site, status.filters, can_move, status.home if status.pinned else None)


def read_latencies(path: Path) -> dict[tuple[str, str], float]:
    """Rows `client,site,ms`: one way. The first row may be a heading."""
    found: dict[tuple[str, str], float] = {}
    try:
        with path.open(newline="") as file:
            for number, row in enumerate(csv.reader(file), 1):
                if number > LATENCIES_MAX:
                    raise UsageError(f"{path} has more than {LATENCIES_MAX:,} rows")
                if not row or (number == 1 and row[-1].strip().lower() == "ms"):
                    continue
                try:
                    client, site, delay = (each.strip() for each in row)
                    delay_ms = float(delay)
                except ValueError:
                    raise UsageError(f"{path}, row {number}: expected client,site,ms and not {','.join(row)}") from None
                if not 0 <= delay_ms < 1e6:
                    raise UsageError(f"{path}, row {number}: {delay} ms is no delay")
                found[client, site] = delay_ms
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is no text") from None
    return found
