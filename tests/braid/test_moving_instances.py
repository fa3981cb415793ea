"""An instance whose session goes to another broker keeps what is reserved of it: the broker may even be destroyed."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from braidmq.braid.mirrors.adopting import GONE_S
from braidmq.braid.selection.holds import OPERATOR
from braidmq.sim.network import OneWayPartition
from tests.braid.draining import drain
from tests.conformance import wire
from tests.conformance.pair import V5, persistent

from .reserving import Answer, Device, Worker
from .sites import Sites
from .test_mirrors import MirroredSites

LEASE_S = 600
COMPONENT = "detector"


class Roamer(Worker):
    """An instance that connects to one broker after the other, with one session."""

    def __init__(self, sites: Sites, site: int, name: str = "cam") -> None:
        super().__init__(sites, site, name, **persistent(V5))
        self.site = site
        self.sites = sites

    def go(self, site: int) -> None:
        settle_s, self.sites.settle_s = self.sites.settle_s, 8.0
        self.client = self.sites.client(site, self.name, **persistent(V5))
        self.sites.settle_s = settle_s
        self.site = site
        assert self.client.connack is not None
        assert self.client.connack.session_present


def holders(sites: Sites, name: str = "cam") -> list[tuple[int, str]]:
    """By whom an instance is reserved, and at which brokers."""
    return [
        (number, hold.request.holder)
        for number, site in sites.all.items()
        for member in site.braid.selection.instances.members.values()
        for hold in member.held.values()
        if hold.component.name == name
    ]


def test_who_has_reserved_an_instance_has_it_still_when_it_has_moved() -> None:
    sites = Sites(3)
    worker, device, other = Roamer(sites, 1), Device(sites, 0), Device(sites, 2, "other")
    worker.load(slots=2, cpu=30)
    first = device.reserve(lease=LEASE_S, key="stream")
    worker.events()
    worker.go(2)
    assert holders(sites) == [(2, "device")]
    assert device.answers() == [], "nothing has ended"
    device.client.publish(first["topic"], b"frame", qos=1)
    assert (first["topic"], b"frame") in worker.seen()
    again = other.reserve(conditions=["cpu <= 30"])
    assert (again["instance"], again["broker"]) == ("cam", "site2")
    assert again["fence"] > first["fence"]
    assert other.reserve()["reason"] == "none-free", "it has said that it has two slots"
    assert device.request(f"$renew/{first['id']}")["ok"]
    worker.go(0)
    worker.seen()
    assert device.request(f"$release/{first['id']}")["ok"]
    released = [one for one in worker.events() if one["event"] == "released"]
    assert [(one["id"], one["key"]) for one in released] == [(first["id"], "stream")]
    assert holders(sites) == [(0, "other")]


@pytest.mark.parametrize("is_asked_for", [True, False], ids=["its client comes elsewhere", "nobody asks"])
def test_a_mirror_takes_up_what_was_reserved_at_a_broker_that_is_destroyed(tmp_path: Path, is_asked_for: bool) -> None:
    sites = MirroredSites(tmp_path, 4)
    mirror, _ = sites.copy_of(1)
    others = [number for number in (0, 2, 3) if number != mirror]
    worker, device, other = Roamer(sites, 1), Device(sites, others[0]), Device(sites, mirror, "other")
    first = device.reserve(lease=LEASE_S)
    assert first["broker"] == "site1"
    destroy(sites, 1)
    if is_asked_for:
        sites.run(3.0)
        worker.go(others[1])
    sites.run(GONE_S + 30.0)
    place = others[1] if is_asked_for else mirror
    assert holders(sites) == [(place, "device")]
    assert other.reserve()["reason"] in ("none-free", "unknown-component")
    assert wait_for(sites, device, f"$renew/{first['id']}")["ok"]
    worker.go(others[0])
    sites.run(5.0)
    assert holders(sites) == [(others[0], "device")]
    assert wait_for(sites, device, f"$release/{first['id']}")["ok"]
    second = other.reserve()
    assert (second["instance"], second["broker"]) == ("cam", f"site{others[0]}")
    assert second["fence"] > first["fence"]


def test_a_broker_that_comes_back_does_not_hold_what_has_gone_on(tmp_path: Path) -> None:
    sites = MirroredSites(tmp_path, 3)
    worker, device = Roamer(sites, 1), Device(sites, 0)
    first = device.reserve(lease=LEASE_S)
    sites.crash(1)
    sites.run(3.0)
    worker.go(2)
    sites.add(1)
    sites.run(60.0)
    assert holders(sites) == [(2, "device")]
    assert wait_for(sites, device, f"$renew/{first['id']}")["ok"]
    assert device.answers() == []


def test_an_instance_that_is_drained_keeps_what_is_reserved(tmp_path: Path) -> None:
    sites = MirroredSites(tmp_path, 3)
    worker, device = Roamer(sites, 1), Device(sites, 0)
    first = device.reserve(lease=LEASE_S)
    worker.client.drop()
    drain(sites, 1)
    sites.run(30.0)
    ((place, holder),) = holders(sites)
    assert (place != 1, holder) == (True, "device")
    assert wait_for(sites, device, f"$renew/{first['id']}")["ok"]


def destroy(sites: MirroredSites, number: int) -> None:
    """A broker ends without a word, and its disk with it."""
    sites.crash(number)
    shutil.rmtree(sites.folder / f"site{number}")


def wait_for(sites: Sites, device: Device, topic: str, **asked: Any) -> Answer:
    """The answer to a request that may take its time."""
    device.ask(topic, **asked)
    sites.run(20.0)
    return device.answers()[-1]


class Trial:
    """Two instances with a slot each that roam, devices that reserve them, and brokers that crash or are destroyed."""

    SITES = 5
    STEPS = 24
    LEASES = (30, 120, 600)

    def __init__(self, seed: int, folder: Path) -> None:
        self.chance = random.Random(seed)
        self.sites = MirroredSites(folder, self.SITES, seed=seed)
        self.workers = [Roamer(self.sites, number, f"cam{number}") for number in (1, 2)]
        self.devices = {0: Device(self.sites, 0, "d0", **persistent(V5))}
        self.counted: dict[str, tuple[str, float, float]] = {}
        """By instance: the id of the reservation that is counted on, until when, and for how long each time."""
        self.fences: dict[str, int] = {}
        self.granted = self.renewed = 0

    @property
    def now(self) -> float:
        return self.sites.sim.now

    def step(self) -> None:
        choices = [self.reserve, self.renew, self.release, self.move, self.crash, self.destroy]
        self.chance.choices(choices, [6, 4, 2, 4, 1, 1])[0]()

    def ask(self, topic: str, **asked: Any) -> Answer | None:
        """The answer, if it comes in time; that something has ended is taken note of."""
        self.devices[0].ask(topic, **asked)
        self.sites.run(12.0)
        answers = self.devices[0].answers()
        for told in [one for one in answers if one.get("reason") in ("expired", "gone")]:
            answers.remove(told)
            for instance, (known_as, until, _) in list(self.counted.items()):
                if known_as == told["id"]:
                    assert self.now >= until, f"{instance} has ended while it was counted on: {told}"
                    del self.counted[instance]
        return answers[-1] if answers else None

    def reserve(self) -> None:
        lease, asked_at = self.chance.choice(self.LEASES), self.now
        answer = self.ask(f"$reserve/{COMPONENT}", lease=lease)
        if answer is None or not answer["ok"]:
            return
        instance = answer["instance"]
        _, until, _ = self.counted.get(instance, ("", 0.0, 0.0))
        assert until <= asked_at, f"{instance} is counted on twice"
        assert answer["fence"] > self.fences.get(instance, 0)
        self.fences[instance] = answer["fence"]
        self.counted[instance] = (answer["id"], asked_at + lease, lease)
        self.granted += 1

    def renew(self) -> None:
        for instance, (known_as, until, lease) in list(self.counted.items()):
            asked_at = self.now
            answer = self.ask(f"$renew/{known_as}") if asked_at < until else None
            if answer is not None and answer["ok"]:
                self.counted[instance] = (known_as, asked_at + lease, lease)
                self.renewed += 1
            elif answer is not None and answer["reason"] == "not-held":
                assert self.now > until, f"{instance} is counted on, and not held: {answer}"

    def release(self) -> None:
        if self.counted:
            known_as, *_ = self.counted.pop(self.chance.choice(list(self.counted)))
            self.ask(f"$release/{known_as}")

    def move(self) -> None:
        worker = self.chance.choice(self.workers)
        worker.go(self.chance.choice([number for number in self.sites.all if number != worker.site]))
        worker.seen()

    def crash(self) -> None:
        """A broker is killed and comes back; what was connected to it comes to others, or back to it."""
        number = self._victim()
        self.sites.crash(number)
        self.sites.run(self.chance.uniform(0.5, 10.0))
        if self.chance.random() < 0.5:
            self._scatter(number)
        self.sites.add(number)
        self.sites.run(30.0)
        self._scatter(number)

    def destroy(self) -> None:
        if len(self.sites.all) > 3:
            number = self._victim()
            destroy(self.sites, number)
            self.sites.run(self.chance.uniform(1.0, 10.0))
            if self.chance.random() < 0.5:
                self._scatter(number)
            self.sites.run(GONE_S + 30.0)
            self._scatter(number)

    def _victim(self) -> int:
        number: int = self.chance.choice([number for number in self.sites.all if number])
        return number

    def _scatter(self, number: int) -> None:
        for worker in self.workers:
            if worker.site == number:
                worker.go(self.chance.choice([one for one in self.sites.all if one != number]))
                worker.seen()

    def all_is_found_when_it_is_calm(self) -> None:
        for known_as, *_ in list(self.counted.values()):
            self.ask(f"$release/{known_as}")
        self.sites.run(1.2 * max(self.LEASES))
        self.devices[0].answers()
        answers = [self.ask(f"$reserve/{COMPONENT}", lease=600) for _ in self.workers]
        assert sorted(one["instance"] for one in answers if one is not None) == ["cam1", "cam2"]


@pytest.mark.parametrize("seed", [1, 4])
def test_nobody_is_reserved_twice_while_instances_move_and_brokers_are_destroyed(seed: int, tmp_path: Path) -> None:
    trial = Trial(seed, tmp_path)
    for _ in range(Trial.STEPS):
        trial.step()
    assert trial.granted > 1
    trial.all_is_found_when_it_is_calm()


def test_a_holder_hears_of_a_reservation_once_the_copies_have_it(tmp_path: Path) -> None:
    sites = MirroredSites(tmp_path, 4)
    mirror, _ = sites.copy_of(1)
    place = next(number for number in (0, 2, 3) if number != mirror)
    worker, device = Roamer(sites, 1), Device(sites, 1)
    whole, now = sites.sim.network, sites.sim.now
    sites.sim.network = OneWayPartition([1], now, now + 0.5, whole)
    sites.settle_s = 0.1
    to = wire.props(response_topic="answers/device")
    device.client.send(wire.publish(f"$reserve/{COMPONENT}", b'{"lease": 15}', properties=to))
    assert device.answers() == [], "it is reserved here, and the mirror does not know of it yet"
    sites.run(1.0)
    assert device.answers()[0]["ok"]
    destroy(sites, 1)
    sites.run(2.0)
    worker.go(place)
    assert holders(sites) == [(place, "device")]


def test_an_operator_releases_what_has_moved_though_its_first_broker_was_started_again(tmp_path: Path) -> None:
    sites = MirroredSites(tmp_path, 3)
    worker, device = Roamer(sites, 1), Device(sites, 0)
    first = device.reserve(lease=LEASE_S)
    worker.go(2)
    sites.crash(1)
    sites.run(1.0)
    sites.add(1)
    sites.run(20.0)
    released: list[Answer] = []

    async def release() -> None:
        released.append(await sites[0].braid.selection.reservations.release(first["id"], OPERATOR))

    sites[0].host.spawn(release())
    sites.run(10.0)
    assert released == [{"ok": True, "id": first["id"]}]
    assert device.answers()[0]["reason"] == "withdrawn"
    assert holders(sites) == []
