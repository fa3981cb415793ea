"""A broker that ends leaves the braid in good order, and soon: nobody has to find out that it is gone."""

from __future__ import annotations

import pytest

from braidmq.braid.node import LEAVE_S
from braidmq.braid.roaming.directory_messages import PAGE_MAX, Client, Register
from braidmq.sim.network import Constant
from tests.conformance import wire
from tests.conformance.pair import Peer, World
from tests.conformance.wire import V5, Type

from .sites import Site, Sites, payloads

TOPICS = 30


def end(sites: Sites, site: Site) -> float:
    """As `Server.stop` does: clients are told, the braid is left, the host is gone. How long that took."""
    began_at = sites.sim.now
    site.broker.shut_down()
    World.settle(site)
    left_at: list[float] = []

    async def leave() -> None:
        await site.braid.leave()
        left_at.append(sites.sim.now)

    site.host.spawn(leave())
    while not left_at and sites.sim.now < began_at + 20 * LEAVE_S:
        sites.run(0.1)
    assert left_at, f"site {site.number} is still there after {20 * LEAVE_S} s"
    site.crash()
    return left_at[0] - began_at


def keys_elsewhere(sites: Sites, number: int) -> list[bytes]:
    """The neighbours that others have at a site that is gone."""
    return [
        peer.key
        for site in sites
        for own in site.braid.overlay.view.own.values()
        for peer in (own.left, own.right)
        if peer.address == number
    ]


def subscribe_to_many(sites: Sites, number: int) -> Peer:
    client = sites.client(number)
    client.send(wire.subscribe(1, *((f"tide/{topic:02}", 1) for topic in range(TOPICS)), version=V5))
    sites.run(2.0)
    return client


@pytest.mark.parametrize(("method", "count"), [("covers", 5), ("relayfree", 5), ("suzaku", 3)])
def test_many_keys_side_by_side_leave_in_time_one_broker_after_the_other(method: str, count: int) -> None:
    sites = Sites(count, method=method)
    for number in range(count):
        subscribe_to_many(sites, number)
        sites.client(number, f"p{number}").publish(f"tide/{number:02}", b"x", 1)
    for number in range(count - 1, 0, -1):
        assert end(sites, sites[number]) < LEAVE_S
        sites.run(1.0)
        assert keys_elsewhere(sites, number) == []


DELAY_S = 0.05
ROUND_TRIPS_MAX = 20


def test_leaving_takes_few_round_trips_whatever_clients_wanted_and_published_and_however_many_they_were() -> None:
    sites = Sites(3, network=Constant(DELAY_S))
    publisher = sites.client(0, "pub")
    subscriber, other = sites.client(2), sites.client(2, "other")
    area = "a" * 150
    for first in range(0, 3000, 500):
        filters = [(f"{number % 16}/{area}/{number}/+", 1) for number in range(first, first + 500)]
        subscriber.send(wire.subscribe(1 + first, *filters, version=V5))
        sites.run(3.0)
    for number in range(16):
        publisher.publish(f"{number}/{area}/{number}/x", b"", 1)
        other.publish(f"own/{number}", b"", 1)
    registrar = sites[2].braid.roaming.directory.registrar
    for page in range(20):
        clients = tuple(Client(f"client-{page}-{number}", 1, "") for number in range(PAGE_MAX))
        registrar.on_register(2, Register("site2", clients, stands_in=True))
    sites.run(5.0)
    assert end(sites, sites[2]) < ROUND_TRIPS_MAX * 2 * DELAY_S
    sites.run(1.0)
    assert keys_elsewhere(sites, 2) == []
    assert publisher.publish(f"1/{area}/1/x", b"", 1) == 0x10
    assert sum(len(site.braid.roaming.directory.registrar) for site in sites) >= 20 * PAGE_MAX


def test_many_topics_with_a_key_each_leave_in_few_round_trips() -> None:
    sites = Sites(3, network=Constant(DELAY_S), method="adaptive")
    for number in range(3):
        subscribe_to_many(sites, number)
        client = sites.client(number, f"p{number}")
        for topic in range(TOPICS):
            client.send(wire.publish(f"own/{topic}/{number}", b"", version=V5))
    sites.run(20.0)
    assert end(sites, sites[2]) < ROUND_TRIPS_MAX * 2 * DELAY_S
    sites.run(1.0)
    assert keys_elsewhere(sites, 2) == []


def test_what_was_just_unsubscribed_leaves_with_the_rest() -> None:
    """A broker that ends right after its clients have gone: what they wanted is still being unsubscribed."""
    sites = Sites(4)
    client = subscribe_to_many(sites, 3)
    sites.settle_s = 0.0
    client.drop()
    assert end(sites, sites[3]) < LEAVE_S
    sites.run(1.0)
    assert keys_elsewhere(sites, 3) == []


def test_a_broker_that_has_left_comes_again() -> None:
    sites = Sites(4)
    publisher = sites.client(0)
    for incarnation in range(3):
        client = sites.client(3, f"s{incarnation}")
        assert client.subscribe("tide/#", 1) == 1
        publisher.publish("tide/high", b"%d" % incarnation, 1)
        assert payloads(client) == [b"%d" % incarnation]
        end(sites, sites[3])
        assert publisher.publish("tide/high", b"nobody is there", 1) == 0x10
        sites.add(3)
        sites.run(5.0)


def test_seeds_that_are_down_do_not_keep_a_broker_from_one_that_is_up() -> None:
    sites = Sites(1)
    late = sites.add(9)
    late.braid.membership.introducers.seeds = [*range(100, 110), 0]
    sites.run(1.0)
    assert late.braid.presence.is_in
    assert late.braid.membership.introducers.known[0] == 0
    subscriber = late.client("s")
    subscriber.subscribe("tide", 0)
    sites.client(0).publish("tide", b"x")
    assert [one.payload for one in subscriber.take() if one.type is Type.PUBLISH] == [b"x"]
