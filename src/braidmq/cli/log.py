"""`braidmq log`: what a broker's log holds, and its rows, from its folder or over the admin port."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from braidmq.cli import output
from braidmq.cli.admin_port import ADMIN_URL, PANEL, AdminOption, TokenOption
from braidmq.cli.base_commands import BaseGroup
from braidmq.cli.errors import CliError, ExitCode, UsageError
from braidmq.cli.mqtt_client.messages import Received, as_json, printer

if TYPE_CHECKING:
    from braidmq.log.source import LogSource

HELP: Final = (
    "The log of a broker: publications to the topics of [log] in its configuration, kept for Spark and others.\n\n"
    "A row has an offset, which only grows at a broker and is never used twice."
)
EXAMPLES: Final = output.examples(
    ("What is in the log, topic by topic", "braidmq log list"),
    ("The first ten rows", "braidmq log read -n 10"),
    ("All since noon below a level, for a script", "braidmq log read --topic 'bus/#' --from 2026-01-31T12:00 --json"),
    ("Of all sites of `braidmq up --brokers`, from their files", "braidmq log list --data data"),
)
LIST_EXAMPLES: Final = output.examples(
    ("What is in the log of the broker on this machine", "braidmq log list"),
    ("Of all sites of `braidmq up --brokers`, from their files", "braidmq log list --data data"),
    ("For a script: the offset of the next row", "braidmq log list --json | jq .next_offset"),
)
READ_EXAMPLES: Final = output.examples(
    ("The first ten rows", "braidmq log read -n 10"),
    ("All since noon below a level, for a script", "braidmq log read --topic 'bus/#' --from 2026-01-31T12:00 --json"),
    ("Without a broker, from its files", "braidmq log read --data data"),
)

app = typer.Typer(add_completion=False, cls=BaseGroup, help=HELP, epilog=EXAMPLES, no_args_is_help=True)

DataOption = Annotated[
    Path | None,
    typer.Option(
        "-d",
        "--data",
        "--folder",
        help="Instead of --admin: a broker's data folder, a folder of several, or a log itself. The files are read, "
        "whether the broker runs or not.",
        rich_help_panel=PANEL,
    ),
]
TopicOption = Annotated[
    list[str] | None, typer.Option("-t", "--topic", metavar="FILTER", help="Only these topics; may be repeated.")
]
FromOption = Annotated[
    str | None,
    typer.Option("--from", metavar="OFFSET|TIME", help="The first row; the beginning of the log if not given."),
]
UntilOption = Annotated[
    str | None,
    typer.Option("--until", metavar="OFFSET|TIME", help="The row after the last; the end of the log if not given."),
]


@app.callback()
def log() -> None:
    pass  # makes a group of it


LIST_HELP: Final = "Show where the log begins and ends, and how many rows and payload bytes each topic has."


@app.command("list", help=LIST_HELP, epilog=LIST_EXAMPLES)
def list_topics(
    topic: TopicOption = None,
    count_max: Annotated[int, typer.Option("-n", "--limit", min=1, help="Topics at most, the busiest.")] = 100,
    admin: AdminOption = None,
    token: TokenOption = None,
    data: DataOption = None,
    json_lines: output.JsonOption = False,
    color: output.ColorOption = output.Color.AUTO,
) -> None:
    with _opened(admin, token, data) as sources:
        contents = [Contents(source, topic or []) for source in sources]
    for content in contents:
        if json_lines:
            output.print_json(content.as_json(count_max))
        else:
            output.say(content.summary)
    if not json_lines:
        _show_topics(contents, count_max)


class Contents:
    """How much a log has of each topic."""

    def __init__(self, source: LogSource, filters: list[str]) -> None:
        self.state = source.state()
        self.rows: Counter[str] = Counter()
        self.sizes: Counter[str] = Counter()
        for partition in range(self.state.partitions):
            for batch in source.read(partition, self.state.first_offset, self.state.next_offset, filters):
                grouped = _grouped(batch)
                self.rows.update({name: count for name, count, _ in grouped})
                self.sizes.update({name: size for name, _, size in grouped})

    @property
    def summary(self) -> str:
        return (
            f"{self.state.broker}: offsets {self.state.first_offset:,} up to {self.state.next_offset:,}, "
            f"{output.counted(sum(self.rows.values()), 'row')} of {output.counted(len(self.rows), 'topic')} "
            f"in {output.counted(self.state.partitions, 'partition')}"
        )

    def as_json(self, count_max: int) -> dict[str, Any]:
        busiest = self.rows.most_common(count_max)
        topics = [{"topic": name, "rows": count, "bytes": self.sizes[name]} for name, count in busiest]
        about = {name: getattr(self.state, name) for name in self.state.__slots__}
        return about | {"topics": topics, "topics_in_all": len(self.rows)}


def _show_topics(contents: list[Contents], count_max: int) -> None:
    found = [(count, name, one) for one in contents for name, count in one.rows.items()]
    if not found:
        return
    from braidmq.cli.topic_cell import TopicCell

    found.sort(key=lambda row: (-row[0], row[1]))
    names = ["broker"] if len(contents) > 1 else []
    figures = ("rows", "payload bytes")
    table = output.table(*names, "topic", *figures, numbers=figures, wrapping=("topic",))
    for count, name, one in found[:count_max]:
        brokers = [output.plain(one.state.broker) for _ in names]
        table.add_row(*brokers, TopicCell(name, "bold"), f"{count:,}", f"{one.sizes[name]:,}")
    output.console().print(table)


def _grouped(batch: Any) -> list[tuple[str, int, int]]:
    """(topic, rows, payload bytes) in a batch."""
    import pyarrow as pa
    import pyarrow.compute as pc

    table = pa.table({"topic": batch.column("topic"), "size": pc.binary_length(batch.column("payload"))})
    found = table.group_by("topic").aggregate([("size", "count"), ("size", "sum")])
    return [(one["topic"], one["size_count"], one["size_sum"]) for one in found.to_pylist()]


READ_HELP: Final = (
    "Print rows of the log in the order of their offsets; those of several brokers by the time at which they came."
)


@app.command("read", help=READ_HELP, epilog=READ_EXAMPLES)
def read(
    topic: TopicOption = None,
    start: FromOption = None,
    until: UntilOption = None,
    count_max: Annotated[int | None, typer.Option("-n", "--limit", min=1, help="Rows at most.")] = None,
    admin: AdminOption = None,
    token: TokenOption = None,
    data: DataOption = None,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Also QoS, client, origin, properties.")] = False,
    json_lines: output.JsonOption = False,
    color: output.ColorOption = output.Color.AUTO,
) -> None:
    with _opened(admin, token, data) as sources:
        show = printer(verbose=verbose)
        logs = [_in_order(source, start, until, topic or []) for source in sources]
        for row in islice(heapq.merge(*logs, key=itemgetter("received_at")), count_max):
            if json_lines:
                output.print_json(_as_json(row))
            else:
                show(_received(row, verbose))


def _in_order(source: LogSource, start: str | None, until: str | None, filters: list[str]) -> Iterator[dict[str, Any]]:
    """The rows of a log in the order of their offsets."""
    state = source.state()
    first = state.first_offset if start is None else _offset(source, "--from", start)
    end = state.next_offset if until is None else _offset(source, "--until", until)
    parts = [_rows(source, partition, first, end, filters) for partition in range(state.partitions)]
    return heapq.merge(*parts, key=itemgetter("offset"))


def _rows(source: LogSource, partition: int, start: int, until: int, filters: list[str]) -> Iterator[dict[str, Any]]:
    for batch in source.read(partition, start, until, filters):
        yield from batch.to_pylist()


def _received(row: dict[str, Any], verbose: bool = False) -> Received:
    properties: dict[str, Any] = {}
    if verbose:
        properties = {name: row[name] for name in ("offset", "origin", "client")}
        properties |= {"published_at": row["published_at"].isoformat()}
        if row["properties"]:
            properties["properties"] = _pairs(row)
    return Received(row["topic"], row["payload"], row["qos"], row["retain"], False, row["received_at"], properties, [])


def _pairs(row: dict[str, Any]) -> list[list[str]]:
    return [[one["name"], one["value"]] for one in row["properties"] or ()]


def _as_json(row: dict[str, Any]) -> dict[str, Any]:
    shown = as_json(_received(row))
    for name in ("dup", "subscription_ids"):
        del shown[name]
    own = {name: row[name] for name in ("offset", "origin", "client")}
    return own | shown | {"published_at": row["published_at"].isoformat(), "properties": _pairs(row)}


def _offset(source: LogSource, option: str, text: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"{option} {text} is neither an offset nor a time", f"Write {option} 2026-01-31T12:00"
        ) from None
    return source.offset_at(at.astimezone())


@contextmanager
def _opened(admin: str | None, token: str | None, data: Path | None) -> Iterator[list[LogSource]]:
    if admin is not None and data is not None:
        raise UsageError("--admin together with --data", "Either of them says where the log is.")
    try:
        from braidmq.log.opening import open_log
        from braidmq.pipeline.source.logs import folders
    except ModuleNotFoundError as error:
        raise CliError(
            f"the log needs {error.name}, which is not installed", ExitCode.UNAVAILABLE, 'pip install "braidmq[log]"'
        ) from None
    from braidmq.log.errors import LogError

    url = admin or ADMIN_URL
    try:
        if data is not None:
            yield [open_log(folder) for folder in folders(str(data))]
        else:
            yield [open_log(url if "://" in url else f"http://{url}", token)]
    except LogError as error:
        raise CliError(str(error), ExitCode.UNAVAILABLE) from None
    except ValueError as error:
        raise UsageError(str(error)) from None
