"""Shared subscriptions while members and brokers come and go: no job is lost, and none is done twice without a reason.

Each run is made of its seed: members that leave with jobs in hand, brokers that crash and come back with their
journals, and cuts between brokers. QoS 2 is done exactly once, whatever happens; QoS 1 twice only if who had it was
lost.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pytest

from braidmq.braid.shares.loan_checks import DOUBT_S
from braidmq.broker.journal_store import JournalStore
from braidmq.sim.network import Loss, Partition, Uniform
from tests.braid.sites import Sites
from tests.conformance import wire
from tests.conformance.pair import V5, Peer, Type, persistent
from tests.conformance.wire import props

SHARED = "$share/workers/jobs/#"
SITES = 4
STEPS = 60
SETTLE_S = 0.05
UNDER = Uniform(0.001, 0.02)


class Worker:
    """A client that does jobs; it remembers QoS 2 that it has begun, as its session does."""

    def __init__(self, name: str, site: int) -> None:
        self.name = name
        self.site = site
        self.peer: Peer | None = None
        self.in_hand: list[wire.Received] = []
        self.begun: dict[int, bytes] = {}
        self.done: Counter[bytes] = Counter()

    def connect(self, sites: Sites) -> None:
        options = persistent(V5)
        options["properties"] += props(receive_maximum=3)
        peer = self.peer = sites[self.site].peer()
        peer.note_limits(options["properties"])
        peer.send(wire.connect(self.name, **options))
        while peer.connack is None:
            sites.run(0.1)
            self.look()
        if not peer.connack.session_present:
            self.begun.clear()
            peer.send(wire.subscribe(9, (SHARED, 2)))

    def drop(self) -> None:
        assert self.peer is not None
        peer, self.peer = self.peer, None
        self.in_hand.clear()
        peer.drop()

    def look(self) -> None:
        """Takes what has come; exchanges of QoS 2 go on."""
        assert self.peer is not None
        for one in self.peer.take():
            if one.type is Type.PUBLISH:
                self.in_hand.append(one)
            elif one.type is Type.PUBREL and one.packet_id:
                self.begun.pop(one.packet_id, None)
                self.peer.send(wire.ack(Type.PUBCOMP, one.packet_id))

    def work(self) -> int:
        """Does what it has in hand, and says so."""
        assert self.peer is not None
        self.look()
        jobs, self.in_hand = self.in_hand, []
        for one in jobs:
            assert one.packet_id
            if one.qos == 2:
                if self.begun.get(one.packet_id) != one.payload:
                    self.done[one.payload] += 1
                self.begun[one.packet_id] = one.payload
                self.peer.send(wire.ack(Type.PUBREC, one.packet_id))
            else:
                self.done[one.payload] += 1
                self.peer.send(wire.ack(Type.PUBACK, one.packet_id))
        return len(jobs)


class Churn:
    def __init__(self, seed: int, folder: Path, qos: int) -> None:
        self.chance = Random(seed)
        self.folder = folder
        self.qos = qos
        self.stores: dict[int, JournalStore] = {}
        self.sites = Sites(0, seed, UNDER)
        self.sites.settle_s = SETTLE_S
        for number in range(SITES):
            self.start(number)
            self.sites.run(2.0)
        self.sites.run(10.0)
        self.workers = [Worker(f"w{number}", number % SITES) for number in range(SITES)]
        for worker in self.workers:
            worker.connect(self.sites)
        self.sites.run(3.0)
        self.publishers: dict[int, Peer] = {}
        self.published = 0
        self.acknowledged: set[bytes] = set()

    # Brokers

    def start(self, number: int) -> None:
        self.stores[number] = JournalStore(self.folder / f"site{number}")
        self.sites.add(number, store=self.stores[number])

    def crash(self, number: int) -> None:
        for worker in self.workers:
            if worker.site == number:
                worker.peer = None
                worker.in_hand.clear()
        self.publishers.pop(number, None)
        self.stores[number].close()
        self.sites[number].crash()

    # Steps

    def step(self) -> None:
        alive = list(self.sites.all)
        often = ["publish"] * 5 + ["work"] * 4 + ["strike", "start"] * 2
        action = self.chance.choice([*often, "leave", "come", "cut"])
        if action == "publish":
            self.publish(self.chance.choice(alive), self.chance.randrange(1, 8))
        elif action == "strike" and len(alive) > 2:
            self.strike(self.chance.choice(alive), self.chance.choice(alive))
        elif action == "start" and len(alive) < SITES:
            self.start(self.chance.choice([one for one in range(SITES) if one not in alive]))
        elif action == "cut":
            now, lone = self.sites.sim.now, self.chance.choice(alive)
            self.sites.sim.network = Partition([[lone]], now, now + self.chance.uniform(0.5, 8.0), Loss(0.02, UNDER))
        worker = self.chance.choice(self.workers)
        if action == "come" and worker.peer is None and worker.site in self.sites.all:
            worker.connect(self.sites)
        elif worker.peer is not None and action == "leave":
            worker.look()
            worker.drop()
        elif worker.peer is not None and action == "work":
            worker.work()
        self.sites.run(self.chance.uniform(0.0, 1.5))

    def strike(self, number: int, victim: int) -> None:
        """A broker crashes while what was just published, at this one, is on its way."""
        self.sites.settle_s = self.chance.uniform(0.001, 0.02)
        for worker in self.workers:
            if worker.peer is not None:
                worker.work()
        self.publish(number, self.chance.randrange(1, 5))
        self.sites.run(self.chance.uniform(0.0, 0.05))
        self.crash(victim)
        self.sites.settle_s = SETTLE_S

    def publish(self, number: int, count: int) -> None:
        publisher = self.publishers.get(number)
        if publisher is None:
            publisher = self.publishers[number] = self.sites[number].peer()
            publisher.send(wire.connect(f"p{number}-{self.published}"))
            while publisher.connack is None:
                self.sites.run(0.1)
                publisher.take()
        for _ in range(count):
            payload, packet_id = b"%d" % self.published, 1 + self.published
            self.published += 1
            publisher.send(wire.publish("jobs/a", payload, qos=self.qos, packet_id=packet_id))
            for one in publisher.take():
                if one.type in (Type.PUBACK, Type.PUBREC) and one.packet_id and one.reason == 0:
                    self.acknowledged.add(b"%d" % (one.packet_id - 1))
                if one.type is Type.PUBREC and one.packet_id:
                    publisher.send(wire.ack(Type.PUBREL, one.packet_id))

    def finish(self) -> Counter[bytes]:
        """Everybody comes back, and does what is left."""
        self.sites.sim.network = UNDER
        for number in range(SITES):
            if number not in self.sites.all:
                self.start(number)
        self.sites.run(15.0)
        for worker in self.workers:
            if worker.peer is None:
                worker.connect(self.sites)
        idle = 0
        while idle < 8:
            self.sites.run(DOUBT_S / 6)
            idle = 0 if sum([worker.work() for worker in self.workers]) else idle + 1
        for store in self.stores.values():
            store.close()
        done: Counter[bytes] = Counter()
        for worker in self.workers:
            done += worker.done
        return done


@pytest.mark.parametrize("seed", range(1, 7))
@pytest.mark.parametrize("qos", [1, 2])
def test_each_job_is_done(seed: int, qos: int, tmp_path: Path) -> None:
    churn = Churn(seed, tmp_path, qos)
    for _ in range(STEPS):
        churn.step()
    done = churn.finish()
    assert len(churn.acknowledged) > STEPS
    assert churn.acknowledged - done.keys() == set(), "lost"
    twice = {payload for payload, times in done.items() if times > 1}
    if qos == 2:
        assert twice == set()
    else:
        assert len(twice) < churn.published // 4, "what was with who was lost, and no more"
