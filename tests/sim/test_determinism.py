"""One seed is one run of whole overlays, to the last message: also in processes whose strings hash differently."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import pytest

from braidmq.host import Address, Host
from braidmq.keys import Key
from braidmq.overlay import Introduce, Overlay
from braidmq.overlay.skip_graph import SkipGraph
from braidmq.overlay.suzaku import Suzaku
from braidmq.overlay.vectors import DIGITS_MAX
from braidmq.sim.engine import Simulator
from braidmq.sim.network import Faults, Uniform
from braidmq.sim.trace import Trace

BROKERS = 16
CRASH_AT_S, RETURN_AT_S, LEAVE_AT_S, END_S = 30.0, 50.0, 60.0, 90.0

MakeOverlay = Callable[[Host, Introduce, int], Overlay]


def make_suzaku(host: Host, introduce: Introduce, incarnation: int) -> Overlay:
    return Suzaku(host, introduce, incarnation, period_s=5.0)


def make_skip_graph(host: Host, introduce: Introduce, incarnation: int) -> Overlay:
    return SkipGraph(host, host.chance.getrandbits(DIGITS_MAX), introduce, incarnation)


MAKERS: dict[str, MakeOverlay] = {"suzaku": make_suzaku, "skip_graph": make_skip_graph}


class Village:
    """Brokers, named by strings, that join with two keys each, crash, return and leave while all of them look up."""

    def __init__(self, make: MakeOverlay, seed: int) -> None:
        self.make = make
        self.sim = Simulator(seed, Faults(loss=0.02, dup=0.02, reorder=0.05).over(Uniform(0.005, 0.05)))
        self.overlays: dict[Address, Overlay] = {}
        self.found: list[tuple[Address, Key, Key | None]] = []
        for number in range(BROKERS):
            self.sim.at(number * 0.5, partial(self.start, f"broker-{number}"))
        self.sim.at(CRASH_AT_S, partial(self.crash, "broker-3"))
        self.sim.at(CRASH_AT_S, partial(self.crash, "broker-7"))
        self.sim.at(RETURN_AT_S, partial(self.start, "broker-3"))
        self.sim.at(LEAVE_AT_S, partial(self.leave, "broker-5"))

    def start(self, address: str) -> None:
        host = self.sim.hosts.get(address) or self.sim.host(address)
        host.restart()
        overlay = self.make(host, partial(self.introduce, address), host.incarnation)
        keys = [f"{topic}/{address}".encode() for topic in ("rain", "wind")]
        if self.overlays:
            for key in keys:
                host.spawn(overlay.join(key))
        else:
            overlay.found(keys[0])
            host.spawn(overlay.join(keys[1]))
        self.overlays[address] = overlay
        host.spawn(self.look_up(overlay))

    def introduce(self, mine: Address) -> Address | None:
        others = [address for address in self.overlays if address != mine]
        return self.sim.chance.choice(others) if others else None

    async def look_up(self, overlay: Overlay) -> None:
        while True:
            await overlay.host.sleep(1.0)
            key = b"%s/broker-%d" % (b"wind", overlay.host.chance.randrange(BROKERS))
            found = await overlay.lookup(key)
            self.found.append((overlay.host.address, key, found.owner.key if found else None))

    def crash(self, address: str) -> None:
        del self.overlays[address]
        self.sim.hosts[address].crash()

    def leave(self, address: str) -> None:
        self.sim.hosts[address].spawn(self.overlays[address].leave(f"rain/{address}".encode()))


def digest(method: str, seed: int) -> str:
    """Of all messages of a run, with their times and fates."""
    village = Village(MAKERS[method], seed)
    trace = Trace(village.sim)
    village.sim.run(END_S)
    assert sum(key == owner for _, key, owner in village.found) > BROKERS  # so there was something to compare
    return f"{trace.count} {trace.digest()}"


@pytest.mark.parametrize("method", MAKERS)
def test_a_seed_is_one_run_whatever_the_hashes_of_strings(method: str) -> None:
    command = [sys.executable, "-c", f"from tests.sim.test_determinism import digest; print(digest({method!r}, 11))"]
    digests = [
        subprocess.run(
            command, env={**os.environ, "PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=True
        ).stdout.strip()
        for hash_seed in ("1", "2")
    ]
    assert digests == [digest(method, 11)] * 2
    assert digest(method, 12) != digests[0]
