"""One trial of a publish/subscribe method: build a network, publish, measure, check. A function of its parameters.

    play(Trial(method="relayfree", pattern="delta", nodes=1000, seed=1)).figures.hops_mean

Two runs of the same trial give the same figures, but for those that are of the machine (`figures.OF_THE_MACHINE`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from typing import Final

import msgspec

from braidmq.host import Address
from braidmq.keys import Key
from braidmq.overlay.flexible import SIZE_MAX
from braidmq.overlay.ranges import Cut
from braidmq.overlay.suzaku import Suzaku
from braidmq.pubsub.registry import METHODS, TABLE_SIZE_DEFAULT, described
from braidmq.sim.checkers.complaints import Complaints
from braidmq.sim.engine import Simulator
from braidmq.sim.garbage import hardly_any_garbage_collection, no_garbage_collection
from braidmq.sim.journey import Journey
from braidmq.sim.network import Constant, Network, Uniform, wide_area
from braidmq.sim.picture import HOSTS_MAX
from braidmq.sim.trace import Trace
from braidmq.sim.trials import fault_schedule, fleet, lookups
from braidmq.sim.trials.brokers import TrialBrokers
from braidmq.sim.trials.figures import FaultFigures, Figures, FleetFigures, quantile, resident_mib
from braidmq.sim.trials.fleet_plan import FleetPlan
from braidmq.sim.trials.large_pages import use_large_pages
from braidmq.sim.trials.meter import Tally, publication_of
from braidmq.sim.trials.methods import TRIAL_METHODS, LearningTables, Options, Ordered, TrialMethod
from braidmq.sim.trials.parameters import OnProgress, Trial, TrialError, TrialReport
from braidmq.sim.trials.patterns import Fleet, Lookups, RoleAssignment, drawn
from braidmq.sim.trials.patterns import parse as parse_pattern
from braidmq.sim.trials.selection import SELECTION_METHODS, given_of, play_selection

__all__ = ["OnProgress", "Trial", "TrialError", "TrialReport", "play"]

GROWN_NODES_MAX: Final = 512
"""Networks up to this size can grow by messages in reasonable time."""

LARGE_NODES_MIN: Final = 10_000
"""From here on a network is larger than what a processor keeps at hand."""

TABLE_SIZE_MIN: Final = 8
LEARN_S: Final = 30.0
"""How long tables are learnt if nothing is said about it."""

LEARNT_KEYS_MAX: Final = 2_000
"""Publishers and subscribers of measured topics whose tables are learnt if nothing is said: it takes about a minute."""

LEARN_MAX_S: Final = 3_600.0
LEARN_STEPS: Final = 10
"""Signs of progress while tables are learnt."""

CLUSTERS_MAX: Final = 10_000

_TABLED: Final = " or ".join(sorted(name for name, entry in METHODS.items() if entry.has_tables))
"""Whose overlay has tables."""

_LEARNT: Final = " or ".join(name for name, kind in TRIAL_METHODS.items() if isinstance(kind, LearningTables))
"""Whose tables are learnt for what is measured."""

NETWORKS: Final[dict[str, Callable[[], Network]]] = {
    "constant": lambda: Constant(0.01),
    "uniform": lambda: Uniform(0.005, 0.05),
    "wan": wide_area,
}


class TrialRun(msgspec.Struct):
    """A trial under way."""

    trial: Trial
    kind: TrialMethod
    options: Options
    sim: Simulator
    schedule: fault_schedule.FaultSchedule | None
    on_progress: OnProgress
    watch_every_s: float | None = None
    tally: Tally = msgspec.field(default_factory=Tally)
    complaints: Complaints = msgspec.field(default_factory=Complaints)
    notes: list[str] = msgspec.field(default_factory=list)
    publications_of: int = 0
    fault_figures: FaultFigures | None = None
    fleet_figures: FleetFigures | None = None
    picture: str | None = None
    build_s: float = 0.0
    run_s: float = 0.0
    messages_before: int = 0


def play(
    trial: Trial, on_progress: OnProgress = lambda _what, _part: None, watch_every_s: float | None = None
) -> TrialReport:
    """Plays a trial; a TrialError, PatternError or FaultsError if it cannot be played.

    With `watch_every_s`, what must hold at any time is looked at so often in virtual time (`checkers.watch`); the
    figures are the same.
    """
    if trial.method in SELECTION_METHODS:
        return play_selection(trial, NETWORKS, on_progress)
    if (given := given_of(trial)) is not None:
        raise TrialError(f"{given} is of selections, by {', '.join(SELECTION_METHODS)}, not of {trial.method}")
    began_at = time.monotonic()
    kind = _kind(trial.method)
    options = _options(trial, kind)
    if trial.network not in NETWORKS:
        raise TrialError(f"there is no network {trial.network!r}; there are {', '.join(NETWORKS)}")
    pattern = parse_pattern(trial.pattern)
    nodes = pattern.nodes_default if trial.nodes is None else trial.nodes
    faults, churn = (None, 0.0) if trial.faults is None else fault_schedule.parse(trial.faults)
    assignment = pattern.deal(nodes, Random(trial.seed))  # noqa: S311 - reproducible on purpose
    grows = faults is not None and fault_schedule.LIVING_MIN <= assignment.brokers <= GROWN_NODES_MAX
    if grows and trial.ideal:
        raise TrialError("tables cannot be ideal in a network that grows: they are learnt by messages")
    if isinstance(kind, LearningTables) and not isinstance(pattern, Lookups | Fleet) and not grows:
        options = msgspec.structs.replace(options, learn_s=_learn_s(trial, assignment))
    network = NETWORKS[trial.network]()
    schedule = fault_schedule.FaultSchedule(network, faults, churn) if faults is not None else None
    clock_error_of = None if schedule is None else schedule.clock_error_of
    run = TrialRun(
        trial,
        kind,
        options,
        Simulator(trial.seed, schedule or network, clock_error_of),
        schedule,
        on_progress,
        watch_every_s,
    )
    if assignment.note:
        run.notes.append(assignment.note)
    with hardly_any_garbage_collection():
        if isinstance(pattern, Lookups):
            _look_up(run, assignment.brokers)
        elif isinstance(pattern, Fleet):
            _play_fleet(run, pattern, assignment.brokers)
        else:
            _publish(run, assignment, grows)
    figures = _figures(run, time.monotonic() - began_at)
    parameters: dict[str, str | int | float | None] = {
        "method": trial.method,
        "pattern": trial.pattern,
        "nodes": assignment.brokers,
        "seed": trial.seed,
        "faults": trial.faults,
        "network": trial.network,
        "cut": options.cut.name.lower() if kind.entry.cuts else None,
        "table_size": options.table_size if kind.entry.has_tables else None,
        "learn_s": options.learn_s,
        "clusters": options.clusters,
    }
    return TrialReport(parameters, figures, run.notes, run.complaints.first, run.complaints.count, run.picture)


def _kind(method: str) -> TrialMethod:
    if method not in TRIAL_METHODS:
        raise TrialError(f"there is no method {method!r}; there are {described()}")
    return TRIAL_METHODS[method]


def _options(trial: Trial, kind: TrialMethod) -> Options:
    """What is set about the method; what it does not have cannot be set."""
    cuts = {cut.name.lower(): cut for cut in kind.entry.cuts}
    if trial.cut is not None and trial.cut not in cuts:
        can = f"{trial.method} splits by {' or '.join(cuts)}" if cuts else f"{trial.method} does not split ranges"
        raise TrialError(f"no cut {trial.cut!r}: {can}")
    if trial.table_size is not None and not kind.entry.has_tables:
        raise TrialError(f"only the method {_TABLED} has a table size, not {trial.method}")
    if trial.learn_s is not None and not isinstance(kind, LearningTables):
        raise TrialError(f"only the tables of the method {_LEARNT} are learnt, not those of {trial.method}")
    if trial.ideal and not isinstance(kind, LearningTables):
        raise TrialError(f"only the tables of the method {_LEARNT} can be ideal, not those of {trial.method}")
    if trial.learn_s is not None and trial.ideal:
        raise TrialError("tables are either ideal or learnt: leave one of them out")
    if trial.learn_s is not None and trial.pattern == "lookups":
        raise TrialError("lookups are measured in tables that are laid out: nobody learns for them")
    if trial.learn_s is not None and not 0 <= trial.learn_s <= LEARN_MAX_S:
        raise TrialError(f"learning for {trial.learn_s:g} s: from 0 to {LEARN_MAX_S:,.0f}")
    size = TABLE_SIZE_DEFAULT if trial.table_size is None else trial.table_size
    if not TABLE_SIZE_MIN <= size <= SIZE_MAX:
        raise TrialError(f"a table of {size} entries: from {TABLE_SIZE_MIN} to {SIZE_MAX}")
    clusters = 1 if trial.clusters is None else trial.clusters
    if not 1 <= clusters <= CLUSTERS_MAX:
        raise TrialError(f"{clusters} clusters: from 1 to {CLUSTERS_MAX:,}")
    cut = cuts[trial.cut] if trial.cut is not None else next(iter(kind.entry.cuts), Cut.MRF)
    return Options(cut, size, clusters, trial.learn_s)


def _learn_s(trial: Trial, assignment: RoleAssignment) -> float | None:
    """How long tables of a laid-out network are learnt; None if they are laid out as well."""
    if trial.learn_s is not None or trial.ideal:
        return trial.learn_s
    keys = sum(len(topic.publishers) + len(topic.subscribers) for topic in assignment.topics if topic.measured)
    return LEARN_S if keys <= LEARNT_KEYS_MAX else None


def _publish(run: TrialRun, assignment: RoleAssignment, grows: bool) -> None:
    began_at = time.process_time()
    brokers = TrialBrokers(run.sim, run.kind, run.options)
    if run.watch_every_s is not None:
        brokers.watch(run.watch_every_s, run.complaints)
    if grows:
        run.complaints.add(brokers.grow(assignment, lambda part: run.on_progress("the network grows", part)))
    else:
        run.on_progress("the network is laid out", 0.0)
        run.complaints.add(brokers.lay_out(assignment, lambda part: run.on_progress("roles are asked for", part)))
    _visit(run, brokers)
    _learn(run, brokers, assignment, grows)
    run.build_s = time.process_time() - began_at
    run.messages_before = run.sim.messages
    began_at = time.process_time()
    publications = [(topic.name, broker) for topic, broker in assignment.publications()]
    others: list[tuple[str, int]] = []
    if run.schedule is not None:
        if run.schedule.churn and not grows:
            run.notes.append(
                f"no churn: only networks of {fault_schedule.LIVING_MIN} to {GROWN_NODES_MAX} nodes can grow"
            )
        _run_faults(run, run.schedule, brokers, grows)
        publications, others = _after(brokers, {topic.name for topic in assignment.topics if topic.measured})
    run.publications_of = len(publications)
    some = _drawn(run, brokers, publications)
    if len(some) < len(publications):
        run.notes.append(f"{len(some):,} of {len(publications):,} publishers were drawn by chance, and published once")
    if not some:
        run.notes.append("nobody is left who publishes what is measured")
    if run.trial.trace:
        _draw(run, brokers, some)
        some = some[1:]
    brokers.publish_all(some, run.tally, run.complaints, lambda part: run.on_progress("publications", part))
    rest = _drawn(run, brokers, others)
    brokers.publish_all(
        rest, Tally(), run.complaints, lambda part: run.on_progress("publications of other topics", part)
    )
    run.run_s = time.process_time() - began_at
    run.complaints.add(brokers.wrong_demand())
    if brokers.meter.late_deliveries:
        run.complaints.add([f"{brokers.meter.late_deliveries} deliveries came long after their publication"])


def _after(brokers: TrialBrokers, measured: set[str]) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """One publication of each publisher that lives after the faults: of measured topics, and of other topics.

    The latter are checked as well, but what they take is no figure of this trial.
    """
    every = [(topic, broker) for topic, (publishers, _) in brokers.members.items() for broker in publishers]
    return [one for one in every if one[0] in measured], [one for one in every if one[0] not in measured]


def _drawn(run: TrialRun, brokers: TrialBrokers, publications: list[tuple[str, int]]) -> list[tuple[str, int]]:
    deliveries = [len(brokers.members[topic][1]) for topic, _ in publications]
    return drawn(publications, deliveries, run.trial.publications, Random(run.trial.seed))  # noqa: S311


def _visit(run: TrialRun, brokers: TrialBrokers) -> None:
    """Lets publishers without subscribers have one for a while, so that they have learnt what they know."""
    run.on_progress("topics without subscribers are visited", 0.0)
    visited, count, complaints = brokers.visit()
    run.complaints.add(complaints)
    if visited:
        topics = f"{visited:,} of {count:,} topics" if visited < count else f"{count:,} topic{'s' if count > 1 else ''}"
        run.notes.append(f"{topics} without subscribers had one for a while before the trial, by messages")


def _learn(run: TrialRun, brokers: TrialBrokers, assignment: RoleAssignment, grows: bool) -> None:
    """Lets tables be learnt, if they are not laid out as they should be; in a network that grows they always are."""
    if not isinstance(run.kind, LearningTables):
        return
    if run.options.learn_s is None:
        if not grows:
            why = (
                ""
                if run.trial.ideal
                else f", as so many take long; with --learn {LEARN_S:g} they are learnt by messages"
            )
            run.notes.append(f"the tables were laid out, the best by their order{why}")
        return
    if not grows:
        run.kind.begin_to_learn(run.sim, assignment, brokers.methods)
    for step in range(LEARN_STEPS):
        run.on_progress("tables are learnt", step / LEARN_STEPS)
        run.sim.run(run.sim.now + run.options.learn_s / LEARN_STEPS)


def _run_faults(run: TrialRun, schedule: fault_schedule.FaultSchedule, brokers: TrialBrokers, grown: bool) -> None:
    tally = Tally()
    run.on_progress("the network has its faults", 0.0)
    fault_schedule.run_faults(brokers, schedule, schedule.churn if grown else 0.0, tally)
    run.fault_figures = FaultFigures(tally.publications, tally.expected, tally.deliveries, tally.duplicates)
    run.complaints.add(brokers.unsettled())


def _draw(run: TrialRun, brokers: TrialBrokers, publications: list[tuple[str, int]]) -> None:
    """Publishes the first one, and draws the ways that it took."""
    if not publications:
        raise TrialError("there is nothing to draw: nobody is left who publishes what is measured")
    publication = publications[0]
    trace = Trace(run.sim)
    brokers.publish_all([publication], run.tally, run.complaints, lambda _part: None)
    trace.stop()
    shown = [journey for journey in trace.journeys if _is_of_publication(journey)]
    topic, broker = publication
    hosts = list(dict.fromkeys([broker, *(end for one in shown for end in (one.sender, one.receiver))]))
    if not shown:
        raise TrialError(f"there is nothing to draw: no message was sent for the publication of {broker} on {topic}")
    if len(hosts) > HOSTS_MAX:
        raise TrialError(
            f"a publication that {len(hosts):,} brokers see makes no picture: at most {HOSTS_MAX}, as in pattern delta"
        )
    title = f"{run.trial.method}: a publication of broker {broker} on {topic}, seed {run.trial.seed}"
    run.picture = trace.svg(_is_of_publication, hosts, title)


def _is_of_publication(journey: Journey) -> bool:
    return publication_of(journey.message) is not None


def _look_up(run: TrialRun, nodes: int) -> None:
    if not isinstance(run.kind, Ordered):
        raise TrialError(f"{run.trial.method} has no ordered overlay to look up keys in; suzaku, for example, has")
    if run.trial.faults is not None or run.trial.trace:
        raise TrialError("lookups are measured without faults, and are not drawn")
    began_at = time.process_time()
    run.on_progress("the network is laid out", 0.0)
    keys = lookups.keys_of(run.sim, nodes)
    placed: dict[Address, tuple[Key, ...]] = {broker: (key,) for broker, key in enumerate(keys)}
    with no_garbage_collection():
        overlays = list(run.kind.lay_out_overlay(run.sim, placed, run.options, lambda _key: True).values())
        for overlay in overlays:
            if isinstance(overlay, Suzaku):
                overlay.make_ways()
    if nodes >= LARGE_NODES_MIN:
        use_large_pages()
    run.build_s = time.process_time() - began_at
    count = run.publications_of = nodes if run.trial.publications is None else run.trial.publications
    began_at = time.process_time()
    lookups.look_up(
        run.sim,
        overlays,
        sorted(keys),
        count,
        run.tally,
        run.complaints,
        lambda part: run.on_progress("keys are looked up", part),
    )
    run.run_s = time.process_time() - began_at


def _play_fleet(run: TrialRun, pattern: Fleet, brokers: int) -> None:
    if not isinstance(run.kind, Ordered):
        raise TrialError(
            f"a fleet needs keys in order, which {run.trial.method} does not have; relayfree, for example, has"
        )
    if run.trial.faults is not None or run.trial.trace:
        raise TrialError("a fleet is measured without faults, and is not drawn")
    keys = brokers * (pattern.topics + pattern.filters)
    if not run.kind.entry.takes_filters and keys > fleet.KEYS_MAX:
        raise TrialError(f"{run.trial.method} needs a key a topic, here {keys:,}: at most {fleet.KEYS_MAX:,} can join")
    began_at = time.process_time()
    plan = FleetPlan(brokers, pattern.topics, pattern.filters, run.trial.seed)
    trial = fleet.FleetTrial(run.sim, run.kind, run.options, plan, run.complaints, run.on_progress)
    trial.grow()
    run.build_s = time.process_time() - began_at
    run.messages_before = run.sim.messages
    began_at = time.process_time()
    run.fleet_figures = trial.measure(run.trial.publications)
    run.tally = trial.tally
    run.publications_of = run.tally.publications
    run.run_s = time.process_time() - began_at


def _figures(run: TrialRun, wall_s: float) -> Figures:
    tally = run.tally
    hops = tally.hops
    heard = sum(hops.values())
    simulated = run.sim.messages - run.messages_before
    return Figures(
        publications=tally.publications,
        publications_of=run.publications_of,
        suspended=tally.suspended,
        deliveries=tally.deliveries,
        missed=tally.missed,
        duplicates=tally.duplicates,
        bothered=tally.bothered,
        hops_mean=sum(count * times for count, times in hops.items()) / heard if heard else 0.0,
        hops_p50=quantile(hops, 0.5),
        hops_p99=quantile(hops, 0.99),
        hops_max=max(hops, default=0),
        messages=tally.messages,
        messages_without_subscribers=tally.messages_without_subscribers,
        crossings=tally.crossings,
        forwards_max=tally.forwards_max,
        children_max=tally.children_max,
        bytes=tally.bytes,
        delay_mean_s=tally.delay_sum_s / heard if heard else 0.0,
        delay_max_s=tally.delay_max_s,
        virtual_s=run.sim.now,
        build_messages=run.messages_before,
        simulated_messages=simulated,
        simulated_messages_per_s=simulated / run.run_s if run.run_s else 0.0,
        build_s=run.build_s,
        run_s=run.run_s,
        wall_s=wall_s,
        rss_mib=resident_mib(),
        rough=run.fault_figures,
        fleet=run.fleet_figures,
    )
