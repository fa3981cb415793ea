"""`braidmq up`: a broker in the foreground, or a braid of several, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal
from urllib.parse import urlsplit

import typer

from braidmq.cli import output
from braidmq.cli.admin_port import ADMIN_URL
from braidmq.cli.errors import CliError, ExitCode, UsageError

if TYPE_CHECKING:
    from braidmq.config.settings import Config
    from braidmq.server.sites import Site

app = typer.Typer(add_completion=False)

CLIENT_VARIABLES: Final = ("BRAIDMQ_PASSWORD", "BRAIDMQ_TOKEN")
"""Variables of other commands; to the broker they would look like keys of its configuration."""

SITES_MAX: Final = 64
ADMIN_ABOVE: Final = 8000
"""By default, the admin port of a site is so far above the port of its clients."""

HELP: Final = (
    "Run a broker in the foreground, or a braid of several with --brokers.\n\n"
    "Without options it listens on loopback, port 1883, and keeps its store in ./data. Options go over BRAIDMQ_… "
    "variables, those over the configuration file. SIGTERM and Ctrl-C end it cleanly, SIGHUP reads the configuration "
    "again. Exit codes: 0 ended as asked, 2 the configuration is wrong, 3 it cannot listen or use its store."
)
EXAMPLES: Final = output.examples(
    ("A broker to try things out", "braidmq up"),
    ("On another port, with its store elsewhere", "braidmq up --port 1884 --data /var/lib/braidmq"),
    ("With metrics and health on http://127.0.0.1:9883", "braidmq up --admin-port 9883"),
    (
        "With a configuration file, and one key of it changed",
        "braidmq up --config braidmq.toml --set limits.receive_max=64",
    ),
    ("For all machines, with passwords", "braidmq up --host 0.0.0.0 --set authentication.password_file=users.txt"),
    ("Three sites in one process, on ports 1883 to 1885", "braidmq up --brokers 3"),
    (
        "A braid of two processes: the first, and one that joins it",
        "braidmq up --braid 127.0.0.1:7883\nbraidmq up --port 1884 --data data2 --join 127.0.0.1:7883",
    ),
    ("In a script: any free port, told in JSON when ready", "braidmq up --port 0 --json"),
)


@app.command("up", help=HELP, epilog=EXAMPLES)
def up(
    host: Annotated[
        str | None, typer.Option("-h", "--host", help="The address to listen on; loopback if not given.")
    ] = None,
    port: Annotated[
        int | None, typer.Option("-p", "--port", min=0, max=65535, help="The port; 0 takes any free one.")
    ] = None,
    data: Annotated[Path | None, typer.Option("-d", "--data", help="The folder of the store.")] = None,
    config: Annotated[
        Path | None, typer.Option("-c", "--config", envvar="BRAIDMQ_CONFIG", help="The configuration file (TOML).")
    ] = None,
    admin_port: Annotated[
        int | None,
        typer.Option("--admin-port", min=0, max=65535, help="Metrics, health and readiness over HTTP, on this port."),
    ] = None,
    brokers: Annotated[
        int | None,
        typer.Option(
            "--brokers",
            min=1,
            max=SITES_MAX,
            metavar="N",
            help="A braid of N sites in one process: ports and folders count up; admin ports are 8000 above.",
        ),
    ] = None,
    join: Annotated[
        list[str] | None,
        typer.Option("--join", metavar="HOST:PORT", help="A broker of a braid to join; may be repeated."),
    ] = None,
    braid: Annotated[
        str | None,
        typer.Option("--braid", metavar="HOST:PORT", help="Where other brokers reach this one; port 0 takes any."),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", help="Where this broker stands, as a path: cloud1/edge1.")
    ] = None,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"] | None, typer.Option("--log-level", help="What to log.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any key of the configuration; may be repeated."),
    ] = None,
    json_lines: output.JsonOption = False,
    color: output.ColorOption = output.Color.AUTO,
) -> None:
    overrides: dict[str, object] = {
        "listeners[0].host": host,
        "listeners[0].port": port,
        "data": None if data is None else str(data),
        "admin.port": admin_port,
        "log.level": log_level,
        "braid.listen": braid if braid is not None or not join else "127.0.0.1:0",
        "braid.join": join,
        "braid.cluster": cluster,
    }
    parsed = _parse_settings(settings or [])
    if brokers is not None and (braid is not None or cluster is not None):
        raise UsageError("--brokers together with --braid or --cluster", "Each site has its own address and cluster.")

    import uvloop

    from braidmq.config.load import load
    from braidmq.server.server import serve

    environ = broker_environment()
    path = None if config is None else str(config)
    if brokers is None:
        with start_errors():
            read = partial(load, path, environ, overrides | parsed)
            code = uvloop.run(serve(read(), _announce_json if json_lines else _announce, read))
    else:
        with start_errors(BESIDE.format("up --brokers 3")):
            read_all = partial(read_sites, brokers, partial(load, path, environ), overrides, parsed)
            code = serve_braid(read_all, announce_sites_json if json_lines else announce_sites)
    raise typer.Exit(code)


BESIDE: Final = (
    "braidmq {} --port 2883 --data data2\n"
    "or, with make: make run PORT=2883 DATA=data2\n"
    "Admin ports follow --port, 8000 above it."
)
"""How to run two braids on one machine."""


def broker_environment() -> dict[str, str]:
    """The variables that a broker reads."""
    return {name: value for name, value in os.environ.items() if name not in CLIENT_VARIABLES}


@contextmanager
def start_errors(beside: str = "") -> Iterator[None]:
    """Turns what keeps a broker from starting into a CliError. `beside` is how to run it beside another one."""
    from braidmq.config.problems import ConfigError

    try:
        yield
    except ConfigError as error:
        raise CliError(
            "\n".join(["the configuration cannot be used:", *(f"  • {problem}" for problem in error.problems)]),
            ExitCode.USAGE,
        ) from None
    except OSError as error:
        hint = ""
        if beside and getattr(error, "is_taken", False):
            hint = f"To run beside another one: {beside}"
        elif error.errno == errno.EADDRINUSE:
            hint = "Choose another address with --braid or `braid.listen` in the configuration."
        raise CliError(f"the broker cannot start: {error}", ExitCode.UNAVAILABLE, hint) from None


def serve_braid(read_all: Callable[[], list[Config]], announce: Callable[[list[Site]], None]) -> int:
    """Runs a broker for each configuration, in one braid, until SIGTERM or Ctrl-C; returns the exit code."""
    import uvloop

    from braidmq.server.sites import serve_sites

    return uvloop.run(serve_sites(read_all(), announce, read_all))


def _parse_settings(settings: list[str]) -> dict[str, object]:
    parsed: dict[str, object] = {}
    for setting in settings:
        key, separator, value = setting.partition("=")
        if not separator or not key.strip():
            raise UsageError(f"--set {setting} has no `=`", "Write --set limits.receive_max=64")
        parsed[key.strip()] = value.strip()
    return parsed


def read_sites(
    count: int,
    load: Callable[[Mapping[str, object], Mapping[str, object]], Config],
    overrides: Mapping[str, object],
    settings: Mapping[str, object],
    clusters: Sequence[str] = (),
) -> list[Config]:
    """The configuration of each site: what was asked for, with ports that count up and a folder of its own; and of a
    cluster of its own, if none are given."""
    first = load({**overrides, **settings}, {})
    admin = load({**overrides, **settings}, {"admin.port": _above(first.listeners[0].port, count)}).admin
    assert admin is not None
    found = []
    for number in range(count):
        own: dict[str, object] = {
            "listeners[0].port": _following(first.listeners[0].port, number),
            "admin.port": _following(admin.port, number),
            "data": str(Path(first.data) / f"site{number + 1}"),
            "braid.listen": "127.0.0.1:0",
            "braid.name": f"site{number + 1}",
            "braid.cluster": clusters[number] if clusters else f"site{number + 1}",
        }
        if first.listeners[0].port and first.listeners[0].advertise is None:  # to be sent from one site to another
            own["listeners[0].advertise"] = f"127.0.0.1:{own['listeners[0].port']}"
        found.append(load({**overrides, **settings, **own}, {}))
    return found


def _above(port: int, count: int) -> int:
    """The first admin port for so many sites; below the clients' ports where there are no higher ones."""
    if not port:
        return 0
    return port + ADMIN_ABOVE if port + ADMIN_ABOVE + count <= 65536 else port - ADMIN_ABOVE


def _following(first: int, number: int) -> int:
    """The port of a further site; 0 stays 0, any free port."""
    if first and first + number > 65535:
        raise UsageError(f"there is no port {first + number}", "Choose a lower --port or --admin-port.")
    return first + number if first else 0


def announce_sites_json(sites: list[Site]) -> None:
    told = [{"name": site.name, "addresses": site.addresses} for site in sites]
    addresses = [address for site in sites for address in site.addresses]
    output.print_json({"event": "ready", "pid": os.getpid(), "addresses": addresses, "sites": told})


ENDS: Final = "Ctrl-C ends it."


def announce_sites(sites: list[Site], ends: str = ENDS) -> None:
    output.say(f"BraidMQ is ready, a braid of {output.counted(len(sites), 'site')}:", "bold green")
    for site in sites:
        output.say(f"  {site.name}  {'  '.join(site.addresses)}", "cyan")
    clients = [address for site in sites for address in site.addresses if urlsplit(address).scheme == "mqtt"]
    if clients:
        program = own_name()
        output.say("Try it, in two other terminals: listen at one site, speak at another:")
        output.say(f"  {program} sub{connection_options(clients[-1])} 'hello/#'", "bold")
        output.say(f"  {program} pub{connection_options(clients[0])} hello/world 'Hi there'", "bold")
        admin = [one for one in sites[0].addresses if urlsplit(one).scheme == "http"]
        where = "" if admin == [ADMIN_URL] else f" --admin {admin[0]}" if admin else ""
        output.say("See the braid, and the way of a message:")
        output.say(f"  {program} ring{where}", "bold")
        output.say(f"  {program} trace{where} hello/world", "bold")
    output.say(ends, "dim")


def _announce_json(addresses: list[str]) -> None:
    output.print_json({"event": "ready", "pid": os.getpid(), "addresses": addresses})


def _announce(addresses: list[str]) -> None:
    output.say("BraidMQ is ready:", "bold green")
    for address in addresses:
        output.say(f"  {address}", "cyan")
    clients = [address for address in addresses if urlsplit(address).scheme in ("mqtt", "unix", "ws", "mqtts", "wss")]
    if clients:
        where = connection_options(clients[0])
        program = own_name()
        output.say("Try it, in two other terminals:")
        output.say(f"  {program} sub{where} 'hello/#'", "bold")
        output.say(f"  {program} pub{where} hello/world 'Hi there'", "bold")
    output.say(ENDS, "dim")


def own_name() -> str:
    """What to type to run this program again from here: its name if that is enough, else its path."""
    if shutil.which("braidmq") is not None:
        return "braidmq"
    started_as_module = Path(sys.argv[0]).name == "__main__.py"
    path = sys.executable if started_as_module else sys.argv[0]
    nearby = os.path.relpath(path)
    return (path if nearby.startswith("..") else nearby) + (" -m braidmq" if started_as_module else "")


def connection_options(address: str) -> str:
    """What `pub` and `sub` need to find an address: nothing for the default one."""
    parts = urlsplit(address)
    if parts.scheme == "mqtt" and parts.hostname in ("127.0.0.1", "0.0.0.0", "::"):  # noqa: S104
        return "" if parts.port == 1883 else f" -p {parts.port}"
    return f" --url {address}"
