"""The figures of trials: as a table for people, or as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from braidmq.cli import output

if TYPE_CHECKING:
    from braidmq.sim.trials.trial import TrialReport

DIGITS: Final = 6
"""Decimals of a figure in JSON."""


def show(reports: list[TrialReport], json_lines: bool) -> None:
    from msgspec.structs import asdict

    figures = [asdict(report.figures) for report in reports]
    for one in figures:
        for part in ("rough", "fleet", "selection"):
            more = one.pop(part)
            if more is not None:
                one |= {f"{part}_{name}": value for name, value in asdict(more).items()}
    lists = [name for name, value in figures[0].items() if isinstance(value, list)]
    curves = {name: _mean_list([one.pop(name) for one in figures]) for name in lists}
    ranges = {name: (min(one[name] for one in figures), max(one[name] for one in figures)) for name in figures[0]}
    if len(figures) == 1:
        means = figures[0]
    else:
        means = {name: sum(one[name] for one in figures) / len(figures) for name in figures[0]}
    if json_lines:
        _print_json(reports, means | curves, ranges)
    else:
        _print_table(reports, means, ranges)


def _print_json(reports: list[TrialReport], means: dict[str, Any], ranges: dict[str, tuple[Any, Any]]) -> None:
    found: dict[str, Any] = dict(reports[0].parameters)
    if len(reports) > 1:
        del found["seed"]
        found["seeds"] = [report.parameters["seed"] for report in reports]
    found |= {name: _rounded(value) for name, value in means.items()}
    if len(reports) > 1:
        found["ranges"] = {name: [_rounded(least), _rounded(most)] for name, (least, most) in ranges.items()}
    found["notes"] = reports[0].notes
    found["complaints"] = sum(report.complaints_count for report in reports)
    output.print_json(found)


def _mean_list(lists: list[list[float]]) -> list[float]:
    """Position by position, as far as each of them reaches."""
    columns = [[one[position] for one in lists if position < len(one)] for position in range(max(map(len, lists)))]
    return [sum(column) / len(column) for column in columns]


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return round(value, DIGITS) if isinstance(value, float) else value


ROWS: Final = (
    ("hops, mean", "hops_mean", "{:,.2f}"),
    ("hops, p50", "hops_p50", "{:,.0f}"),
    ("hops, p99", "hops_p99", "{:,.0f}"),
    ("hops, most", "hops_max", "{:,.0f}"),
    ("publications", "publications", "{:,.0f}"),
    ("  not sent, as nobody wants them", "suspended", "{:,.0f}"),
    ("deliveries", "deliveries", "{:,.0f}"),
    ("  missed", "missed", "{:,.0f}"),
    ("  duplicates", "duplicates", "{:,.0f}"),
    ("brokers bothered that have nothing to do with it", "bothered", "{:,.0f}"),
    ("messages", "messages", "{:,.0f}"),
    ("  without subscribers", "messages_without_subscribers", "{:,.0f}"),
    ("forwards of one publication by one node, most", "forwards_max", "{:,.0f}"),
    ("children of one node, most", "children_max", "{:,.0f}"),
    ("messages from one cluster to another", "crossings", "{:,.0f}"),
    ("bytes", "bytes", "{:,.0f}"),
    ("delay in virtual time, mean", "delay_mean_s", "{:,.3f} s"),
    ("delay in virtual time, most", "delay_max_s", "{:,.3f} s"),
    ("virtual time", "virtual_s", "{:,.1f} s"),
    ("time of faults: deliveries that were due", "rough_expected", "{:,.0f}"),
    ("time of faults: deliveries", "rough_deliveries", "{:,.0f}"),
    ("time of faults: duplicates", "rough_duplicates", "{:,.0f}"),
    ("fleet: keys in the overlay a broker, mean", "fleet_keys_mean", "{:,.1f}"),
    ("fleet: keys in the overlay a broker, most", "fleet_keys_max", "{:,.0f}"),
    ("fleet: routing table of a broker, mean", "fleet_table_mean", "{:,.1f}"),
    ("fleet: routing table of a broker, most", "fleet_table_max", "{:,.0f}"),
    ("fleet: wants of others known a broker, mean", "fleet_wants_known_mean", "{:,.1f}"),
    ("fleet: wants of others known a broker, most", "fleet_wants_known_max", "{:,.0f}"),
    ("fleet: brokers met a broker, mean", "fleet_met_mean", "{:,.1f}"),
    ("fleet: brokers met a broker, most", "fleet_met_max", "{:,.0f}"),
    ("fleet: upkeep a broker and second, messages", "fleet_upkeep_messages_per_s", "{:,.2f}"),
    ("fleet: upkeep a broker and second, bytes", "fleet_upkeep_bytes_per_s", "{:,.0f}"),
    ("fleet: first message of a device, median", "fleet_first_p50_s", "{:,.3f} s"),
    ("fleet: first message of a device, p99", "fleet_first_p99_s", "{:,.3f} s"),
    ("fleet: first command of an application, median", "fleet_command_p50_s", "{:,.3f} s"),
    ("fleet: first command of an application, p99", "fleet_command_p99_s", "{:,.3f} s"),
    ("fleet: first message of a new kind, median", "fleet_new_topic_p50_s", "{:,.3f} s"),
    ("fleet: first message of a new kind, p99", "fleet_new_topic_p99_s", "{:,.3f} s"),
    ("fleet: effect of a subscription, median", "fleet_effect_p50_s", "{:,.3f} s"),
    ("fleet: effect of a subscription, p99", "fleet_effect_p99_s", "{:,.3f} s"),
    ("fleet: virtual time until all was there", "fleet_grown_s", "{:,.1f} s"),
    ("selections: reserved", "selection_reserved", "{:,.0f}"),
    ("selections: refused, as nothing was free", "selection_refused", "{:,.0f}"),
    ("selections: missed, though something was free", "selection_missed_percent", "{:,.2f} %"),
    ("selections: messages a request", "selection_messages_per_request", "{:,.2f}"),
    ("selections: messages a request, without the last answer", "selection_request_messages_per_request", "{:,.2f}"),
    ("selections: traffic of the latter, all together", "selection_traffic_kib", "{:,.1f} KiB"),
    ("selections: bytes a request, as they travel", "selection_bytes_per_request", "{:,.0f}"),
    ("selections: hops, first half of the requests", "selection_hops_first_half", "{:,.2f}"),
    ("selections: hops, last half of the requests", "selection_hops_last_half", "{:,.2f}"),
    ("selections: updates, bytes a node and second", "selection_upkeep_bytes_per_s", "{:,.2f}"),
    ("messages to build the network", "build_messages", "{:,.0f}"),
    ("simulated messages", "simulated_messages", "{:,.0f}"),
    ("  a second of CPU time", "simulated_messages_per_s", "{:,.0f}"),
    ("CPU time to build", "build_s", "{:,.1f} s"),
    ("CPU time to run", "run_s", "{:,.1f} s"),
    ("wall time", "wall_s", "{:,.1f} s"),
    ("memory", "rss_mib", "{:,.0f} MiB"),
)
"""The figures that people see, and their words for them."""

PUBLICATIONS_ONLY: Final = (
    *("publications", "suspended", "deliveries", "duplicates", "bothered", "messages_without_subscribers"),
    *("crossings", "forwards_max", "children_max", "bytes", "delay_mean_s", "delay_max_s"),
)
"""Figures that lookups do not have."""

SELECTIONS_LACK: Final = (*PUBLICATIONS_ONLY, "missed", "messages", "build_messages", "build_s", "run_s")
"""Figures that selections do not have, or by other names."""


SHOWN: Final = ("cut", "table_size", "strategy", "wait", "aggregates", "slots", "occupancy")
"""Parameters that the title has."""


def _print_table(reports: list[TrialReport], means: dict[str, Any], ranges: dict[str, tuple[Any, Any]]) -> None:
    from rich.table import Table

    parameters = reports[0].parameters
    is_selection = "group" in parameters
    what = f"a group of {parameters['group']}" if is_selection else parameters["pattern"]
    words = [f"{parameters['method']}, {what}, {parameters['nodes']:,} {'brokers' if is_selection else 'nodes'}"]
    seeds = [str(report.parameters["seed"]) for report in reports]
    words.append(f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds")
    words += [f"{name.replace('_', ' ')} {parameters[name]}" for name in SHOWN if parameters.get(name)]
    if parameters.get("learn_s") is not None:
        words.append(f"learnt for {parameters['learn_s']:g} s")
    if parameters.get("clusters", 1) != 1:
        words.append(f"{parameters['clusters']} clusters")
    words += [str(parameters[name]) for name in ("network", "faults") if parameters[name]]
    table = Table(title=", ".join(words), title_justify="left")
    table.add_column("figure")
    table.add_column("mean" if len(reports) > 1 else "value", justify="right")
    if len(reports) > 1:
        table.add_column("range", justify="right")
    hidden: tuple[str, ...] = PUBLICATIONS_ONLY if parameters["pattern"] == "lookups" else ()
    if is_selection:
        hidden = SELECTIONS_LACK
    elif parameters["clusters"] == 1:
        hidden += ("crossings",)
    for label, name, form in ROWS:
        if name not in means or name in hidden:
            continue
        wrong = name in ("missed", "duplicates") and means[name]
        row = [label, f"[red]{form.format(means[name])}[/red]" if wrong else form.format(means[name])]
        if len(reports) > 1:
            row.append(" … ".join(form.format(end) for end in ranges[name]))
        table.add_row(*row)
    output.console().print(table)
    for note in dict.fromkeys(note for report in reports for note in report.notes):
        output.say(f"Note: {note}.")
