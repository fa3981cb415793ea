"""One trial of selecting a component of many: reserve until none is free, or at an occupancy with releases.

The sender is the delegate, the first of the group, as in Ishihara et al. 2021, §4.4: what it takes to reach the
delegate is not counted. With `wait` 0 no update travels meanwhile. With `faults` that have churn, brokers crash and
return, and requests come from all of them (`selection_churn`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from braidmq.overlay.suzaku import PERIOD_S
from braidmq.select.anycast import AnycastOptions
from braidmq.select.holder import Holder
from braidmq.select.members import Aggregates
from braidmq.select.messages import NotReserved, Reserved
from braidmq.select.request import LEASE_MAX_S, SelectionRequest
from braidmq.select.strategies import STRATEGIES
from braidmq.sim.checkers.complaints import Complaints
from braidmq.sim.checkers.selection import no_reservation_is_lost, no_slot_is_reserved_twice
from braidmq.sim.engine import Simulator
from braidmq.sim.garbage import hardly_any_garbage_collection
from braidmq.sim.network import Network
from braidmq.sim.trials import fault_schedule
from braidmq.sim.trials.figures import Figures, SelectionFigures, quantile, resident_mib
from braidmq.sim.trials.parameters import OnProgress, Trial, TrialError, TrialReport
from braidmq.sim.trials.selection_churn import play_churn
from braidmq.sim.trials.selection_network import LEVEL_MAX, SelectionMeter, SelectionNetwork, SelectionPlan

SELECTION_METHODS: Final = ("multicast", "anycast", "ledger")
EARLIER, OPTIMAL, REFINED = "earlier", "optimal", "refined"
STRATEGY_NAMES: Final = (*STRATEGIES, REFINED, EARLIER, OPTIMAL)

AT_ONCE: Final = "at-once"
"""All aggregates, and changes are told at once to those that point at a node (continuous updates)."""

GROUP: Final = 64
BROKERS: Final = 128
BROKERS_MAX: Final = 10_000
EARLIER_TOPICS: Final = 9
MESSAGE_BYTES: Final = 800
REQUESTS: Final = 1_000
REQUEST_EVERY_S: Final = 1.0
"""At an occupancy: between two requests, with releases in the middle."""

OVER_S: Final = 0.05
MISSED_MAX: Final = 0.001
"""Of the ledger's requests, without faults."""

REFINED_HOPS_MAX: Final = 16
ANSWERS: Final = ("Reserved", "NotReserved", "SlotClaimed", "Released", "DelegateAnswer", "Elsewhere")
"""Final answers, which the papers do not count."""

OPTIONS: Final = ("group", "wait", "strategy", "aggregates", "slots", "occupancy", "requests", "message_bytes")


def given_of(trial: Trial) -> str | None:
    """An option of selections that was given; None if none was."""
    return next((name for name in OPTIONS if getattr(trial, name) is not None), None)


def play_selection(trial: Trial, networks: Mapping[str, Callable[[], Network]], on_progress: OnProgress) -> TrialReport:
    """Plays a trial of selections; a TrialError if it makes no sense."""
    began_at = time.monotonic()
    plan, parameters = _plan(trial)
    if trial.network not in networks:
        raise TrialError(f"there is no network {trial.network!r}; there are {', '.join(networks)}")
    calm = networks[trial.network]()
    faults, churn = fault_schedule.parse(trial.faults or "")
    if faults.jump or faults.drift:
        raise TrialError("leases rely on clocks that run alike: no jump and no drift here")
    if churn and trial.method != "ledger":
        raise TrialError("brokers that come and go are played with the ledger")
    with hardly_any_garbage_collection():
        if churn:
            schedule = fault_schedule.FaultSchedule(calm, faults, churn)
            run = _Run(trial, Simulator(trial.seed, schedule), plan, None)
            run.requests, run.reserved, run.missed = play_churn(run.sim, plan, schedule, run.hops, run.complaints)
        else:
            sim = Simulator(trial.seed, faults.over(calm))
            run = _Run(trial, sim, plan, SelectionNetwork(sim, plan))
            run.play(on_progress)
    figures = run.figures(time.monotonic() - began_at)
    return TrialReport(parameters, figures, run.notes, run.complaints.first, run.complaints.count, None)


def _plan(trial: Trial) -> tuple[SelectionPlan, dict[str, str | int | float | None]]:
    group = GROUP if trial.group is None else trial.group
    brokers = max(BROKERS, group) if trial.nodes is None else trial.nodes
    if not 1 <= group <= brokers <= BROKERS_MAX:
        raise TrialError(f"a group of {group:,} at {brokers:,} brokers: from 1 to all of them, {BROKERS_MAX:,} at most")
    strategy = "close" if trial.strategy is None and trial.method == "anycast" else trial.strategy
    if strategy is not None and (trial.method != "anycast" or strategy not in STRATEGY_NAMES):
        raise TrialError(f"no strategy {strategy!r} of {trial.method}: anycast has {', '.join(STRATEGY_NAMES)}")
    kinds = {kind.name.lower(): kind for kind in Aggregates}
    is_own = trial.method == "ledger" or strategy == REFINED
    aggregates = trial.aggregates or ("cut" if is_own else "all")
    if aggregates not in (*kinds, AT_ONCE):
        raise TrialError(f"no aggregates {aggregates!r}: {', '.join((*kinds, AT_ONCE))}")
    slots = 1 if trial.slots is None else trial.slots
    if slots < 1 or (trial.requests or 1) < 1 or (trial.message_bytes or 1) < 1:
        raise TrialError("slots, requests and message bytes are 1 or more")
    if trial.wait is not None and not 0 <= trial.wait <= 1_000:
        raise TrialError(f"{trial.wait:g} periods between two requests: from 0 to 1,000")
    if trial.occupancy is not None and not 0 < trial.occupancy < 1:
        raise TrialError(f"an occupancy of {trial.occupancy:g}: more than 0 and less than 1")
    if trial.trace:
        raise TrialError("selections are not drawn")
    plan = SelectionPlan(
        brokers=brokers,
        group_size=group,
        topics=EARLIER_TOPICS if strategy == EARLIER else 3,
        slots_max=slots,
        aggregates=kinds.get(aggregates, Aggregates.ALL),
        at_once=aggregates == AT_ONCE,
        plain=not is_own,
    )
    parameters: dict[str, str | int | float | None] = {
        "method": trial.method,
        "pattern": trial.pattern,
        "nodes": brokers,
        "seed": trial.seed,
        "faults": trial.faults,
        "network": trial.network,
        "group": group,
        "wait": trial.wait or 0.0,
        "strategy": strategy,
        "aggregates": aggregates,
        "slots": slots,
        "occupancy": trial.occupancy,
        "requests": trial.requests,
        "message_bytes": trial.message_bytes or MESSAGE_BYTES,
    }
    return plan, parameters


class _Run:
    """A trial under way."""

    def __init__(self, trial: Trial, sim: Simulator, plan: SelectionPlan, network: SelectionNetwork | None) -> None:
        self.trial = trial
        self.sim = sim
        self.plan = plan
        self.net = network
        self.meter = SelectionMeter(sim)
        self.complaints = Complaints()
        self.notes: list[str] = []
        self.hops: list[int] = []
        self.requests = self.reserved = self.missed = self.refused = 0
        self.levels: Counter[tuple[bool, int]] = Counter()
        self.measured_s = 0.0
        self.nodes = 4 * plan.brokers
        self._has_upkeep = trial.method == "ledger"
        """Whether all nodes update, and what that takes is measured; where only hops are, that would take long."""
        self._holders: list[Holder] = []
        self._begun = self._total = 0

    def play(self, on_progress: OnProgress) -> None:
        assert self.net is not None
        trial, net, sim = self.trial, self.net, self.sim
        self.nodes = sum(1 for _ in net.nodes)
        if trial.strategy == OPTIMAL:
            self._play_optimal()
            return
        if trial.wait:
            on_progress("updates begin", 0.0)
            net.begin_updates(near_only=not self._has_upkeep)
        if trial.occupancy is not None:
            self._fill(trial.occupancy)
        for selector in net.selectors.values():
            selector.anycast.on_step = self._stepped
        self.meter = SelectionMeter(sim, counts_upkeep=self._has_upkeep)
        began_at = sim.now
        count = trial.requests or (net.free() if trial.occupancy is None else REQUESTS)
        for number in range(count):
            on_progress("components are reserved", number / count)
            until = sim.now + (trial.wait * PERIOD_S if trial.wait else 0.0)
            if trial.occupancy is not None:
                self._release_some(trial.occupancy)
                until = max(until, sim.now + REQUEST_EVERY_S / 2)
            self._request(is_measured=True)
            sim.run(max(until, sim.now))
            self.complaints.add(self._wrong())
        self.measured_s = sim.now - began_at
        if trial.method == "ledger" and trial.faults is None and self.missed > MISSED_MAX * count:
            self.complaints.add([f"{self.missed} of {count} requests found nothing, though something was free"])

    def _stepped(self, level: int, forward: bool) -> None:
        self.levels[forward, level] += 1

    def _fill(self, occupancy: float) -> None:
        assert self.net is not None
        self._total = self.net.free()
        while self.net.free() > (1 - occupancy) * self._total:
            self._request(is_measured=False)

    def _release_some(self, occupancy: float) -> None:
        """None, one or two by chance, so that the occupancy goes up and down around what it should be."""
        assert self.net is not None
        free, meant = self.net.free(), (1 - occupancy) * self._total
        count = 1 if not free else 0 if free > 2 * meant else self.sim.chance.randrange(3)
        for _ in range(count):
            holder = self._holders.pop(self.sim.chance.randrange(len(self._holders)))
            self._run(holder.release())
        self.sim.run(self.sim.now + REQUEST_EVERY_S / 2)

    def _request(self, is_measured: bool) -> None:
        """One request, and time passes until it has its answer."""
        assert self.net is not None
        asked_at = self.sim.now
        request = SelectionRequest(f"r{self._begun}", self.plan.group, LEASE_MAX_S)
        self._begun += 1
        if self.trial.wait:
            self.net.ask_everywhere()
        was_free = self.net.free()
        outcomes: list[Reserved | NotReserved] = []

        async def one() -> None:
            outcomes.append(await self._select(request))

        self._run(one())
        while not outcomes:
            self.sim.run(self.sim.now + OVER_S)
        outcome = outcomes[0]
        if isinstance(outcome, Reserved):
            self._holders.append(self.net.selectors[self._broker].hold(outcome, asked_at))
        if not is_measured:
            return
        self.requests += 1
        if isinstance(outcome, Reserved):
            self.reserved += 1
            self.hops.append(outcome.hops)
        elif was_free:
            self.missed += 1
        else:
            self.refused += 1

    @property
    def _broker(self) -> int:
        assert self.net is not None
        return self.net.delegate[0]

    def _run(self, procedure: Coroutine[Any, Any, None]) -> None:
        self.sim.hosts[self._broker].spawn(procedure)

    async def _select(self, request: SelectionRequest) -> Reserved | NotReserved:
        assert self.net is not None
        broker, start = self.net.delegate
        selector, strategy = self.net.selectors[broker], self.trial.strategy or "close"
        if self.trial.method == "ledger":
            return await selector.reserve(request)
        if self.trial.method == "multicast":
            return await selector.multicast.reserve(request, start, routed=True)
        if strategy == EARLIER:
            home = next(iter(self.net.overlays[broker].nodes.values()))
            return await selector.anycast.reserve(request, home.me, AnycastOptions(strategy=EARLIER))
        if strategy == REFINED:
            options = AnycastOptions(hops_max=REFINED_HOPS_MAX, finishes_here=True, remembers=True)
            return await selector.search(request, start, options, multicast_below=self.plan.group_size // 2)
        return await selector.anycast.reserve(request, start, AnycastOptions(strategy=strategy))

    def _play_optimal(self) -> None:
        """The sender knows all: it reserves in the order of hops along the fingers, and nothing is in vain (§4.4)."""
        assert self.net is not None
        distances = self.net.distances()
        self.hops = sorted(distances)
        self.requests = self.reserved = len(distances)
        self.meter.messages["SeekComponent"] = sum(distances)

    def _wrong(self) -> list[str]:
        assert self.net is not None
        members = {member.key: member for _, member in self.net.group_members()}
        slots = {(key, name): one.slots for key, member in members.items() for name, one in member.components.items()}
        return no_slot_is_reserved_twice(self._holders, slots) + no_reservation_is_lost(self._holders, members)

    def figures(self, wall_s: float) -> Figures:
        hops = Counter(self.hops)
        count = max(1, self.requests)
        return Figures(
            publications=self.requests,
            publications_of=self.requests,
            suspended=0,
            deliveries=self.reserved,
            missed=self.missed,
            duplicates=0,
            bothered=0,
            hops_mean=sum(self.hops) / max(1, len(self.hops)),
            hops_p50=quantile(hops, 0.5),
            hops_p99=quantile(hops, 0.99),
            hops_max=max(hops, default=0),
            messages=self.meter.selection_messages(),
            messages_without_subscribers=0,
            crossings=0,
            forwards_max=0,
            children_max=0,
            bytes=self.meter.bytes,
            delay_mean_s=0.0,
            delay_max_s=0.0,
            virtual_s=self.sim.now,
            build_messages=0,
            simulated_messages=self.sim.messages,
            simulated_messages_per_s=self.sim.messages / wall_s,
            build_s=0.0,
            run_s=wall_s,
            wall_s=wall_s,
            rss_mib=resident_mib(),
            selection=self._selection_figures(count),
        )

    def _selection_figures(self, count: int) -> SelectionFigures:
        meter = self.meter
        asked = sum(times for name, times in meter.messages.items() if name not in (*ANSWERS, "Renew", "Renewed"))
        size = self.trial.message_bytes or MESSAGE_BYTES
        half = len(self.hops) // 2
        steps = max(1, sum(self.levels.values()))
        upkeep_s = self.measured_s * self.nodes
        return SelectionFigures(
            reserved=self.reserved,
            refused=self.refused,
            missed_percent=100 * self.missed / count,
            messages_per_request=meter.selection_messages() / count,
            request_messages_per_request=asked / count,
            traffic_kib=asked * size / 1024,
            bytes_per_request=meter.bytes / count,
            upkeep_bytes_per_s=sum(meter.upkeep_bytes.values()) / upkeep_s if self.trial.wait and upkeep_s else 0.0,
            hops_first_half=sum(self.hops[:half]) / max(1, half),
            hops_last_half=sum(self.hops[half:]) / max(1, len(self.hops) - half),
            hops_by_request=[float(hops) for hops in self.hops],
            forward_levels=[self.levels[True, level] / steps for level in range(-1, LEVEL_MAX + 1)],
            backward_levels=[self.levels[False, level] / steps for level in range(LEVEL_MAX + 1)],
            update_bytes=meter.mean_sizes("request"),
            updated_bytes=meter.mean_sizes("reply"),
        )
