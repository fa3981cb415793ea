"""The command `braidmq demo`: the brokers in this process, as `braidmq up --brokers` runs them; the rest in another."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal
from urllib.parse import urlsplit

import typer

from braidmq.cli import output
from braidmq.cli.demo.plan import COMPUTE_MAX, LOGGED, PROCESSOR, DemoPlan, DemoSite
from braidmq.cli.demo.process import DemoProcess
from braidmq.cli.errors import UsageError
from braidmq.cli.up import (
    BESIDE,
    ENDS,
    SITES_MAX,
    announce_sites,
    announce_sites_json,
    broker_environment,
    own_name,
    read_sites,
    serve_braid,
    start_errors,
)

if TYPE_CHECKING:
    from braidmq.config.settings import Config
    from braidmq.server.sites import Site

app = typer.Typer(add_completion=False)

SECONDS: Final = 20.0

HELP: Final = (
    "Run a braid of three sites, as `braidmq up --brokers 3` does, and show on it what BraidMQ is for.\n\n"
    "Six simulated buses publish how many passengers they have, as MQTT clients of two sites. A small Python function "
    "finds the crowded ones: beside the brokers for as many buses as there is room for, and on Spark for the others. A "
    "control room at the third site gets the alerts of both. Then a summary says what happened where, and the brokers "
    "stay until Ctrl-C.\n\n"
    "Clients of yours are welcome meanwhile: the demonstration keeps to topics below bus/. Where Spark or Java is "
    "missing, that is said, and all is done at the edge. Exit codes are those of `up`; with --once 1 if an alert is "
    "missing."
)
EXAMPLES: Final = output.examples(
    ("All of it, on ports 1883 to 1885", "braidmq demo"),
    ("Without Spark, which starts in some seconds less", "braidmq demo --no-spark"),
    (
        "For a script: free ports, JSON, and the end after the summary",
        "braidmq demo --port 0 --admin-port 0 --json --once",
    ),
    ("The brokers alone", "braidmq up --brokers 3"),
)


@app.command("demo", help=HELP, epilog=EXAMPLES)
def demo(
    port: Annotated[
        int,
        typer.Option(
            "-p", "--port", min=0, max=65535, help="Of the first site; further sites count up. 0 takes any free port."
        ),
    ] = 1883,
    admin_port: Annotated[
        int | None,
        typer.Option(
            "--admin-port",
            min=0,
            max=65535,
            help="Of the first site; further sites count up. 8000 above --port if not given.",
        ),
    ] = None,
    data: Annotated[Path, typer.Option("-d", "--data", help="The folder of the stores and logs.")] = Path("data"),
    brokers: Annotated[int, typer.Option("--brokers", min=1, max=SITES_MAX, metavar="N", help="Sites.")] = 3,
    seconds: Annotated[
        float,
        typer.Option("--seconds", min=1.0, max=3600.0, help="How long the buses drive, once Spark has started."),
    ] = SECONDS,
    spark: Annotated[bool, typer.Option("--spark/--no-spark", help="With Spark, if it is installed.")] = True,
    master: Annotated[
        str | None, typer.Option("--master", metavar="MASTER", help="Spark's master; this machine if not given.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="End after the summary.")] = False,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], typer.Option("--log-level", help="What brokers log.")
    ] = "warning",
    json_lines: output.JsonOption = False,
    color: output.ColorOption = output.Color.AUTO,
) -> None:
    if master is not None and not spark:
        raise UsageError("--master together with --no-spark", "Leave one of the two out.")
    from braidmq.config.load import load

    has_log = all(find_spec(name) for name in ("pyarrow", "numpy"))
    no_spark = _why_no_spark(has_log) if spark else "it was not asked for (--no-spark)"
    overrides: dict[str, object] = {"listeners[0].port": port, "admin.port": admin_port, "data": str(data)}
    overrides |= {"log.level": log_level, "log.topics": [LOGGED] if has_log else None}
    overrides |= {"processor": [{"file": PROCESSOR}]}
    process = DemoProcess("braidmq.cli.demo.demonstration", once=once)

    def read_all() -> list[Config]:
        """At first the edge has room for some buses only, if Spark is there for the rest; in the end for all."""
        room = None if no_spark or process.has_room else COMPUTE_MAX
        settings = {"processing.compute_max": room}
        return read_sites(brokers, partial(load, None, broker_environment()), overrides, settings)

    def announce(sites: list[Site]) -> None:
        if json_lines:
            announce_sites_json(sites)
        else:
            announce_sites(sites, "It ends after the summary, or with Ctrl-C." if once else ENDS)
        admin = read_all()[0].admin
        process.start(
            DemoPlan(
                [_site(site) for site in sites],
                None if admin is None else admin.token,
                seconds,
                no_spark,
                master,
                str(data),
                own_name(),
                json_lines,
                once,
            )
        )

    try:
        with start_errors(BESIDE.format("demo")):
            code = serve_braid(read_all, announce)
    finally:
        result = process.end()
    raise typer.Exit(code or (result if once else 0))


def _why_no_spark(has_log: bool) -> str:
    """What is missing, as far as it can be seen without starting it; empty if nothing is."""
    from braidmq.pipeline.errors import INSTALL
    from braidmq.pipeline.launch.java import JavaMissing, find

    if not has_log or not find_spec("pyspark"):
        return f"it is not installed: {INSTALL}"
    try:
        find()
    except JavaMissing as error:
        return f"{error.text}. {error.hint}"
    return ""


def _site(site: Site) -> DemoSite:
    def address(scheme: str) -> str:
        return next(one for one in site.addresses if urlsplit(one).scheme == scheme)

    return DemoSite(site.name, address("mqtt"), address("http"))
