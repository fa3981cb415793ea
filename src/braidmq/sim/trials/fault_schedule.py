"""Faults for a while: messages are lost, doubled and late, the network is parted, and brokers crash, return, join and
leave, and so do subscribers. Then the faults end, and the network has to become as if there had been none.
"""

from __future__ import annotations

from functools import partial
from random import Random

from braidmq.host import Address
from braidmq.sim.clocks import ClockError
from braidmq.sim.network import Faults, FaultsError, Network
from braidmq.sim.trials.brokers import Roles, TrialBrokers
from braidmq.sim.trials.meter import Tally

CHURN_FORM = "churn=EVENTS_A_SECOND"
CHURN_MAX = 100.0

FAULTS_MIN_S = 100.0
AFTER_PARTITION_S = 30.0
"""How long churn goes on once a partition has healed."""

PUBLISH_EVERY_S = 0.5
LIVING_MIN = 8
"""If all brokers that are in were lost, none could ever come back in: so few are spared."""


def parse(text: str) -> tuple[Faults, float]:
    """Faults as `Faults.parse` reads them, and `churn=1`: how many brokers or subscribers come or go a second."""
    churn = 0.0
    words = []
    for word in text.split(","):
        name, _, value = word.strip().partition("=")
        if name != "churn":
            words.append(word)
            continue
        try:
            churn = float(value)
        except ValueError:
            raise FaultsError(f"faults: {word.strip()!r}: {value!r} is no number; write {CHURN_FORM}") from None
        if not 0 <= churn <= CHURN_MAX:
            raise FaultsError(f"faults: {word.strip()!r}: from 0 to {CHURN_MAX:g} events a second")
    try:
        return Faults.parse(",".join(words)), churn
    except FaultsError as error:
        raise FaultsError(f"{error}, {CHURN_FORM}" if "there are" in str(error) else str(error)) from None


def length_s(faults: Faults) -> float:
    """How long the faults last."""
    return max(FAULTS_MIN_S, faults.ends_at + AFTER_PARTITION_S if faults.ends_at else 0.0)


class FaultSchedule(Network):
    """A network with faults for a while, and without them before and after; times of partitions count from `begin`."""

    def __init__(self, calm: Network, faults: Faults, churn: float) -> None:
        self.faults = faults
        self.churn = churn
        """How many brokers or subscribers come or go a second (`run_faults`)."""
        self._calm = calm
        self._faulty = faults.over(calm)
        self._from_s = self._until_s = 0.0

    def begin(self, now: float) -> float:
        """The faults begin; when they end."""
        self._from_s, self._until_s = now, now + length_s(self.faults)
        return self._until_s

    def delays(self, chance: Random, source: Address, to: Address, now: float) -> tuple[float, ...]:
        if self._from_s <= now < self._until_s:
            return self._faulty.delays(chance, source, to, now - self._from_s)
        return self._calm.delays(chance, source, to, now)

    def clock_error_of(self, address: Address) -> ClockError | None:
        """What is wrong with the clock of a host; what it went wrong by stays when the faults end."""
        error = self.faults.clock_error_of(address)
        if error is None:
            return None
        return lambda now: error(min(max(now, self._from_s), self._until_s) - self._from_s)


class Churn:
    """Brokers and subscribers that come and go, one at a time."""

    def __init__(self, brokers: TrialBrokers) -> None:
        self._brokers = brokers
        self._chance = brokers.sim.chance
        self._crashed: dict[int, Roles] = {}
        self._topics = list(brokers.members)
        self._next = max(brokers.methods, default=-1) + 1

    def happen(self) -> None:
        """One of these, by chance."""
        what = self._chance.randrange(6)
        living = list(self._brokers.methods)
        if what == 0 or len(living) < LIVING_MIN:
            self._come()
        elif what == 1 and self._crashed:
            broker = self._chance.choice(list(self._crashed))
            self._brokers.start(broker, self._crashed.pop(broker))
        elif what == 2:
            self._brokers.leave(self._chance.choice(living))
        elif what == 3:
            self._subscribe(self._chance.choice(living))
        elif what == 4:
            self._unsubscribe(self._chance.choice(living))
        else:
            broker = self._chance.choice(living)
            self._crashed[broker] = self._brokers.roles[broker]
            self._brokers.crash(broker)

    def _come(self) -> None:
        """A new broker that publishes one topic and subscribes to another."""
        published, subscribed = self._chance.choice(self._topics), self._chance.choice(self._topics)
        self._brokers.start(self._next, Roles({subscribed: False}, {published: False}))
        self._next += 1

    def _subscribe(self, broker: int) -> None:
        topic = self._chance.choice(self._topics)
        if topic not in self._brokers.roles[broker].subscribed:
            self._brokers.subscribe(broker, topic)

    def _unsubscribe(self, broker: int) -> None:
        topics = list(self._brokers.roles[broker].subscribed)
        if topics:
            self._brokers.unsubscribe(broker, self._chance.choice(topics))


def publish_something(brokers: TrialBrokers, tally: Tally) -> None:
    """A publication of some broker."""
    chance = brokers.sim.chance
    for _ in range(LIVING_MIN):
        broker = chance.choice(list(brokers.methods))
        topics = list(brokers.roles[broker].advertised)
        if topics:
            brokers.publish(broker, chance.choice(topics), tally)
            return


def run_faults(brokers: TrialBrokers, schedule: FaultSchedule, churn: float, tally: Tally) -> None:
    """Lets the faults happen, and time pass after them until the network must be whole again."""
    sim = brokers.sim
    from_s, until_s = sim.now, schedule.begin(sim.now)
    if schedule.faults.cuts:
        brokers.go_round_cuts()
    happening = Churn(brokers)
    for number in range(int((until_s - from_s) * churn)):
        sim.at(from_s + number / churn, happening.happen)
    for number in range(int((until_s - from_s) / PUBLISH_EVERY_S)):
        sim.at(from_s + number * PUBLISH_EVERY_S, partial(publish_something, brokers, tally))
    brokers.is_calm = False
    sim.run(until_s + brokers.kind.calm_s)
    brokers.meter.close(tally, None, relay_free=False)
    brokers.is_calm = True
