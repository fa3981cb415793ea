"""`braidmq bench`: how many messages a broker carries, how fast, and whether it loses any. Works with any broker."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from braidmq.cli import output
from braidmq.cli.errors import CliError, UsageError
from braidmq.cli.mqtt_client.options import check_text, check_topic, qos_option
from braidmq.cli.option_groups import with_option_groups
from braidmq.cli.progress import Bar

if TYPE_CHECKING:
    from braidmq.cli.benchmark.clients import LoadTarget
    from braidmq.cli.benchmark.load import ConnectionsResult, LoadResult, Workload

app = typer.Typer(add_completion=False)

FILES_RESERVED: Final = 64
"""File descriptors that are left for other things than connections."""

T = TypeVar("T")

_LOAD: Final = "Load"
_BROKER: Final = "Broker"

HELP: Final = (
    "Put load on a broker and measure it.\n\n"
    "A closed loop: at most --window deliveries are outstanding at any time, so the figure is what the broker "
    "sustains, not what it buffers. The exit code is 1 if messages were lost. Generator and broker share the machine "
    "if both run on it; a generator in Python may be the slower one."
)
EXAMPLES: Final = output.examples(
    ("One publisher, one subscriber, 5 seconds", "braidmq bench"),
    ("Ten to ten, each pair with a topic of its own, acknowledged", "braidmq bench -P 10 -S 10 -T 10 -q 1"),
    ("One to a hundred", "braidmq bench -S 100 -w 10000"),
    ("Latency: one message at a time", "braidmq bench -w 1"),
    ("Ten thousand idle connections, held for a minute", "braidmq bench --connections 10000 -t 60"),
    ("For a script", "braidmq bench -t 2 --json | jq .out_per_s"),
)


@dataclass(frozen=True)
class LoadOptions:
    """The load, field by field that of a Workload."""

    publishers: Annotated[
        int,
        typer.Option("-P", "--publishers", min=1, max=10_000, help="Clients that publish.", rich_help_panel=_LOAD),
    ] = 1
    subscribers: Annotated[
        int,
        typer.Option("-S", "--subscribers", min=0, max=10_000, help="Clients that subscribe.", rich_help_panel=_LOAD),
    ] = 1
    topics: Annotated[
        int,
        typer.Option(
            "-T", "--topics", min=1, max=10_000, help="Topics; clients are spread over them.", rich_help_panel=_LOAD
        ),
    ] = 1
    qos: Annotated[int, qos_option("-q", "--qos", what="Quality of service", panel=_LOAD)] = 0
    size: Annotated[
        int, typer.Option("-s", "--size", min=8, max=1_048_576, help="Bytes of a message.", rich_help_panel=_LOAD)
    ] = 100
    window: Annotated[
        int,
        typer.Option(
            "-w", "--window", min=1, max=1_000_000, help="Deliveries outstanding at once.", rich_help_panel=_LOAD
        ),
    ] = 1_000
    seconds: Annotated[
        float,
        typer.Option(
            "-t",
            "--time",
            min=0.1,
            max=86_400,
            help="Seconds to run; with --connections, to hold them.",
            rich_help_panel=_LOAD,
        ),
    ] = 5.0
    prefix: Annotated[
        str, typer.Option("-x", "--prefix", help="What the topics begin with.", rich_help_panel=_LOAD)
    ] = "bench"

    def check(self) -> None:
        check_topic(self.prefix, "--prefix")

    @property
    def workload(self) -> Workload:
        from braidmq.cli.benchmark.load import Workload

        return Workload(**asdict(self))


@dataclass(frozen=True)
class TargetOptions:
    """The broker under load."""

    host: Annotated[
        str, typer.Option("-h", "--host", help="The broker's host name or address.", rich_help_panel=_BROKER)
    ] = "127.0.0.1"
    port: Annotated[int, typer.Option("-p", "--port", min=1, max=65535, help="Its port.", rich_help_panel=_BROKER)] = (
        1883
    )
    user: Annotated[
        str | None, typer.Option("-u", "--user", "--username", help="The user's name.", rich_help_panel=_BROKER)
    ] = None
    password: Annotated[
        str | None,
        typer.Option(
            "--password",
            envvar="BRAIDMQ_PASSWORD",
            help="Other users of this machine can see it in the process list: prefer the variable.",
            rich_help_panel=_BROKER,
        ),
    ] = None

    def check(self) -> None:
        for name, value in {"--user": self.user, "--password": self.password}.items():
            if value is not None:
                check_text(value, name)
        if self.password is not None and self.user is None:
            raise UsageError("a password without a user", "MQTT 3.1.1 needs --user beside it.")


@app.command("bench", help=HELP, epilog=EXAMPLES)
@with_option_groups
def bench(
    *,
    load: LoadOptions,
    connections: Annotated[
        int | None,
        typer.Option(
            "--connections",
            min=1,
            max=1_000_000,
            help="Instead of messages: this many idle connections.",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    target: TargetOptions,
    json_lines: output.JsonOption = False,
    color: output.ColorOption = output.Color.AUTO,
) -> None:
    _raise_file_limit(load.publishers + load.subscribers if connections is None else connections)

    from braidmq.cli.benchmark.clients import LoadTarget

    broker = LoadTarget(target.host, target.port, target.user, target.password)
    shown = {"broker": str(broker)}
    if connections is not None:
        _report_connections(_hold(broker, connections, load.seconds), shown, json_lines)
    else:
        workload = load.workload
        _report_load(_measure(broker, workload), shown | asdict(workload), json_lines)


def _hold(broker: LoadTarget, connections: int, seconds: float) -> ConnectionsResult:
    from braidmq.cli.benchmark.load import hold_connections

    def on_open() -> None:
        output.note(f"{connections:,} connections are open; held for {seconds:g} s.")

    with RateBar("connections", "open", "lost") as bar:
        return _run(hold_connections(broker, connections, seconds, bar.update, on_open))


def _measure(broker: LoadTarget, workload: Workload) -> LoadResult:
    from braidmq.cli.benchmark.load import ClosedLoop

    async def measure() -> LoadResult:
        return await ClosedLoop(broker, workload).run(bar.update)

    with RateBar("messages", "in", "out") as bar:
        return _run(measure())


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    import uvloop

    return uvloop.run(coroutine)


def _raise_file_limit(connections: int) -> None:
    """Each connection is an open file: takes as many as the system grants."""
    import resource

    wanted = connections + FILES_RESERVED
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and wanted > hard:
        raise UsageError(
            f"{connections} connections, but this system allows {hard - FILES_RESERVED}",
            f"Raise the limit: ulimit -Hn {wanted}",
        )
    if soft != resource.RLIM_INFINITY and wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _report_load(result: LoadResult, workload: dict[str, Any], json_lines: bool) -> None:
    if json_lines:
        output.print_json(workload | {name: _rounded(value) for name, value in asdict(result).items()})
    else:
        from rich.table import Table

        title = (
            f"{workload['publishers']} → {workload['subscribers']}, {output.counted(workload['topics'], 'topic')}, "
            f"QoS {workload['qos']}, "
            f"{workload['size']} bytes, window {workload['window']}, {result.seconds:.1f} s"
        )
        table = Table(title=title, title_justify="left")
        for name in ("in/s", "out/s", "p50", "p99", "max", "lost"):
            table.add_column(name, justify="right")
        table.add_row(
            f"{result.in_per_s:,.0f}",
            f"{result.out_per_s:,.0f}",
            *(_duration(value) for value in (result.p50_us, result.p99_us, result.max_us)),
            f"[red]{result.lost:,}[/red]" if result.lost else "0",
        )
        output.console().print(table)
    if result.lost:
        raise CliError(f"{result.lost} of {result.lost + result.received} deliveries did not arrive")
    if result.unacknowledged:
        raise CliError(f"{result.unacknowledged} publications were not acknowledged")


def _report_connections(result: ConnectionsResult, workload: dict[str, Any], json_lines: bool) -> None:
    if json_lines:
        output.print_json(workload | {name: _rounded(value) for name, value in asdict(result).items()})
    else:
        output.say(
            f"{result.connections:,} connections in {result.seconds:.2f} s: {result.connects_per_s:,.0f} a second; "
            f"{result.lost:,} lost."
        )
    if result.lost:
        raise CliError(f"the broker closed {result.lost} of {result.connections} connections")


def _rounded(value: float) -> float:
    return round(value, 3) if isinstance(value, float) else value


def _duration(microseconds: float) -> str:
    return f"{microseconds:,.0f} µs" if microseconds < 10_000 else f"{microseconds / 1000:,.1f} ms"


class RateBar(Bar):
    """A bar with rates a second beside it."""

    def __init__(self, what: str, first: str, second: str) -> None:
        super().__init__(what)
        self._labels = first, second
        self._before = (0.0, 0, 0)

    def update(self, part: float, first: int, second: int) -> None:
        if not self.is_shown:
            return
        import time

        now = time.monotonic()
        then, first_then, second_then = self._before
        if now - then < 0.2:
            return
        self._before = (now, first, second)
        rates = ""
        if then:
            rates = (
                f"{(first - first_then) / (now - then):,.0f} {self._labels[0]}/s  "
                f"{(second - second_then) / (now - then):,.0f} {self._labels[1]}/s"
            )
        self.show(part, rates)
