"""One seed is one run of whole overlays, to the last message: also in processes whose strings hash differently."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial

import pytest

from braidmq.host import Address
from braidmq.keys import Key
from braidmq.sim.network import Faults, Uniform
from braidmq.sim.trace import Trace
from tests.simulated import AnyOverlay, Build, OverlayNetwork, build_skip_graph, suzaku_of

BROKERS = 16
CRASH_AT_S, RETURN_AT_S, LEAVE_AT_S, END_S = 30.0, 50.0, 60.0, 90.0

BUILDS: dict[str, Build[AnyOverlay]] = {"suzaku": suzaku_of(5.0), "skip_graph": build_skip_graph}


def keys_of(address: Address) -> list[Key]:
    return [f"{topic}/{address}".encode() for topic in ("rain", "wind")]


class LookingNetwork(OverlayNetwork[AnyOverlay]):
    """Brokers, named by strings, that join with two keys each, crash, return and leave while all of them look up."""

    def __init__(self, build: Build[AnyOverlay], seed: int) -> None:
        super().__init__(build, seed, Faults(loss=0.02, dup=0.02, reorder=0.05).over(Uniform(0.005, 0.05)))
        self.found: list[tuple[Address, Key, Key | None]] = []
        for number in range(BROKERS):
            self.sim.at(number * 0.5, partial(self.begin, f"broker-{number}"))
        self.sim.at(CRASH_AT_S, partial(self.crash, "broker-3"))
        self.sim.at(CRASH_AT_S, partial(self.crash, "broker-7"))
        self.sim.at(RETURN_AT_S, partial(self.begin, "broker-3"))
        self.sim.at(LEAVE_AT_S, partial(self.lose_key, "broker-5", keys_of("broker-5")[0]))

    def begin(self, address: Address) -> None:
        self.do(address, self.look_up(self.start(address, keys_of(address))))

    async def look_up(self, overlay: AnyOverlay) -> None:
        while True:
            await overlay.host.sleep(1.0)
            key = b"%s/broker-%d" % (b"wind", overlay.host.chance.randrange(BROKERS))
            found = await overlay.lookup(key)
            self.found.append((overlay.host.address, key, found.owner.key if found else None))


def digest(method: str, seed: int) -> str:
    """Of all messages of a run, with their times and fates."""
    network = LookingNetwork(BUILDS[method], seed)
    trace = Trace(network.sim)
    network.sim.run(END_S)
    assert sum(key == owner for _, key, owner in network.found) > BROKERS  # so there was something to compare
    return f"{trace.count} {trace.digest()}"


@pytest.mark.parametrize("method", BUILDS)
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
