"""`braidmq topics`: what is published and wanted at a broker of a braid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from braidmq.cli import output
from braidmq.cli.admin_port import AdminOptions, duration
from braidmq.cli.option_groups import with_option_groups

if TYPE_CHECKING:
    from braidmq.admin.contract import TopicsAnswer

app = typer.Typer(add_completion=False)

HELP: Final = (
    "Show the topics that clients of a broker publish, the busiest first, and the filters that they subscribe to.\n\n"
    "A topic is `open` while a client anywhere in the braid wants it, and `suspended` while none does: then nothing "
    "of it leaves the broker. Shared subscriptions are told with the brokers that have members of them. "
    "Brokers meet by covers, few broad filters that stand for all of them (method `covers`). "
    "With --data all brokers of the folder are asked."
)
EXAMPLES: Final = output.examples(
    ("The ten busiest topics", "braidmq topics -n 10"),
    ("Those below a level", "braidmq topics 'plant1/#'"),
    ("Of all sites of `braidmq up --brokers`", "braidmq topics --data data"),
    (
        "For a script: what nobody wants",
        "braidmq topics --json | jq -r '.published[] | select(.wanted + .groups == []).topic'",
    ),
)


@app.command("topics", help=HELP, epilog=EXAMPLES)
@with_option_groups
def topics(
    *,
    topic_filter: Annotated[
        str, typer.Argument(metavar="[FILTER]", help="Only topics that this filter matches.")
    ] = "#",
    count_max: Annotated[int, typer.Option("-n", "--limit", min=1, max=10_000, help="Rows at most.")] = 100,
    at: AdminOptions,
    json_lines: output.JsonOption = False,
    color: output.ColorOption = output.Color.AUTO,
) -> None:
    answers = [broker.ask(lambda client: client.topics(topic_filter, count_max)) for broker in at.brokers()]
    if json_lines:
        for answer in answers:
            output.print_json(answer)
    else:
        _show_published(answers, count_max)
        _show_interest(answers, count_max)
        _show_groups(answers, count_max)
        _show_covers(answers)


def _show_published(answers: list[TopicsAnswer], count_max: int) -> None:
    rows = [(answer.broker, topic) for answer in answers for topic in answer.published]
    rows.sort(key=lambda row: (-row[1].publications, row[1].topic))
    if not rows:
        output.say("No such topic is published.")
        return
    in_all = sum(answer.published_in_all for answer in answers)
    shown = rows[:count_max]
    from braidmq.cli.topic_cell import TopicCell

    several = len(answers) > 1
    table = output.table(
        *(["broker"] if several else []),
        *("topic", "sent", "demand", "wanted by", "idle"),
        title=f"Published{_at(answers)}: {_shown(len(shown), in_all, 'topic')}",
        numbers=("sent", "idle"),
        wrapping=("broker", "topic", "wanted by"),
    )
    for broker, topic in shown:
        wanted = ", ".join([*topic.wanted, *topic.groups])
        table.add_row(
            *([output.plain(broker)] if several else []),
            TopicCell(topic.topic, "bold"),
            f"{topic.publications:,}",
            "[green]open[/green]" if wanted else "[dim]suspended[/dim]" if topic.is_settled else "asking",
            TopicCell(wanted),
            duration(topic.idle_s),
        )
    output.console().print(table)


def _show_interest(answers: list[TopicsAnswer], count_max: int) -> None:
    rows = [(answer.broker, one) for answer in answers for one in answer.interest]
    if not rows:
        output.say("No such filter is subscribed to.")
        return
    in_all = sum(answer.interest_in_all for answer in answers)
    shown = rows[:count_max]
    from braidmq.cli.topic_cell import TopicCell

    several = len(answers) > 1
    columns = (*(["broker"] if several else []), "filter", "in the braid")
    title = f"Subscribed{_at(answers)}: {_shown(len(shown), in_all, 'filter')}"
    table = output.table(*columns, title=title, wrapping=columns)
    for broker, one in shown:
        if not one.is_effective:
            state = "[yellow]not yet[/yellow]"
        else:
            state = "[green]stands[/green]" if one.stands else "[dim]covered by a broader one[/dim]"
        brokers = [output.plain(broker)] if several else []
        table.add_row(*brokers, TopicCell(one.filter, "bold"), state)
    output.console().print(table)


def _show_groups(answers: list[TopicsAnswer], count_max: int) -> None:
    """Shared subscriptions: of these all brokers know, so one that is asked tells of members anywhere."""
    rows = [(answer.broker, one) for answer in answers for one in answer.groups]
    if not rows:
        return
    in_all = sum(answer.groups_in_all for answer in answers)
    shown = rows[:count_max]
    from braidmq.cli.topic_cell import TopicCell

    several = len(answers) > 1
    names = (*(["broker"] if several else []), "group", "policy", "members here", "members at", "waiting here")
    title = f"Shared{_at(answers)}: {_shown(len(shown), in_all, 'group')}"
    table = output.table(
        *names, title=title, numbers=("members here", "waiting here"), wrapping=("group", "members at")
    )
    for broker, one in shown:
        table.add_row(
            *([output.plain(broker)] if several else []),
            TopicCell(one.group, "bold"),
            one.policy,
            f"{one.members:,}",
            output.plain(", ".join(one.brokers)),
            f"{one.waiting:,}",
        )
    output.console().print(table)


def _show_covers(answers: list[TopicsAnswer]) -> None:
    """The few filters that a broker stands for in the braid, whatever the number of its topics and filters."""
    rows = [
        (answer.broker, cover, kind)
        for answer in answers
        if answer.covers is not None
        for kind, covers in (("published", answer.covers.publications), ("subscribed", answer.covers.wants))
        for cover in covers
    ]
    if not rows:
        return
    from braidmq.cli.topic_cell import TopicCell

    several = len(answers) > 1
    columns = (*(["broker"] if several else []), "cover", "of what is")
    title = f"Covers{_at(answers)}: {output.counted(len(rows), 'broad filter')} by which brokers meet"
    table = output.table(*columns, title=title, wrapping=columns)
    for broker, cover, kind in rows:
        brokers = [output.plain(broker)] if several else []
        table.add_row(*brokers, TopicCell(cover, "bold"), kind)
    output.console().print(table)


def _at(answers: list[TopicsAnswer]) -> str:
    return f" at {answers[0].broker}" if len(answers) == 1 else ""


def _shown(count: int, in_all: int, noun: str) -> str:
    return output.counted(in_all, noun) if count == in_all else f"{count:,} of {output.counted(in_all, noun)}"
