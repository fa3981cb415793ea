"""The load generator `mqttload.c`: built when its source is newer, run once a measurement, its one line read.

It is a closed loop: at most `window` deliveries are outstanding, so a rate is what a broker sustains and not what it
buffers, and a window of one gives the latency of a message that travels alone.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import msgspec

FOLDER = Path(__file__).parent
SOURCE = FOLDER / "mqttload.c"
BUILD = FOLDER / "build"
BINARY = BUILD / "mqttload"
GRACE_S = 20
"""Over the time it publishes: connects, subscribes, and 3 s in which it waits for what is still missing."""
LINE = re.compile(r"in/s (\d+) out/s (\d+) p50us (\d+) p99us (\d+) maxus (\d+) lost (-?\d+)")


class LoadError(Exception):
    """The load generator could not be built, or has no figures to give."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What the clients do. Client i uses topic i modulo `topics`, as a publisher and as a subscriber."""

    publishers: int
    subscribers: int
    topics: int
    qos: int
    window: int = 1000
    payload_bytes: int = 100
    jitter_bytes: int = 0
    """How much smaller or larger than that payloads may be."""
    is_durable: bool = False
    """Whether the subscribers' sessions outlive their connections."""

    def arguments(self) -> list[str]:
        return (
            f"-P {self.publishers} -S {self.subscribers} -T {self.topics} -q {self.qos}"
            f" -s {self.payload_bytes} -w {self.window}"
            + (f" -j {self.jitter_bytes}" if self.jitter_bytes else "")
            + (" -d" if self.is_durable else "")
        ).split()


class Sample(msgspec.Struct, frozen=True):
    """One run of the load generator."""

    in_per_s: int
    out_per_s: int
    p50_us: int
    p99_us: int
    max_us: int
    lost: int


def build(source: Path = SOURCE) -> Path:
    """The program of a source file in this folder."""
    binary = BUILD / source.stem
    if binary.exists() and binary.stat().st_mtime >= source.stat().st_mtime:
        return binary
    BUILD.mkdir(exist_ok=True)
    compiler = os.environ.get("CC", "cc")
    try:
        done = subprocess.run([compiler, "-O2", "-o", binary, source], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise LoadError(f"there is no C compiler {compiler!r}; install one, or name it in the variable CC") from None
    if done.returncode:
        raise LoadError(f"{compiler} could not build {source.name}:\n{done.stderr.strip()}")
    return binary


def command(load: Load, port: int | str, seconds: int) -> list[str]:
    """`port` may be a word, for a command line to show."""
    return [str(BINARY), "-p", str(port), "-t", str(seconds), *load.arguments()]


def run(load: Load, port: int, seconds: int) -> Sample:
    """One measurement. Lost messages make the generator exit with 1, and are part of its figures, not an error."""
    try:
        done = subprocess.run(
            command(load, port, seconds), capture_output=True, text=True, timeout=seconds + GRACE_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise LoadError(f"no figures within {seconds + GRACE_S} s") from None
    figures = LINE.search(done.stdout)
    if figures is None:
        raise LoadError(done.stderr.strip() or f"mqttload ended with exit code {done.returncode} and no figures")
    return Sample(*map(int, figures.groups()))
