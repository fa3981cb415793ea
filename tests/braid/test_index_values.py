"""Index values: the members of a group divide the range from 0 to 1, and a publisher picks one by a number."""

from __future__ import annotations

import pytest

from tests.conformance import wire
from tests.conformance.pair import Peer
from tests.conformance.wire import V3, V5

from .sites import Sites, payloads

METHODS = pytest.mark.parametrize("method", ["covers", "relayfree"])


def members(sites: Sites, *places: tuple[int, str], version: int = V5) -> dict[str, Peer]:
    found = {}
    for site, name in places:
        found[name] = sites.client(site, name, version=version)
        found[name].subscribe("$share/detector/frames/+", 1)
    sites.run(3)
    return found


def send(publisher: Peer, index: float, payload: bytes, qos: int = 1) -> None:
    publisher.send(
        wire.publish(
            f"$index/{index}/frames/1", payload, version=publisher.version, qos=qos, packet_id=7 if qos else None
        )
    )


def received(
    sites: Sites, publisher: Peer, found: dict[str, Peer], count: int = 20, qos: int = 1
) -> dict[str, list[int]]:
    """Who gets which of so many publications, whose index values are spread evenly."""
    for number in range(count):
        send(publisher, (number + 0.5) / count, b"%d" % number, qos)
    sites.run(3)
    return {name: sorted(int(one) for one in payloads(peer)) for name, peer in found.items()}


@METHODS
@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("version", [V3, V5])
def test_members_divide_the_range_among_them(method: str, qos: int, version: int) -> None:
    sites = Sites(4, method=method)
    found = members(sites, (1, "a"), (2, "b"), (2, "c"), (0, "d"), (3, "e"), version=version)
    publisher = sites.client(0, "publisher", version=version)
    send(publisher, 0.5, b"0")  # from now on it is known how many members there are where
    sites.run(3)
    for peer in found.values():
        payloads(peer)
    got = received(sites, publisher, found, qos=qos)
    assert got == {
        "d": [0, 1, 2, 3],
        "a": [4, 5, 6, 7],
        "b": [8, 9, 10, 11],
        "c": [12, 13, 14, 15],
        "e": [16, 17, 18, 19],
    }


@METHODS
def test_the_division_follows_members_that_come_and_go(method: str) -> None:
    sites = Sites(3, method=method)
    found = members(sites, (1, "a"), (2, "b"))
    publisher = sites.client(0, "publisher")
    assert [len(one) for one in received(sites, publisher, found).values()] == [10, 10]
    found |= members(sites, (2, "c"), (1, "d"))
    send(publisher, 0.5, b"0")
    sites.run(2)
    for peer in found.values():
        payloads(peer)
    assert [len(one) for one in received(sites, publisher, found).values()] == [5, 5, 5, 5]
    found.pop("a").drop()
    found.pop("d").drop()
    sites.run(3)
    assert sum(len(one) for one in received(sites, publisher, found).values()) == 20


def test_others_get_what_they_always_get_and_the_member_sees_the_plain_topic() -> None:
    sites = Sites(2)
    found = members(sites, (0, "a"), (1, "b"))
    watcher = sites.client(1, "watcher")
    watcher.subscribe("frames/#", 1)
    publisher = sites.client(0, "publisher")
    properties = wire.props(user=("index", "0.9"))
    assert publisher.publish("frames/1", b"x", qos=1, properties=properties) == 0
    sites.run(2)
    (got,) = found["b"].take()
    assert (got.topic, got.payload) == ("frames/1", b"x")
    assert payloads(found["a"]) == []
    assert payloads(watcher) == [b"x"]


NO_INDEX = ["$index/2/frames/1", "$index/nan/frames/1", "$index/x/frames/1", "$index/0.5", "$index/0.5/"]


@pytest.mark.parametrize("topic", NO_INDEX)
def test_what_is_no_index_is_refused(topic: str) -> None:
    sites = Sites(1)
    publisher = sites.client(0, "publisher")
    assert publisher.publish(topic, b"x", qos=1) == 0x90
    assert publisher.subscribe("$index/#") == 0x8F


def test_a_property_that_is_no_number_means_nothing() -> None:
    sites = Sites(1)
    found = members(sites, (0, "a"))
    publisher = sites.client(0, "publisher")
    assert publisher.publish("frames/1", b"x", qos=1, properties=wire.props(user=("index", "seven"))) == 0
    assert payloads(found["a"]) == [b"x"]


def test_an_index_within_a_cluster() -> None:
    sites = Sites(4, clusters=["c1", "c1", "c2", "c2"])
    found = members(sites, (1, "a"), (2, "b"), (3, "c"))
    publisher = sites.client(0, "publisher")
    for number in range(4):
        send_in = wire.publish(f"$index/{number / 4}/$in/c2/frames/1", b"%d" % number, qos=1, packet_id=7)
        publisher.send(send_in)
    sites.run(3)
    assert {name: payloads(peer) for name, peer in found.items()} == {"a": [], "b": [b"0", b"1"], "c": [b"2", b"3"]}
