"""One seed: some brokers, subscribers and publishers that roam among them, faults for a while, and a quiet end."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from random import Random
from typing import NamedTuple

from tests.braid.journeys.checking import complaints_of
from tests.braid.journeys.client import Connected, RoamingClient
from tests.braid.journeys.faulty_sites import FaultySites
from tests.braid.journeys.mishaps import Mishaps
from tests.braid.journeys.publisher import Publisher
from tests.braid.journeys.subscriber import Subscriber
from tests.braid.sites import Site
from tests.conformance.wire import V3, V5

SITES = 5
FAULTS_S = 40.0
"""How long faults happen."""

QUIET_S = 100.0
"""How long all is quiet in the end."""

STEP_S = 0.25
SERVED_TWICE_S = 40.0
"""How long two brokers that hear each other may both have a connection of one client: until they tell the directory."""

FILTERS = (
    {"plant/#": 2},
    {"plant/+/a": 1, "plant/p1/b": 1},
    {"plant/p0/a": 2, "plant/p0/b": 2},
    {"plant/p1/#": 1},
    {"plant/+/b": 2, "plant/p2/a": 2},
)


class Outcome(NamedTuple):
    complaints: list[str]
    trace: list[str]
    connects: list[Connected]
    destroyed: int


class Journey:
    def __init__(self, seed: int, folder: Path, at_once: int = 1) -> None:
        """`at_once` faults may last at a time."""
        chance = Random(f"{seed}:journey")
        self.sites = sites = FaultySites(folder, SITES, seed, unreliable=chance.random() < 0.3)
        self.began_s = sites.sim.now
        ends_s = self.began_s + FAULTS_S / 2
        self.subscribers = [
            Subscriber(sites, f"s{number}", chance.choice([V3, V5]), seed, filters, ends_s)
            for number, filters in enumerate(FILTERS)
        ]
        self.publishers = [
            Publisher(sites, f"p{number}", chance.choice([V3, V5]), seed, [f"plant/p{number}/a", f"plant/p{number}/b"])
            for number in range(3)
        ]
        self.mishaps = Mishaps(sites, seed, self.began_s + FAULTS_S, self._on_gone, at_once)
        self._served_since: dict[str, float] = {}

    @property
    def clients(self) -> list[RoamingClient]:
        return [*self.subscribers, *self.publishers]

    def _on_gone(self, site: Site) -> None:
        for client in self.clients:
            if client.link is not None and client.link.site is site:
                client.link.on_site_gone()

    def play(self) -> None:
        for client in self.clients:
            client.come()
        self._pass(4.0)
        for publisher in self.publishers:
            publisher.begin()
        self.mishaps.begin()
        self._pass(FAULTS_S)
        self.mishaps.end()
        for publisher in self.publishers:
            publisher.publishes = False
        self._pass(5.0)
        for client in self.clients:
            client.roams = False
        self._pass(QUIET_S)

    def _pass(self, seconds: float) -> None:
        ends_at = self.sites.sim.now + seconds
        while self.sites.sim.now < ends_at:
            self.sites.run(STEP_S)
            self._look()

    def _look(self) -> None:
        """No two brokers serve one client for long while they hear each other."""
        now, sites = self.sites.sim.now, self.sites
        sites.look()
        for client in self.clients:
            client_id = client.client_id
            if not sites.cuts.now and not sites.down and sum(client_id in one.broker.sessions for one in sites) < 2:
                for doubt in client.doubts:
                    doubt[1] = min(doubt[1], now)
            serving = [
                site.number
                for site in sites
                if (session := site.broker.sessions.get(client_id)) is not None and session.connection is not None
            ]
            if not any(a < b and sites.hears(a, b) for a in serving for b in serving):
                self._served_since.pop(client_id, None)
            elif now - self._served_since.setdefault(client_id, now) > SERVED_TWICE_S:
                sites.complaints.append(f"{client_id} is served at {serving}, until {now:.3f}")
                self._served_since[client_id] = now

    def close(self) -> None:
        for site in list(self.sites):
            site.braid.mirrors.close()
        for store in self.sites.stores.values():
            store.close()


def play(seed: int, at_once: int = 1) -> Outcome:
    folder = Path(tempfile.mkdtemp(prefix=f"journey-{seed}-", dir=_fast_folder()))
    try:
        journey = Journey(seed, folder, at_once)
        try:
            journey.play()
        finally:
            journey.close()
        complaints = journey.sites.complaints + complaints_of(journey.subscribers, journey.publishers)
        connects = [one for client in journey.clients for one in client.connects]
        return Outcome(complaints, journey.sites.trace, connects, journey.mishaps.destroyed)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _fast_folder() -> str | None:
    """Memory, where the system has such a folder."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def wrong_after_faults(seed: int, at_once: int = 1) -> list[str]:
    return play(seed, at_once).complaints
