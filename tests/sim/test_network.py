"""The network's models and faults: their bounds, their shares for a fixed seed, and their words on a command line."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from random import Random
from statistics import fmean, median

import pytest

from braidmq.host import Address, Message, Service, handles
from braidmq.sim.clocks import ClockError, Drift, Jumps
from braidmq.sim.engine import SimHost, Simulator
from braidmq.sim.network import (
    Clog,
    ClusterDelays,
    Constant,
    Duplication,
    Faults,
    FaultsError,
    Loss,
    Network,
    OneWayPartition,
    Partition,
    Reordering,
    SampledDelays,
    Slow,
    Uniform,
    position_of,
    wide_area,
)

DRAWS = 20_000


def drawn(network: Network, source: Address = 1, to: Address = 2, now: float = 0.0) -> list[tuple[float, ...]]:
    chance = Random(42)
    return [network.delays(chance, source, to, now) for _ in range(DRAWS)]


def share(network: Network, copies: int) -> float:
    return sum(len(delays) == copies for delays in drawn(network)) / DRAWS


def test_constant() -> None:
    assert set(drawn(Constant(0.02))) == {(0.02,)}


def test_uniform_fills_its_bounds_evenly() -> None:
    delays = [delay for (delay,) in drawn(Uniform(0.01, 0.05))]
    assert 0.01 <= min(delays) < 0.0101
    assert 0.0499 < max(delays) <= 0.05
    assert fmean(delays) == pytest.approx(0.03, abs=0.0005)


def test_samples_are_drawn_as_often_as_they_are_given() -> None:
    delays = drawn(SampledDelays([0.1, 0.1, 0.1, 0.7]))
    assert set(delays) == {(0.1,), (0.7,)}
    assert delays.count((0.7,)) / DRAWS == pytest.approx(0.25, abs=0.01)


def test_a_wide_area_has_a_long_tail() -> None:
    delays = sorted(delay for (delay,) in drawn(wide_area(0.04)))
    assert median(delays) == pytest.approx(0.04, rel=0.03)
    assert delays[DRAWS * 99 // 100] > 0.12
    assert delays[0] > 0


def test_by_cluster_takes_both_ends_and_jitter() -> None:
    clusters: dict[Address, str] = {1: "edge", 2: "edge", 3: "cloud"}
    network = ClusterDelays(
        {"edge": {"edge": 0.001, "cloud": 0.02}, "cloud": {"cloud": 0.002}}, clusters.__getitem__, 0.5
    )
    for source, to, base in ((1, 2, 0.001), (1, 3, 0.02), (3, 1, 0.02), (3, 3, 0.002)):
        delays = [delay for (delay,) in drawn(network, source, to)]
        assert base <= min(delays) < 1.01 * base
        assert 1.49 * base < max(delays) <= 1.5 * base


def test_by_cluster_may_differ_by_direction_and_names_what_is_missing() -> None:
    network = ClusterDelays({"up": {"down": 0.1}, "down": {"up": 0.3}}, lambda address: str(address))
    assert network.delays(Random(1), "up", "down", 0.0) == (0.1,)
    assert network.delays(Random(1), "down", "up", 0.0) == (0.3,)
    with pytest.raises(ValueError, match="from cluster 'up' to 'mars'"):
        network.delays(Random(1), "up", "mars", 0.0)


def test_loss_and_duplication_come_as_often_as_they_should() -> None:
    assert share(Loss(0.02, Constant(0.01)), 0) == pytest.approx(0.02, abs=0.004)
    assert share(Duplication(0.02, Constant(0.01)), 2) == pytest.approx(0.02, abs=0.004)
    both = Duplication(0.2, Loss(0.1, Constant(0.01)))
    assert share(both, 0) == pytest.approx(0.8 * 0.1 + 0.2 * 0.1 * 0.1, abs=0.008)
    assert share(both, 2) == pytest.approx(0.2 * 0.9 * 0.9, abs=0.01)
    assert share(Loss(1.0, Constant(0.01)), 0) == 1
    assert share(Loss(0.0, Constant(0.01)), 1) == 1


def test_copies_have_delays_of_their_own() -> None:
    twice = [delays for delays in drawn(Duplication(0.5, Uniform(0.01, 0.05))) if len(delays) == 2]
    assert sum(first > second for first, second in twice) / len(twice) == pytest.approx(0.5, abs=0.02)


def test_reordering_delays_some_by_a_bounded_time() -> None:
    delays = [delay for (delay,) in drawn(Reordering(0.05, Constant(0.01), extra_s=0.3))]
    late = [delay for delay in delays if delay > 0.01]
    assert len(late) / DRAWS == pytest.approx(0.05, abs=0.005)
    assert 0.28 < max(late) <= 0.31


def test_slow_hosts_are_slow_in_both_directions() -> None:
    network = Slow([3], 10.0, Constant(0.01))
    ways: tuple[tuple[int, int], ...] = ((1, 2), (1, 3), (3, 1))
    assert [network.delays(Random(1), source, to, 0.0) for source, to in ways] == [(0.01,), (0.1,), (0.1,)]


class Ping(Message):
    pass


class Ear(Service):
    def __init__(self, host: SimHost) -> None:
        self.host = host
        self.heard: list[tuple[int, Address]] = []
        host.serve(self)

    @handles(Ping)
    def on_ping(self, origin: Address, ping: Ping) -> None:
        self.heard.append((round(self.host.now()), origin))


def heard_at(network: Network, address: int, hosts: int = 4) -> list[tuple[int, Address]]:
    """What a host hears when each other pings it at the seconds 0 to 5."""
    sim = Simulator(1, network)
    ears = [Ear(sim.host(number)) for number in range(hosts)]
    for second in range(6):
        for ear in ears[:address] + ears[address + 1 :]:
            sim.at(second, lambda ear=ear: ear.host.send(address, Ping()))  # type: ignore[misc]
    sim.run()
    return ears[address].heard


def test_a_partition_heals() -> None:
    heard = heard_at(Partition([[0, 1], [2]], 2.0, 4.0, Constant(0.01)), 0)
    assert [second for second, origin in heard if origin == 1] == [0, 1, 2, 3, 4, 5]
    assert [second for second, origin in heard if origin == 2] == [0, 1, 4, 5]
    assert [second for second, origin in heard if origin == 3] == [0, 1, 4, 5], "it stands in no group"


def test_those_in_no_group_hear_each_other() -> None:
    heard = heard_at(Partition([[0]], 2.0, 4.0, Constant(0.01)), 1)
    assert [second for second, origin in heard if origin == 2] == [0, 1, 2, 3, 4, 5]


def test_a_partition_by_words_halves_the_hosts() -> None:
    sides = [position_of(number) < 0.5 for number in range(1000)]
    assert 430 < sum(sides) < 570
    other = sides.index(not sides[0])
    heard = heard_at(Faults.parse("partition=2-4").over(Constant(0.01)), 0, other + 1)
    assert [second for second, origin in heard if origin == other] == [0, 1, 4, 5]


def test_of_a_one_way_partition_one_side_hears_the_other() -> None:
    network = OneWayPartition([0, 1], 2.0, 4.0, Constant(0.01))
    assert [second for second, origin in heard_at(network, 2) if origin == 0] == [0, 1, 4, 5]
    assert [second for second, origin in heard_at(network, 0) if origin == 2] == [0, 1, 2, 3, 4, 5]
    assert [second for second, origin in heard_at(network, 1) if origin == 0] == [0, 1, 2, 3, 4, 5]
    other = next(number for number in range(1, 100) if (position_of(number) < 0.5) != (position_of(0) < 0.5))
    ends = [
        [
            second
            for second, origin in heard_at(Faults.parse("oneway=2-4").over(Constant(0.01)), to, other + 1)
            if origin == who
        ]
        for to, who in ((0, other), (other, 0))
    ]
    assert sorted(ends) == [[0, 1, 2, 3, 4, 5], [0, 1, 4, 5]]


def arrivals(network: Network, to: Address = 2, every_s: float = 0.1, count: int = 2000) -> list[tuple[float, float]]:
    """When each of many messages on one path is sent, and when it arrives."""
    chance = Random(3)
    found = []
    for number in range(count):
        now = number * every_s
        found += [(now, now + delay) for delay in network.delays(chance, 1, to, now)]
    return found


def test_a_clogged_path_holds_all_up_in_order() -> None:
    found = arrivals(Clog(0.01, Uniform(0.01, 0.05), 3.0))
    late = [arrived - sent for sent, arrived in found if arrived - sent > 0.05]
    assert len(found) == 2000
    assert 0.05 < len(late) / len(found) < 0.3, "a clog of 1.5 s on average holds up 15 messages"
    assert 2.0 < max(late) < 3.1
    assert [arrived for _, arrived in found] == sorted(arrived for _, arrived in found)


def test_other_paths_are_not_clogged() -> None:
    network = Clog(1.0, Constant(0.01), 5.0)
    ((delay,), (other,)) = (network.delays(Random(seed), 1, 2, 0.0) for seed in (1, 2))
    assert delay <= other, "the second waits in the same queue"
    ((back,), (aside,)) = (network.delays(Random(seed), 2, to, 0.0) for seed, to in ((3, 1), (4, 3)))
    assert len({delay, back, aside}) == 3
    assert Clog(0.0, Constant(0.01)).delays(Random(1), 1, 2, 0.0) == (0.01,)


class Numbered(Message):
    number: int


def test_a_clogged_path_keeps_its_order_through_the_simulator() -> None:
    sim = Simulator(1, Faults.parse("clog=0.2:3").over(Constant(0.01)))
    sim.host(0)
    sender = sim.host(1)
    heard: list[Message] = []
    heard_at: list[float] = []

    def note(_source: Address, _to: Address, message: Message, _hops: int) -> None:
        heard.append(message)
        heard_at.append(sim.now)

    sim.on_message = note
    sent = [Numbered(number) for number in range(500)]
    for message in sent:
        sim.at(1000 / 3 + message.number * 0.0301, lambda message=message: sender.send(0, message))  # type: ignore[misc]
    sim.run()
    assert heard == sent
    assert max(b - a for a, b in pairwise(heard_at)) > 1.0, "some were held up"


def test_clocks_go_wrong_at_some_hosts_and_never_back() -> None:
    faults = Faults.parse("jump=0.3:20,drift=0.3:0.2")
    sim = Simulator(1, clock_error_of=faults.clock_error_of)
    hosts = [sim.host(number) for number in range(200)]
    shown: list[list[float]] = []
    for second in range(0, 100, 5):
        sim.at(second, lambda: shown.append([host.now() for host in hosts]))
    sim.run()
    last = shown[-1]
    assert 0.35 < sum(time == 95 for time in last) / len(last) < 0.6, "neither of two shares of 0.3"
    assert max(last) == pytest.approx(95 * 1.2 + 3 * 20, abs=20)
    assert min(last) == pytest.approx(95 * 0.8)
    for clock in zip(*shown, strict=True):
        assert list(clock) == sorted(clock)
    assert Simulator(1).host(1).now() == 0.0
    assert faults.over(sim.network) is sim.network, "clocks are no matter of the network"


def test_faults_are_read() -> None:
    assert Faults.parse("") == Faults()
    text = "loss=0.02, dup=0.03,reorder=0.05:0.5,slow=0.1:4,partition=30-60,partition=90-120.5"
    assert Faults.parse(text) == Faults(
        loss=0.02,
        dup=0.03,
        reorder=0.05,
        reorder_extra_s=0.5,
        slow=0.1,
        slow_factor=4.0,
        partitions=((30.0, 60.0), (90.0, 120.5)),
    )
    assert Faults.parse("clog=0.01:3,oneway=10-20,oneway=30-40,jump=0.1:60,drift=0.2:0.05") == Faults(
        clog=0.01,
        clogged_s=3.0,
        one_way=((10.0, 20.0), (30.0, 40.0)),
        jump=0.1,
        jump_s=60.0,
        drift=0.2,
        drift_rate=0.05,
    )
    assert Faults.parse("partition=30-60,oneway=10-20").ends_at == 60.0


def test_faults_from_words_do_what_they_say() -> None:
    network = Faults.parse("loss=0.1,dup=0.2,reorder=0.5:1").over(Constant(0.01))
    assert share(network, 2) == pytest.approx(0.2 * 0.9 * 0.9, abs=0.01)
    late = [any(delay > 0.01 for delay in delays) for delays in drawn(network) if len(delays) == 1]
    assert sum(late) / len(late) == pytest.approx(0.5, abs=0.015)
    constant = Constant(0.01)
    assert Faults.parse("").over(constant) is constant


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("los=0.02", "'los=0.02' is none; there are loss=PROBABILITY, dup="),
        ("0.02", "'0.02' is none"),
        ("loss", "'loss': a number is missing; write loss=PROBABILITY"),
        ("loss=much", "'much' is no number"),
        ("loss=2", "2 is no probability from 0 to 1"),
        ("loss=-1", "-1 must be 0 or more"),
        ("loss=nan", "nan must be 0 or more"),
        ("dup=0.1,dup=0.2", "dup is given twice"),
        ("dup=0.1:3", "nothing to say after a colon"),
        ("reorder=0.1:", "a number is missing"),
        ("slow=0.1:0", "must be more than 0"),
        ("partition=30", "it needs a beginning and an end; write partition=FROM-UNTIL"),
        ("partition=60-30", "it must end after it begins"),
        ("oneway=60-60", "it must end after it begins; write oneway=FROM-UNTIL"),
        ("clog=0.1:0", "must be more than 0; write clog=PROBABILITY[:SECONDS]"),
        ("jump=2", "2 is no probability from 0 to 1; write jump=SHARE[:SECONDS]"),
        ("drift=0.1:1", "stands still: less than 1; write drift=SHARE[:RATE]"),
        ("jump=0.1,jump=0.2", "jump is given twice"),
    ],
)
def test_bad_words_are_told(text: str, wrong: str) -> None:
    with pytest.raises(FaultsError) as error:
        Faults.parse(text)
    assert str(error.value).startswith("faults: ")
    assert wrong in str(error.value)


@pytest.mark.parametrize(
    "made",
    [
        lambda: Constant(-0.1),
        lambda: Constant(float("nan")),
        lambda: Uniform(0.2, 0.1),
        lambda: Uniform(0.1, float("inf")),
        lambda: SampledDelays([]),
        lambda: SampledDelays([0.1, -0.1]),
        lambda: Loss(1.1, Constant(0.1)),
        lambda: Reordering(0.1, Constant(0.1), -1.0),
        lambda: Partition([[1], [2]], 5.0, 5.0, Constant(0.1)),
        lambda: OneWayPartition([1], 5.0, 5.0, Constant(0.1)),
        lambda: Clog(1.1, Constant(0.1)),
        lambda: Clog(0.1, Constant(0.1), -1.0),
        lambda: Slow([1], 0.0, Constant(0.1)),
        lambda: ClusterDelays({"a": {"a": -1.0}}, str),
        lambda: ClusterDelays({}, str, -1.0),
    ],
)
def test_impossible_networks_are_refused(made: Callable[[], Network]) -> None:
    with pytest.raises(ValueError, match=r"."):
        made()


@pytest.mark.parametrize(
    "made",
    [lambda: Jumps(-1.0, 1.0, 1.0), lambda: Jumps(1.0, 0.0, 1.0), lambda: Jumps(1.0, 1.0, -1.0), lambda: Drift(-1.0)],
)
def test_impossible_clocks_are_refused(made: Callable[[], ClockError]) -> None:
    with pytest.raises(ValueError, match="a clock"):
        made()
