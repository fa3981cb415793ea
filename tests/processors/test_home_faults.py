"""Homes that come and go while brokers are cut off or crash: once it is quiet, their spools are the same.

A seed says what happens. Each message is processed once, by its publisher's broker, whatever else does.
"""

from __future__ import annotations

from random import Random

import pytest

from braidmq.host import Address
from braidmq.sim.network import Network, Uniform
from tests.conformance import wire
from tests.conformance.pair import Peer
from tests.processors.simulated_homes import TOPIC, HomeSites, same

SITES = 4
STEPS = 40
STEP_KINDS = ["publish"] * 12 + ["run"] * 4 + ["cut", "heal", "leave", "sweep"]
QUIET_S = 40.0


class CutNetwork(Network):
    def __init__(self) -> None:
        self._under = Uniform(0.0005, 0.005)
        self.gone: dict[tuple[Address, Address], None] = {}

    def delays(self, chance: Random, source: Address, to: Address, now: float) -> tuple[float, ...]:
        return () if (source, to) in self.gone else self._under.delays(chance, source, to, now)


class Story:
    def __init__(self, seed: int, has_crashes: bool) -> None:
        self.chance = Random(seed)
        self.kinds = STEP_KINDS + ["crash"] * has_crashes
        self.network = CutNetwork()
        self.sites = HomeSites(SITES, spool=6, seed=seed, network=self.network)
        self.clients: dict[int, Peer] = {}
        self.published: dict[int, list[bytes]] = {}
        """By site, since it was started."""
        self._names = self._messages = 0
        for number in range(SITES - 1):
            self._client(number)

    def run(self) -> None:
        for _ in range(STEPS):
            getattr(self, f"_{self.chance.choice(self.kinds)}")()
        self._heal()
        self.sites.run(QUIET_S)
        self._sweep()
        self.sites.run(3.0)

    def _client(self, number: int) -> Peer:
        if number not in self.clients:
            self._names += 1
            self.sites.settle_s = 1.0
            self.clients[number] = self.sites.client(number, f"c{number}.{self._names}")
            self.sites.settle_s = 0.0
        return self.clients[number]

    def _publish(self) -> None:
        number = self.chance.randrange(SITES)
        client = self._client(number)
        payload = b"%d.%d" % (number, self._messages)
        self._messages += 1
        client.send(wire.publish(TOPIC, payload, version=client.version, qos=1, packet_id=client.new_id()))
        client.take()
        self.published.setdefault(number, []).append(payload)

    def _run(self) -> None:
        self.sites.run(self.chance.choice([0.01, 0.1, 0.5, 2.0, 8.0]))

    def _cut(self) -> None:
        """One broker is cut off from all others."""
        number = self.chance.randrange(SITES)
        for other in range(SITES):
            if other != number:
                self.network.gone |= {(number, other): None, (other, number): None}

    def _heal(self) -> None:
        self.network.gone.clear()

    def _leave(self) -> None:
        if self.clients:
            self.clients.pop(self.chance.choice(sorted(self.clients))).disconnect()

    def _sweep(self) -> None:
        for one in self.sites.at.values():
            one.sweep()

    def _crash(self) -> None:
        number = self.chance.randrange(1, SITES)
        if not self.network.gone:
            self.sites[number].crash()
            self.clients.pop(number, None)
            self.published.pop(number, None)
            self.sites.run(self.chance.choice([1.0, 30.0]))
            self.sites.start_again(number)

    def check(self) -> int:
        """How many homes there are."""
        homes = [number for number, one in self.sites.at.items() if len(one.homes)]
        if homes:
            same(self.sites, homes)
        for number, payloads in self.published.items():
            assert sorted(self.sites.at[number].runner.calls) == sorted(payloads)
        return len(homes)


@pytest.mark.parametrize(("seed", "has_crashes"), [(148, False), (204, False), (419, False), (27, True), (72, True)])
def test_homes_that_could_not_reach_each_other_have_the_same_in_the_end(seed: int, has_crashes: bool) -> None:
    story = Story(seed, has_crashes)
    story.run()
    assert story.check() > 1
