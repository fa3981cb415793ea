"""Simulated networks of brokers: the one harness of all tests that need brokers in virtual time, without MQTT.

An `OverlayNetwork` has brokers with some keys each in an overlay of any kind; they start, leave, crash and return.
A `MethodNetwork` gives each of them a publish/subscribe method too, and keeps who got what. What a test needs beyond
that is a parameter: how an overlay or a method is built, which keys there are, and what may not be wrong.

Brokers with the real core and clients are in `tests/braid/sites.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping
from random import Random
from typing import Any, Generic, Protocol, TypeVar

from braidmq.host import Address, Host, Message
from braidmq.keys import Key
from braidmq.overlay import Introduce, Overlay
from braidmq.overlay.flexible import SIZE, FlexibleGraph
from braidmq.overlay.skip_graph import SkipGraph
from braidmq.overlay.suzaku import PERIOD_S, Suzaku
from braidmq.overlay.vectors import DIGITS_MAX, Vector
from braidmq.pubsub.baselines import Bayeux, CanMulticast, Scribe
from braidmq.pubsub.covers.covers import Covers
from braidmq.pubsub.locality import Locality
from braidmq.pubsub.method import Publication
from braidmq.pubsub.relay_free import RelayFree
from braidmq.sim.engine import Constant, Network, SimHost, Simulator

INSIDE_MIN = 8
"""If all brokers that are in were lost, none could ever come back in: so few are spared."""

LOOKS, LOOK_EVERY_S = 3, 20.0
"""How often in a row nothing may be wrong until a network counts as mended, and the virtual time between two looks."""


class FaultyNetwork(Network):
    """Loses, repeats and delays messages until a time, and for a while parts hosts with even and odd addresses."""

    def __init__(self, faults: float, split: tuple[float, float] | None = None, until: float = 0.0) -> None:
        self.faults = faults
        self.split = split
        self.until = until

    def delays(self, chance: Random, source: Address, to: Address, now: float) -> tuple[float, ...]:
        delay = chance.uniform(0.01, 0.1)
        if self.split and self.split[0] <= now < self.split[1] and (int(source) - int(to)) % 2:
            return ()
        if now >= self.until:
            return (delay,)
        if chance.random() < self.faults:
            return ()
        if chance.random() < self.faults:
            delay += chance.uniform(0, 3)
        return (delay, delay + chance.uniform(0, 2)) if chance.random() < self.faults else (delay,)


def two_faulty_minutes() -> FaultyNetwork:
    """2 % of all messages are lost, doubled or late, for two minutes; for a quarter of one the network is parted."""
    return FaultyNetwork(0.02, split=(60.0, 75.0), until=120.0)


class OwnNodes(Protocol):
    """What a broker's view of an overlay must tell: its nodes that are in."""

    @property
    def own(self) -> Mapping[Key, object]: ...


class OverlayPart(Protocol):
    """What a network asks of a broker's part of an overlay: every `Overlay` has it, and so has a bare ring."""

    @property
    def host(self) -> Host: ...

    @property
    def view(self) -> OwnNodes: ...

    @property
    def nodes(self) -> Mapping[Key, object]:
        """All that are in, or on their way in or out."""
        ...

    def found(self, key: Key) -> None: ...

    async def join(self, key: Key) -> bytes: ...

    async def leave(self, key: Key) -> None: ...


O = TypeVar("O", bound=OverlayPart)  # noqa: E741 - an overlay
M = TypeVar("M", bound=Covers | RelayFree | Locality | Scribe | Bayeux | CanMulticast)

Build = Callable[[SimHost, Introduce, Vector | None], O]
"""Builds a broker's part of an overlay; without a vector, one is drawn where there are vectors."""


def build_suzaku(host: SimHost, introduce: Introduce, _vector: Vector | None = None) -> Suzaku:
    return Suzaku(host, introduce, host.incarnation)


def build_skip_graph(host: SimHost, introduce: Introduce, vector: Vector | None = None) -> SkipGraph:
    return SkipGraph(host, _drawn(host, vector), introduce, host.incarnation)


def flexible_of(size: int = SIZE) -> Build[FlexibleGraph]:
    """Flexible graphs with tables of a size."""

    def build(host: SimHost, introduce: Introduce, vector: Vector | None = None) -> FlexibleGraph:
        return FlexibleGraph(host, _drawn(host, vector), introduce, host.incarnation, size)

    return build


def suzaku_of(period_s: float = PERIOD_S, *, both_ways: bool = True) -> Build[Suzaku]:
    """Suzaku with another period, or with fingers to one side only."""

    def build(host: SimHost, introduce: Introduce, _vector: Vector | None = None) -> Suzaku:
        return Suzaku(host, introduce, host.incarnation, period_s=period_s, both_ways=both_ways)

    return build


class AnyOverlay(Overlay, Protocol):
    """An overlay of whatever kind."""

    @property
    def nodes(self) -> Mapping[Key, object]: ...


BUILDS: dict[str, Build[AnyOverlay]] = {
    "suzaku": build_suzaku,
    "skip_graph": build_skip_graph,
    "flexible": flexible_of(),
}
"""The overlays by name, as they are in a live broker."""


def _drawn(host: SimHost, vector: Vector | None) -> Vector:
    return host.chance.getrandbits(DIGITS_MAX) if vector is None else vector


class OverlayNetwork(Generic[O]):
    """Brokers with some keys each in an overlay."""

    def __init__(self, build: Build[O], seed: int = 1, network: Network | None = None) -> None:
        self.sim = Simulator(seed, network or Constant(0.01))
        self.build = build
        self.overlays: dict[Address, O] = {}
        """The parts of the brokers that are up."""
        self.wanted: dict[Address, list[Key]] = {}
        """The keys that each of them should have in the overlay."""
        self.gone: dict[Address, list[Key]] = {}
        """The keys of brokers that crashed or left, with which they may return."""
        self.leaving: set[Address] = set()
        self.keys_made = 0

    # What a network may have of its own

    def new_key(self) -> Key:
        """Another key each time; they do not come in order."""
        self.keys_made += 1
        return b"%05d" % (self.keys_made * 7919 % 100_000)

    def broken(self) -> list[str]:
        """What is wrong with links and tables, seen from outside."""
        return []

    def unreached(self) -> list[str]:
        """What lookups and deliveries do not find; they take some time."""
        return []

    # Brokers that come and go

    def start(self, address: Address, keys: Iterable[Key] = (), vector: Vector | None = None) -> O:
        """A broker begins an incarnation, and joins; the first one founds the overlay."""
        host = self.sim.hosts.get(address) or self.sim.host(address)
        host.restart()
        overlay = self.build(host, lambda: self.introduce(address), vector)
        is_first = not self.overlays
        self.overlays[address], self.wanted[address] = overlay, list(keys)
        for key in self.wanted[address]:
            if is_first:
                overlay.found(key)
            else:
                self.join(address, key)
            is_first = False
        return overlay

    def add(self) -> O:
        """One more broker, with one key."""
        return self.start(len(self.sim.hosts), [self.new_key()])

    def introduce(self, mine: Address) -> Address | None:
        """Some other broker that is in, None if there is none."""
        inside = [address for address in self.inside() if address != mine and address not in self.leaving]
        return self.sim.chance.choice(inside) if inside else None

    def inside(self) -> list[Address]:
        """The brokers that have a key in the overlay."""
        return [address for address, overlay in self.overlays.items() if overlay.view.own]

    def join(self, address: Address, key: Key) -> None:
        self.do(address, self.overlays[address].join(key))

    def gain_key(self, address: Address, key: Key | None = None) -> None:
        key = key or self.new_key()
        self.wanted[address].append(key)
        self.join(address, key)

    def lose_key(self, address: Address, key: Key | None = None) -> None:
        key = key or self.sim.chance.choice(self.wanted[address])
        self.wanted[address].remove(key)
        self.do(address, self.overlays[address].leave(key))

    def leave(self, address: Address) -> None:
        """Takes all its keys away, and is gone when that is done."""
        self.leaving.add(address)

        async def leave_all() -> None:
            for key in self.wanted[address]:
                await self.overlays[address].leave(key)
            self._forget(address)

        self.do(address, leave_all())

    def crash(self, address: Address) -> None:
        self.sim.hosts[address].crash()
        self._forget(address)

    def _forget(self, address: Address) -> None:
        del self.overlays[address]
        self.gone[address] = self.wanted.pop(address)
        self.leaving.discard(address)

    def return_one(self) -> None:
        """A broker that crashed or left comes back with its keys."""
        address = self.sim.chance.choice(list(self.gone))
        self.start(address, self.gone.pop(address))

    def churn_brokers(self) -> None:
        """A broker joins, returns, leaves or crashes."""
        chance = self.sim.chance
        what = chance.randrange(4)
        inside = [address for address in self.inside() if address not in self.leaving]
        if what == 0 or len(inside) < INSIDE_MIN:
            self.add()
        elif what == 1 and self.gone:
            self.return_one()
        elif what == 2:
            self.leave(chance.choice(inside))
        else:
            self.crash(chance.choice(inside))

    def churn_keys(self) -> None:
        """A broker starts, crashes, returns, or has one key more or less."""
        chance = self.sim.chance
        what = chance.randrange(5)
        busy = [address for address, keys in self.wanted.items() if len(keys) > 1]
        if what == 0 or len(self.inside()) < INSIDE_MIN:
            self.start(len(self.sim.hosts), [self.new_key() for _ in range(1 + chance.randrange(2))])
        elif what == 1 and self.gone:
            self.return_one()
        elif what == 2 and busy:
            self.lose_key(chance.choice(busy))
        elif what == 3:
            self.gain_key(chance.choice(list(self.overlays)))
        else:
            self.crash(chance.choice(list(self.overlays)))

    # Time

    def do(self, address: Address, procedure: Coroutine[Any, Any, object]) -> None:
        """A broker begins to do something; `run` lets it happen."""
        self.sim.hosts[address].spawn(procedure)

    def run(self, seconds: float) -> None:
        self.sim.run(self.sim.now + seconds)

    def endure(self, brokers: int, quiet_s: float) -> None:
        """Brokers with one to three keys start, and churn for a minute and a half; then it is quiet."""
        for address in range(brokers):
            self.start(address, [self.new_key() for _ in range(1 + address % 3)])
        for second in range(30, 120):
            self.sim.at(second, self.churn_keys)
        self.sim.run(120)
        self.wait_until_right(quiet_s)

    def wait_until_right(self, quiet_s: float) -> None:
        """Lets so much time pass; less if nothing is wrong at some looks in a row."""
        ends_at = self.sim.now + quiet_s
        right = 0
        while self.sim.now < ends_at and right < LOOKS:
            self.sim.run(min(ends_at, self.sim.now + LOOK_EVERY_S))
            right = 0 if self.wrong_outside() else right + 1

    # What may not be

    def wrong(self) -> list[str]:
        """Every broker has the keys that it should, and all else that the overlay promises holds."""
        return self.wrong_outside() + self.unreached()

    def wrong_outside(self) -> list[str]:
        """What can be seen without asking any broker."""
        found = [
            f"{address} has {sorted(overlay.nodes)}, not {sorted(self.wanted[address])}"
            for address, overlay in self.overlays.items()
            if address not in self.leaving and sorted(overlay.nodes) != sorted(self.wanted[address])
        ]
        return found + self.broken()


class MethodNetwork(OverlayNetwork[O], Generic[O, M]):
    """Brokers with a method each: what arrived where, what they were told about demand, and who sent what."""

    def __init__(
        self,
        build: Build[O],
        build_method: Callable[[O, Address], M],
        seed: int = 1,
        network: Network | None = None,
        *,
        counted: tuple[type[Message], ...] = (),
    ) -> None:
        """`counted` are the messages that carry publications."""
        super().__init__(build, seed, network)
        self.build_method = build_method
        self.counted = counted
        self.methods: dict[Address, M] = {}
        self.got: list[tuple[Address, Publication]] = []
        self.demand: list[tuple[Address, str, bool]] = []
        self.sent: list[tuple[Address, Address]] = []
        """From which broker to which a publication was sent."""
        self.kinds: Counter[str] = Counter()
        """How many messages of each kind were sent."""
        if counted:
            self.sim.on_message = self._count

    def start(self, address: Address, keys: Iterable[Key] = (), vector: Vector | None = None) -> O:
        overlay = super().start(address, keys, vector)
        self.equip(address, overlay)
        return overlay

    def equip(self, address: Address, overlay: O) -> None:
        """Gives a broker its method, over an overlay that was started or laid out."""
        self.overlays[address] = overlay
        self.wanted.setdefault(address, [])
        method = self.methods[address] = self.build_method(overlay, address)
        method.on_message = lambda publication: self.got.append((address, publication))
        method.on_demand = lambda topic, wanted: self.demand.append((address, topic, wanted))

    def _forget(self, address: Address) -> None:
        super()._forget(address)
        del self.methods[address]

    def _count(self, sender: Address, to: Address, message: Message, _hops: int) -> None:
        self.kinds[type(message).__name__] += 1
        if isinstance(message, self.counted) and sender != to:
            self.sent.append((sender, to))

    # What clients ask for

    def subscribe(self, topic: str, *addresses: Address) -> None:
        for address in addresses:
            self.do(address, self.methods[address].subscribe(topic))

    def unsubscribe(self, topic: str, *addresses: Address) -> None:
        for address in addresses:
            self.do(address, self.methods[address].unsubscribe(topic))

    def advertise(self, topic: str, *addresses: Address) -> None:
        for address in addresses:
            self.do(address, self.methods[address].advertise(topic))

    def withdraw(self, topic: str, *addresses: Address) -> None:
        for address in addresses:
            self.do(address, self.methods[address].withdraw(topic))

    def publish(
        self, topic: str, address: Address, body: bytes = b"news", seconds: float = 5.0, *, must_send: bool = True
    ) -> list[Publication]:
        """Publishes, lets it spread, and says what arrived."""
        self.forget()
        is_sent = self.methods[address].publish(topic, body)
        assert is_sent or not must_send
        self.run(seconds)
        assert all(one.topic == topic and one.body == body for _, one in self.got)
        return [publication for _, publication in self.got]

    def forget(self) -> None:
        """What has arrived and was sent so far does not count."""
        self.got.clear()
        self.sent.clear()
        self.kinds.clear()

    # What has come of it

    def receivers(self) -> list[Address]:
        """The brokers that a publication came to, once for each copy."""
        return sorted((address for address, _ in self.got), key=int)

    def copies(self) -> Counter[Address]:
        return Counter(address for address, _ in self.got)

    def told(self) -> dict[tuple[Address, str], list[bool]]:
        """What each broker was told about the demand for each topic, in order."""
        found: dict[tuple[Address, str], list[bool]] = {}
        for address, topic, wanted in self.demand:
            found.setdefault((address, topic), []).append(wanted)
        return found
