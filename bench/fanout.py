"""`python -m bench.fanout`: what Spark adds to the cost of many trials of the simulator, in CPU time.

The trials are played twice. By plain Python processes, as many as Spark has cores, one half before and the other half
behind what is measured, so that a machine that changes its pace meanwhile does so for both: their cost is the CPU time
of the trials alone, without the start of Python. And by `braidmq sim --out --spark`: its cost is the CPU time of all
processes that it takes from its first to its last breath, which are the command, Java, Spark's daemon and its workers.
The start of Java costs the same for ten trials and for ten thousand; so the ratio falls with their number. The very
first start on a machine costs more (`braidmq.pipeline.classes`), and does not count. Told is the round with the median
ratio, and the ratios of all.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
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

TARGET = 1.15
PR_SET_CHILD_SUBREAPER = 36
PLAYER = """
import gc, json, sys, time
from braidmq.sim.rows import row_of
from braidmq.sim.trial import Trial

parameters, seeds = json.loads(sys.argv[1]), json.loads(sys.argv[2])
gc.collect()
began = time.process_time()
for seed in seeds:
    row_of(Trial(seed=seed, **parameters))
    gc.collect()
print(time.process_time() - began)
"""
"""A process that plays trials and does nothing else: no table, and little in its memory to look through for garbage."""

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


def children_cpu_s() -> float:
    """Of all children that have ended, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def wait_for_orphans() -> None:
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return


def play_plainly(parameters: dict[str, object], seeds: list[int], processes: int) -> float:
    """The CPU seconds of these trials, played by processes side by side."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PLAYER, json.dumps(parameters), json.dumps(seeds[number::processes])],
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(processes)
    ]
    told = [one.communicate()[0] for one in started]
    if any(one.returncode for one in started):
        raise SystemExit("the trials could not be played")
    return sum(map(float, told))


def play_on_spark(parameters: dict[str, object], trials: int, master: str, folder: Path) -> tuple[float, float]:
    """(CPU seconds, seconds) of the command with all that it starts."""
    options = [word for name, value in parameters.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "braidmq", "sim", *options, "--seeds", f"1-{trials}", "--json"]
    before, began = children_cpu_s(), time.monotonic()
    done = subprocess.run([*command, "--out", str(folder / "spark"), "--spark", master], stdout=subprocess.PIPE)
    took_s = time.monotonic() - began
    wait_for_orphans()
    if done.returncode or json.loads(done.stdout)["trials"] != trials:
        raise SystemExit("Spark did not play all trials")
    return children_cpu_s() - before, took_s


def measure(parameters: dict[str, object], seeds: list[int], cores: int, folder: Path) -> Figures:
    half = len(seeds) // 2
    plain_s = play_plainly(parameters, seeds[:half], cores)
    spark_s, took_s = play_on_spark(parameters, len(seeds), f"local[{cores}]", folder)
    plain_s += play_plainly(parameters, seeds[half:], cores)
    return Figures(len(seeds), plain_s, spark_s, took_s)


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
