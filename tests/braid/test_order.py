"""Publications of one publisher on one topic come in order, also while a client moves and some paths are slow."""

from __future__ import annotations

from pathlib import Path

import pytest

from braidmq.braid.catch_up.reconcile import AskMissed, Missed, TellFilters
from braidmq.sim.network import Uniform
from tests.conformance import wire
from tests.conformance.wire import V5

from .roamer import Roamer
from .sites import Sites, payloads
from .slow_paths import SlowPaths
from .test_takeover import Disks, come, later


def stream(sites: Sites, at: int, qos: int, count: int, period_s: float) -> list[bytes]:
    """A client publishes on one topic, while something else goes on; the payloads."""
    peer = sites.client(at, f"pub{at}")
    sent = [b"%d:%04d" % (at, number) for number in range(count)]
    for number, payload in enumerate(sent):
        packet = wire.publish("tide", payload, qos=qos, packet_id=1000 + number)
        later(sites, number * period_s, peer, packet)
    return sent


def inversions(got: list[bytes]) -> list[bytes]:
    """What came behind something later, the first time that it came."""
    found: list[bytes] = []
    last = b""
    for one in dict.fromkeys(got):
        if one < last:
            found.append(one)
        last = max(last, one)
    return found


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("slower_s", [0.1, 0.3])
def test_the_way_to_the_old_broker_is_slow(qos: int, slower_s: float) -> None:
    """What is on its way to the broker that the client leaves comes before what comes to the new one by itself."""
    for seed in range(3):
        network = SlowPaths(Uniform(0.001, 0.02))
        sites = Sites(6, seed, network)
        ada = Roamer(sites, "ada", V5)
        ada.connect(0)
        sites.run(1)
        ada.subscribe("tide", qos)
        sites.run(1)
        sent = stream(sites, 1, qos, 150, 0.07)
        sites.settle_s = 0.0
        for step in range(115):
            ada.read()
            if step % 13 == 5:
                network.slower_s = {(1, ada.site): slower_s}
            if step % 13 == 10:
                ada.connect((2, 3, 4, 5, 0)[step // 13 % 5])
            sites.run(0.1)
        for _ in range(20):
            ada.read()
            sites.run(2)
        assert ada.sessions_lost == 0
        assert [one for one in sent if one not in ada.got] == [], f"lost, seed {seed}"
        assert inversions(ada.got) == [], f"seed {seed}"
        if qos == 2:
            assert len(set(ada.got)) == len(ada.got), f"twice, seed {seed}"


def test_a_question_for_a_session_does_not_replace_what_its_broker_wants() -> None:
    sites = Sites(2)
    origin, reconciler = sites[0].braid.identity, sites[0].braid.catch_up.reconciler
    told = AskMissed(origin, 0, 0.0, (), b"all", ("tide", "wind"))
    assert isinstance(reconciler.on_ask_missed(1, told), Missed)
    for_session = AskMissed(origin, 0, 0.0, (), b"one", ("tide",), is_once=True)
    assert isinstance(reconciler.on_ask_missed(1, for_session), Missed)
    by_digest = AskMissed(origin, 0, 0.0, (), b"all", None)
    assert isinstance(reconciler.on_ask_missed(1, by_digest), Missed)
    assert isinstance(reconciler.on_ask_missed(1, AskMissed(origin, 0, 0.0, (), b"one", None)), TellFilters)


def test_a_publisher_that_roamed_while_a_broker_was_down_is_caught_up_with_in_order(tmp_path: Path) -> None:
    """The histories of both brokers of the publisher are fetched side by side, one of them on a slow way."""
    for seed in range(3):
        network = SlowPaths(Uniform(0.001, 0.02))
        sites = Sites(3, seed, network)
        disks = Disks(sites, tmp_path / str(seed))
        disks.start(7)
        ada = come(sites, 7)
        ada.subscribe("tide", 1)
        ada.drop()
        disks.kill(7)
        for number in range(10):
            publisher = come(sites, 0 if number < 5 else 1, client_id="pub")
            publisher.publish("tide", b"%d" % number, 1)
        network.slower_s[0, 7] = 0.2
        disks.start(7)
        ada = come(sites, 7)
        got = payloads(ada)
        for _ in range(5):
            sites.run(2)
            got += payloads(ada)
        assert got == [b"%d" % number for number in range(10)], f"seed {seed}"
