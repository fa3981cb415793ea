"""Brokers crash and return while clients reserve, renew and release: no instance is counted on by two at a time."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from braidmq.broker.journal_store import JournalStore
from braidmq.sim.network import Loss, Uniform

from .reserving import Device, Worker
from .sites import Sites

SITES = 4
STEPS = 40
LEASES = (12, 60, 300)
CALM_S = 20.0
"""How long an answer may take where messages are lost."""


class Trial:
    """Three instances with one slot each, and two devices at every site."""

    def __init__(self, seed: int, folder: Path, loss: float) -> None:
        self.chance = random.Random(seed)
        self.folder = folder
        self.sites = Sites(1, seed=seed, network=Loss(loss, Uniform(0.001, 0.02)) if loss else None)
        for number in range(1, SITES):
            self.sites.add(number, store=JournalStore(folder / str(number)))
        self.sites.run(20)
        self.workers = {number: Worker(self.sites, number, f"cam{number}") for number in range(1, SITES)}
        self.devices = {f"d{number}": Device(self.sites, number, f"d{number}") for number in range(SITES)}
        self.counted: dict[str, tuple[str, str, float, float]] = {}
        """By instance: who counts on it, by which id, until when, and for how long each time."""
        self.fences: dict[str, int] = {}
        self.granted = 0

    @property
    def now(self) -> float:
        return self.sites.sim.now

    def step(self) -> None:
        what = self.chance.choices([self.reserve, self.renew, self.release, self.crash, self.wait], [6, 3, 2, 1, 2])[0]
        what()

    def ask(self, device: str, topic: str, wait_s: float = 5.0, **asked: Any) -> dict[str, Any] | None:
        """The answer, if it comes in time; what else the device is told is taken note of."""
        self.devices[device].ask(topic, **asked)
        self.sites.run(wait_s)
        answers = self.devices[device].answers()
        for told in [one for one in answers if one.get("reason") in ("expired", "gone")]:
            self.forget(told["id"])
            answers.remove(told)
        return answers[-1] if answers else None

    def reserve(self) -> None:
        name, lease, asked_at = self.chance.choice(list(self.devices)), self.chance.choice(LEASES), self.now
        answer = self.ask(name, "$reserve/detector", lease=lease)
        if answer is None or not answer["ok"]:
            return
        instance = answer["instance"]
        before = self.counted.get(instance)
        assert before is None or before[2] <= asked_at, f"{instance} is counted on by {before}, and by {name}"
        assert answer["fence"] > self.fences.get(instance, 0)
        self.fences[instance] = answer["fence"]
        self.counted[instance] = (name, answer["id"], asked_at + lease, lease)
        self.granted += 1

    def renew(self) -> None:
        for instance, (name, known_as, until, lease) in list(self.counted.items()):
            asked_at = self.now
            if asked_at < until and self.chance.random() < 0.5:
                answer = self.ask(name, f"$renew/{known_as}")
                if answer is not None and answer["ok"] and instance in self.counted:
                    self.counted[instance] = (name, known_as, asked_at + lease, lease)
                elif answer is not None and answer["reason"] == "not-held":
                    assert self.now > until, f"{name} counts on {instance}, which is not held"

    def release(self) -> None:
        if self.counted:
            instance = self.chance.choice(list(self.counted))
            name, known_as, *_ = self.counted.pop(instance)
            self.ask(name, f"$release/{known_as}")

    def forget(self, known_as: str) -> None:
        for instance, (_, counted_as, until, _) in list(self.counted.items()):
            if counted_as == known_as:
                assert self.now >= until, f"{instance} ended while it was counted on"
                del self.counted[instance]

    def crash(self) -> None:
        number = self.chance.randrange(SITES - 1) + 1
        store = self.sites[number].options["store"]
        self.sites[number].crash()
        store.close()
        self.sites.run(self.chance.uniform(0.1, 20))
        self.sites.add(number, store=JournalStore(self.folder / str(number)))
        self.sites.run(20)
        self.workers[number] = Worker(self.sites, number, f"cam{number}")
        self.devices[f"d{number}"] = Device(self.sites, number, f"d{number}")

    def wait(self) -> None:
        self.sites.run(self.chance.uniform(1, 30))

    def all_is_found_when_it_is_calm(self) -> None:
        for instance in list(self.counted):
            name, known_as, *_ = self.counted.pop(instance)
            self.ask(name, f"$release/{known_as}")
        self.sites.run(1.2 * max(LEASES))
        self.devices["d0"].answers()
        found = []
        for _ in range(SITES - 1):
            answer = self.ask("d0", "$reserve/detector", wait_s=CALM_S, lease=300)
            found.append(None if answer is None else answer.get("instance"))
        assert sorted(found, key=str) == [f"cam{number}" for number in range(1, SITES)]


@pytest.mark.parametrize("seed", range(1, 7))
def test_nothing_is_given_twice_and_all_that_is_free_is_found(seed: int, tmp_path: Path) -> None:
    trial = Trial(seed, tmp_path, loss=0.02 if seed % 2 else 0.0)
    for _ in range(STEPS):
        trial.step()
    assert trial.granted > 3
    trial.all_is_found_when_it_is_calm()
