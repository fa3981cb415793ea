"""Carries a plan out on a running braid: all sites are told where clients are at home, then these are sent there, a few
a second, and it is looked at who has arrived."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from braidmq.cli.errors import CliError, ExitCode

if TYPE_CHECKING:
    from braidmq.cli.admin_port import BrokerAdmin
    from braidmq.cli.place.observing import ObservedSites
    from braidmq.placement.plan import ClientMove, HomePlan

CHANGED_MAX: Final = 0.1
"""The share of a plan's moves that may have become meaningless since it was made; beyond it the plan is refused."""
STEP_S: Final = 0.5
ARRIVE_S: Final = 30.0
"""How long clients that were sent have to appear at their homes."""
TRIES_MAX: Final = 60
"""Steps in which a client may be busy, or its site silent, before it is left where it is."""
REFUSED_MAX: Final = 0.05
"""If homes cannot take more than this share of the sessions, it is broken off."""

Tell = Callable[[float, str], None]
"""How far it is, from 0 to 1, and what is being done."""


@dataclass
class CarriedOut:
    outcomes: Counter[str] = field(default_factory=Counter)
    """How many clients were sent, stay, could not be told …"""
    arrived: int = 0
    elsewhere: int = 0
    """Clients that were sent, are connected, and not at their homes."""
    absent: int = 0
    """Clients that were sent and have not come back yet."""


def check_braid(plan: HomePlan, seen: ObservedSites) -> None:
    """A CliError if the braid is another one, or has changed too much since the plan was made."""
    planned = {one.name for one in plan.planned.servers}
    missing, strange = sorted(planned - seen.brokers.keys()), sorted(seen.brokers.keys() - planned)
    if missing or strange:
        words = [f"without {', '.join(missing)}"] if missing else []
        words += [f"with {', '.join(strange)}"] if strange else []
        raise CliError(f"the plan {plan.id} is for another braid: this one is {' and '.join(words)}", hint=_AGAIN)
    site_of = {one.name: one.site for one in seen.clients}
    gone = [move.client for move in plan.moves if move.client not in site_of]
    moved = [move.client for move in plan.moves if site_of.get(move.client) not in (move.source, move.target, None)]
    if len(gone) + len(moved) > CHANGED_MAX * len(plan.moves):
        text = (
            f"the braid has changed too much since the plan {plan.id} was made: of {len(plan.moves):,} clients that "
            f"are to move, {len(gone):,} are gone ({', '.join(gone[:3])}) and {len(moved):,} are somewhere else"
        )
        raise CliError(text.replace(" ()", ""), hint=_AGAIN)


_AGAIN: Final = "Nothing was moved. Make a plan for it as it is now: braidmq place plan"


def assign_homes(plan: HomePlan, seen: ObservedSites) -> None:
    """Tells every site where clients are at home."""
    for broker in seen.brokers.values():
        broker.ask(lambda client: client.assign_homes(plan.digest, plan.homes))


def carry_out(plan: HomePlan, seen: ObservedSites, a_second: float, tell: Tell) -> CarriedOut:
    """Sends clients home and waits until they are there; a CliError if it had to be broken off."""
    assign_homes(plan, seen)
    done = CarriedOut()
    sent = _send(plan, seen, a_second, tell, done)
    _await(sent, seen, tell, done)
    return done


def _send(plan: HomePlan, seen: ObservedSites, a_second: float, tell: Tell, done: CarriedOut) -> list[ClientMove]:
    site_of = {one.name: one.site for one in seen.clients}
    queue = deque((move, 0) for move in plan.moves)
    sent: list[ClientMove] = []
    sources: set[str] = set()
    budget = 0.0
    while queue:
        budget = min(budget + a_second * STEP_S, max(1.0, a_second * STEP_S))
        batch = [queue.popleft() for _ in range(min(int(budget), len(queue)))]
        budget -= len(batch)
        by_site: dict[str, list[tuple[ClientMove, int]]] = {}
        for move, tries in batch:
            by_site.setdefault(site_of.get(move.client, move.source), []).append((move, tries))
        sources.update(by_site)
        for site, some in by_site.items():
            outcomes = _move(plan, seen.brokers[site], [move.client for move, _ in some])
            for move, tries in some:
                outcome = outcomes.get(move.client, "silent")
                if outcome in ("busy", "silent") and tries < TRIES_MAX:
                    queue.append((move, tries + 1))
                    continue
                done.outcomes[outcome] += 1
                if outcome == "sent":
                    sent.append(move)
        tell(1 - len(queue) / len(plan.moves), f"{len(sent):,} sent, {len(queue):,} to go")
        _check_refused([seen.brokers[site] for site in sources], len(sent))
        if queue:
            time.sleep(STEP_S)
    return sent


def _move(plan: HomePlan, broker: BrokerAdmin, clients: list[str]) -> dict[str, str]:
    """What became of each; none, if the broker is silent: it may be back soon, and has to be told its homes then."""
    try:
        if broker.ask(lambda client: client.homes()).plan != plan.digest:
            broker.ask(lambda client: client.assign_homes(plan.digest, plan.homes))
        return broker.ask(lambda client: client.move_home(plan.digest, clients))
    except CliError as error:
        if error.code in (ExitCode.UNAVAILABLE, ExitCode.TIMEOUT):
            return {}
        raise


def _check_refused(sources: list[BrokerAdmin], sent: int) -> None:
    """Sites that clients were sent from count the sessions that came back."""
    refused = 0
    for broker in sources:
        try:
            refused += broker.ask(lambda client: client.homes()).refused
        except CliError:
            continue
    if refused > max(3, REFUSED_MAX * sent):
        raise CliError(
            f"broken off: homes could not take {refused:,} of {sent:,} sessions, which are where they were",
            hint="`braidmq place status` shows where; `braidmq place apply --back` leads back.",
        )


def _await(sent: list[ClientMove], seen: ObservedSites, tell: Tell, done: CarriedOut) -> None:
    """Looks who has arrived, until all have or the time is up."""
    ends_at = time.monotonic() + ARRIVE_S
    while True:
        connected: dict[str, str] = {}
        for name, broker in seen.brokers.items():
            try:
                for one in broker.ask(lambda client: list(client.clients())):
                    if one.connected:
                        connected[one.client] = name
            except CliError:
                continue
        arrived = sum(connected.get(move.client) == move.target for move in sent)
        absent = sum(move.client not in connected for move in sent)
        done.arrived, done.absent, done.elsewhere = arrived, absent, len(sent) - arrived - absent
        tell(1.0, f"{arrived:,} of {len(sent):,} have arrived")
        if not absent or time.monotonic() > ends_at:
            return
        time.sleep(STEP_S)
