"""What `braidmq place model` is asked for: the options, and the cases that they make."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from braidmq.cli.errors import CliError, ExitCode, UsageError
from braidmq.cli.number_lists import read_numbers, read_seeds, read_words

if TYPE_CHECKING:
    from braidmq.placement.comparison import PlacementCase
    from braidmq.placement.reloc import RelocSettings
    from braidmq.placement.social import GraphShape, Topics

SEEDS_MAX: Final = 1_000

_FIELD: Final = "Field"
_RELOC: Final = "RELOC"


class StepOption(StrEnum):
    LOCALITY = "locality"
    RELATIONS = "relations"
    COOPERATION = "cooperation"


class StartOption(StrEnum):
    FIRST = "first"
    NEAREST = "nearest"
    EMPTIEST = "emptiest"


class RelationsOption(StrEnum):
    OVERFLOW = "overflow"
    ALWAYS = "always"


class CentresOption(StrEnum):
    SPREAD = "spread"
    ANYWHERE = "anywhere"


@dataclass(frozen=True)
class ComparedOptions:
    """What is compared."""

    method: Annotated[
        str,
        typer.Option(
            "-m", "--method", metavar="NAMES", help="refined, reloc, nearest, topic, random, or several with commas."
        ),
    ] = "refined,reloc,nearest,topic,random"
    seeds: Annotated[
        str, typer.Option("--seeds", metavar="A-B", help="Fields to try, as 1-10 or 1,5,9: the figures are means.")
    ] = "1"
    bound: Annotated[
        bool, typer.Option("--bound/--no-bound", help="Work out a lower bound too, and how far each is above it.")
    ] = True

    @property
    def methods(self) -> list[str]:
        from braidmq.placement.planning import PLAN_METHODS

        words = read_words(self.method)
        unknown = [word for word in words if word not in PLAN_METHODS]
        if unknown or not words:
            raise UsageError(
                f"--method {self.method}: there is no {', '.join(unknown) or 'method'}",
                f"There are {', '.join(PLAN_METHODS)}.",
            )
        return words


@dataclass(frozen=True)
class FieldOptions:
    """The field, its servers, and who has which topics."""

    sigma: Annotated[
        str,
        typer.Option(
            "--sigma",
            metavar="KM",
            help="σ: how far the clients of a topic are scattered; several with commas.",
            rich_help_panel=_FIELD,
        ),
    ] = "5"
    spool: Annotated[
        str,
        typer.Option(
            "--spool",
            metavar="P",
            help="p: messages in a spool for each followee; several with commas.",
            rich_help_panel=_FIELD,
        ),
    ] = "2"
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            help="KDD Cup 2012's user_sns.txt, if you have it; by default a graph of its shape is made up.",
            rich_help_panel=_FIELD,
        ),
    ] = None
    topics: Annotated[int, typer.Option("--topics", min=1, help="N.", rich_help_panel=_FIELD)] = 64
    clients: Annotated[
        int | None,
        typer.Option(
            "--clients", min=2, help="M, about; by default as many as the topics need.", rich_help_panel=_FIELD
        ),
    ] = None
    servers: Annotated[int, typer.Option("--servers", min=1, help="L.", rich_help_panel=_FIELD)] = 16
    storage: Annotated[
        float, typer.Option("--storage", help="A, of each server, in messages.", rich_help_panel=_FIELD)
    ] = 640.0
    compute: Annotated[float, typer.Option("--compute", help="B, of each server.", rich_help_panel=_FIELD)] = 3200.0
    cloud_ms: Annotated[
        float, typer.Option("--cloud-ms", min=0.0, help="d^C: from a server to the cloud.", rich_help_panel=_FIELD)
    ] = 5.0
    centres: Annotated[
        CentresOption,
        typer.Option("--centres", help="The points of topics: evenly spread, or anywhere.", rich_help_panel=_FIELD),
    ] = CentresOption.SPREAD

    def cases(self, seeds: str) -> list[tuple[float, float, list[PlacementCase]]]:
        """(σ, p, the cases of all seeds), one after the other."""
        from braidmq.placement.comparison import PlacementCase
        from braidmq.placement.field import FieldSettings

        known = self._topics()
        found = []
        for sigma, spool in product(read_numbers("--sigma", self.sigma, 0), read_numbers("--spool", self.spool, 0.001)):
            field = FieldSettings(
                scatter_km=sigma,
                spool_each=spool,
                servers=self.servers,
                storage=self.storage,
                compute=self.compute,
                cloud_ms=self.cloud_ms,
                centres=self.centres.value,
            )
            cases = [PlacementCase(seed, field, self._shape(), known) for seed in read_seeds(seeds, SEEDS_MAX)]
            found.append((sigma, spool, cases))
        return found

    def _shape(self) -> GraphShape:
        from braidmq.placement.social import PAPER_SHAPE, grown_shape

        if self.clients is None:
            if self.topics == PAPER_SHAPE.topics:
                return PAPER_SHAPE
            return grown_shape(round(self.topics * (PAPER_SHAPE.members_mean - 0.4)), self.topics)
        return grown_shape(self.clients, self.topics)

    def _topics(self) -> Topics | None:
        from braidmq.placement.social import from_rows

        if self.data is None:
            return None
        try:
            with self.data.open() as lines:
                return from_rows(lines, self._shape())
        except (OSError, UnicodeDecodeError) as error:
            raise CliError(f"cannot read {self.data}: {error}", ExitCode.UNAVAILABLE) from None


@dataclass(frozen=True)
class RelocOptions:
    """How RELOC is read where the paper leaves it open."""

    clusters: Annotated[
        str,
        typer.Option("--clusters", metavar="K", help="K; several with commas.", rich_help_panel=_RELOC),
    ] = "4"
    steps: Annotated[
        StepOption, typer.Option("--steps", help="The last step that is taken (Fig 10).", rich_help_panel=_RELOC)
    ] = StepOption.COOPERATION
    start: Annotated[
        StartOption,
        typer.Option("--start", help="Which server of its cluster a client begins at.", rich_help_panel=_RELOC),
    ] = StartOption.FIRST
    relations: Annotated[
        RelationsOption,
        typer.Option("--relations", help="When a client follows another one.", rich_help_panel=_RELOC),
    ] = RelationsOption.OVERFLOW
    factors: Annotated[
        bool, typer.Option("--factors", help="Relations by the factors of Z, not by Z itself.", rich_help_panel=_RELOC)
    ] = False
    anew: Annotated[
        bool, typer.Option("--anew", help="A client that is met again is assigned anew.", rich_help_panel=_RELOC)
    ] = False
    whole_topics: Annotated[
        bool,
        typer.Option("--whole-topics", help="Cooperation passes on all publishers of a topic.", rich_help_panel=_RELOC),
    ] = False
    slip: Annotated[
        bool,
        typer.Option(
            "--slip",
            help="Forget the load of clients that stay where they are, as the authors' figures do.",
            rich_help_panel=_RELOC,
        ),
    ] = False

    def settings(self) -> list[RelocSettings]:
        """One for each K."""
        from braidmq.placement.reloc import RelocSettings

        counts = read_numbers("--clusters", self.clusters, 1)
        if any(count != int(count) for count in counts):
            raise UsageError(f"--clusters {self.clusters}: these are not all whole numbers")
        return [
            RelocSettings(
                clusters=int(count),
                steps=self.steps.value,
                start=self.start.value,
                relations_when=self.relations.value,
                relations_from="factors" if self.factors else "shared topics",
                meets_again="anew" if self.anew else "keeps",
                passes_on="topic" if self.whole_topics else "client",
                drops_moved_to_itself=self.slip,
            )
            for count in counts
        ]
