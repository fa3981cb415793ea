"""The brokers that are compared: how each is found, installed, and told to listen on one loopback port.

Each is started as its users would start it, with no log and with its store on where it has one on disk.
"""

from __future__ import annotations

import getpass
import json
import re
import shutil
import subprocess
import sys
from abc import ABC, abstractmethod
from importlib import metadata
from pathlib import Path

from bench.client import HOST
from bench.loader import BUILD, FOLDER

INSTALL_TIMEOUT_S = 600


class InstallError(Exception):
    """A peer could not be installed; says which command failed, and what it said."""


class Peer(ABC):
    name: str
    store: str
    """What it keeps on disk in this configuration."""
    hint: str
    """How to get it, for those who do not have it."""

    @abstractmethod
    def version(self) -> str | None:
        """None: it is not installed."""

    @abstractmethod
    def command(self, port: int, folder: Path) -> list[str]: ...

    def config(self, port: int, folder: Path) -> str | None:
        """The text of its configuration file, `config_path(folder)`; None if the command line says all."""
        return None


class FetchedPeer(Peer):
    """One that `--install-peers` gets from a package registry, into a folder below bench/build."""

    folder: Path
    requirement: str

    @abstractmethod
    def install(self) -> None: ...


def config_path(folder: Path) -> Path:
    return folder / "config"


class BraidMQ(Peer):
    name = "braidmq"
    store = "a journal, what is acknowledged is written first"
    hint = "make bench installs it in .venv"
    executable = Path(sys.executable).parent / "braidmq"

    def version(self) -> str | None:
        return metadata.version("braidmq") if self.executable.exists() else None

    def command(self, port: int, folder: Path) -> list[str]:
        return [str(self.executable), "up", "--port", str(port), "--data", str(folder / "data"), "--json"]


class Mosquitto(Peer):
    name = "mosquitto"
    store = "snapshot every 30 minutes and at exit"
    hint = "apt install mosquitto"

    def executable(self) -> str | None:
        return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")

    def version(self) -> str | None:
        if (executable := self.executable()) is None:
            return None
        text = subprocess.run([executable, "-h"], capture_output=True, text=True, check=False).stdout
        found = re.search(r"version (\S+)", text)
        return found.group(1) if found else "of unknown version"

    def command(self, port: int, folder: Path) -> list[str]:
        return [self.executable() or "mosquitto", "-c", str(config_path(folder))]

    def config(self, port: int, folder: Path) -> str:
        return (
            f"listener {port} {HOST}\n"
            "allow_anonymous true\n"
            "persistence true\n"
            f"persistence_location {folder}/\n"
            "log_dest none\n"
            f"user {getpass.getuser()}\n"
        )


class Amqtt(FetchedPeer):
    name = "amqtt"
    store = "memory only"
    hint = "python -m bench --install-peers (from PyPI, in a virtual environment of its own)"
    folder = BUILD / "amqtt"
    requirement = "amqtt>=0.12,<0.13"

    def version(self) -> str | None:
        found = sorted(self.folder.glob("lib/python*/site-packages/amqtt-*.dist-info"))
        return found[-1].name.removesuffix(".dist-info").removeprefix("amqtt-") if found else None

    def command(self, port: int, folder: Path) -> list[str]:
        return [str(self.folder / "bin" / "amqtt"), "-c", str(config_path(folder))]

    def config(self, port: int, folder: Path) -> str:
        return (
            "listeners:\n"
            "  default:\n"
            "    type: tcp\n"
            f"    bind: {HOST}:{port}\n"
            "plugins:\n"
            "  amqtt.plugins.authentication.AnonymousAuthPlugin:\n"
            "    allow_anonymous: true\n"
        )

    def install(self) -> None:
        _run(sys.executable, "-m", "venv", str(self.folder))
        _run(str(self.folder / "bin" / "python"), "-m", "pip", "install", "--quiet", self.requirement)


class Aedes(FetchedPeer):
    name = "aedes"
    store = "memory only"
    hint = "python -m bench --install-peers (from npm, below bench/build; needs node 20 or newer)"
    folder = BUILD / "aedes"
    requirement = "aedes@1"

    def version(self) -> str | None:
        manifest = self.folder / "node_modules" / "aedes" / "package.json"
        if shutil.which("node") is None or not manifest.exists():
            return None
        return str(json.loads(manifest.read_text())["version"])

    def command(self, port: int, folder: Path) -> list[str]:
        return [shutil.which("node") or "node", str(FOLDER / "aedes_server.mjs"), str(self.folder), str(port)]

    def install(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        _run("npm", "install", "--prefix", str(self.folder), "--no-audit", "--no-fund", self.requirement)


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False)
    except FileNotFoundError:
        raise InstallError(f"{command[0]} is not installed") from None
    except subprocess.TimeoutExpired:
        raise InstallError(f"`{' '.join(command)}` did not end within {INSTALL_TIMEOUT_S} s") from None
    if done.returncode:
        raise InstallError(f"`{' '.join(command)}` failed:\n{done.stderr.strip()[-2000:]}")


PEERS: tuple[Peer, ...] = (BraidMQ(), Mosquitto(), Amqtt(), Aedes())
OURS = BraidMQ.name
BASELINE = Mosquitto.name
