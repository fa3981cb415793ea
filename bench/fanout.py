"""`python -m bench.fanout`: what Spark adds to the cost of many trials of the simulator, in CPU time.

The trials are played twice, at the same time, so that a machine that changes its speed does so for both. Once by
`braidmq sim --out --spark`: its cost is the CPU time of all its processes from start to end, which are the command,
Java, Spark's daemon and its workers. And once by plain Python processes, as many as Spark has cores, over and over
until Spark is done: their cost is the mean CPU time of a trial, without the start of Python. The start of Java costs
the same for ten trials and for ten thousand; so the ratio falls with their number. The very first start on a machine
costs more (`braidmq.pipeline.launch.class_archive`), and does not count. The round with the median ratio is shown, and
all ratios.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from bench import cpu

TARGET = 1.15
LOOK_EVERY_S = 0.05
"""How much of the CPU time of a process may be missed at its end."""
PR_SET_CHILD_SUBREAPER = 36
PLAYER = """
import gc, json, select, sys, time
from itertools import cycle
from braidmq.sim.trials.rows import row_of
from braidmq.sim.trials.trial import Trial

parameters, seeds = json.loads(sys.argv[1]), json.loads(sys.argv[2])
gc.collect()
began = time.process_time()
for count, seed in enumerate(cycle(seeds), 1):
    row_of(Trial(seed=seed, **parameters))
    gc.collect()
    if select.select([sys.stdin], [], [], 0)[0]:
        break
print(time.process_time() - began, count)
"""
"""A process that plays trials until its input ends, and does nothing else: no table, and little in its memory to look
through for garbage."""

console = Console(width=max(120, Console().width))


class Figures(msgspec.Struct, frozen=True):
    trials: int
    trials_cpu_s: float
    """Of the trials themselves."""
    spark_cpu_s: float
    """Of all that it took to have them played by Spark."""
    spark_wall_s: float

    @property
    def ratio(self) -> float:
        return self.spark_cpu_s / self.trials_cpu_s


def adopt_orphans() -> None:
    """Java outlives the command by a moment: it becomes a child of this process then, and its CPU time is known."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "this needs Linux: orphans cannot be adopted")


class Watch:
    """The CPU time of processes and all that they start, as it was when each of them was last seen.

    Spark's daemon forgets the workers that end before it does: nobody accounts for them.
    """

    def __init__(self) -> None:
        self._seen: dict[int, float] = {}

    @property
    def cpu_s(self) -> float:
        return sum(self._seen.values())

    def look(self, pid: int) -> None:
        with contextlib.suppress(OSError):  # it has just ended
            self._seen[pid] = cpu.own_s(pid)
            for child in cpu.children(pid):
                self.look(child)


class PlainPlayers:
    """Processes that play trials side by side, until they are told to end."""

    def __init__(self, parameters: dict[str, object], seeds: list[int], processes: int) -> None:
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-c", PLAYER, json.dumps(parameters), json.dumps(seeds[number::processes])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(processes)
        ]

    def trial_cpu_s(self) -> float:
        """Ends them: the CPU seconds of a trial."""
        told = [one.communicate()[0].split() for one in self._processes]
        if any(one.returncode for one in self._processes):
            raise SystemExit("the trials could not be played")
        return sum(float(cpu_s) for cpu_s, _ in told) / sum(int(count) for _, count in told)


def play_on_spark(parameters: dict[str, object], trials: int, master: str, folder: Path) -> tuple[float, float]:
    """(CPU seconds, seconds) of the command with all that it starts."""
    options = [word for name, value in parameters.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "braidmq", "sim", *options, "--seeds", f"1-{trials}", "--json"]
    others, began, watch = cpu.children(os.getpid()), time.monotonic(), Watch()
    with tempfile.TemporaryFile() as told:
        process = subprocess.Popen([*command, "--out", str(folder / "spark"), "--spark", master], stdout=told)
        while left := cpu.children(os.getpid()) - others:
            for pid in left:
                watch.look(pid)
                if pid != process.pid:
                    os.waitpid(pid, os.WNOHANG)
            time.sleep(LOOK_EVERY_S)
            process.poll()
        took_s = time.monotonic() - began
        told.seek(0)
        if process.returncode or json.load(told)["trials"] != trials:
            raise SystemExit("Spark did not play all trials")
    return watch.cpu_s, took_s


def measure(parameters: dict[str, object], seeds: list[int], cores: int, folder: Path) -> Figures:
    players = PlainPlayers(parameters, seeds, cores)
    try:
        spark_s, took_s = play_on_spark(parameters, len(seeds), f"local[{cores}]", folder)
    finally:
        trial_s = players.trial_cpu_s()
    return Figures(len(seeds), trial_s * len(seeds), spark_s, took_s)


def main(
    trials: Annotated[int, typer.Option(min=4, help="Trials, each with a seed of its own.")] = 1000,
    nodes: Annotated[int, typer.Option(min=2, help="Brokers of a trial.")] = 256,
    method: Annotated[str, typer.Option(help="As in braidmq sim.")] = "relayfree",
    pattern: Annotated[str, typer.Option(help="As in braidmq sim.")] = "delta",
    faults: Annotated[str | None, typer.Option(help="As in braidmq sim: trials that take longer.")] = None,
    cores: Annotated[int, typer.Option(min=1, help="Of Spark, and plain processes.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="How often all of it is played.")] = 3,
    json_only: Annotated[bool, typer.Option("--json", help="Print JSON alone.")] = False,
) -> None:
    """What Spark adds to the cost of many trials."""
    parameters: dict[str, object] = {"method": method, "pattern": pattern, "nodes": nodes}
    if faults is not None:
        parameters["faults"] = faults
    adopt_orphans()
    folder = Path(tempfile.mkdtemp(prefix="braidmq-fanout-"))
    seeds = list(range(1, trials + 1))
    try:
        play_on_spark(parameters, 2, f"local[{cores}]", folder / "first")  # has Java keep Spark's classes ready
        found = [measure(parameters, seeds, cores, folder / str(number)) for number in range(rounds)]
    finally:
        shutil.rmtree(folder)
    found.sort(key=lambda one: one.ratio)
    figures = found[rounds // 2]
    if json_only:
        sys.stdout.buffer.write(msgspec.json.encode(figures) + b"\n")
        return
    table = Table(title=f"{trials:,} trials of {nodes} nodes ({method}, {pattern}{', ' + faults if faults else ''})")
    for name in ("", "CPU s", "ms a trial"):
        table.add_column(name, justify="right" if name else "left")
    for name, value in (
        ("the trials themselves", figures.trials_cpu_s),
        (f"all of local[{cores}], Java included", figures.spark_cpu_s),
    ):
        table.add_row(name, f"{value:.1f}", f"{1000 * value / trials:.1f}")
    console.print(table)
    style = "green" if figures.ratio <= TARGET else "red"
    ratios = ", ".join(f"{one.ratio:.2f}" for one in found)
    console.print(f"[{style}]{figures.ratio:.2f} times[/{style}] (at most {TARGET}; of {ratios})")


if __name__ == "__main__":
    typer.run(main)
