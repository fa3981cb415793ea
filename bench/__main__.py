"""`python -m bench`: choose the brokers, measure, print."""

from __future__ import annotations

import contextlib
import shlex
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from bench import chart, loader, memory, scenarios, table
from bench.memory import Memory
from bench.peers import PEERS, FetchedPeer, InstallError, Peer
from bench.process import Broker, StartError
from bench.scenarios import SCENARIOS, Run, Scenario

EXIT_FAILED = 1
EXIT_USAGE = 2
EVERY_PEER = ",".join(each.name for each in PEERS)


def fail(message: str, code: int = EXIT_FAILED) -> NoReturn:
    Console(stderr=True).print(message, style="red", markup=False, highlight=False)
    raise typer.Exit(code)


def bench(
    peers: Annotated[str, typer.Option(help="Brokers to measure, by name, with commas between.")] = EVERY_PEER,
    rounds: Annotated[int, typer.Option(min=1, help="How often each scenario runs; medians are printed.")] = 3,
    seconds: Annotated[int, typer.Option(min=1, help="How long each run lasts; the first half second warms up.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="One round of one second each: a look, not a result.")] = False,
    only: Annotated[str, typer.Option(help="Only scenarios with this in their name, such as 'QoS 1' or 'idle'.")] = "",
    connections: Annotated[int, typer.Option(min=1, help="Idle connections for the memory figure.")] = 10_000,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write all figures here.")
    ] = None,
    chart_file: Annotated[
        Path | None, typer.Option("--chart", metavar="FILE", help="Also draw the rates here, as SVG.")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the tables as Markdown.")] = False,
    install_peers: Annotated[
        bool, typer.Option("--install-peers", help="First fetch amqtt and aedes, below bench/build.")
    ] = False,
) -> None:
    """Measures BraidMQ beside the other MQTT brokers that are installed, in one run.

    Examples:

      python -m bench --quick                      all that is installed, a first look

      python -m bench --peers braidmq,mosquitto    the two that the targets compare

      python -m bench --only 'QoS 1'               some scenarios of many
    """
    console = Console()
    if not sys.platform.startswith("linux"):
        fail("the bench needs Linux: the load generator uses epoll, and memory is read from /proc", EXIT_USAGE)
    for option, file in (("--json", json_file), ("--chart", chart_file)):
        if file is not None and not file.absolute().parent.is_dir():
            fail(f"{option} {file}: there is no folder {file.absolute().parent}", EXIT_USAGE)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if quick:
        rounds, seconds = 1, 1
    measured = [scenario for scenario in SCENARIOS if only.lower() in scenario.name.lower()]
    with_memory = only.lower() in memory.NAME
    if not measured and not with_memory:
        names = "\n  ".join([*(scenario.name for scenario in SCENARIOS), memory.NAME])
        fail(f"--only {only!r} is in no scenario's name; the scenarios are\n  {names}", EXIT_USAGE)
    chosen = choose(peers)
    if install_peers:
        install(chosen, console)
    present = installed(chosen, console)
    try:
        loader.build()
    except loader.LoadError as error:
        fail(str(error))
    allowed = allow(connections, console) if with_memory else 0
    with tempfile.TemporaryDirectory(prefix="braidmq-bench-") as name:
        started, runs = measure_rates(Path(name), present, measured, rounds, seconds, console)
        idlers = [peer for peer in present if with_memory and peer.name in started]
        figures, memory_failures = measure_memory(Path(name), idlers, allowed, console)
    report = table.Report(
        machine=table.this_machine(),
        started=list(started.values()),
        loads={item.name: shlex.join(loader.command(item.load, "PORT", seconds)) for item in measured},
        rounds=rounds,
        seconds=seconds,
        runs=runs,
        rows=table.rows(measured, list(started), runs),
        memory=figures,
        memory_failures=memory_failures,
    )
    table.show(report, console, markdown=markdown)
    if json_file is not None:
        table.write_json(report, json_file)
        console.print(f"\nAll figures: {json_file}", markup=False, highlight=False)
    if chart_file is not None:
        chart_file.write_text(chart.draw(report))
        console.print(f"\nThe chart: {chart_file}", markup=False, highlight=False)
    if len(started) < len(present) or memory_failures or any(row.failure for row in report.rows):
        raise typer.Exit(EXIT_FAILED)


def choose(names: str) -> list[Peer]:
    known = {peer.name: peer for peer in PEERS}
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if unknown := [name for name in wanted if name not in known]:
        fail(f"--peers names {', '.join(unknown)}; it may name {', '.join(known)}", EXIT_USAGE)
    return [known[name] for name in dict.fromkeys(wanted)]


def install(chosen: Sequence[Peer], console: Console) -> None:
    for peer in chosen:
        if isinstance(peer, FetchedPeer) and peer.version() is None:
            console.print(f"installing {peer.name} …")
            try:
                peer.install()
            except InstallError as error:
                console.print(f"{peer.name} could not be installed: {error}", style="red", markup=False)


def installed(chosen: Sequence[Peer], console: Console) -> list[Peer]:
    present = []
    for peer in chosen:
        if peer.version() is None:
            console.print(f"{peer.name} is not installed and is left out; to get it: {peer.hint}", style="yellow")
        else:
            present.append(peer)
    if not present:
        fail("none of the chosen brokers is installed")
    return present


def allow(connections: int, console: Console) -> int:
    allowed = memory.allow_connections(connections)
    if allowed < 1:
        fail("the hard limit of open files (ulimit -Hn) allows no idle connections; raise it")
    if allowed < connections:
        reason = "the hard limit of open files (ulimit -Hn) allows no more"
        console.print(f"{allowed:,} idle connections instead of {connections:,}: {reason}", style="yellow")
    return allowed


def measure_rates(
    folder: Path, present: Sequence[Peer], measured: Sequence[Scenario], rounds: int, seconds: int, console: Console
) -> tuple[dict[str, table.Started], list[Run]]:
    """Starts every broker, then takes them through the scenarios in turn; returns those that took part and all runs."""
    started: dict[str, table.Started] = {}
    runs: list[Run] = []
    with contextlib.ExitStack() as stack:
        brokers = []
        for peer in present:
            try:
                broker = stack.enter_context(Broker(peer, folder / peer.name))
            except StartError as error:
                console.print(f"left out: {error}", style="red", markup=False, highlight=False)
                continue
            brokers.append(broker)
            version = peer.version() or ""
            started[peer.name] = table.Started(peer.name, version, peer.store, broker.command, broker.config)
        total = rounds * len(measured) * len(brokers)
        progress = stack.enter_context(new_progress(console))
        task = progress.add_task("starting", total=total)
        for run in scenarios.measure(measured, brokers, rounds, seconds):
            runs.append(run)
            said = f"round {run.round}: {run}"
            progress.update(task, advance=1, description=said)
            if not console.is_terminal:
                console.print(f"[{len(runs)}/{total}] {said}", markup=False, highlight=False)
    return started, runs


def measure_memory(
    folder: Path, peers: Sequence[Peer], connections: int, console: Console
) -> tuple[list[Memory], dict[str, str]]:
    figures: list[Memory] = []
    failures: dict[str, str] = {}
    for peer in peers:
        with console.status(f"{connections:,} idle connections: {peer.name}"):
            try:
                with Broker(peer, folder / f"{peer.name}-idle") as broker:
                    figures.append(memory.measure(broker, connections))
            except (StartError, memory.IdleError) as error:
                failures[peer.name] = str(error)
        if not console.is_terminal:
            outcome = "failed" if peer.name in failures else f"{figures[-1].bytes_each / 1024:.2f} KiB each"
            console.print(f"{connections:,} idle connections: {peer.name}: {outcome}", highlight=False)
    return figures, failures


def new_progress(console: Console) -> Progress:
    return Progress(
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def main() -> None:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(bench)
    app(prog_name="python -m bench")


if __name__ == "__main__":
    main()
