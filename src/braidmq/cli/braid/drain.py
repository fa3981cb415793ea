"""`braidmq drain`: takes a broker out of its braid, without its clients losing anything."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final

import typer

from braidmq.cli import output
from braidmq.cli.admin_port import AdminOptions
from braidmq.cli.errors import CliError, ExitCode, UsageError
from braidmq.cli.option_groups import with_option_groups
from braidmq.cli.progress import Bar

if TYPE_CHECKING:
    from braidmq.admin.drain_contract import DrainStatus
    from braidmq.cli.admin_port import BrokerAdmin

app = typer.Typer(add_completion=False)

TIMEOUT_S: Final = 300.0
POLL_S: Final = 0.25
"""How often the broker is asked how far it is."""
REPORT_S: Final = 1.0
"""How often that is printed, at most."""
GONE_S: Final = 20.0
"""How long a broker that is drained may take to end."""

HELP: Final = (
    "Take a broker out of its braid: its sessions, clients and retained messages go to other brokers, then it ends.\n\n"
    "First /ready on its admin port says so, and clients that connect are sent on. Then clients are told to use "
    "another server (MQTT 5, with its address if it advertises one) or disconnected (3.1.1), and sessions are given to "
    "other brokers, a bounded number at a time. The broker ends when nothing is left, or when time is up. Exit codes: "
    "0 nothing is left, 1 it cannot be drained or was taken back, 4 the time was up and something is left, which waits "
    "in its store."
)
EXAMPLES: Final = output.examples(
    ("The broker on this machine", "braidmq drain"),
    ("One elsewhere, within a minute", "braidmq drain --admin http://10.0.0.7:9883 --timeout 60"),
    ("It stays after all", "braidmq drain --cancel"),
    ("For a script: drain, then restart the machine", "braidmq drain --json && sudo reboot"),
)


@app.command("drain", help=HELP, epilog=EXAMPLES)
@with_option_groups
def drain(
    *,
    timeout_s: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", help="After so long it ends, whatever is left.")
    ] = TIMEOUT_S,
    cancel: Annotated[bool, typer.Option("--cancel", help="Take a drain back that is not over yet.")] = False,
    at: AdminOptions,
    json_lines: output.JsonOption = False,
    color: output.ColorOption = output.Color.AUTO,
) -> None:
    from braidmq.admin.drain_contract import DRAIN_S_MAX

    if not 0 < timeout_s <= DRAIN_S_MAX:
        raise UsageError(f"--timeout {timeout_s:g}", f"Give seconds, above 0 and up to {DRAIN_S_MAX:g}.")
    broker = _the_one(at)
    report = _report_json if json_lines else _report
    if cancel:
        report("cancelled", broker.ask(lambda client: client.cancel_drain()))
        return
    status = broker.ask(lambda client: client.drain(timeout_s))
    report("draining", status)
    try:
        last = _follow(broker, status, report if json_lines else None)
    except KeyboardInterrupt:
        output.note("The drain goes on; `braidmq drain --cancel` takes it back.")
        raise
    report("drained", last)
    if last.outcome != "empty":
        raise CliError(f"{last.outcome}: {_left(last)} are left", ExitCode.TIMEOUT)


def _the_one(at: AdminOptions) -> BrokerAdmin:
    brokers = at.brokers()
    if len(brokers) > 1:
        choice = "\n".join(f"  --admin {one.url}  ({one.name})" for one in brokers)
        raise UsageError(f"{len(brokers)} brokers have their folders there, and one is to be drained", choice)
    return brokers[0]


def _follow(broker: BrokerAdmin, status: DrainStatus, report: Callable[[str, DrainStatus], None] | None) -> DrainStatus:
    """Waits until the broker has gone; what it said last."""
    in_all = max(1, _count_left(status))
    shown_at = time.monotonic()
    with Bar("Draining") as bar:
        while status.state == "draining":
            time.sleep(POLL_S)
            before, status = status, _ask(broker, status)
            if bar.is_shown:
                bar.show(1 - _count_left(status) / in_all, f"{_left(status)} left")
            if report is not None and status != before and time.monotonic() - shown_at >= REPORT_S:
                shown_at = time.monotonic()
                report("draining", status)
        if status.state == "serving":
            raise CliError(status.trouble or "the drain was taken back: the broker goes on")
        _wait_until_gone(broker)
    return status


def _ask(broker: BrokerAdmin, before: DrainStatus) -> DrainStatus:
    try:
        return broker.ask(lambda client: client.drain_status())
    except CliError as error:
        if error.code is not ExitCode.UNAVAILABLE:
            raise
        text = f"the broker ended before it was drained: {_left(before)} were left"
        raise CliError(text, ExitCode.UNAVAILABLE) from None


def _wait_until_gone(broker: BrokerAdmin) -> None:
    ends_at = time.monotonic() + GONE_S
    while time.monotonic() < ends_at:
        try:
            broker.ask(lambda client: client.drain_status())
        except CliError:
            return
        time.sleep(POLL_S)
    raise CliError(f"the broker is drained, and has not ended within {GONE_S:g} s", ExitCode.TIMEOUT)


def _count_left(status: DrainStatus) -> int:
    return status.sessions + status.clients + status.retained


def _left(status: DrainStatus) -> str:
    return _counts(status.sessions, status.clients, status.retained)


def _counts(sessions: int, clients: int, retained: int) -> str:
    counted = output.counted
    return f"{counted(sessions, 'session')}, {counted(clients, 'client')} and {counted(retained, 'retained message')}"


def _report_json(event: str, status: DrainStatus) -> None:
    import msgspec

    output.print_json({"event": event, **msgspec.to_builtins(status)})


def _report(event: str, status: DrainStatus) -> None:
    if event == "draining":
        output.say(f"Draining {_left(status)}, to {', '.join(status.takers)}.")
    elif event == "cancelled":
        output.say(f"Taken back: {_left(status)} are here.")
    else:
        moved = _counts(status.sessions_moved, status.clients_moved, status.retained_moved)
        output.say(f"Drained in {status.elapsed_s:.1f} s: {moved} have gone to other brokers; {_left(status)} left.")
