"""The retained messages of a broker that is drained: other brokers keep them, and nothing old comes back."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from braidmq.braid.mirrors.settings import CopySettings
from braidmq.braid.roaming import drain as draining
from braidmq.braid.roaming.drain import DrainOutcome
from braidmq.broker.limits import Limits
from tests.conformance import wire

from .draining import drain, leave
from .sites import Sites, payloads
from .test_mirrors import MirroredSites


def retained_of(sites: Sites, number: int, topic_filter: str, client_id: str = "late") -> list[bytes]:
    """What a client gets that subscribes at a site now."""
    peer = sites.client(number, client_id, clean=True)
    peer.subscribe(topic_filter, 1)
    sites.run(2)
    got = payloads(peer)
    peer.drop()
    return got


@pytest.mark.parametrize("method", ["covers", "relayfree", "suzaku"])
def test_retained_messages_are_kept_by_others(method: str) -> None:
    sites = Sites(4, method=method)
    publisher = sites.client(0, "pub")
    for number in range(40):
        publisher.publish(f"plant{number}/level", b"%d" % number, 1, retain=True)
    publisher.publish("plant3/level", b"", 1, retain=True)
    assert drain(sites, 0) is DrainOutcome.EMPTY
    progress = sites[0].braid.drain.progress
    assert (progress.retained, progress.retained_moved) == (0, 40)
    leave(sites, sites[0])
    sites.settle_s = 6.0 if method == "suzaku" else 1.0  # its fingers still lead to the broker that has left
    expected = [b"%d" % number for number in range(40) if number != 3]
    for number in (1, 2, 3):
        assert sorted(retained_of(sites, number, "#"), key=int) == expected
        assert retained_of(sites, number, "plant7/+") == [b"7"]
        assert retained_of(sites, number, "plant3/level") == []


def test_a_broker_that_is_back_brings_nothing_old(tmp_path: Path) -> None:
    sites = MirroredSites(tmp_path, 4, copying=CopySettings(copies=1))
    publisher = sites.client(3, "pub")
    for topic in ("tide/east", "tide/west", "tide/north"):
        publisher.publish(topic, b"old", 1, retain=True)
    assert drain(sites, 3) is DrainOutcome.EMPTY
    leave(sites, sites[3])
    sites.close(3)
    other = sites.client(1, "other")
    other.publish("tide/east", b"new", 1, retain=True)
    other.publish("tide/west", b"", 1, retain=True)
    sites.add(3)
    sites.run(30)
    for number in range(4):
        assert sorted(retained_of(sites, number, "tide/+")) == [b"new", b"old"]


def test_what_is_retained_while_it_is_drained_counts() -> None:
    sites = Sites(3)
    publisher = sites.client(0, "pub")
    for number in range(20):
        publisher.publish(f"tide/{number}", b"old", 1, retain=True)
    other = sites.client(1, "other")
    changed: dict[int, bytes] = {}
    sites.settle_s = 0.0
    sites[0].braid.drain.start(60)
    for number in range(20):
        sites.run(0.1)
        payload = b"" if number % 3 else b"new"
        peer = other if number % 2 else publisher
        if not peer.link.closed:
            peer.send(wire.publish(f"tide/{number}", payload, qos=1, packet_id=1 + number, retain=True))
            changed[number] = payload
    while sites[0].braid.drain.outcome is None:
        sites.run(0.1)
    leave(sites, sites[0])
    sites.settle_s = 1.0
    assert publisher.link.closed
    assert len(changed) > 12
    for number in range(20):
        payload = changed.get(number, b"old")
        assert retained_of(sites, 2, f"tide/{number}") == ([payload] if payload else [])


def test_a_drain_that_is_taken_back_leaves_one_of_each() -> None:
    sites = Sites(3)
    publisher = sites.client(0, "pub")
    for number in range(10):
        publisher.publish(f"tide/{number}", b"x" * 60_000, 1, retain=True)
    sites[0].braid.drain.start(60)
    sites.run(draining.NOTICE_S + 0.15)
    sites[0].braid.drain.cancel()
    sites.run(20)
    kept = Counter(one.topic for site in sites for one in site.broker.retained.values() if one.topic.startswith("tide"))
    assert kept == dict.fromkeys((f"tide/{number}" for number in range(10)), 1)
    assert len(retained_of(sites, 2, "tide/+")) == 10


def test_what_finds_no_room_stays_and_is_told() -> None:
    sites = Sites(1)
    for number in (1, 2):
        sites.add(number, limits=Limits(retained_messages_max=3))
        sites.run(5)
    sites.run(10)
    publisher = sites.client(0, "pub")
    for number in range(10):
        publisher.publish(f"tide/{number}", b"%d" % number, 1, retain=True)
    assert drain(sites, 0, 8.0) is DrainOutcome.TIME_UP
    progress = sites[0].braid.drain.progress
    assert (progress.retained, progress.retained_moved) == (4, 6)
    assert sorted(retained_of(sites, 2, "tide/+")) == [b"%d" % number for number in range(10)]
