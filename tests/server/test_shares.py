"""Shared subscriptions over real brokers: each job is done once, though members and brokers are killed."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.chaos.ports import free_ports
from tests.conformance.wire import V5, Received, Type, ack
from tests.raw import Client, persistent, wait_until
from tests.server.test_mirrors import copies_of

if TYPE_CHECKING:
    from tests.conftest import Broker, StartBroker

SHARED = "$share/workers/jobs/#"
JOBS = 600


class Worker(threading.Thread):
    """Does jobs, and says so; comes back when its connection ends. It takes an exchange of QoS 2 up where it was."""

    def __init__(self, broker: Broker, name: str, qos: int) -> None:
        super().__init__(daemon=True)
        self.broker = broker
        self.name = name
        self.qos = qos
        self.done: Counter[bytes] = Counter()
        self.ready = threading.Event()
        self.is_over = False
        self._begun: dict[int, bytes] = {}
        self._client: Client | None = None

    def run(self) -> None:
        while not self.is_over:
            try:
                self._work()
            except (OSError, AssertionError, EOFError):
                time.sleep(0.1)

    def _work(self) -> None:
        with Client(self.broker, self.name, V5, **persistent(V5)) as client:
            self._client = client
            if not client.present:
                self._begun.clear()
                client.subscribe(SHARED, self.qos)
            self.ready.set()
            while not self.is_over:
                try:
                    received = client.receive(timeout_s=1.0)
                except TimeoutError:
                    continue
                if received is None:
                    return
                self._handle(client, received)

    def _handle(self, client: Client, received: Received) -> None:
        packet_id = received.packet_id
        if received.type is Type.PUBREL and packet_id:
            self._begun.pop(packet_id, None)
            client.send(ack(Type.PUBCOMP, packet_id))
        elif received.type is Type.PUBLISH and packet_id:
            if received.qos == 1 or self._begun.get(packet_id) != received.payload:
                self.done[received.payload] += 1
            if received.qos == 2:
                self._begun[packet_id] = received.payload
            client.send(ack(Type.PUBREC if received.qos == 2 else Type.PUBACK, packet_id))

    def drop(self) -> None:
        """Its connection breaks; it comes back."""
        if self._client is not None:
            self._client.drop()


def braid_of(start_broker: StartBroker, folder: Path, count: int) -> list[Broker]:
    """Brokers of one braid, each with a copy of its store at another; they come back where they were."""
    links = free_ports(count, random.Random())
    join = ", ".join(f'"127.0.0.1:{port}"' for port in links)
    brokers = []
    for number, port in enumerate(links):
        braid = f'[braid]\nlisten = "127.0.0.1:{port}"\ncopies = 2\nname = "b{number}"\njoin = [{join}]\n'
        brokers.append(start_broker(f"[admin]\nport = 0\n{braid}", data=folder / f"b{number}"))
    wait_until(lambda: all(copies_of(broker) == 2 for broker in brokers), "each has a mirror")
    return brokers


def done_by(workers: list[Worker]) -> Counter[bytes]:
    return sum((worker.done for worker in workers), Counter())


@pytest.mark.parametrize("qos", [1, 2])
def test_600_jobs_for_six_members_at_five_brokers(start_broker: StartBroker, tmp_path: Path, qos: int) -> None:
    brokers = braid_of(start_broker, tmp_path, 5)
    workers = [Worker(brokers[number], f"w{number}", qos) for number in (0, 0, 1, 2, 3, 4)]
    for number, worker in enumerate(workers):
        worker.name = f"w{number}"
        worker.start()
        assert worker.ready.wait(20)
    jobs = [b"%d" % number for number in range(JOBS)]
    for number, broker in enumerate(brokers):
        with Client(broker, f"p{number}", V5) as publisher:
            publisher.publish_many("jobs/a", jobs[number::5], qos)
    wait_until(lambda: len(done_by(workers)) == JOBS, "all jobs are done")
    time.sleep(1.0)
    for worker in workers:
        worker.is_over = True
    assert done_by(workers) == Counter(jobs)


@pytest.mark.parametrize("qos", [1, 2])
def test_jobs_are_done_though_members_and_brokers_are_killed(
    start_broker: StartBroker, tmp_path: Path, qos: int
) -> None:
    """What was acknowledged is done; QoS 2 once, and QoS 1 twice only if it was under way to who was killed."""
    brokers = braid_of(start_broker, tmp_path, 3)
    workers = [Worker(brokers[number], f"w{number}", qos) for number in (1, 2)]
    for worker in workers:
        worker.start()
        assert worker.ready.wait(20)
    acknowledged: set[bytes] = set()
    number = 0
    for cycle in range(3):
        with Client(brokers[0], f"p{cycle}", V5) as publisher:
            for _ in range(100):
                payload = b"%d" % number
                number += 1
                assert publisher.publish("jobs/a", payload, qos) == 0
                acknowledged.add(payload)
                if number % 100 == 30:
                    workers[cycle % 2].drop()
                if number % 100 == 60:
                    brokers[1 + cycle % 2].kill9()
        brokers[1 + cycle % 2].restart()
        if cycle == 2:
            brokers[0].kill9()
            brokers[0].restart()
    wait_until(lambda: acknowledged <= done_by(workers).keys(), "all jobs are done", 90.0)
    time.sleep(3.0)
    for worker in workers:
        worker.is_over = True
    twice = {payload: times for payload, times in done_by(workers).items() if times > 1}
    if qos == 2:
        assert twice == {}
    else:
        assert len(twice) < number // 4
