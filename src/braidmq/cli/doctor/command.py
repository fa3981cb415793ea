"""`braidmq doctor`: whether this machine has what the broker and the pipeline need, and what to do where not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from braidmq.cli import output
from braidmq.cli.doctor import checks
from braidmq.cli.doctor.checks import CheckResult, CheckState
from braidmq.cli.errors import ExitCode

if TYPE_CHECKING:
    from braidmq.config.settings import Config

app = typer.Typer(add_completion=False)

HELP: Final = (
    "Check what BraidMQ needs of this machine: Python, Java and Spark, ports, open files, disk and clock.\n\n"
    "Nothing is changed. Exit codes: 0 all is well, or nothing worse than a warning; 1 something must be fixed."
)
EXAMPLES: Final = output.examples(
    ("Before the first `braidmq up`", "braidmq doctor"),
    ("For the ports and limits of a configuration", "braidmq doctor --config braidmq.toml"),
    ("Also start Spark and run a query", "braidmq doctor --spark"),
    ("On a cluster", "braidmq doctor --spark --master spark://spark.example.org:7077"),
    ("For a script: what must be fixed", "braidmq doctor --json | jq -r 'select(.state == \"fix\").fix'"),
)
_STYLES: Final = {
    CheckState.OK: "green",
    CheckState.NOTE: "cyan",
    CheckState.WARNING: "yellow",
    CheckState.FIX: "bold red",
}


@app.command("doctor", help=HELP, epilog=EXAMPLES)
def doctor(
    config: Annotated[
        Path | None, typer.Option("-c", "--config", envvar="BRAIDMQ_CONFIG", help="A broker's configuration (TOML).")
    ] = None,
    port: Annotated[
        int | None, typer.Option("-p", "--port", min=0, max=65535, help="The port of the first listener.")
    ] = None,
    data: Annotated[Path | None, typer.Option("-d", "--data", help="The folder of the store.")] = None,
    with_spark: Annotated[
        bool, typer.Option("--spark", help="Also start Spark and run a query; takes a while.")
    ] = False,
    master: Annotated[
        str | None, typer.Option("--master", help="With --spark: Spark's master; this machine if not given.")
    ] = None,
    json_lines: output.JsonOption = False,
    color: output.ColorOption = output.Color.AUTO,
) -> None:
    findings = list(_findings(config, port, data, with_spark or master is not None, master))
    if json_lines:
        for finding in findings:
            output.print_json(asdict(finding))
    else:
        _show(findings)
    if any(finding.state is CheckState.FIX for finding in findings):
        raise typer.Exit(ExitCode.FAILED)


def _findings(
    config: Path | None, port: int | None, data: Path | None, with_spark: bool, master: str | None
) -> Iterator[CheckResult]:
    needed = with_spark or find_spec("pyspark") is not None
    yield checks.python()
    yield checks.java(needed=needed)
    packages = checks.spark(needed=needed)
    yield packages
    if with_spark and packages.state is not CheckState.FIX:
        yield checks.spark_query(master)
    loaded = _load(config, port, data)
    if isinstance(loaded, CheckResult):
        yield loaded
    else:
        yield from checks.ports(loaded)
        yield checks.files(loaded)
        yield checks.disk(loaded)
    yield checks.clock()


def _load(config: Path | None, port: int | None, data: Path | None) -> Config | CheckResult:
    from braidmq.cli.up import broker_environment
    from braidmq.config.load import load
    from braidmq.config.problems import ConfigError

    overrides = {"listeners[0].port": port, "data": None if data is None else str(data)}
    try:
        return load(None if config is None else str(config), broker_environment(), overrides)
    except ConfigError as error:
        problems = "; ".join(str(problem) for problem in error.problems)
        return CheckResult("configuration", CheckState.FIX, problems, "docs/configuration.md has every key")


def _show(findings: list[CheckResult]) -> None:
    table = output.table("check", "state", "found, and what to do", wrapping=("check", "found, and what to do"))
    for finding in findings:
        table.add_row(
            output.plain(finding.check),
            f"[{_STYLES[finding.state]}]{finding.state}[/]",
            output.plain(finding.found) + (f"\n[italic]{output.plain(finding.fix)}[/italic]" if finding.fix else ""),
        )
    output.console().print(table)
    states = [finding.state for finding in findings]
    if CheckState.FIX in states:
        output.say(f"{output.counted(states.count(CheckState.FIX), 'thing')} must be fixed.", "bold red")
    elif CheckState.WARNING in states:
        output.say(f"It will run, with {output.counted(states.count(CheckState.WARNING), 'warning')}.", "yellow")
    else:
        output.say("All is well.", "bold green")
