"""`braidmq flow`: dataflows, from the device to the cloud."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from braidmq.cli import output
from braidmq.cli.admin_port import TokenOption
from braidmq.cli.base_commands import BaseGroup
from braidmq.cli.ending import Ending
from braidmq.cli.errors import CliError, ExitCode, UsageError
from braidmq.cli.mqtt_client.options import ConnectionOptions, parse_url
from braidmq.cli.option_groups import with_option_groups

if TYPE_CHECKING:
    from braidmq.cli.flow.agent import FlowFile
    from braidmq.flows import FlowSite

HELP: Final = (
    "Dataflows: a graph of components, laid out over devices, edges and the cloud.\n\n"
    "A flow is a TOML file with its components: what each takes messages from, its message processor, how many "
    "instances it has, and how soon it has to answer. `run` at each site starts the instances that fall to it; `show` "
    "draws the flow with rates and delays; `plan` tells where everything would run."
)
EXAMPLES: Final = output.examples(
    ("A flow to begin with: bus.toml and bus.py", "braidmq flow example"),
    (
        "Where would its components run?",
        "braidmq flow plan bus.toml --at cloud1=mqtt://127.0.0.1:1885 --at cloud1/edge1=mqtt://127.0.0.1:1883",
    ),
    ("Run what falls to a site", "braidmq flow run bus.toml --at cloud1/edge1=mqtt://127.0.0.1:1883"),
    ("Look at it", "braidmq flow show bus.toml"),
)

app = typer.Typer(add_completion=False, cls=BaseGroup, help=HELP, epilog=EXAMPLES, no_args_is_help=True)

STEP_S: Final = 0.05

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The flow, as TOML.")]
AtOption = Annotated[
    list[str],
    typer.Option(
        "--at",
        metavar="CLUSTER=URL",
        help="A site: the path of its cluster, and its broker, as in cloud1/edge1=mqtt://127.0.0.1:1883. May be "
        "repeated. How deep the path is says the layer: cloud, edge, device.",
    ),
]
CpuOption = Annotated[
    float | None, typer.Option("--cpu", min=0.01, help="Processors that instances may take at each of these sites.")
]
MemoryOption = Annotated[float, typer.Option("--memory", min=1.0, help="MiB that they may take.")]

BrokersOption = Annotated[
    str | None,
    typer.Option(
        "--brokers",
        metavar="URL[,URL…]",
        help="The admin ports of all brokers: components that run on Spark read their logs. Without it, none of these "
        "is started here.",
    ),
]

_SHARED: Final = ("keep_alive_s", "timeout_s", "user", "password", "tls", "cafile", "cert", "key", "insecure")
"""Options of a connection that all sites and instances have in common."""


@app.callback()
def flow() -> None:
    pass  # makes a group of it


RUN_HELP: Final = (
    "Run the instances of a flow that fall to a site, or to several, until Ctrl-C. Every site runs this command with "
    "the same file: they find each other over the braid, agree on the layout, and take over what one of them ran when "
    "it goes."
)
RUN_EXAMPLES: Final = output.examples(
    ("At an edge", "braidmq flow run bus.toml --at cloud1/edge1=mqtt://127.0.0.1:1883"),
    (
        "Two sites from one command, to try it out",
        "braidmq flow run bus.toml --at cloud1/edge1=mqtt://127.0.0.1:1883 --at cloud1=mqtt://127.0.0.1:1885",
    ),
    (
        "In the cloud, with components on Spark",
        "braidmq flow run bus.toml --at cloud1=mqtt://127.0.0.1:1885 "
        "--brokers http://127.0.0.1:9885,http://127.0.0.1:9883",
    ),
)


@app.command("run", help=RUN_HELP, epilog=RUN_EXAMPLES)
@with_option_groups
def run(
    *,
    file: FileArgument,
    at: AtOption,
    cpu: CpuOption = None,
    memory: MemoryOption = 1024.0,
    brokers: BrokersOption = None,
    master: Annotated[
        str | None, typer.Option("--master", metavar="MASTER", help="Spark's master; this machine if not given.")
    ] = None,
    token: TokenOption = None,
    connection: ConnectionOptions,
    color: output.ColorOption = output.Color.AUTO,
) -> None:
    from braidmq.cli.flow.agent import SiteAgent
    from braidmq.cli.flow.instance import SparkPlan

    known = _load(file)
    shared = {name: getattr(connection, name) for name in _SHARED}
    spark = None if brokers is None else SparkPlan(brokers, master, token)
    sites = _sites(at, cpu, memory, has_spark=spark is not None)
    agents = [SiteAgent(known, site, url, shared, spark) for site, url in sites]
    with Ending() as ending:
        try:
            for agent in agents:
                agent.begin()
            names = ", ".join(agent.site.name for agent in agents)
            output.note(f"{known.flow.name} runs at {names}. Ctrl-C ends.", "green")
            while not ending.wait(STEP_S):
                for agent in agents:
                    agent.step()
        finally:
            for agent in agents:
                agent.end()


PLAN_HELP: Final = (
    "Tell where the components of a flow would run at these sites, and how soon each would answer by the delays that "
    "the file gives. Nothing is started, and no broker is asked."
)


PLAN_EXAMPLES: Final = output.examples(
    (
        "A cloud and an edge, with four processors each",
        "braidmq flow plan bus.toml --at cloud1=mqtt://127.0.0.1:1885 --at cloud1/edge1=mqtt://127.0.0.1:1883 --cpu 4",
    ),
)


@app.command("plan", help=PLAN_HELP, epilog=PLAN_EXAMPLES)
def plan(
    file: FileArgument,
    at: AtOption,
    cpu: CpuOption = None,
    memory: MemoryOption = 1024.0,
    brokers: BrokersOption = None,
    json_lines: output.JsonOption = False,
    color: output.ColorOption = output.Color.AUTO,
) -> None:
    from braidmq.flows import FlowError, lay_out

    flow = _load(file).flow
    try:
        layout = lay_out(flow, [site for site, _ in _sites(at, cpu, memory, has_spark=brokers is not None)])
    except FlowError as error:
        raise CliError(f"{flow.name} cannot run there: {error}") from None
    if json_lines:
        output.print_json(layout)
        return
    table = output.table("component", "layer", "answers in", "instances", title=flow.name, numbers=("answers in",))
    for component in flow.in_order():
        name = component.name
        sites = [one.site for one in layout.instances if one.component == name]
        where = ", ".join(f"{sites.count(site)} at {site}" for site in dict.fromkeys(sites))
        answers = f"{1000 * layout.response_s[name]:.0f} ms"
        table.add_row(output.plain(name), layout.layers[name], answers, where or "a client of its own")
    output.console().print(table)


SHOW_HELP: Final = (
    "Draw a flow with the rates and delays of its components, as their instances report them. Delays are from a "
    "device's message until the component's answer was acknowledged, as far as the clocks of the sites agree. The exit "
    "code is 1 if a component has no instance that reports."
)


SHOW_EXAMPLES: Final = output.examples(
    ("As it is now", "braidmq flow show bus.toml"),
    ("Again and again, from another broker", "braidmq flow show bus.toml -p 1885 --watch"),
    ("For a script: the slowest answer", "braidmq flow show bus.toml --json | jq '[.instances[].delay_p99_s] | max'"),
)


@app.command("show", help=SHOW_HELP, epilog=SHOW_EXAMPLES)
@with_option_groups
def show(
    *,
    file: FileArgument,
    connection: ConnectionOptions,
    watch: Annotated[bool, typer.Option("--watch", help="Again every two seconds, until Ctrl-C.")] = False,
    json_lines: output.JsonOption = False,
    color: output.ColorOption = output.Color.AUTO,
) -> None:
    from braidmq.cli.flow.picture import FlowReader, show_flow

    flow = _load(file).flow
    reader = FlowReader(flow, connection)
    try:
        while True:
            state = reader.read()
            if json_lines:
                output.print_json(state)
            else:
                show_flow(flow, state)
            if not watch:
                break
            time.sleep(2.0)
    finally:
        reader.close()
    idle = [one.name for one in flow if not one.is_external and not state.of(one.name)]
    if idle:
        raise CliError(f"nothing runs of {', '.join(idle)}", hint="Start it at a site: braidmq flow run --help")


EXAMPLE_HELP: Final = (
    "Write a flow to begin with into a folder: bus.toml and bus.py, the bus service of the papers. Drive recorders "
    "send frames; persons are detected, counted and stored; dangerous driving is told to the driver."
)


EXAMPLE_EXAMPLES: Final = output.examples(
    ("Into this folder", "braidmq flow example"),
    ("Into another one", "braidmq flow example bus"),
)


@app.command("example", help=EXAMPLE_HELP, epilog=EXAMPLE_EXAMPLES)
def example(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to.")] = Path(),
    color: output.ColorOption = output.Color.AUTO,
) -> None:
    from importlib.resources import files

    source = files("braidmq.flows.examples")
    names = ("bus.toml", "bus.py")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            if (folder / name).exists():
                raise CliError(f"{folder / name} is there already", hint="Name another folder.")
        for name in names:
            (folder / name).write_bytes((source / name).read_bytes())
    except OSError as error:
        raise CliError(f"{folder} cannot be written to: {error.strerror}", ExitCode.UNAVAILABLE) from None
    output.say(f"{folder / 'bus.toml'} and {folder / 'bus.py'} are there.")


def _load(path: Path) -> FlowFile:
    from braidmq.cli.flow.agent import FlowFile
    from braidmq.flows import FlowError, load_flow

    try:
        return FlowFile(load_flow(path), path.read_text(), str(path.resolve().parent))
    except FlowError as error:
        raise CliError(str(error), ExitCode.USAGE) from None


def _sites(given: list[str], cpu: float | None, memory: float, *, has_spark: bool) -> list[tuple[FlowSite, str]]:
    from braidmq.flows import FlowError, FlowSite, layer_of
    from braidmq.keys import cluster_problem

    found: dict[str, tuple[FlowSite, str]] = {}
    for text in given:
        cluster, separator, url = text.partition("=")
        if not separator:
            raise UsageError(f"--at {text} has no broker", "Write it as cloud1/edge1=mqtt://127.0.0.1:1883")
        if problem := cluster_problem(cluster):
            raise UsageError(f"--at {text}: the cluster {cluster!r} cannot be used: {problem}")
        parse_url(url)
        try:
            layer = layer_of(cluster)
        except FlowError as error:
            raise UsageError(f"--at {text}: {error}") from None
        name = cluster.replace("/", "-")
        if name in found:
            raise UsageError(f"--at {cluster} is given twice")
        found[name] = (FlowSite(name, layer, float(cpu or os.cpu_count() or 1), memory, cluster, has_spark), url)
    return list(found.values())


DEMO_HELP: Final = (
    "Run a braid of a cloud and two edges, as `braidmq up --brokers 3` does, and the example flow on it.\n\n"
    "Four simulated buses publish frames and drive from edge to edge. Persons are detected beside them, counted, and "
    "stored in the cloud; hard braking is told to the driver. Then a summary says whether all of it came, and the "
    "brokers and the flow stay until Ctrl-C."
)
DEMO_EXAMPLES: Final = output.examples(
    ("On ports 1883 to 1885", "braidmq flow demo"),
    ("For a script: free ports, JSON, and the end after the summary", "braidmq flow demo --port 0 --json --once"),
)


@app.command("demo", help=DEMO_HELP, epilog=DEMO_EXAMPLES)
def demo(
    port: Annotated[
        int,
        typer.Option("-p", "--port", min=0, max=65535, help="Of the cloud; edges count up. 0 takes any free port."),
    ] = 1883,
    data: Annotated[Path, typer.Option("-d", "--data", help="The folder of the stores.")] = Path("data"),
    brokers: Annotated[int, typer.Option("--brokers", min=2, max=20, metavar="N", help="The cloud and edges.")] = 3,
    seconds: Annotated[float, typer.Option("--seconds", min=5.0, max=3600.0, help="How long the buses drive.")] = 20.0,
    once: Annotated[bool, typer.Option("--once", help="End after the summary.")] = False,
    json_lines: output.JsonOption = False,
    color: output.ColorOption = output.Color.AUTO,
) -> None:
    from braidmq.cli.flow.demo import run_demo

    raise typer.Exit(run_demo(port, data, brokers, seconds, once=once, json_lines=json_lines))
