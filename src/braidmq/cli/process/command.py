"""`braidmq process`: message processors of a broker, where their topics are processed, and a way to try one out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from braidmq.cli import output
from braidmq.cli.admin_port import AdminOptions, BrokerAdmin, TokenOption
from braidmq.cli.base_commands import BaseGroup
from braidmq.cli.errors import CliError, ExitCode, UsageError
from braidmq.cli.mqtt_client.options import ConnectionOptions, check_topic
from braidmq.cli.option_groups import with_option_groups

if TYPE_CHECKING:
    import msgspec

    from braidmq.admin.contract import AssignedTopic, ProcessingStatus, ProcessorStatus

HELP: Final = (
    "Message processors: Python functions over the last messages of a topic, run beside a broker.\n\n"
    "`list` and `where` show those of brokers that run, `move` puts a topic on Spark or takes it back, `run` tries a "
    "processor out from the command line, and `spark` runs one as a query on Spark."
)
EXAMPLES: Final = output.examples(
    ("What runs, and how", "braidmq process list"),
    ("Try a file out: what would it say to what is published now?", "braidmq process run alerts.py"),
    ("Where is a topic processed?", "braidmq process where bus/7/frames"),
    ("Leave a topic to Spark", "braidmq process move passengers bus/7/frames spark"),
    (
        "Do on Spark what the edges leave to it",
        "braidmq process spark alerts.py --delegated --brokers http://edge1:9883,http://edge2:9883",
    ),
)

app = typer.Typer(add_completion=False, cls=BaseGroup, help=HELP, epilog=EXAMPLES, no_args_is_help=True)

_STYLES: Final = {"running": "green", "starting": "yellow", "waiting": "yellow", "refused": "red", "stopped": "dim"}


@app.callback()
def process() -> None:
    pass  # makes a group of it


# What runs

LIST_HELP: Final = (
    "Show the processors of a broker: what they take and say, how much they have done, and where their topics are "
    "processed. With --data all brokers of the folder are asked. The exit code is 1 if one of them does not run."
)


LIST_EXAMPLES: Final = output.examples(
    ("Of the broker on this machine", "braidmq process list"),
    ("Of all sites of `braidmq up --brokers`", "braidmq process list --data data"),
    (
        "For a script: all that do not run",
        "braidmq process list --json | jq -r '.processors[] | select(.state != \"running\").name'",
    ),
)


@app.command("list", help=LIST_HELP, epilog=LIST_EXAMPLES)
@with_option_groups
def list_processors(
    *,
    at: AdminOptions,
    json_lines: output.JsonOption = False,
    color: output.ColorOption = output.Color.AUTO,
) -> None:
    answers = [(broker, broker.ask(lambda client: client.processing())) for broker in at.brokers()]
    if json_lines:
        for broker, answer in answers:
            output.print_json(_with_broker(broker, answer))
    else:
        _show_processors(answers)
    broken = [one.name for _, answer in answers for one in answer.processors if one.state != "running"]
    if broken:
        raise CliError(f"not running: {', '.join(broken)}")


def _with_broker(broker: BrokerAdmin, answer: msgspec.Struct) -> dict[str, Any]:
    import msgspec

    told: dict[str, Any] = msgspec.to_builtins(answer)
    return {"broker": broker.name, "admin": broker.url} | told


def _show_processors(answers: list[tuple[BrokerAdmin, ProcessingStatus]]) -> None:
    rows = [(broker, one) for broker, answer in answers for one in answer.processors]
    if not rows:
        output.say("No processors. A [[processor]] table in the configuration, with file = …, makes one.")
        return
    from braidmq.cli.topic_cell import TopicCell

    several = len(answers) > 1
    texts = (*(("broker",) if several else ()), "processor", "topic", "places")
    figures = ("processed", "time")
    title = output.counted(len(rows), "processor")
    table = output.table(*texts, *figures, "state", title=title, numbers=figures, wrapping=(*texts, "state"))
    for broker, one in rows:
        style = _STYLES.get(one.state, "")
        table.add_row(
            *([output.plain(broker.name)] if several else []),
            f"[bold]{output.plain(one.name)}[/bold]",
            TopicCell(one.topic or ""),
            _places(one),
            f"{one.processed:,}",
            _mean_time(one),
            f"[{style}]{one.state}[/{style}]{output.plain(_notes(one))}",
        )
    output.console().print(table)
    for broker, answer in answers:
        output.say(f"{broker.name}: {_room(answer)}" if several else _room(answer))
    for _, one in rows:
        if one.problem:
            output.say(f"{one.name}: {one.problem}", "red")


def _room(answer: ProcessingStatus) -> str:
    """What of an edge is in use, and what it can do itself of all that it manages."""
    storage, compute = answer.storage, answer.compute
    mib = 1 << 20
    return (
        f"storage {storage.used / mib:,.1f} of {storage.max / mib:,.0f} MiB, "
        f"computation {compute.used:,.0f} of {compute.max:,.0f}, θ = {answer.local_share:.2f}"
    )


def _notes(one: ProcessorStatus) -> str:
    """Counts that ought to be 0."""
    counts = {"errors": one.errors, "waiting": one.queue, "dropped": one.dropped, "restarts": one.restarts}
    notes = [f"{count:,} {word}" for word, count in counts.items() if count]
    return f": {', '.join(notes)}" if notes else ""


def _places(one: ProcessorStatus) -> str:
    """Where its topics are; and, once anything was copied, for how many of them this broker is one of several homes."""
    places = [f"{count:,} {place}" for place, count in sorted(one.topics.items())]
    if one.copies_out or one.copies_in:
        places.append(f"{one.homes:,} home")
    return ", ".join(places)


def _mean_time(one: ProcessorStatus) -> str:
    """The mean time for a message."""
    if not one.processed:
        return ""
    mean_s = one.busy_s / one.processed
    return f"{mean_s * 1e6:.0f} µs" if mean_s < 0.001 else f"{mean_s * 1e3:.1f} ms"


# Where topics are

WHERE_HELP: Final = (
    "Show where a topic is processed: at the edge, beside its publishers, or on Spark; and from which offset on it was "
    "whose turn. The exit code is 1 if no processor has had a message of it."
)


WHERE_EXAMPLES: Final = output.examples(
    ("Where is it processed?", "braidmq process where bus/7/frames"),
    ("At whichever site of `braidmq up --brokers` it is published", "braidmq process where bus/7/frames --data data"),
)


@app.command("where", help=WHERE_HELP, epilog=WHERE_EXAMPLES)
@with_option_groups
def where(
    *,
    topic: Annotated[str, typer.Argument(help="A topic, without wildcards.")],
    at: AdminOptions,
    json_lines: output.JsonOption = False,
    color: output.ColorOption = output.Color.AUTO,
) -> None:
    check_topic(topic, "TOPIC")
    found = [
        (broker, one)
        for broker in at.brokers()
        for one in broker.ask(lambda client: client.assigned_topics(topic=topic))
    ]
    if not found:
        raise CliError(
            f"no processor has had a message of {topic}", hint="See `braidmq process list` for what they take."
        )
    for broker, one in found:
        if json_lines:
            output.print_json(_with_broker(broker, one))
        else:
            output.say(f"{one.processor} processes {topic}: {_words(one)}  ({broker.name})")


def _words(one: AssignedTopic) -> str:
    match one.place:
        case "edge":
            words = f"at the edge, for {output.counted(one.publishers, 'publisher')}"
            words += ", as a home of it" if one.is_home else ""
        case "spark":
            words = "on Spark"
        case "returning":
            words = f"on Spark up to offset {one.returns_at}, and then at the edge"
        case _:
            return "nowhere: there is no room at the edge, and it is not logged for Spark"
    turns = ", ".join(f"from {first} {place}" for first, place in one.turns)
    return f"{words}; offsets: {turns}" if turns else words


# Changes of hands

MOVE_HELP: Final = (
    "Have a topic processed on Spark from its next message on, or take it back to the edge. Nothing is lost, and "
    "nothing processed twice: the spool goes along, and offsets say whose turn a message is. The way back is done when "
    "Spark has answered."
)


MOVE_EXAMPLES: Final = output.examples(
    ("Leave a topic to Spark", "braidmq process move passengers bus/7/frames spark"),
    ("Take it back", "braidmq process move passengers bus/7/frames edge"),
)


@app.command("move", help=MOVE_HELP, epilog=MOVE_EXAMPLES, no_args_is_help=True)
@with_option_groups
def move(
    *,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The processor.")],
    topic: Annotated[str, typer.Argument(help="A topic, without wildcards.")],
    place: Annotated[Literal["edge", "spark"], typer.Argument(help="Where it is to be processed.")],
    at: AdminOptions,
    json_lines: output.JsonOption = False,
    color: output.ColorOption = output.Color.AUTO,
) -> None:
    check_topic(topic, "TOPIC")

    from braidmq.admin.contract import Move

    answer = at.broker().ask(lambda client: client.move(Move(name, topic, place)))
    if json_lines:
        output.print_json(answer)
    else:
        output.say(f"{name} processes {topic}: {_words(answer)}")


# Trying one out

RUN_HELP: Final = (
    "Run a processor from the command line and print what it says: over what is published now, as a client of a "
    "broker, or with --log over what a broker has logged. Nothing is published, unless --publish asks for it.\n\n"
    "Errors of the function are told on stderr, and it goes on. Ctrl-C is the normal end. The exit code is 1 if the "
    "function has failed on a message, 2 if there is no such processor."
)
RUN_EXAMPLES: Final = output.examples(
    ("What would it say to what is published now?", "braidmq process run alerts.py"),
    (
        "One of several in a file, over another topic",
        "braidmq process run alerts.py:passengers --topic 'test/+/frames'",
    ),
    ("Over what was logged", "braidmq process run alerts.py --log data/log"),
)


@app.command("run", help=RUN_HELP, epilog=RUN_EXAMPLES, no_args_is_help=True)
@with_option_groups
def run(
    *,
    file: Annotated[str, typer.Argument(metavar="FILE[:NAME]", help="A Python file, or a module as package.module.")],
    topic: Annotated[str | None, typer.Option("-t", "--topic", help="Instead of the processor's topic filter.")] = None,
    spool: Annotated[int | None, typer.Option("--spool", min=1, help="Instead of the processor's spool size.")] = None,
    publish: Annotated[bool, typer.Option("--publish", help="Also publish what it says.")] = False,
    log: Annotated[
        str | None,
        typer.Option("--log", metavar="FOLDER|URL", help="Over a log: its folder, or a broker's admin port."),
    ] = None,
    count: Annotated[int | None, typer.Option("-C", "--count", min=1, help="End after this many messages.")] = None,
    wait_s: Annotated[
        float | None, typer.Option("-W", "--wait", min=0.001, help="End after this many seconds.")
    ] = None,
    token: TokenOption = None,
    json_lines: output.JsonOption = False,
    color: output.ColorOption = output.Color.AUTO,
    connection: ConnectionOptions,
) -> None:
    from braidmq.cli.process.local_run import ProcessorTrial, over_broker, over_log
    from braidmq.processors.loading import load_processor
    from braidmq.processors.processor import ProcessorError

    if log is not None and publish:
        raise UsageError("--publish with --log", "What was logged is long past: look at what it says first.")
    try:
        processor = load_processor(file).changed(topic=topic, spool=spool)
    except ProcessorError as error:
        raise CliError(str(error), ExitCode.USAGE) from None
    trial = ProcessorTrial(processor, json_lines=json_lines, count=count)
    try:
        if log is not None:
            over_log(trial, log, token)
        else:
            over_broker(trial, connection, publish=publish, wait_s=wait_s)
    except KeyboardInterrupt:
        pass  # the normal end
    trial.sum_up()
    if trial.failures:
        raise CliError(f"the processor failed on {output.counted(trial.failures, 'message')}")


# On Spark

SPARK_HELP: Final = (
    "Run a processor on Spark, over what brokers log: all of it, or with --delegated what their own processor of the "
    "same name leaves to Spark, until they ask for it back. What it says is published at the broker where the message "
    "came from, once each.\n\n"
    "With the same checkpoint it goes on where it was, also after a crash. A line every few seconds says how it goes. "
    "Ctrl-C is the normal end."
)
SPARK_EXAMPLES: Final = output.examples(
    ("On this machine", "braidmq process spark alerts.py --brokers http://127.0.0.1:9883"),
    (
        "What two edges have no room for, on a cluster",
        "braidmq process spark alerts.py --delegated --brokers http://edge1:9883,http://edge2:9883 "
        "--master spark://spark.example.org:7077 --checkpoint /shared/alerts",
    ),
)


@app.command("spark", help=SPARK_HELP, epilog=SPARK_EXAMPLES, no_args_is_help=True)
def on_spark(
    file: Annotated[str, typer.Argument(metavar="FILE[:NAME]", help="A Python file, or a module as package.module.")],
    brokers: Annotated[
        str, typer.Option("--brokers", metavar="URL[,URL…]", help="The admin ports of the brokers whose logs are read.")
    ],
    master: Annotated[
        str | None, typer.Option("--master", metavar="MASTER", help="Spark's master; this machine if not given.")
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option("--checkpoint", metavar="FOLDER", help="Where it keeps its progress; state/NAME if not given."),
    ] = None,
    delegated: Annotated[
        bool, typer.Option("--delegated", help="Only what the brokers' own processor leaves to Spark.")
    ] = False,
    spool_scope: Annotated[
        Literal["braid", "site"],
        typer.Option("--spool-scope", help="A topic's spool has the messages of all these brokers, or of one alone."),
    ] = "braid",
    start: Annotated[
        Literal["earliest", "latest"], typer.Option("--from", help="Where to start if there is no checkpoint yet.")
    ] = "latest",
    name: Annotated[str | None, typer.Option("--name", help="Instead of the processor's name.")] = None,
    topic: Annotated[str | None, typer.Option("-t", "--topic", help="Instead of the processor's topic filter.")] = None,
    spool: Annotated[int | None, typer.Option("--spool", min=1, help="Instead of the processor's spool size.")] = None,
    token: TokenOption = None,
    json_lines: output.JsonOption = False,
    color: output.ColorOption = output.Color.AUTO,
) -> None:
    from braidmq.cli.process.spark_run import run as run_on_spark
    from braidmq.processors.processor import ProcessorError

    options = {"brokers": brokers, "startingOffsets": start} | ({} if token is None else {"token": token})
    try:
        run_on_spark(
            file,
            options=options,
            master=master,
            checkpoint=checkpoint,
            delegated=delegated,
            spool_scope=spool_scope,
            name=name,
            topic=topic,
            spool=spool,
            json_lines=json_lines,
        )
    except ProcessorError as error:
        raise CliError(str(error), ExitCode.USAGE) from None
