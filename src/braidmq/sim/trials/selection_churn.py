"""Selections while brokers crash and return: a network that grows by messages, requests from everywhere, and checkers.

Every broker has a member of the one group. The broker that crashes is the delegate's one time in three. One that
returns has forgotten what it had given, and so rests until the longest lease is over. When it is calm again, what is
free must be found to the last.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from braidmq.host import Address
from braidmq.keys import Role, key_of
from braidmq.overlay.suzaku import Suzaku
from braidmq.select.holder import Holder
from braidmq.select.member import FIRST_LEASE_S, Component, Member
from braidmq.select.messages import Reserved
from braidmq.select.request import SelectionRequest
from braidmq.select.selector import Selector
from braidmq.sim.checkers.complaints import Complaints
from braidmq.sim.checkers.selection import no_reservation_is_lost, no_slot_is_reserved_twice
from braidmq.sim.engine import Simulator
from braidmq.sim.trials.fault_schedule import FaultSchedule
from braidmq.sim.trials.selection_network import SelectionPlan, name_of

JOIN_EVERY_S: Final = 1.0
PERIOD_S: Final = 5.0
"""The overlay's updates come more often than in a braid, so that a trial need not be long."""

LEASE_S: Final = 30.0
CALM_S: Final = 240.0
REQUEST_EVERY_S: Final = 0.5
HELD_S: Final = 60.0
"""How long a reservation is held at most."""

DOWN_S: Final = 40.0
"""How long a broker is down at most."""

BRIEF_S: Final = 1.0
"""The same, every other time: so short that holders do not notice."""

LIVING_MIN: Final = 4
LOOK_EVERY_S: Final = 0.5


class _Churn:
    def __init__(self, sim: Simulator, plan: SelectionPlan, complaints: Complaints) -> None:
        self.sim = sim
        self.plan = plan
        self.complaints = complaints
        self.selectors: dict[int, Selector] = {}
        self.holders: list[Holder] = []
        self.hops: list[int] = []
        self.requests = self.reserved = self.missed = 0
        self._slots = [1 + sim.chance.randrange(plan.slots_max) for _ in range(plan.group_size)]

    # Brokers

    def start(self, broker: int) -> None:
        host = self.sim.hosts.get(broker) or self.sim.host(broker)
        is_return = not host.alive
        host.restart()
        overlay = Suzaku(host, partial(self._introduce, broker), host.incarnation, period_s=PERIOD_S)
        selector = self.selectors[broker] = Selector(overlay, self.plan.aggregates)
        home = key_of("", Role.PUBLISHER, "", name_of(broker))
        if len(self.selectors) == 1:
            overlay.found(home)
        host.spawn(self._enter(selector, broker, is_return))

    async def _enter(self, selector: Selector, broker: int, is_return: bool) -> None:
        group = self.plan.group
        component = Component(f"{group.topic}@{name_of(broker)}", self._slots[broker])
        resting_s = max(LEASE_S, FIRST_LEASE_S) if is_return else 0.0
        incarnation = self.sim.hosts[broker].incarnation
        await selector.offer(group, name_of(broker), [component], incarnation, resting_s)

    def _introduce(self, mine: int) -> Address | None:
        others = [broker for broker, selector in self.selectors.items() if broker != mine and selector.overlay.view.own]
        return self.sim.chance.choice(others) if others else None

    def crash_one(self) -> None:
        if len(self.selectors) <= LIVING_MIN:
            return
        broker = self.sim.chance.choice(list(self.selectors))
        if self.sim.chance.random() < 1 / 3:
            broker = min(self._members().items(), key=lambda one: one[1].key)[0]
        del self.selectors[broker]
        self.sim.hosts[broker].crash()
        down_s = self.sim.chance.uniform(0.1, self.sim.chance.choice((BRIEF_S, DOWN_S)))
        self.sim.at(self.sim.now + down_s, partial(self.start, broker))

    def _members(self) -> dict[int, Member]:
        """Of brokers that live."""
        return {
            broker: member
            for broker, selector in self.selectors.items()
            for member in selector.members.members.values()
        }

    # Requests

    def request_one(self) -> None:
        broker = self.sim.chance.choice(list(self.selectors))
        held_s = self.sim.chance.uniform(5.0, HELD_S)
        self.sim.hosts[broker].spawn(self._request(self.selectors[broker], held_s))

    async def _request(self, selector: Selector, held_s: float) -> None:
        self.requests += 1
        asked_at = self.sim.now
        request = SelectionRequest(f"r{self.requests}", self.plan.group, LEASE_S)
        outcome = await selector.reserve(request)
        if not isinstance(outcome, Reserved):
            return
        self.reserved += 1
        self.hops.append(outcome.hops)
        holder = selector.hold(outcome, asked_at)
        self.holders.append(holder)
        if held_s:
            await selector.host.sleep(held_s)
            await holder.release()

    # Looking

    def look(self) -> None:
        living = {broker: selector.host for broker, selector in self.selectors.items()}
        self.holders = [one for one in self.holders if one.is_valid and one.host in living.values()]
        members = {member.key: member for member in self._members().values()}
        slots = {
            (self.plan.group.key(name_of(broker)), f"{self.plan.group.topic}@{name_of(broker)}"): count
            for broker, count in enumerate(self._slots)
        }
        self.complaints.add(no_slot_is_reserved_twice(self.holders, slots))
        self.complaints.add(no_reservation_is_lost(self.holders, members))

    def take_all(self) -> None:
        """What is free is asked for, one after the other, until the last is found; one more must be refused."""
        free = sum(member.free(self.sim.now) for member in self._members().values())
        before, asked = self.reserved, self.requests
        for _ in range(free):
            broker = self.sim.chance.choice(list(self.selectors))
            self._until_answered(self.selectors[broker])
        found = self.reserved - before
        self.missed = free - found
        if free == 0 or found < free:
            self.complaints.add([f"{found} of {free} free slots were found when it was calm, by {asked} requests on"])

    def _until_answered(self, selector: Selector) -> None:
        answered = []

        async def one() -> None:
            await self._request(selector, 0.0)
            answered.append(True)

        selector.host.spawn(one())
        until = self.sim.now + 60.0
        while not answered and self.sim.now < until:
            self.sim.run(self.sim.now + LOOK_EVERY_S)


def play_churn(
    sim: Simulator, plan: SelectionPlan, schedule: FaultSchedule, hops: list[int], complaints: Complaints
) -> tuple[int, int, int]:
    """Requests, reservations, and what was free and not found in the end; hops of all go into a list."""
    run = _Churn(sim, plan, complaints)
    sim.watch(LOOK_EVERY_S, run.look)
    for broker in range(plan.group_size):
        sim.at(broker * JOIN_EVERY_S, partial(run.start, broker))
    begin = plan.group_size * JOIN_EVERY_S + 10 * PERIOD_S
    until = schedule.begin(begin)
    _regularly(sim, run.crash_one, begin, until - begin, 1 / schedule.churn)
    _regularly(sim, run.request_one, begin, until - begin, REQUEST_EVERY_S)
    sim.run(until + DOWN_S + HELD_S + CALM_S)
    run.take_all()
    hops += run.hops
    return run.requests, run.reserved, run.missed


def _regularly(sim: Simulator, action: Callable[[], None], begin: float, length_s: float, every_s: float) -> None:
    for number in range(int(length_s / every_s)):
        sim.at(begin + number * every_s, action)
