"""What there is to be seen of components in the whole braid: every broker is asked for its instances and what is
reserved of them. From that it can be told which of them a request would get, and why."""

from __future__ import annotations

import math
from typing import Final

from braidmq.admin.selection_contract import (
    ComponentChoice,
    ComponentsAnswer,
    InstanceStatus,
    ReservationStatus,
    SelectAnswer,
)
from braidmq.braid.membership.broker_records import BrokerRecords
from braidmq.braid.selection.asked import Asked
from braidmq.braid.selection.group_names import groups_asked
from braidmq.braid.selection.holds import fence_number, reservation_id
from braidmq.braid.selection.instances import Instances
from braidmq.braid.selection.messages import AskComponents, TellComponents, ToldHold, ToldInstance
from braidmq.host import Address, Host, Reply, Service, ask, handles, run_all
from braidmq.keys import is_within, parts_of
from braidmq.select import ComponentGroup, SelectionRequest, Selector
from braidmq.select.group import steps_between
from braidmq.select.member import Hold
from braidmq.select.request import SLOTS, score_of

ASKED_AT_ONCE: Final = 64
"""Brokers that are asked at a time."""

TIMEOUT_S: Final = 3.0

TOLD_MAX: Final = 10_000
"""Instances, and reservations, that a broker tells of."""


class ComponentSurvey(Service):
    def __init__(
        self, host: Host, selector: Selector, instances: Instances, records: BrokerRecords, name: str, cluster: str
    ) -> None:
        self._host = host
        self._selector = selector
        self._instances = instances
        self._records = records
        self._name = name
        self._cluster = cluster
        host.serve(self)

    @handles(AskComponents)
    def on_ask(self, origin: Address, asked: AskComponents) -> Reply:
        return self._own(asked.component)

    def _own(self, component: str) -> TellComponents:
        now = self._host.now()
        members = [one for one in self._instances.members.items() if component in ("", one[0])]
        instances = [
            ToldInstance(name, one.name, one.slots, one.taken, one.attributes)
            for name, member in members
            for one in member.components.values()
        ]
        holds = [_told_hold(name, hold, now) for name, member in members for hold in member.held.values()]
        return TellComponents(self._name, self._cluster, tuple(instances[:TOLD_MAX]), tuple(holds[:TOLD_MAX]))

    async def components(self, component: str = "") -> ComponentsAnswer:
        """All instances and reservations, or those of one component."""
        told: list[TellComponents] = [self._own(component)]
        silent: list[str] = []

        async def ask_one(name: str, address: Address) -> None:
            answer = await ask(self._host, address, AskComponents(component), TellComponents, timeout_s=TIMEOUT_S)
            if answer is None:
                silent.append(name)
            else:
                told.append(answer)

        others = [(record.name, record.address) for record in self._records]
        for start in range(0, len(others), ASKED_AT_ONCE):
            await run_all(self._host, [ask_one(*other) for other in others[start : start + ASKED_AT_ONCE]])
        told.sort(key=lambda one: one.broker)
        return ComponentsAnswer(
            [
                InstanceStatus(one.component, one.instance, by.broker, by.cluster, one.slots, one.taken, one.attributes)
                for by in told
                for one in by.instances
            ],
            [
                ReservationStatus(
                    reservation_id(one.request, one.known_at or by.broker),
                    one.component,
                    one.instance,
                    by.broker,
                    one.holder,
                    fence_number(one.fence),
                    round(max(0.0, one.left_s), 3),
                )
                for by in told
                for one in by.holds
            ],
            sorted(silent),
        )

    # Why this one

    async def explain(self, component: str, asked: Asked) -> SelectAnswer:
        """What a request from here would get, and what speaks against the others; nothing is reserved."""
        found = await self.components(component)
        groups = groups_asked(component, asked.cluster, self._cluster)
        delegates: dict[str, str] = {}
        for group in groups:
            peer = await self._selector.delegate_of(group)
            delegates[group.cluster] = "" if peer is None else parts_of(peer.key)[3]
        request = SelectionRequest("", groups[0], asked.lease_s, asked.needs, asked.score, self._cluster)
        candidates = [self._judge(one, groups, request) for one in found.instances]
        order = {group.cluster: place for place, group in enumerate(groups)}

        def rank(one: ComponentChoice) -> tuple[bool, int, float, bool, bool, str]:
            """As a request goes: what this broker has, by group the delegate's, then the others; or by the score."""
            place = len(order) if one.group is None else order[one.group]
            of_delegate = one.group is not None and one.broker == delegates[one.group]
            by_score = 0.0 if one.score is None else one.score
            return bool(one.problem), place, by_score, one.broker != self._name, not of_delegate, one.instance

        candidates.sort(key=rank)
        best = next((one for one in candidates if not one.problem), None)
        why, hops = self._why(best, candidates, delegates, bool(asked.score))
        return SelectAnswer(component, candidates, delegates, hops, why, found.silent)

    def _judge(self, one: InstanceStatus, groups: list[ComponentGroup], request: SelectionRequest) -> ComponentChoice:
        around = [each.cluster for each in groups if not each.cluster or is_within(one.cluster, each.cluster)]
        group = around[0] if around else None
        free, steps = max(0, one.slots - one.taken), steps_between(self._cluster, one.cluster)
        told = {**one.load, SLOTS: float(free)}
        failed = [need for need in request.needs if not need.holds(told)]
        score = score_of(request, told, steps) if request.score else None
        if group is None:
            problem = "it is in another cluster"
        elif not one.slots:
            problem = "it is away"
        elif not free:
            problem = "it is reserved"
        else:
            problem = ", ".join(
                f"not {need.attribute} {need.test} {need.bound:g}: {_said(told.get(need.attribute))}" for need in failed
            )
        score = None if score is None or math.isinf(score) else score
        return ComponentChoice(one.instance, one.broker, one.cluster, free, one.load, steps, group, score, problem)

    def _why(
        self,
        best: ComponentChoice | None,
        candidates: list[ComponentChoice],
        delegates: dict[str, str],
        by_score: bool,
    ) -> tuple[str, int | None]:
        if best is None or best.group is None:
            return ("no such component" if not candidates else "none of them can be reserved by this request"), None
        where = f"in the cluster {best.group}" if best.group else "in the braid"
        delegate = delegates[best.group]
        if best.broker == self._name and not by_score:
            return f"it is at this broker, {self._name}, which takes its own first", 0
        hops = (delegate != self._name) + (delegate != best.broker)
        if by_score:
            return f"it has the least score {where}, as {delegate} finds out, which is asked there", hops
        fitting = [one for one in candidates if not one.problem and one.group == best.group]
        if best.broker == delegate:
            return f"it is at {delegate}, which is asked {where} and takes its own first", hops
        others = len(fitting) - 1
        also = f"; so are {others} more, and {delegate} takes who it has heard of last" if others else ""
        return f"it is free {where}, where {delegate} is asked{also}", hops


def _told_hold(component: str, hold: Hold, now: float) -> ToldHold:
    request = hold.request
    left_s = hold.until - now
    return ToldHold(component, hold.component.name, request.id, request.holder, hold.fence, left_s, request.known_at)


def _said(value: float | None) -> str:
    return "it does not say" if value is None else f"{value:g}"
