"""`braidmq trace`: the way of one message through a braid, hop by hop."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from braidmq.cli import output
from braidmq.cli.admin_port import AdminOptions
from braidmq.cli.errors import CliError, ExitCode, UsageError
from braidmq.cli.mqtt_client.options import check_topic, qos_option
from braidmq.cli.option_groups import with_option_groups

if TYPE_CHECKING:
    from braidmq.admin.contract import TraceAnswer, TraceHop
    from braidmq.admin.share_contract import GroupChoice

app = typer.Typer(add_completion=False)

HELP: Final = (
    "Show the way of one message, hop by hop.\n\n"
    "The broker that is asked sends a probe as it would send a publication on the topic: the same way, to the same "
    "brokers. No client gets it. Each broker that it comes to reports. Times are by the brokers' clocks. A publication "
    "of QoS 1 or 2 is sent in another way than one of QoS 0, so that every broker that has it can answer for it. "
    "Of each shared subscription one member gets it: it is told which, as things are now, and why."
)
EXAMPLES: Final = output.examples(
    ("As a tree", "braidmq trace plant1/line3/temperature"),
    ("As a picture: brokers side by side, time downwards", "braidmq trace plant1/line3/temperature --svg way.svg"),
    ("From another broker, for QoS 1", "braidmq trace plant1/line3/temperature -q 1 --admin http://127.0.0.1:9884"),
    ("For a script: the number of hops to each", "braidmq trace t --json | jq -c '.hops[] | [.to, .hop]'"),
)


@app.command("trace", help=HELP, epilog=EXAMPLES)
@with_option_groups
def trace(
    *,
    topic: Annotated[str, typer.Argument(help="A topic, without wildcards.")],
    qos: Annotated[int, qos_option("-q", "--qos", what="Of the message whose way is shown")] = 0,
    svg: Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="Draw it into this file, too.")] = None,
    at: AdminOptions,
    json_lines: output.JsonOption = False,
    color: output.ColorOption = output.Color.AUTO,
) -> None:
    check_topic(topic, "TOPIC")
    if svg is not None and svg.is_dir():
        raise UsageError(f"{svg} is a folder", "Name a file: --svg way.svg")
    answer = at.broker().ask(lambda client: client.trace(topic, qos))
    if json_lines:
        output.print_json(answer)
    else:
        _show(answer)
    if svg is not None:
        _draw(answer, svg)


def _show(answer: TraceAnswer) -> None:
    if answer.filters or not answer.groups:
        _show_way(answer)
    for group in answer.groups:
        _show_group(group, answer.origin)


def _show_group(choice: GroupChoice, origin: str) -> None:
    """Who of a shared subscription would get it, and how it is with the others."""
    from rich.tree import Tree

    to = f"to [bold]{output.plain(choice.member)}[/bold] at " if choice.member else "to " if choice.broker else ""
    where = f"{to}{output.plain(choice.broker)}" if choice.broker else f"waits at {output.plain(origin)}"
    root = Tree(f"[bold]{output.plain(choice.group)}[/bold] ({choice.policy})  {where}: {choice.why}")
    for place in choice.places:
        if place.members is None:
            state = "[yellow]does not answer[/yellow]"
        else:
            state = f"{output.counted(place.members, 'member')}, room for {place.free:,}"
        mark = "  [green]receives[/green]" if place.broker == choice.broker else ""
        root.add(f"[bold]{output.plain(place.broker)}[/bold]{_cluster(place.cluster)}  {state}{mark}")
    output.console().print(root)


def _show_way(answer: TraceAnswer) -> None:
    if not answer.filters:
        output.say(f"Nobody wants {answer.topic}: it stays at {answer.origin}.")
        return
    from rich.tree import Tree

    receivers = output.counted(answer.receivers, "broker")
    messages = output.counted(sum(1 for hop in answer.hops if hop.hop), "message")
    output.say(f"{answer.topic} from {answer.origin} ({answer.method}): {receivers}, {messages}", "bold")
    for topic_filter in answer.filters:
        some = [hop for hop in answer.hops if hop.filter == topic_filter]
        root = Tree(
            f"[bold]{output.plain(answer.origin)}[/bold]{_cluster(answer.cluster)}  to {output.plain(topic_filter)}"
        )
        branches = {answer.origin: root}
        for hop in some:
            if hop.hop:
                above = branches.get(hop.sender or "", root)
                branches.setdefault(hop.to, above.add(_line(hop)))
            elif hop.receives:
                root.label = f"{root.label}  [green]receives[/green]"
        output.console().print(root)


def _cluster(path: str) -> str:
    return f" [dim]({output.plain(path)})[/dim]" if path else ""


def _line(hop: TraceHop) -> str:
    name, what = output.plain(hop.to), "[green]receives[/green]" if hop.receives else "[dim]passes on[/dim]"
    unsure = " [dim](way not known)[/dim]" if hop.sender is None else ""
    return f"[bold]{name}[/bold]{_cluster(hop.cluster)}  hop {hop.hop}  {hop.at_ms:.2f} ms  {what}{unsure}"


def _draw(answer: TraceAnswer, path: Path) -> None:
    """A space-time diagram, as the simulator draws them."""
    from braidmq.host import Message
    from braidmq.sim.journey import Journey
    from braidmq.sim.picture import draw

    class Publication(Message, frozen=True, array_like=True):
        topic_filter: str

    seen_ms: dict[tuple[str, str], float] = {}
    journeys: list[Journey] = []
    for hop in answer.hops:
        if not hop.hop:
            continue
        sender = hop.sender or answer.origin
        sent_ms = min(seen_ms.get((hop.filter, sender), 0.0), hop.at_ms)
        seen_ms.setdefault((hop.filter, hop.to), hop.at_ms)
        message = Publication(hop.filter)
        journeys.append(Journey(sent_ms / 1000, hop.at_ms / 1000, sender, hop.to, message, hop.hop, True))
    if not journeys:
        raise CliError("there is nothing to draw: no other broker wants it", ExitCode.FAILED)
    names = list(dict.fromkeys([answer.origin, *(hop.to for hop in answer.hops)]))
    try:
        picture = draw(journeys, names, f"{answer.topic} from {answer.origin} ({answer.method})", 1e9)
        path.write_text(picture)
    except ValueError as error:
        raise CliError(f"this cannot be drawn: {error}") from None
    except OSError as error:
        raise CliError(f"{path} cannot be written: {error.strerror}", ExitCode.UNAVAILABLE) from None
    output.note(f"Drawn into {path}.")
