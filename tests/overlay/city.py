"""Brokers with a few keys each in an ordered overlay, that come, go, crash and return: every overlay must endure it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from braidmq.host import Address
from braidmq.keys import Key
from braidmq.overlay import Overlay
from braidmq.overlay.vectors import DIGITS_MAX
from braidmq.sim.engine import Network, SimHost, Simulator
from tests.overlay.test_ring import Rough

G = TypeVar("G", bound=Overlay)

INSIDE_MIN = 8
"""If all that are in were lost, none could ever come back in: so few are spared."""


LOOKS, LOOK_EVERY_S = 3, 20.0
"""How often in a row nothing may be wrong until a network counts as settled, and the virtual time between two looks."""


class City(Generic[G]):
    """A network of overlays of one kind. Subclasses make them, and say what is wrong with them."""

    def __init__(self, seed: int, network: Network) -> None:
        self.sim = Simulator(seed, network)
        self.graphs: dict[Address, G] = {}
        self.wanted: dict[Address, list[Key]] = {}
        self.lost: dict[int, list[Key]] = {}
        """The keys of brokers that crashed, with which they may return."""
        self.next_key = 0

    def make(self, host: SimHost, vector: int) -> G:
        raise NotImplementedError

    def keys_of(self, graph: G) -> list[Key]:
        """All keys that it stands for, or is about to."""
        raise NotImplementedError

    def broken(self, graphs: list[G]) -> list[str]:
        """What is wrong with the links and tables, seen from outside."""
        raise NotImplementedError

    def unreached(self, graphs: list[G]) -> list[str]:
        """What lookups and deliveries do not find; they take some time."""
        raise NotImplementedError

    def new_key(self) -> Key:
        self.next_key += 1
        return b"%05d" % (self.next_key * 7919 % 100_000)

    def introduce(self, mine: Address) -> Address | None:
        inside = [address for address in self.inside() if address != mine]
        return self.sim.chance.choice(inside) if inside else None

    def inside(self) -> list[Address]:
        """Those that have a key in the overlay."""
        return [address for address, graph in self.graphs.items() if graph.view.own]

    def start(self, address: int, keys: list[Key], vector: int | None = None) -> None:
        host = self.sim.hosts.get(address) or self.sim.host(address)
        host.restart()
        if vector is None:
            vector = self.sim.chance.getrandbits(DIGITS_MAX)
        graph = self.make(host, vector)
        first = not self.graphs
        self.graphs[address], self.wanted[address] = graph, list(keys)
        for index, key in enumerate(keys):
            if first and index == 0:
                graph.found(key)
            else:
                self.join(address, key)

    def join(self, address: Address, key: Key) -> None:
        self.sim.hosts[address].spawn(self.graphs[address].join(key))

    def subscribe(self, address: Address) -> None:
        key = self.new_key()
        self.wanted[address].append(key)
        self.join(address, key)

    def unsubscribe(self, address: Address, key: Key | None = None) -> None:
        key = key or self.sim.chance.choice(self.wanted[address])
        self.wanted[address].remove(key)
        self.sim.hosts[address].spawn(self.graphs[address].leave(key))

    def crash(self, address: Address) -> None:
        self.sim.hosts[address].crash()
        del self.graphs[address]
        self.lost[int(address)] = self.wanted.pop(address)

    def churn(self) -> None:
        """A broker starts, crashes, returns, or has one key more or less."""
        chance = self.sim.chance
        what = chance.randrange(5)
        busy = [address for address, keys in self.wanted.items() if len(keys) > 1]
        if what == 0 or len(self.inside()) < INSIDE_MIN:
            self.start(len(self.sim.hosts), [self.new_key() for _ in range(1 + chance.randrange(2))])
        elif what == 1 and self.lost:
            address = chance.choice(list(self.lost))
            self.start(address, self.lost.pop(address))
        elif what == 2 and busy:
            self.unsubscribe(chance.choice(busy))
        elif what == 3:
            self.subscribe(chance.choice(list(self.graphs)))
        else:
            self.crash(chance.choice(list(self.graphs)))

    def wrong(self) -> list[str]:
        """Every broker stands for the keys that it should, and whatever else the overlay promises."""
        return self.wrong_outside() + self.unreached(list(self.graphs.values()))

    def wrong_outside(self) -> list[str]:
        """What can be seen without asking anybody."""
        found = [
            f"{address} has {sorted(self.keys_of(graph))}, not {sorted(self.wanted[address])}"
            for address, graph in self.graphs.items()
            if sorted(self.keys_of(graph)) != sorted(self.wanted[address])
        ]
        return found + self.broken(list(self.graphs.values()))


def endure(city: City[G], brokers: int, quiet_s: float) -> None:
    """Loss, repetition, overtaking, churn and a partition (see `rough`); then quiet."""
    for address in range(brokers):
        city.start(address, [city.new_key() for _ in range(1 + address % 3)])
    for second in range(30, 120):
        city.sim.at(second, city.churn)
    city.sim.run(120)
    settle(city.sim, city.wrong_outside, quiet_s)


def settle(sim: Simulator, wrong: Callable[[], list[str]], quiet_s: float) -> None:
    """Lets so much time pass; less if nothing is wrong at some looks in a row."""
    ends_at = sim.now + quiet_s
    right = 0
    while sim.now < ends_at and right < LOOKS:
        sim.run(min(ends_at, sim.now + LOOK_EVERY_S))
        right = 0 if wrong() else right + 1


def rough() -> Rough:
    """2 % of all messages are lost, doubled or late, for two minutes; for a quarter of one the network is parted."""
    return Rough(0.02, split=(60.0, 75.0), until=120.0)
