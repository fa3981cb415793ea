"""`braidmq place model`: methods that choose home servers, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from braidmq.cli import output
from braidmq.cli.errors import CliError, ExitCode, UsageError
from braidmq.cli.option_groups import with_option_groups
from braidmq.cli.place.model_options import ComparedOptions, FieldOptions, RelocOptions
from braidmq.cli.progress import Bar

if TYPE_CHECKING:
    from braidmq.placement.comparison import PlacementTrial

INSTALL: Final = 'pip install "braidmq[place]"'

MODEL_HELP: Final = (
    "Compare methods that choose home servers, by the delay that notifications then have (Tanaka et al. 2021): on a "
    "square field with servers in a grid, where the clients of each topic are scattered around a point.\n\n"
    "Methods: refined (the default of plans), reloc (the paper's), nearest (NS), topic (one server a topic: OTOS), "
    "random (RA). Y is the mean delay from a publisher to a subscriber, Y1 what of it is due to the ways between "
    "clients and their homes, Y2 the rest: between servers, and to the cloud if a server has too little. Storage is "
    "that of the fullest server, θ the share of its work that a server does itself. The gap is how far Y is above a "
    "lower bound, which no method can be below."
)
MODEL_EXAMPLES: Final = output.examples(
    ("All methods", "braidmq place model"),
    ("By how far clients are scattered: Fig 14", "braidmq place model --sigma 1,5,10,20 --seeds 1-10 --no-bound"),
    ("By the size of spools: Fig 15", "braidmq place model --spool 1,2,3,4 --seeds 1-10 --no-bound"),
    (
        "By the number of clusters: Fig 16",
        "braidmq place model -m reloc --sigma 10 --clusters 1,2,4,8,16 --seeds 1-10 --no-bound",
    ),
    (
        "RELOC without its last step: Fig 10",
        "braidmq place model -m reloc --start nearest --relations always --steps relations",
    ),
    (
        "Something larger",
        "braidmq place model -m refined --clients 2000 --topics 200 --storage 2000 --compute 10000",
    ),
    ("With the data of the paper", "braidmq place model --data user_sns.txt"),
    ("For a script", "braidmq place model --json | jq .delay_ms"),
)


@with_option_groups
def model(
    *,
    compared: ComparedOptions,
    field: FieldOptions,
    reloc: RelocOptions,
    json_lines: output.JsonOption = False,
    color: output.ColorOption = output.Color.AUTO,
) -> None:
    try:
        from braidmq.placement.comparison import compare
    except ImportError as error:
        raise CliError(
            f"plans need {error.name}, which is not installed", ExitCode.UNAVAILABLE, f"Install it with `{INSTALL}`."
        ) from None
    from braidmq.placement.errors import PlacementError

    methods = compared.methods
    try:
        cases = [(*case, settings) for case in field.cases(compared.seeds) for settings in reloc.settings()]
        table = _Table(compared.bound)
        with CaseBar(sum(len(each[2]) for each in cases)) as bar:
            for sigma, spool, seeds, settings in cases:
                trials: list[PlacementTrial] = []
                for case in seeds:
                    bar.begin(case.seed)
                    trials += compare(case, methods, settings, has_bound=compared.bound, progress=bar.update)
                for method in methods:
                    mine = [trial for trial in trials if trial.method == method]
                    one = {"sigma_km": sigma, "spool_each": spool, "clusters": settings.clusters, "method": method}
                    if json_lines:
                        output.print_json(one | _means(mine))
                    else:
                        table.add(sigma, spool, settings.clusters, method, _means(mine))
    except PlacementError as error:
        raise UsageError(str(error)) from None
    if not json_lines:
        table.show()


class CaseBar(Bar):
    """A bar over all cases, with the seed and what is being done beside it."""

    def __init__(self, cases: int) -> None:
        super().__init__("place")
        self._cases = cases
        self._begun = 0
        self._seed = 0

    def begin(self, seed: int) -> None:
        self._begun += 1
        self._seed = seed

    def update(self, what: str, part: float) -> None:
        if self.is_shown:
            self.show((self._begun - 1 + part) / self._cases, f"seed {self._seed}: {what}")


FIGURES: Final = (
    "clients",
    "delay_ms",
    "distance_ms",
    "resource_ms",
    "storage_mean",
    "storage_max",
    "compute_mean",
    "compute_max",
    "local_share_min",
    "home_km",
    "bound_ms",
    "gap",
)
DIGITS: Final = 6


def _means(trials: list[PlacementTrial]) -> dict[str, Any]:
    """The means over all seeds; of Y also the error."""
    from braidmq.placement.comparison import mean_of

    found: dict[str, Any] = {"seeds": [trial.seed for trial in trials]}
    for name in FIGURES:
        values = [getattr(trial, name) for trial in trials]
        if None in values:
            found[name] = None
            continue
        over = mean_of(values)
        found[name] = round(over.mean, DIGITS)
        if name == "delay_ms" and len(trials) > 1:
            found["delay_error_ms"] = round(over.error, DIGITS)
        if name == "storage_max":
            found[name] = over.most
    return found


class _Table:
    """For people: a line for each method."""

    def __init__(self, has_bound: bool) -> None:
        self._has_bound = has_bound
        self._lines: list[tuple[str, ...]] = []

    def add(self, sigma: float, spool: float, clusters: int, method: str, found: dict[str, Any]) -> None:
        error = f" ± {found['delay_error_ms']:.2f}" if "delay_error_ms" in found else ""
        line = (
            f"{sigma:g}",
            f"{spool:g}",
            str(clusters) if method == "reloc" else "",
            method,
            f"{found['delay_ms']:.3f}{error}",
            f"{found['distance_ms']:.3f}",
            f"{found['resource_ms']:.3f}",
            f"{found['storage_max']:,.0f}",
            f"{found['local_share_min']:.2f}",
        )
        self._lines.append(
            (*line, f"{100 * found['gap']:.{1 if found['gap'] < 0.1 else 0}f} %") if self._has_bound else line
        )

    def show(self) -> None:
        columns = ["σ", "p", "K", "method", "Y", "Y1", "Y2", "storage", "θ"]
        if self._has_bound:
            columns.append("gap")
        table = output.table(*columns, title="Delays in ms", numbers=[name for name in columns if name != "method"])
        for line in self._lines:
            table.add_row(*line)
        output.console().print(table)
