"""`braidmq up`: one broker in the foreground, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import os
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

import typer

from braidmq.cli import output
from braidmq.cli.errors import CliError, ExitCode, UsageError

app = typer.Typer(add_completion=False)

CLIENT_VARIABLES: Final = ("BRAIDMQ_PASSWORD",)
"""What `pub` and `sub` read; to the broker they would look like keys of its configuration."""

HELP: Final = (
    "Run a broker in the foreground.\n\n"
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
    ("A braid of two: the first, and one that joins it", "braidmq up --braid 127.0.0.1:7883"),
    ("", "braidmq up --port 1884 --data data2 --join 127.0.0.1:7883"),
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
    overrides |= _parse_settings(settings or [])

    import uvloop

    from braidmq.broker.config.load import load
    from braidmq.broker.config.problems import ConfigError
    from braidmq.broker.server import serve

    environ = {name: value for name, value in os.environ.items() if name not in CLIENT_VARIABLES}
    read = partial(load, None if config is None else str(config), environ, overrides)
    try:
        code = uvloop.run(serve(read(), _announce_json if json_lines else _announce, read))
    except ConfigError as error:
        raise CliError(
            "\n".join(["the configuration cannot be used:", *(f"  • {problem}" for problem in error.problems)]),
            ExitCode.USAGE,
        ) from None
    except OSError as error:
        raise CliError(f"the broker cannot start: {error}", ExitCode.UNAVAILABLE) from None
    raise typer.Exit(code)


def _parse_settings(settings: list[str]) -> dict[str, object]:
    parsed: dict[str, object] = {}
    for setting in settings:
        key, separator, value = setting.partition("=")
        if not separator or not key.strip():
            raise UsageError(f"--set {setting} has no `=`", "Write --set limits.receive_max=64")
        parsed[key.strip()] = value.strip()
    return parsed


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
    output.say("Ctrl-C ends it.", "dim")


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
