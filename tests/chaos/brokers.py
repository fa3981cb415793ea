"""Broker processes: `braidmq up`, each with its own data folder and log, killed and started again where they were."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import sys
from pathlib import Path

from tests.chaos.proxy import Proxy
from tests.chaos.security import Credentials

START_TIMEOUT_S = 60.0
PORT_MIN = 20_000
SEEDS = 4
"""Brokers that all look for when they start: one that comes back should find one that is up."""

IN_THE_BRAID = "is in the braid"


def free_ports(count: int, chance: random.Random) -> list[int]:
    """Ports that are free, and below those that the system gives to connections: nobody takes one while its broker is
    down."""
    with contextlib.suppress(OSError, ValueError), open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        return _free_ports(count, chance, int(file.read().split()[0]))
    return _free_ports(count, chance, 32_768)


def _free_ports(count: int, chance: random.Random, below: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        port = chance.randrange(min(PORT_MIN, below // 2), below)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found


class BrokerProcess:
    def __init__(self, number: int, folder: Path, port: int, arguments: list[str], seeds: list[str]) -> None:
        self.number = number
        self.folder = folder
        self.port = port
        self.log_path = folder / "broker.log"
        self.kills = 0
        self._arguments = arguments
        self._seeds = seeds
        self._process: asyncio.subprocess.Process | None = None

    @property
    def is_up(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self.is_up else None

    async def start(self, is_founder: bool = False) -> None:
        """Returns when clients can connect, or when it was killed before. It joins the braid meanwhile, unless it is
        the one that begins it."""
        assert not self.is_up
        kills = self.kills
        self.folder.mkdir(parents=True, exist_ok=True)
        data = str(self.folder / "data")
        command = [sys.executable, "-m", "braidmq", "up", "--json", "--port", str(self.port), "--data", data]
        for seed in () if is_founder else self._seeds:
            command += ["--join", seed]
        environ = {name: value for name, value in os.environ.items() if not name.startswith("BRAIDMQ_")}
        with self.log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                *self._arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=environ,
            )
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), START_TIMEOUT_S)
        if b'"ready"' not in line and self.kills == kills:
            raise RuntimeError(f"broker {self.number} did not start; its log:\n{self.log[-2000:]}")

    async def wait_until_ended(self) -> int:
        """It ends by itself; its exit code."""
        assert self._process is not None
        return await asyncio.wait_for(self._process.wait(), START_TIMEOUT_S)

    async def kill(self) -> None:
        """As a crash: nothing is flushed, nobody is told."""
        if self.is_up:
            assert self._process is not None
            self.kills += 1
            self._process.kill()
            await self._process.wait()

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    async def wait_until_in(self, times: int = 1) -> None:
        """Waits until it is in the braid, for the so-manieth time."""
        async with asyncio.timeout(START_TIMEOUT_S):
            while self.log.count(IN_THE_BRAID) < times:  # noqa: ASYNC110 - another process writes it
                await asyncio.sleep(0.1)


class Brokers:
    """All of them, and the network between."""

    def __init__(self, count: int, folder: Path, chance: random.Random, method: str, security: str) -> None:
        self.proxy = Proxy(lambda: {broker.pid: broker.number for broker in self.all if broker.pid is not None})
        self.all: list[BrokerProcess] = []
        self._credentials = Credentials(security, folder / "security")
        self._count = count
        self._folder = folder
        self._chance = chance
        self._method = method

    async def start(self) -> None:
        ports = free_ports(2 * self._count, self._chance)
        addresses = [await self.proxy.open(number, ports[2 * number + 1]) for number in range(self._count)]
        for number, address in enumerate(addresses):
            arguments = ["--braid", f"127.0.0.1:{ports[2 * number + 1]}", "--log-level", "info"]
            settings = [f"advertise={address}", f"name=b{number}", f"method={self._method}"]
            for setting in (*settings, *self._credentials.settings(f"b{number}")):
                arguments += ["--set", f"braid.{setting}"]
            seeds = [other for other in addresses[:SEEDS] if other != address]
            self.all.append(BrokerProcess(number, self._folder / f"b{number}", ports[2 * number], arguments, seeds))
        for broker in self.all:
            await broker.start(is_founder=broker.number == 0)
            await broker.wait_until_in()

    async def stop(self) -> None:
        """Ends what is left of them."""
        await asyncio.gather(*(broker.kill() for broker in self.all))
        await self.proxy.close()
