"""A network of Linux namespaces: each broker has a machine of its own, and the run's own namespace is the router.

What passes from one broker to another is routed here, so one rule of the router breaks one way: packets vanish
(`blackhole`) or are refused (`prohibit`), whatever connections there are. Clients are in the router, and reach every
broker. All of it ends with the run: the run's process is the first one of a namespace of processes.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from tests.chaos.network import Network, Pair, Site, Way, ways_of
from tests.docs.world import COMMAND

ENTERED = "BRAIDMQ_CHAOS_NAMESPACES"
"""In the environment of a process that is in its namespaces."""

PORT, BRAID_PORT, ADMIN_PORT = 1883, 7883, 9883
BEFORE_ROUTES = 1000
"""The preference of rules that break something."""

_PROBE = "ip link set lo up && echo 1 > /proc/sys/net/ipv4/ip_forward && ip rule add to 10.77.1.2 blackhole"


def is_possible() -> bool:
    """Whether this system has such namespaces and the tools for them, and lets us use them."""
    script = f"{_PROBE} && unshare --net true && ip link add probe type veth peer name probe-far"
    try:
        return subprocess.run([*COMMAND, "sh", "-ec", script], capture_output=True, timeout=30).returncode == 0
    except OSError:
        return False


def is_entered() -> bool:
    return ENTERED in os.environ


def run_inside(arguments: list[str]) -> int:
    """Runs this module's program again inside; its exit code."""
    command = [*COMMAND, sys.executable, "-m", "tests.chaos", *arguments]
    return subprocess.run(command, env=os.environ | {ENTERED: "1"}, check=False).returncode


class Namespaces(Network):
    kind = "namespaces"

    def __init__(self) -> None:
        self._machines: list[asyncio.subprocess.Process] = []
        """Processes that keep the namespaces of brokers."""
        self._rules: dict[Way, str] = {}
        """By way: what breaks it."""
        _ip("link set lo up")
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")

    async def open(self, number: int) -> Site:
        machine = await asyncio.create_subprocess_exec(
            *("unshare", "--net", "sh", "-c", "echo there; exec sleep infinity"), stdout=asyncio.subprocess.PIPE
        )
        self._machines.append(machine)
        assert machine.stdout is not None
        await machine.stdout.readline()
        here, there = _host(number, 1), _host(number, 2)
        inside = ("nsenter", f"--net=/proc/{machine.pid}/ns/net")
        _ip(
            f"link add to{number} type veth peer name eth0 netns {machine.pid}",
            f"address add {here}/30 dev to{number}",
            f"link set to{number} up",
        )
        _ip(
            "link set lo up",
            f"address add {there}/30 dev eth0",
            "link set eth0 up",
            f"route add default via {here}",
            inside=inside,
        )
        return Site(there, PORT, BRAID_PORT, ADMIN_PORT, f"{there}:{BRAID_PORT}", inside)

    async def close(self) -> None:
        for machine in self._machines:
            machine.kill()
            await machine.wait()

    def cut(self, pair: Pair) -> None:
        for way in ways_of(pair):
            self._break(way, "prohibit")

    def mute(self, way: Way) -> None:
        self._break(way, "blackhole")

    def heal(self, way: Way) -> None:
        action = self._rules.pop(way, None)
        if action is not None:
            _ip(f"rule delete {_rule(way)} {action}")

    @property
    def broken(self) -> list[Way]:
        return list(self._rules)

    def _break(self, way: Way, action: str) -> None:
        self.heal(way)
        _ip(f"rule add {_rule(way)} {action}")
        self._rules[way] = action


def _host(number: int, which: int) -> str:
    return f"10.77.{number}.{which}"


def _rule(way: Way) -> str:
    return f"preference {BEFORE_ROUTES} from {_host(way[0], 2)} to {_host(way[1], 2)}"


def _ip(*commands: str, inside: tuple[str, ...] = ()) -> None:
    subprocess.run([*inside, "ip", "-batch", "-"], input="\n".join(commands).encode(), check=True)
