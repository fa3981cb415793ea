"""One trial of a publish/subscribe method: build a network, publish, measure, check. A function of its parameters.

    play(Trial(method="relayfree", pattern="delta", nodes=1000, seed=1)).figures.hops_mean

Two runs of the same trial give the same figures, but for those that are of the machine (`figures.OF_THE_MACHINE`).
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Final

import msgspec

from braidmq.host import Address
from braidmq.keys import Key
from braidmq.overlay.flexible import SIZE_MAX
from braidmq.overlay.ranges import Cut
from braidmq.overlay.suzaku import Suzaku
from braidmq.pubsub.registry import METHODS, TABLE_SIZE_DEFAULT, described
from braidmq.sim import fault_schedule as rough
from braidmq.sim import lookups
from braidmq.sim.checkers.complaints import Complaints
from braidmq.sim.engine import GC_THRESHOLD, Simulator
from braidmq.sim.figures import FaultFigures, Figures, quantile, resident_mib
from braidmq.sim.large_pages import use_large_pages
from braidmq.sim.meter import Tally, publication_of
from braidmq.sim.methods import KINDS, Kind, Learning, Options, Ordered
from braidmq.sim.network import Constant, Network, Uniform, wide_area
from braidmq.sim.patterns import Lookups, RoleAssignment, drawn
from braidmq.sim.patterns import parse as parse_pattern
from braidmq.sim.picture import HOSTS_MAX
from braidmq.sim.stage import Stage, no_garbage_collection
from braidmq.sim.trace import Journey, Trace

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

_TABLED: Final = " or ".join(name for name, entry in METHODS.items() if entry.has_tables)
"""Whose overlay has tables."""

NETWORKS: Final[dict[str, Callable[[], Network]]] = {
    "constant": lambda: Constant(0.01),
    "uniform": lambda: Uniform(0.005, 0.05),
    "wan": wide_area,
}

OnProgress = Callable[[str, float], None]
"""Called with what is being done, and which part of it is."""


class TrialError(ValueError):
    """A trial that makes no sense; it says why, and what would."""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters. None is what the method or the pattern takes of itself."""

    method: str
    pattern: str
    nodes: int | None = None
    seed: int = 1
    faults: str | None = None
    network: str = "constant"
    cut: str | None = None
    table_size: int | None = None
    learn_s: float | None = None
    ideal: bool = False
    """Tables are laid out, the best by their order, and not learnt."""
    clusters: int | None = None
    publications: int | None = None
    trace: bool = False


class Report(msgspec.Struct, frozen=True):
    """The outcome of a trial: with all parameters as they were used, and what checkers complain about."""

    parameters: dict[str, str | int | float | None]
    figures: Figures
    notes: list[str]
    complaints: list[str]
    complaints_count: int
    picture: str | None


class Play(msgspec.Struct):
    """A trial under way."""

    trial: Trial
    kind: Kind
    options: Options
    sim: Simulator
    weather: rough.FaultSchedule | None
    on_progress: OnProgress
    watch_every_s: float | None = None
    tally: Tally = msgspec.field(default_factory=Tally)
    complaints: Complaints = msgspec.field(default_factory=Complaints)
    notes: list[str] = msgspec.field(default_factory=list)
    publications_of: int = 0
    rough: FaultFigures | None = None
    picture: str | None = None
    build_s: float = 0.0
    run_s: float = 0.0
    messages_before: int = 0


def play(
    trial: Trial, on_progress: OnProgress = lambda _what, _part: None, watch_every_s: float | None = None
) -> Report:
    """Plays a trial; a TrialError, PatternError or FaultsError if it cannot be played.

    With `watch_every_s`, what must hold at any time is looked at so often in virtual time (`checkers.watch`); the
    figures are the same.
    """
    began_at = time.monotonic()
    kind = _kind(trial.method)
    options = _options(trial, kind)
    if trial.network not in NETWORKS:
        raise TrialError(f"there is no network {trial.network!r}; there are {', '.join(NETWORKS)}")
    pattern = parse_pattern(trial.pattern)
    nodes = pattern.nodes_default if trial.nodes is None else trial.nodes
    faults, churn = (None, 0.0) if trial.faults is None else rough.parse(trial.faults)
    cast = pattern.deal(nodes, Random(trial.seed))  # noqa: S311 - reproducible on purpose
    grows = faults is not None and rough.LIVING_MIN <= cast.brokers <= GROWN_NODES_MAX
    if grows and trial.ideal:
        raise TrialError("tables cannot be ideal in a network that grows: they are learnt by messages")
    if isinstance(kind, Learning) and not isinstance(pattern, Lookups) and not grows:
        options = msgspec.structs.replace(options, learn_s=_learn_s(trial, cast))
    network = NETWORKS[trial.network]()
    weather = rough.FaultSchedule(network, faults, churn) if faults is not None else None
    clock_error_of = None if weather is None else weather.clock_error_of
    it = Play(
        trial,
        kind,
        options,
        Simulator(trial.seed, weather or network, clock_error_of),
        weather,
        on_progress,
        watch_every_s,
    )
    if cast.note:
        it.notes.append(cast.note)
    with _hardly_any_garbage():
        if isinstance(pattern, Lookups):
            _look_up(it, cast.brokers)
        else:
            _publish(it, cast, grows)
    figures = _figures(it, time.monotonic() - began_at)
    parameters: dict[str, str | int | float | None] = {
        "method": trial.method,
        "pattern": trial.pattern,
        "nodes": cast.brokers,
        "seed": trial.seed,
        "faults": trial.faults,
        "network": trial.network,
        "cut": options.cut.name.lower() if kind.entry.cuts else None,
        "table_size": options.table_size if kind.entry.has_tables else None,
        "learn_s": options.learn_s,
        "clusters": options.clusters,
    }
    return Report(parameters, figures, it.notes, it.complaints.first, it.complaints.count, it.picture)


@contextmanager
def _hardly_any_garbage() -> Iterator[None]:
    """Looks for garbage seldom, for a network of millions of objects is none; what is frozen is not looked at."""
    thresholds = gc.get_threshold()
    gc.set_threshold(GC_THRESHOLD, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def _kind(method: str) -> Kind:
    if method not in KINDS:
        raise TrialError(f"there is no method {method!r}; there are {described()}")
    return KINDS[method]


def _options(trial: Trial, kind: Kind) -> Options:
    """What is set about the method; what it does not have cannot be set."""
    cuts = {cut.name.lower(): cut for cut in kind.entry.cuts}
    if trial.cut is not None and trial.cut not in cuts:
        can = f"{trial.method} splits by {' or '.join(cuts)}" if cuts else f"{trial.method} does not split ranges"
        raise TrialError(f"no cut {trial.cut!r}: {can}")
    if trial.table_size is not None and not kind.entry.has_tables:
        raise TrialError(f"only the method {_TABLED} has a table size, not {trial.method}")
    if trial.learn_s is not None and not kind.entry.has_tables:
        raise TrialError(f"only the tables of the method {_TABLED} are learnt, not those of {trial.method}")
    if trial.ideal and not kind.entry.has_tables:
        raise TrialError(f"only the tables of the method {_TABLED} can be ideal, not those of {trial.method}")
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


def _learn_s(trial: Trial, cast: RoleAssignment) -> float | None:
    """How long tables of a laid-out network are learnt; None if they are laid out as well."""
    if trial.learn_s is not None or trial.ideal:
        return trial.learn_s
    keys = sum(len(topic.publishers) + len(topic.subscribers) for topic in cast.topics if topic.measured)
    return LEARN_S if keys <= LEARNT_KEYS_MAX else None


def _publish(it: Play, cast: RoleAssignment, grows: bool) -> None:
    began_at = time.process_time()
    stage = Stage(it.sim, it.kind, it.options)
    if it.watch_every_s is not None:
        stage.watch(it.watch_every_s, it.complaints)
    if grows:
        it.complaints.add(stage.grow(cast, lambda part: it.on_progress("the network grows", part)))
    else:
        it.on_progress("the network is laid out", 0.0)
        it.complaints.add(stage.lay_out(cast, lambda part: it.on_progress("roles are asked for", part)))
    _visit(it, stage)
    _learn(it, stage, cast, grows)
    it.build_s = time.process_time() - began_at
    it.messages_before = it.sim.messages
    began_at = time.process_time()
    publications = [(topic.name, broker) for topic, broker in cast.publications()]
    others: list[tuple[str, int]] = []
    if it.weather is not None:
        if it.weather.churn and not grows:
            it.notes.append(f"no churn: only networks of {rough.LIVING_MIN} to {GROWN_NODES_MAX} nodes can grow")
        _endure(it, it.weather, stage, grows)
        publications, others = _after(stage, {topic.name for topic in cast.topics if topic.measured})
    it.publications_of = len(publications)
    some = _drawn(it, stage, publications)
    if len(some) < len(publications):
        it.notes.append(f"{len(some):,} of {len(publications):,} publishers were drawn by chance, and published once")
    if not some:
        it.notes.append("nobody is left who publishes what is measured")
    if it.trial.trace:
        _draw(it, stage, some)
        some = some[1:]
    stage.publish_all(some, it.tally, it.complaints, lambda part: it.on_progress("publications", part))
    rest = _drawn(it, stage, others)
    stage.publish_all(rest, Tally(), it.complaints, lambda part: it.on_progress("publications of other topics", part))
    it.run_s = time.process_time() - began_at
    it.complaints.add(stage.wrong_demand())
    if stage.meter.strays:
        it.complaints.add([f"{stage.meter.strays} deliveries came long after their publication"])


def _after(stage: Stage, measured: set[str]) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """One publication of each publisher that lives after a rough time: of measured topics, and of the others.

    The others are checked as well, but what they take is no figure of this trial.
    """
    every = [(topic, broker) for topic, (publishers, _) in stage.members.items() for broker in publishers]
    return [one for one in every if one[0] in measured], [one for one in every if one[0] not in measured]


def _drawn(it: Play, stage: Stage, publications: list[tuple[str, int]]) -> list[tuple[str, int]]:
    deliveries = [len(stage.members[topic][1]) for topic, _ in publications]
    return drawn(publications, deliveries, it.trial.publications, Random(it.trial.seed))  # noqa: S311


def _visit(it: Play, stage: Stage) -> None:
    """Lets publishers that nobody wants be wanted for a while, so that they have learnt what they know."""
    it.on_progress("topics without subscribers are visited", 0.0)
    visited, count, complaints = stage.visit()
    it.complaints.add(complaints)
    if visited:
        topics = f"{visited:,} of {count:,} topics" if visited < count else f"{count:,} topic{'s' if count > 1 else ''}"
        it.notes.append(f"{topics} without subscribers had one for a while before the trial, by messages")


def _learn(it: Play, stage: Stage, cast: RoleAssignment, grows: bool) -> None:
    """Lets tables be learnt, if they are not laid out as they should be; in a network that grows they always are."""
    if not isinstance(it.kind, Learning):
        return
    if it.options.learn_s is None:
        if not grows:
            why = (
                ""
                if it.trial.ideal
                else f", as so many take long; with --learn {LEARN_S:g} they are learnt by messages"
            )
            it.notes.append(f"the tables were laid out, the best by their order{why}")
        return
    if not grows:
        it.kind.begin_to_learn(it.sim, cast, stage.methods)
    for step in range(LEARN_STEPS):
        it.on_progress("tables are learnt", step / LEARN_STEPS)
        it.sim.run(it.sim.now + it.options.learn_s / LEARN_STEPS)


def _endure(it: Play, weather: rough.FaultSchedule, stage: Stage, grown: bool) -> None:
    tally = Tally()
    it.on_progress("the network has a rough time", 0.0)
    rough.endure(stage, weather, weather.churn if grown else 0.0, tally)
    it.rough = FaultFigures(tally.publications, tally.expected, tally.deliveries, tally.duplicates)
    it.complaints.add(stage.unsettled())


def _draw(it: Play, stage: Stage, publications: list[tuple[str, int]]) -> None:
    """Publishes the first one, and draws the ways that it took."""
    if not publications:
        raise TrialError("there is nothing to draw: nobody is left who publishes what is measured")
    publication = publications[0]
    trace = Trace(it.sim)
    stage.publish_all([publication], it.tally, it.complaints, lambda _part: None)
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
    title = f"{it.trial.method}: a publication of broker {broker} on {topic}, seed {it.trial.seed}"
    it.picture = trace.svg(_is_of_publication, hosts, title)


def _is_of_publication(journey: Journey) -> bool:
    return publication_of(journey.message) is not None


def _look_up(it: Play, nodes: int) -> None:
    if not isinstance(it.kind, Ordered):
        raise TrialError(f"{it.trial.method} has no ordered overlay to look up keys in; suzaku, for example, has")
    if it.trial.faults is not None or it.trial.trace:
        raise TrialError("lookups are measured without faults, and are not drawn")
    began_at = time.process_time()
    it.on_progress("the network is laid out", 0.0)
    keys = lookups.keys_of(it.sim, nodes)
    placed: dict[Address, tuple[Key, ...]] = {broker: (key,) for broker, key in enumerate(keys)}
    with no_garbage_collection():
        overlays = list(it.kind.lay_out_overlay(it.sim, placed, it.options, lambda _key: True).values())
        for overlay in overlays:
            if isinstance(overlay, Suzaku):
                overlay.make_ways()
    if nodes >= LARGE_NODES_MIN:
        use_large_pages()
    it.build_s = time.process_time() - began_at
    count = it.publications_of = nodes if it.trial.publications is None else it.trial.publications
    began_at = time.process_time()
    lookups.look_up(
        it.sim,
        overlays,
        sorted(keys),
        count,
        it.tally,
        it.complaints,
        lambda part: it.on_progress("keys are looked up", part),
    )
    it.run_s = time.process_time() - began_at


def _figures(it: Play, wall_s: float) -> Figures:
    tally = it.tally
    hops = tally.hops
    heard = sum(hops.values())
    simulated = it.sim.messages - it.messages_before
    return Figures(
        publications=tally.publications,
        publications_of=it.publications_of,
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
        virtual_s=it.sim.now,
        build_messages=it.messages_before,
        simulated_messages=simulated,
        simulated_messages_per_s=simulated / it.run_s if it.run_s else 0.0,
        build_s=it.build_s,
        run_s=it.run_s,
        wall_s=wall_s,
        rss_mib=resident_mib(),
        rough=it.rough,
    )
