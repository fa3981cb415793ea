"""`braidmq ring`: the brokers of a braid, in the order of their keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import typer

from braidmq.cli import output
from braidmq.cli.admin_port import AdminOptions, duration
from braidmq.cli.errors import CliError
from braidmq.cli.option_groups import with_option_groups

if TYPE_CHECKING:
    from braidmq.admin.ring_contract import RingMember

app = typer.Typer(add_completion=False)

HELP: Final = (
    "Show the brokers of a braid, in the order of their keys.\n\n"
    "One broker is asked over its admin port; it walks around the ring, from neighbour to neighbour, and tells what "
    "each of them says. A broker is healthy if it answers and its neighbours agree that they are. The exit code is 1 "
    "if one is not: after a crash it takes some seconds until the ring is mended. Where `braid.copies` asks for "
    "copies of a broker's store, it is told how many there are, and at which brokers."
)
EXAMPLES: Final = output.examples(
    ("Of the braid that `braidmq up --brokers 3` started", "braidmq ring"),
    ("By a broker elsewhere, which asks for a token", "BRAIDMQ_TOKEN=secret braidmq ring --admin http://10.0.0.7:9883"),
    ("By the folder of the braid, whatever its ports are", "braidmq ring --data data"),
    (
        "For a script: the names of all that are not healthy",
        "braidmq ring --json | jq -r 'select(.is_healthy|not).name'",
    ),
)


@app.command("ring", help=HELP, epilog=EXAMPLES)
@with_option_groups
def ring(
    *,
    at: AdminOptions,
    json_lines: output.JsonOption = False,
    color: output.ColorOption = output.Color.AUTO,
) -> None:
    answer = at.broker().ask(lambda client: client.ring())
    if json_lines:
        for broker in answer.brokers:
            output.print_json(broker)
    else:
        _show(answer.brokers)
        for broker in answer.brokers:
            _show_copies(broker)
        for broker in answer.brokers:
            _show_unreached(broker)
    sick = [broker.name for broker in answer.brokers if not broker.is_healthy]
    if sick:
        raise CliError(f"{output.counted(len(sick), 'broker')} not healthy: {', '.join(sick)}")
    if not answer.is_whole:
        raise CliError("the walk did not come around: the ring is being mended")


def _show(brokers: list[RingMember]) -> None:
    with_names = any(broker.name != broker.address for broker in brokers)
    with_clusters = any(broker.cluster for broker in brokers)
    texts = ("broker", *(["cluster"] if with_clusters else []), *(["address"] if with_names else []))
    figures = ("keys", "table", "links", "age")
    title = output.counted(len(brokers), "broker")
    table = output.table(
        *texts, *figures, "health", title=title, numbers=figures, wrapping=texts if with_clusters else ()
    )
    for broker in brokers:
        counts = (broker.keys, broker.routing_entries, broker.links)
        table.add_row(
            f"[bold]{output.plain(broker.name)}[/bold]",
            *([output.plain(broker.cluster or "")] if with_clusters else []),
            *([output.plain(broker.address)] if with_names else []),
            *(f"{count:,}" if isinstance(count, int) else "" for count in counts),
            duration(broker.age_s) if isinstance(broker.age_s, float) else "",
            _health(broker),
        )
    output.console().print(table)


def _show_copies(broker: RingMember) -> None:
    """How many of how many, and at which other brokers; nothing if none are wanted."""
    if isinstance(broker.copies, int) and isinstance(broker.copies_wanted, int) and broker.copies_wanted > 1:
        where = "".join(f", one at {one}" for one in broker.copies_at or ())
        text = f"{broker.name} has {broker.copies} of {broker.copies_wanted} copies of its store: its own{where}"
        output.say(text, "" if broker.copies >= broker.copies_wanted else "yellow")


def _show_unreached(broker: RingMember) -> None:
    for other in broker.unreached or ():
        way = "no broker was found that does" if other.by is None else f"what is for it goes by {other.by}"
        output.say(f"{broker.name} does not reach {other.broker}: {way}", "yellow")


def _health(broker: RingMember) -> str:
    if broker.is_healthy:
        return "[green]healthy[/green]"
    if not broker.answers:
        return "[red]silent[/red]"
    return "[yellow]mending[/yellow]" if broker.is_in else "[yellow]not in[/yellow]"
