"""`braidmq demand`: who wants a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from braidmq.cli import output
from braidmq.cli.admin_port import AdminOptions
from braidmq.cli.errors import CliError
from braidmq.cli.mqtt_client.options import check_topic
from braidmq.cli.option_groups import with_option_groups

if TYPE_CHECKING:
    from braidmq.admin.contract import DemandAnswer

app = typer.Typer(add_completion=False)

HELP: Final = (
    "Show which brokers have clients that want a topic, and by which filters.\n\n"
    "All brokers that could have such clients are asked. Clients that are away, "
    "but whose session waits, count. Nothing is published. The exit code is 1 if not all could be asked."
)
EXAMPLES: Final = output.examples(
    ("Who wants it?", "braidmq demand plant1/line3/temperature"),
    ("How many brokers?", "braidmq demand plant1/line3/temperature --json | jq '.brokers | length'"),
)


@app.command("demand", help=HELP, epilog=EXAMPLES)
@with_option_groups
def demand(
    *,
    topic: Annotated[str, typer.Argument(help="A topic, without wildcards.")],
    at: AdminOptions,
    json_lines: output.JsonOption = False,
    color: output.ColorOption = output.Color.AUTO,
) -> None:
    check_topic(topic, "TOPIC")
    answer = at.broker().ask(lambda client: client.demand(topic))
    if json_lines:
        output.print_json(answer)
    else:
        _show(answer)
    if not answer.is_complete:
        raise CliError("not all brokers could be asked in time: there may be more")


def _show(answer: DemandAnswer) -> None:
    if not answer.brokers:
        output.say(f"Nobody wants {answer.topic}: publications on it stay at their broker.")
        return
    title = f"{answer.topic} is wanted at {output.counted(len(answer.brokers), 'broker')}"
    from braidmq.cli.topic_cell import TopicCell

    columns = ("broker", "cluster", "by")
    table = output.table(*columns, title=title, wrapping=columns)
    for broker in answer.brokers:
        table.add_row(
            f"[bold]{output.plain(broker.name)}[/bold]",
            output.plain(broker.cluster),
            TopicCell(", ".join(broker.filters)),
        )
    output.console().print(table)
