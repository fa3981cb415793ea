"""The brokers of a fleet: braided processes on loopback, and what can be read of each from outside."""

from __future__ import annotations

import contextlib
import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import client, cpu, memory
from bench.braid import process, wait_for_mqtt
from bench.peers import BraidMQ

IN_BRAID_S = 60.0
SETTLE_S = 3.0
"""After all are in the braid: neighbours are known, what was said first has been said."""
ASK_S = 60.0


class Site:
    """One broker."""

    def __init__(self, port: int, admin: int, pid: int) -> None:
        self.port = port
        self.pid = pid
        self.url = f"http://127.0.0.1:{admin}"

    def ask(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=ASK_S) as answer:
            text = answer.read().decode()
        return json.loads(text) if text.startswith("{") else text

    def metric(self, name: str, *labels: str) -> float:
        """The sum over all samples of a metric that have these labels (`kind="upkeep"`)."""
        total = 0.0
        for line in str(self.ask("/metrics")).splitlines():
            if line.startswith(name) and line[len(name)] in " {" and all(label in line for label in labels):
                total += float(line.rpartition(" ")[2])
        return total

    @property
    def publications_in(self) -> int:
        """Messages with publications that other brokers have sent here, passed on or not."""
        return int(self.metric("braidmq_braid_link_messages_total", 'direction="in"', 'kind="publications"'))

    @property
    def upkeep_bytes(self) -> float:
        """On its links, both directions, without publications."""
        return self.metric("braidmq_braid_link_bytes_total", 'kind="upkeep"')

    @property
    def cpu_s(self) -> float:
        return cpu.own_s(self.pid)

    @property
    def resident_bytes(self) -> int:
        return memory.resident_bytes(self.pid)


@contextlib.contextmanager
def fleet(folder: Path, count: int, method: str) -> Iterator[list[Site]]:
    """Braided brokers, each a process of its own; ready when all are in the braid."""
    ports, links, admins = ([client.free_port() for _ in range(count)] for _ in range(3))
    sites: list[Site] = []
    with contextlib.ExitStack() as stack:
        for number in range(count):
            own = folder / f"site{number + 1}"
            own.mkdir(parents=True)
            command = [str(BraidMQ.executable), "up", "--port", str(ports[number]), "--data", str(own / "data")]
            command += ["--admin-port", str(admins[number]), "--braid", f"127.0.0.1:{links[number]}"]
            command += ["--set", f"braid.method={method}", "--set", f"braid.name=site{number + 1}"]
            command += ["--log-level", "warning", *(["--join", f"127.0.0.1:{links[0]}"] if number else [])]
            child = stack.enter_context(process(command, own))
            wait_for_mqtt(ports[number])
            sites.append(Site(ports[number], admins[number], child.pid))
        ends_at = time.monotonic() + IN_BRAID_S
        while not all(site.ask("/braid").get("is_in") for site in sites):
            if time.monotonic() > ends_at:
                raise SystemExit(f"the brokers are not in one braid after {IN_BRAID_S:.0f} s")
            time.sleep(0.2)
        time.sleep(SETTLE_S)
        yield sites
