"""A client whose SUBACK has come gets what is published from then on, though brokers have yet to hear of it."""

from __future__ import annotations

from random import Random

import pytest

from braidmq.braid.membership.introducers import Introducers
from braidmq.braid.node import build
from braidmq.config.settings import BraidConfig
from braidmq.host import Address
from braidmq.keys import Role, key_of
from braidmq.pubsub.method import Method
from braidmq.sim.engine import Network, SimHost, Simulator

BROKERS = 48
TOPIC = "t"
PATIENCE_S = 4.0
"""Far longer than a publication takes."""


class Uneven(Network):
    """Nothing is lost, but what is sent later can come first."""

    def delays(self, chance: Random, source: Address, to: Address, now: float) -> tuple[float, ...]:
        return (chance.uniform(0.01, 0.1),)


@pytest.mark.parametrize("seed", range(6))
def test_over_suzaku_nothing_is_missed_from_the_start(seed: int) -> None:
    """By links of both sides about one newcomer in sixty missed the first publication."""
    sim = Simulator(seed, Uneven())
    chance = Random(seed)
    got: dict[str, list[bytes]] = {}
    members: list[Method] = []

    async def enter(host: SimHost) -> None:
        """Joins, subscribes, and at once a broker that was there before publishes."""
        name = f"b{int(host.address) * 37 % 100:02d}"
        introducers = Introducers(host, [0] if members else [])
        introducers.may_be_used = True
        overlay, method = build(BraidConfig(method="suzaku"), host, name, 0, introducers)
        method.on_message = lambda publication: got.setdefault(name, []).append(publication.body)
        home = key_of("", Role.PUBLISHER, "", name)
        if members:
            await overlay.join(home)
        else:
            overlay.found(home)
        await method.advertise(TOPIC)
        await method.subscribe(TOPIC)
        body = name.encode()
        if members:
            assert chance.choice(members).publish(TOPIC, body)
            await host.sleep(PATIENCE_S)
            assert got.get(name) == [body]
        members.append(method)

    for number in range(BROKERS):
        host = sim.host(number)
        host.spawn(enter(host))
        sim.run(sim.now + 3 * PATIENCE_S)
        assert len(members) == number + 1
