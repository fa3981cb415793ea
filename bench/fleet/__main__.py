"""`python -m bench.fleet`: choose the parts and their sizes, measure, print."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, get_args

import msgspec
import typer
from rich.console import Console

from bench import loader, memory
from bench.__main__ import EXIT_FAILED, EXIT_USAGE, fail
from bench.fleet import burst, churn, load, report, storm, suback, upkeep
from bench.fleet.brokers import fleet
from bench.fleet.figures import QUICK, Say, Sizes
from bench.fleet.report import Report
from braidmq.pubsub.registry import METHOD_DEFAULT, MethodName

PARTS = ("burst", "storm", "upkeep", "churn", "suback")
METHODS = get_args(MethodName)


def bench(
    only: Annotated[str, typer.Option(help=f"Some parts of {', '.join(PARTS)}, with commas between.")] = ",".join(
        PARTS
    ),
    method: Annotated[str, typer.Option(help=f"The braid's method: {', '.join(METHODS)}.")] = METHOD_DEFAULT,
    quick: Annotated[
        bool, typer.Option("--quick", help="Small sizes, about two minutes: a look, not a result.")
    ] = False,
    devices: Annotated[int | None, typer.Option(min=1, help="Device topics [100,000].", show_default=False)] = None,
    filters: Annotated[
        int | None, typer.Option(min=5, help="Filters, a client's own each [50,000].", show_default=False)
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(min=0.1, help="Of clients that come and go [30].", show_default=False)
    ] = None,
    qos: Annotated[str, typer.Option(help="Of the burst.")] = "0,1",
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write all figures here.")
    ] = None,
) -> None:
    """Measures a fleet: a topic and a filter a device, at a few braided brokers, each a process of its own.

    Examples:

      python -m bench.fleet --quick                        all parts, small

      python -m bench.fleet --json fleet.json              all parts in full: more than half an hour

      python -m bench.fleet --only burst --devices 20000   one part, at a size of one's own

      python -m bench.fleet --quick --method adaptive      another method of the braid
    """
    console = Console()
    chosen = [name.strip() for name in only.split(",") if name.strip()]
    if unknown := [name for name in chosen if name not in PARTS]:
        fail(f"--only names {', '.join(unknown)}; it may name {', '.join(PARTS)}", EXIT_USAGE)
    if method not in METHODS:
        fail(f"--method {method}: there are {', '.join(METHODS)}", EXIT_USAGE)
    if json_file is not None and not json_file.absolute().parent.is_dir():
        fail(f"--json {json_file}: there is no folder {json_file.absolute().parent}", EXIT_USAGE)
    levels = [int(one) for one in qos.split(",") if one in ("0", "1")]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    given = {"devices": devices, "filters": filters, "minutes": minutes}
    sizes = msgspec.structs.replace(
        QUICK if quick else Sizes(), **{name: value for name, value in given.items() if value is not None}
    )
    try:
        loader.build(load.SOURCE)
    except loader.LoadError as error:
        fail(str(error))
    memory.allow_connections(load.CLIENTS_MAX)
    found = Report(method=method, sizes=sizes)
    with tempfile.TemporaryDirectory(prefix="braidmq-fleet-") as name:
        run(Path(name), chosen, levels, found, saying(console))
    report.show(found, console)
    if json_file is not None:
        report.write(found, json_file)
        console.print(f"\nAll figures: {json_file}", markup=False, highlight=False)
    if found.failures:
        raise typer.Exit(EXIT_FAILED)


def saying(console: Console) -> Say:
    began = time.monotonic()

    def say(text: str) -> None:
        line = f"{time.monotonic() - began:6.0f} s  load {os.getloadavg()[0]:4.1f}  {text}"
        console.print(line, style="dim", markup=False, highlight=False, soft_wrap=True)

    return say


def run(folder: Path, chosen: list[str], levels: list[int], found: Report, say: Say) -> None:
    """Each part has brokers of its own, with empty stores. One that fails leaves the others as they are."""
    for part in chosen:
        try:
            _run_part(folder, part, levels, found, say)
        except (loader.LoadError, OSError) as error:
            found.failures[part] = str(error)
            say(f"{part} failed: {error}")


def _run_part(folder: Path, part: str, levels: list[int], found: Report, say: Say) -> None:
    sizes, method = found.sizes, found.method
    if part == "burst":
        for qos, devices in itertools.product(levels, burst.steps(sizes)):
            with fleet(folder / f"burst{qos}-{devices}", burst.BROKERS, method) as sites:
                found.burst.append(burst.measure(sites, devices, sizes.first_s, qos, say))
    elif part == "storm":
        with fleet(folder / part, storm.BROKERS, method) as sites:
            found.storm = storm.measure(sites, sizes, say)
    elif part == "upkeep":
        with fleet(folder / part, upkeep.BROKERS, method) as sites:
            found.upkeep = upkeep.measure(sites, sizes, say)
    elif part == "churn":
        with fleet(folder / part, churn.BROKERS, method) as sites:
            found.churn = churn.measure(sites, sizes, say)
    elif part == "suback":
        with fleet(folder / part, suback.BROKERS, method) as sites:
            found.suback = suback.measure(sites, sizes, say)


def main() -> None:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(bench)
    app(prog_name="python -m bench.fleet")


if __name__ == "__main__":
    main()
