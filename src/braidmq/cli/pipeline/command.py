"""`braidmq pipeline`: the ready-made pipelines of Spark, from brokers' logs to a table, files, or back to MQTT."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from braidmq.cli import output
from braidmq.cli.admin_port import TokenOption
from braidmq.cli.base_commands import BaseGroup
from braidmq.cli.errors import UsageError
from braidmq.cli.option_groups import with_option_groups
from braidmq.pipeline.library.catalogue import PIPELINES, Pipeline

if TYPE_CHECKING:
    from braidmq.pipeline.library.job import ToBrokers, ToFolder

HELP: Final = (
    "Ready-made pipelines: what brokers have logged, through Spark, to a table on the screen, to Parquet files, or "
    "back to MQTT. They need the extra `spark`."
)
EXAMPLES: Final = output.examples(
    ("What there is", "braidmq pipeline list"),
    (
        "Each topic's numbers in windows of 5 minutes, from a broker's files",
        "braidmq pipeline run windows --path data --once --every 5min",
    ),
    ("Watch for sensors that are late or silent", "braidmq pipeline run alarms --brokers http://127.0.0.1:9883"),
)

app = typer.Typer(add_completion=False, cls=BaseGroup, help=HELP, epilog=EXAMPLES, no_args_is_help=True)

FLAGS: Final = {
    "every_s": "--every",
    "slide_s": "--slide",
    "value": "--value",
    "delay_s": "--delay",
    "gap_s": "--gap",
    "by": "--by",
    "interval_s": "--interval",
    "late": "--late",
    "missing": "--missing",
    "forget_s": "--forget",
}
"""The flags for the options of the pipelines."""
_UNITS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_FROM_TO: Final = "From and to"
_OPTIONS: Final = "Options of the pipelines"


@app.callback()
def pipeline() -> None:
    pass  # makes a group of it


LIST_EXAMPLES: Final = output.examples(
    ("What there is", "braidmq pipeline list"),
    ("For a script: the names", "braidmq pipeline list --json | jq -r .name"),
)


@app.command("list", help="Show the pipelines, and which options each takes.", epilog=LIST_EXAMPLES)
def list_pipelines(json_lines: output.JsonOption = False, color: output.ColorOption = output.Color.AUTO) -> None:
    if json_lines:
        for one in PIPELINES.values():
            output.print_json(
                {"name": one.name, "about": one.about, "options": _flags(one), "streams": one.is_streaming}
            )
        return
    table = output.table("pipeline", "what it gives", "options", wrapping=("what it gives", "options"))
    for one in PIPELINES.values():
        table.add_row(f"[bold]{one.name}[/bold]", one.about, " ".join(_flags(one)))
    output.console().print(table)


def _flags(one: Pipeline) -> list[str]:
    return [FLAGS[name] for name in one.options]


RUN_HELP: Final = (
    "Run a pipeline over the logs of brokers, read over their admin ports (--brokers) or from files (--path).\n\n"
    "It goes on until Ctrl-C, and gives what is new as it comes: as lines, as Parquet files (--out), or published as "
    "JSON on pipeline/NAME/… (--publish). With --once it gives what is there now and ends. With --checkpoint a run "
    "goes on where the one before has ended, and nothing comes twice. Durations are as 90, 500ms, 5min, 1h or 2d."
)
RUN_EXAMPLES: Final = output.examples(
    ("A table of what is there", "braidmq pipeline run windows --path data --once --every 5min"),
    (
        "The same from brokers that run, of one number in JSON payloads",
        "braidmq pipeline run windows --brokers http://edge1:9883,http://edge2:9883 --value state.celsius --once",
    ),
    (
        "Alarms, live, published for those who subscribe to pipeline/alarms/#",
        "braidmq pipeline run alarms --brokers http://edge1:9883 --publish http://edge1:9883 --checkpoint state/alarms",
    ),
    ("What suspension saved", "braidmq pipeline run exhaust --path data"),
    (
        "An archive that grows each time this runs",
        "braidmq pipeline run archive --path data --out archive --checkpoint state/archive --once",
    ),
    (
        "On a cluster",
        "braidmq pipeline run sessions --brokers http://edge1:9883 --once --master spark://spark.example.org:7077",
    ),
)

Duration = str | None


def _option(flag: str, metavar: str, text: str) -> Any:
    return typer.Option(flag, metavar=metavar, help=text, rich_help_panel=_OPTIONS)


@dataclass(frozen=True)
class EndOptions:
    """Where rows come from and go to."""

    brokers: Annotated[
        str | None,
        typer.Option("--brokers", metavar="URLS", help="Admin ports, with commas between.", rich_help_panel=_FROM_TO),
    ] = None
    path: Annotated[
        Path | None,
        typer.Option(
            "--path",
            metavar="DATA",
            help="Instead of --brokers: a broker's data folder, a log, or a folder of several.",
            rich_help_panel=_FROM_TO,
        ),
    ] = None
    topics: Annotated[
        str | None,
        typer.Option(
            "--topics", metavar="FILTERS", help="MQTT filters, with commas; all if not given.", rich_help_panel=_FROM_TO
        ),
    ] = None
    begin: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="earliest|latest|TIME",
            help="Where to begin. Without --once and --checkpoint that is latest, else earliest.",
            rich_help_panel=_FROM_TO,
        ),
    ] = None
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FOLDER", help="Write Parquet files there.", rich_help_panel=_FROM_TO),
    ] = None
    publish: Annotated[
        str | None,
        typer.Option(
            "--publish",
            metavar="URLS",
            help="Publish through the admin ports of these brokers.",
            rich_help_panel=_FROM_TO,
        ),
    ] = None
    once: Annotated[bool, typer.Option("--once", help="Take what is there now, and end.", rich_help_panel=_FROM_TO)] = (
        False
    )
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--checkpoint", metavar="FOLDER", help="Where a run keeps its progress.", rich_help_panel=_FROM_TO
        ),
    ] = None
    master: Annotated[
        str | None,
        typer.Option("--master", help="Spark's master; this machine if not given.", rich_help_panel=_FROM_TO),
    ] = None
    trigger: Annotated[
        Duration,
        typer.Option("--trigger", metavar="TIME", help="How often to look for new rows; 1s.", rich_help_panel=_FROM_TO),
    ] = None


@dataclass(frozen=True)
class PipelineOptions:
    """Options of single pipelines."""

    every: Annotated[Duration, _option("--every", "TIME", "windows: how long each is; 1min.")] = None
    slide: Annotated[Duration, _option("--slide", "TIME", "windows: how often one begins; as long as each is.")] = None
    value: Annotated[
        str | None, _option("--value", "PATH", "windows: where in a JSON payload the number is, as state.celsius.")
    ] = None
    delay: Annotated[
        Duration, _option("--delay", "TIME", "windows, sessions: how late rows may come in a stream; 1min.")
    ] = None
    gap: Annotated[Duration, _option("--gap", "TIME", "sessions: the pause that ends one; 5min.")] = None
    by: Annotated[str | None, _option("--by", "client|topic", "sessions: whose; client.")] = None
    interval: Annotated[
        Duration, _option("--interval", "TIME", "alarms: between messages; by default each topic's own.")
    ] = None
    late: Annotated[float | None, _option("--late", "N", "alarms: after so many intervals it is late; 3.")] = None
    missing: Annotated[
        float | None, _option("--missing", "N", "alarms: after so many intervals it is missing; 10.")
    ] = None
    forget: Annotated[Duration, _option("--forget", "TIME", "alarms: how long a missing topic is remembered; 1d.")] = (
        None
    )

    @property
    def given(self) -> dict[str, Any]:
        """Those that were given, as the pipelines call them; durations in seconds."""
        options = {
            "every_s": _seconds("--every", self.every),
            "slide_s": _seconds("--slide", self.slide),
            "value": self.value,
            "delay_s": _seconds("--delay", self.delay),
            "gap_s": _seconds("--gap", self.gap),
            "by": self.by,
            "interval_s": _seconds("--interval", self.interval),
            "late": self.late,
            "missing": self.missing,
            "forget_s": _seconds("--forget", self.forget),
        }
        return {option: value for option, value in options.items() if value is not None}


@app.command("run", help=RUN_HELP, epilog=RUN_EXAMPLES, no_args_is_help=True)
@with_option_groups
def run(
    *,
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"{', '.join(PIPELINES)}.")],
    ends: EndOptions,
    token: TokenOption = None,
    options: PipelineOptions,
    count_max: Annotated[
        int,
        typer.Option("-n", "--limit", min=1, help="Rows to show, or of a micro-batch.", rich_help_panel="Output"),
    ] = 100,
    json_lines: output.JsonOption = False,
    color: output.ColorOption = output.Color.AUTO,
) -> None:
    if name not in PIPELINES:
        raise UsageError(f"there is no pipeline {name}", f"There are {', '.join(PIPELINES)}.")
    chosen = PIPELINES[name]
    given = options.given
    _check_options(chosen, given)
    is_batch = not chosen.is_streaming or (ends.once and ends.checkpoint is None)
    _check_ends(chosen, ends.out, ends.publish, ends.checkpoint, is_batch=is_batch)
    source = _source(ends.brokers, ends.path, ends.topics, token)
    from_the_first = ends.once or ends.checkpoint is not None or is_batch
    source |= _begin(ends.begin, "earliest" if from_the_first else "latest")
    trigger_s = _seconds("--trigger", ends.trigger)

    from braidmq.cli.pipeline.run import RunSettings, run_batch, run_stream
    from braidmq.pipeline.library.job import TRIGGER_S, Job

    job = Job(chosen, source, given)
    to = _target(ends.out, ends.publish, token)
    settings = RunSettings(ends.master, count_max, json_lines)
    if is_batch:
        run_batch(job, to, settings)
    else:
        where = None if ends.checkpoint is None else str(ends.checkpoint.resolve())
        trigger_s = TRIGGER_S if trigger_s is None else trigger_s
        run_stream(job, to, settings, where, is_once=ends.once, trigger_s=trigger_s)


def _seconds(flag: str, text: str | None) -> float | None:
    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip())
    if found is None or found[2] not in _UNITS or not float(found[1]):
        raise UsageError(f"{flag} {text} is no duration", "Write 90, 500ms, 5min, 1h or 2d.")
    return float(found[1]) * _UNITS[found[2]]


def _check_options(chosen: Pipeline, options: dict[str, Any]) -> None:
    for option in options:
        if option not in chosen.options:
            takes = f"It takes {', '.join(_flags(chosen))}." if chosen.options else "It has no options of its own."
            raise UsageError(f"{FLAGS[option]} is not for {chosen.name}", takes)


def _check_ends(
    chosen: Pipeline, out: Path | None, publish: str | None, checkpoint: Path | None, *, is_batch: bool
) -> None:
    """Checks where rows come from and go to."""
    if out is not None and publish is not None:
        raise UsageError("both --out and --publish", "Give one of them.")
    if chosen.needs_out and out is None:
        raise UsageError(f"{chosen.name} is made of files", "Say where they shall be: --out FOLDER.")
    if not chosen.is_streaming and checkpoint is not None:
        raise UsageError(f"{chosen.name} is a report of what is there: it has no checkpoint", "Leave out --checkpoint.")
    if is_batch and out is not None and out.exists():
        raise UsageError(
            f"{out} is there already",
            "Choose another folder; with --checkpoint from the first run on, the next ones add what is new.",
        )
    if not is_batch and checkpoint is None and (out is not None or publish is not None):
        raise UsageError(
            "without a checkpoint a stream that is started again would begin anew",
            "Give --checkpoint FOLDER, or --once.",
        )


def _source(brokers: str | None, path: Path | None, topics: str | None, token: str | None) -> dict[str, str]:
    if (brokers is None) == (path is None):
        raise UsageError("either --brokers or --path says which log to read", "Write --path data, for example.")
    source = {"brokers": brokers} if brokers is not None else {"path": str(path)}
    if topics is not None:
        source["topics"] = topics
    if token is not None:
        source["token"] = token
    return source


def _begin(text: str | None, default: str) -> dict[str, str]:
    if text is None or text in ("earliest", "latest"):
        return {"startingOffsets": text or default}
    try:
        datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"--from {text} is no time", "Write earliest, latest, or as 2026-11-16T08:30:00Z.") from None
    return {"startingTime": text}


def _target(out: Path | None, publish: str | None, token: str | None) -> ToFolder | ToBrokers | None:
    from braidmq.pipeline.library.job import ToBrokers, ToFolder

    if publish is not None:
        return ToBrokers(publish, token)
    return None if out is None else ToFolder(str(out.resolve()))
