"""Broker processes: `braidmq up`, each with its own data folder and log, ended in many ways and started again where
they were."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.chaos.namespaces import Namespaces
from tests.chaos.network import Network, Site
from tests.chaos.proxy import Proxy
from tests.chaos.security import Credentials

START_TIMEOUT_S = 240.0
ASK_S = 2.0
SEEDS = 4
"""Brokers that all look for when they start: one that comes back should find one that is up."""

IN_THE_BRAID = "is in the braid"
TOKEN = "chaos-of-the-admin-port"
DRAIN_S = 20.0
"""How long a broker that is told to end may take to give its sessions away."""


def environment() -> dict[str, str]:
    """Without settings of brokers."""
    return {name: value for name, value in os.environ.items() if not name.startswith("BRAIDMQ_")}


class BrokerProcess:
    def __init__(self, number: int, folder: Path, site: Site, arguments: list[str], seeds: list[str]) -> None:
        self.number = number
        self.folder = folder
        self.site = site
        self.log_path = folder / "broker.log"
        self.kills = 0
        self._arguments = arguments
        self._seeds = seeds
        self._process: asyncio.subprocess.Process | None = None

    @property
    def port(self) -> int:
        return self.site.port

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
        command = [*self.site.prefix, sys.executable, "-m", "braidmq", "up", "--json", "--port", str(self.port)]
        command += ["--data", str(self.folder / "data")]
        for seed in () if is_founder else self._seeds:
            command += ["--join", seed]
        with self.log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                *self._arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=environment(),
            )
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), START_TIMEOUT_S)
        if b'"ready"' not in line and self.kills == kills:
            raise RuntimeError(f"broker {self.number} did not start; its log:\n{self.log[-2000:]}")

    # Its end

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

    async def destroy(self) -> None:
        """It is gone with its disk."""
        await self.kill()
        shutil.rmtree(self.folder / "data")

    def freeze(self) -> None:
        """It does nothing more, and its connections stay."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        if self.is_up:
            assert self._process is not None
            self._process.send_signal(number)

    async def drain(self) -> dict[str, Any]:
        """By the command that people use: until it says that the broker is empty, or that time is up; what it says."""
        command = [*self.site.prefix, sys.executable, "-m", "braidmq", "drain", "--admin", self._admin, "--json"]
        drain = await asyncio.create_subprocess_exec(
            *command,
            "--timeout",
            str(DRAIN_S),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment() | {"BRAIDMQ_TOKEN": TOKEN},
        )
        out, err = await drain.communicate()
        if not out:
            raise RuntimeError(f"b{self.number} cannot be drained: {err.decode()}\n{self.log[-2000:]}")
        told: dict[str, Any] = json.loads(out.splitlines()[-1])
        return told

    # What it says

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    @property
    def times_in(self) -> int:
        """How often it has come into the braid."""
        return self.log.count(IN_THE_BRAID)

    async def wait_until_in(self, times: int = 1) -> None:
        """Waits until it is in the braid, for the so-manieth time; or until it has ended."""
        async with asyncio.timeout(START_TIMEOUT_S):
            while self.is_up and self.times_in < times:  # noqa: ASYNC110 - another process writes it
                await asyncio.sleep(0.1)

    async def lack(self) -> str | None:
        """Why it is not ready, or has fewer copies than it wants; None if neither is so."""
        try:
            told = await asyncio.to_thread(self._ready)
        except (OSError, TimeoutError) as error:
            return f"b{self.number} does not answer: {error}"
        if told["status"] != "ready":
            return f"b{self.number} is not ready: {told.get('reasons')}"
        lack = told.get("remarks", {}).get("copies")
        return None if lack is None else f"b{self.number}: {lack}"

    def _ready(self) -> dict[str, Any]:
        asked = urllib.request.Request(f"{self._admin}/ready", headers={"Authorization": f"Bearer {TOKEN}"})
        try:
            with urllib.request.urlopen(asked, timeout=ASK_S) as answer:
                told: dict[str, Any] = json.load(answer)
        except urllib.error.HTTPError as error:
            told = json.load(error)
        return told

    @property
    def _admin(self) -> str:
        return f"http://{self.site.host}:{self.site.admin_port}"


class Brokers:
    """All of them, and the network between."""

    def __init__(
        self,
        count: int,
        folder: Path,
        method: str,
        security: str,
        copies: int = 1,
        network: Callable[[], Network] | None = None,
        settings: Sequence[str] = (),
    ) -> None:
        """`settings` are any others that all of them have."""
        self.all: list[BrokerProcess] = []
        self.network = Proxy(self._processes) if network is None else network()
        self._credentials = Credentials(security, folder / "security")
        self._count = count
        self._folder = folder
        self._method = method
        self._copies = copies
        self._more = settings

    def _processes(self) -> dict[int, int]:
        return {broker.pid: broker.number for broker in self.all if broker.pid is not None}

    async def start(self) -> None:
        """Returns when all are in the braid, and have their copies."""
        sites = [await self.network.open(number) for number in range(self._count)]
        for number, site in enumerate(sites):
            arguments = ["--host", site.host, "--braid", f"{site.host}:{site.braid_port}", "--log-level", "info"]
            for setting in self._settings(number, site):
                arguments += ["--set", setting]
            seeds = [other.advertise for other in sites[:SEEDS] if other is not site]
            self.all.append(BrokerProcess(number, self._folder / f"b{number}", site, arguments, seeds))
        first, *rest = self.all
        await first.start(is_founder=True)
        await first.wait_until_in()
        await asyncio.gather(*(broker.start() for broker in rest))
        await asyncio.gather(*(broker.wait_until_in() for broker in rest))
        async with asyncio.timeout(START_TIMEOUT_S):
            while await self.lacks():  # noqa: ASYNC110 - other processes find each other
                await asyncio.sleep(0.2)

    def _settings(self, number: int, site: Site) -> list[str]:
        name = f"b{number}"
        braid = [f"advertise={site.advertise}", f"name={name}", f"method={self._method}", f"copies={self._copies}"]
        braid += [f"drain_s={DRAIN_S:g}", *self._credentials.settings(name, site.host)]
        if not site.is_on_loopback:
            braid.append("insecure=true")
        return [
            *(f"braid.{setting}" for setting in braid),
            f"listeners[0].advertise={site.host}:{site.port}",
            f"admin.host={site.host}",
            f"admin.port={site.admin_port}",
            f"admin.token={TOKEN}",
            "authentication.allow_anonymous_everywhere=true",
            "log.format=json",
            *self._more,
        ]

    async def lacks(self) -> list[str]:
        """What brokers lack: copies, or anything that keeps them from being ready."""
        found = await asyncio.gather(*(broker.lack() for broker in self.all))
        return [one for one in found if one is not None]

    async def stop(self) -> None:
        """Ends what is left of them."""
        await asyncio.gather(*(broker.kill() for broker in self.all))
        await self.network.close()


def network_of(kind: str) -> Callable[[], Network] | None:
    return Namespaces if kind == Namespaces.kind else None
