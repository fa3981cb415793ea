"""`braidmq log`: what a broker's log holds, and its rows, from its folder or over the admin port."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from braidmq.cli import output
from braidmq.cli.asking import ADMIN_URL, AdminOption, TokenOption
from braidmq.cli.errors import CliError, ExitCode, UsageError
from braidmq.cli.messages import Received, as_json, printer
from braidmq.cli.quick import QuickGroup

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
    ("Without a broker, from its files", "braidmq log read --folder data/log"),
)

app = typer.Typer(add_completion=False, cls=QuickGroup, help=HELP, epilog=EXAMPLES, no_args_is_help=True)

FolderOption = Annotated[
    Path | None, typer.Option("--folder", help="Instead of --admin: the folder of the log, such as data/log.")
]
TopicOption = Annotated[
    list[str] | None, typer.Option("-t", "--topic", metavar="FILTER", help="Only these topics; may be repeated.")
]
FromOption = Annotated[
    str | None, typer.Option("--from", metavar="OFFSET|TIME", help="The first row; that of the log if not given.")
]
UntilOption = Annotated[
    str | None, typer.Option("--until", metavar="OFFSET|TIME", help="Behind the last row; the end if not given.")
]


@app.callback()
def log() -> None:
    pass  # makes a group of it


@app.command("list", help="Show where the log begins and ends, and how many rows and payload bytes each topic has.")
def list_topics(
    topic: TopicOption = None,
    count_max: Annotated[int, typer.Option("-n", "--limit", min=1, help="Topics at most, the busiest.")] = 100,
    admin: AdminOption = None,
    token: TokenOption = None,
    folder: FolderOption = None,
    json_lines: output.JsonOption = False,
    color: output.ColorOption = output.Color.AUTO,
) -> None:
    with _opened(admin, token, folder) as source:
        state = source.state()
        rows: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        for partition in range(state.partitions):
            for batch in source.read(partition, state.first_offset, state.next_offset, topic or ()):
                grouped = _grouped(batch)
                rows.update({name: count for name, count, _ in grouped})
                sizes.update({name: size for name, _, size in grouped})
    busiest = rows.most_common(count_max)
    if json_lines:
        topics = [{"topic": name, "rows": count, "bytes": sizes[name]} for name, count in busiest]
        about = {name: getattr(state, name) for name in state.__slots__}
        output.print_json(about | {"topics": topics, "topics_in_all": len(rows)})
        return
    output.say(
        f"{state.broker}: offsets {state.first_offset:,} up to {state.next_offset:,}, "
        f"{output.counted(sum(rows.values()), 'row')} of {output.counted(len(rows), 'topic')} "
        f"in {output.counted(state.partitions, 'partition')}"
    )
    if not rows:
        return
    from rich.table import Table

    table = Table()
    table.add_column("topic", overflow="fold")
    for name in ("rows", "payload bytes"):
        table.add_column(name, justify="right")
    for name, count in busiest:
        table.add_row(f"[bold]{output.plain(name)}[/bold]", f"{count:,}", f"{sizes[name]:,}")
    output.console().print(table)


def _grouped(batch: Any) -> list[tuple[str, int, int]]:
    """(topic, rows, payload bytes) in a batch."""
    import pyarrow as pa
    import pyarrow.compute as pc

    table = pa.table({"topic": batch.column("topic"), "size": pc.binary_length(batch.column("payload"))})
    found = table.group_by("topic").aggregate([("size", "count"), ("size", "sum")])
    return [(one["topic"], one["size_count"], one["size_sum"]) for one in found.to_pylist()]


@app.command("read", help="Print rows of the log in the order of their offsets.")
def read(
    topic: TopicOption = None,
    start: FromOption = None,
    until: UntilOption = None,
    count_max: Annotated[int | None, typer.Option("-n", "--limit", min=1, help="Rows at most.")] = None,
    admin: AdminOption = None,
    token: TokenOption = None,
    folder: FolderOption = None,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Also QoS, client, origin, properties.")] = False,
    json_lines: output.JsonOption = False,
    color: output.ColorOption = output.Color.AUTO,
) -> None:
    with _opened(admin, token, folder) as source:
        state = source.state()
        first = state.first_offset if start is None else _offset(source, "--from", start)
        end = state.next_offset if until is None else _offset(source, "--until", until)
        show = printer(verbose=verbose)
        parts = [_rows(source, partition, first, end, topic or []) for partition in range(state.partitions)]
        for row in islice(heapq.merge(*parts, key=lambda one: int(one["offset"])), count_max):
            if json_lines:
                output.print_json(_as_json(row))
            else:
                show(_received(row, verbose))


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
def _opened(admin: str | None, token: str | None, folder: Path | None) -> Iterator[LogSource]:
    if admin is not None and folder is not None:
        raise UsageError("--admin together with --folder", "Either of them says where the log is.")
    try:
        from braidmq.log.reader import open_log
    except ModuleNotFoundError as error:
        raise CliError(
            f"the log needs {error.name}, which is not installed", ExitCode.UNAVAILABLE, 'pip install "braidmq[log]"'
        ) from None
    from braidmq.log.errors import LogError

    url = admin or ADMIN_URL
    try:
        yield open_log(str(folder) if folder is not None else url if "://" in url else f"http://{url}", token)
    except LogError as error:
        raise CliError(str(error), ExitCode.UNAVAILABLE) from None
    except ValueError as error:
        raise UsageError(str(error)) from None
