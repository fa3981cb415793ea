"""Sites that are drained: to the end, and until they have left."""

from __future__ import annotations

from typing import Any

from braidmq.braid.membership.broker_records import ClientListener
from braidmq.braid.roaming.drain import DrainOutcome
from tests.conformance.pair import Peer, persistent
from tests.conformance.wire import V5

from .sites import Site, Sites


def come(sites: Sites, number: int, client_id: str = "ada", version: int = V5, **options: Any) -> Peer:
    """The client comes to a site, with a session that stays unless the options say otherwise."""
    return sites.client(number, client_id, version=version, **(options or persistent(version)))


def where(sites: Sites, client_id: str = "ada") -> list[int]:
    return [site.number for site in sites if client_id in site.broker.sessions]


def advertise(sites: Sites) -> None:
    """Every site tells where its clients connect."""
    for site in sites:
        listener = ClientListener("local", "tcp", f"host{site.number}:1883")
        site.braid.membership.records.set_listeners([listener])
        site.braid.sending.listener_kinds = {"local": "tcp"}
        site.braid.announce()
    sites.run(2)


def drain(sites: Sites, number: int, seconds: float = 60.0) -> DrainOutcome | None:
    """Drains a site to the end; how that was."""
    site = sites[number]
    site.braid.drain.start(seconds)
    for _ in range(round(seconds) + 10):
        if site.braid.drain.outcome is not None:
            break
        sites.run(1)
    return site.braid.drain.outcome


def leave(sites: Sites, site: Site) -> None:
    """As a server does when its drain is over."""
    site.broker.shut_down()
    has_left = site.host.event()

    async def go() -> None:
        await site.braid.leave()
        has_left.set()

    site.host.spawn(go())
    while not has_left.is_set:
        sites.run(0.1)
    for other in sites:
        other.braid.on_parted(site.number)  # as its farewell tells
    site.crash()
