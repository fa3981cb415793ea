"""The history of a broker that is drained: what others lack of it can be had when it has left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from braidmq.braid.catch_up.left_history import TakeHistory
from braidmq.braid.mirrors.settings import CopySettings
from braidmq.braid.roaming.drain import DrainOutcome

from .draining import come, drain, leave
from .sites import Sites, payloads
from .test_mirrors import MirroredSites


def sent_with(sites: Sites, kind: type) -> list[Any]:
    """Messages of a kind, as they are sent from now on."""
    told: list[Any] = []
    count = sites.sim.on_message

    def watch(sender: Any, to: Any, message: Any, hops: int) -> None:
        if isinstance(message, kind):
            told.append(message)
        if count is not None:
            count(sender, to, message, hops)

    sites.sim.on_message = watch
    return told


@pytest.mark.parametrize("method", ["covers", "relayfree"])
@pytest.mark.parametrize("is_taker_restarted", [False, True])
def test_a_broker_that_was_down_fetches_the_history_of_one_that_has_left(
    tmp_path: Path, method: str, is_taker_restarted: bool
) -> None:
    sites = MirroredSites(tmp_path, 4, copying=CopySettings(copies=1), method=method)
    peer = come(sites, 2)
    peer.subscribe("tide/+", 2)
    publisher = sites.client(1, "pub", clean=True)
    publisher.publish("tide/west", b"first", 1)
    assert payloads(peer) == [b"first"]
    sites.run(1)
    sites.crash(2)
    for number in range(20):
        publisher.publish(f"tide/{number}", b"%d" % number, 1 + number % 2)
    sites.crash(3)  # the first is the only one that can take anything
    sites.run(1)
    told = sent_with(sites, TakeHistory)
    assert drain(sites, 1) is DrainOutcome.EMPTY
    assert told
    leave(sites, sites[1])
    sites.close(1)
    if is_taker_restarted:
        sites.crash(0)
        sites.add(0)
        sites.run(20)
    sites.add(2)
    sites.run(60)
    back = come(sites, 2)
    assert sorted(payloads(back), key=int) == [b"%d" % number for number in range(20)]


def test_a_history_that_all_have_followed_is_nobodys() -> None:
    sites = Sites(4)
    peer = come(sites, 2)
    peer.subscribe("tide/+", 1)
    publisher = sites.client(0, "pub", clean=True)
    for number in range(20):
        publisher.publish(f"tide/{number}", b"%d" % number, 1)
    told = sent_with(sites, TakeHistory)
    assert drain(sites, 0) is DrainOutcome.EMPTY
    assert not told
    assert len(payloads(peer)) == 20


def test_a_history_is_forgotten_when_its_broker_is_back_and_publishes(tmp_path: Path) -> None:
    sites = MirroredSites(tmp_path, 4, copying=CopySettings(copies=1))
    sites.crash(2)
    publisher = sites.client(3, "pub", clean=True)
    sites.client(1, "sub", clean=True).subscribe("tide", 1)
    publisher.publish("tide", b"1", 1)
    assert drain(sites, 3) is DrainOutcome.EMPTY
    leave(sites, sites[3])
    sites.close(3)
    origin = next(origin for site in sites for origin, _, _ in site.braid.catch_up.left.heads())
    sites.add(3)
    sites.run(10)
    sites.client(3, "pub", clean=True).publish("tide", b"2", 1)
    sites.run(60)
    assert [site.braid.catch_up.left.heads() for site in sites] == [[], [], []]
    cursor = sites[1].braid.catch_up.cursors.get(origin)
    assert cursor is not None
    assert (cursor.address, cursor.head) == (3, 2)
