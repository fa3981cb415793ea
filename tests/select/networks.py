"""Small networks of brokers with components, laid out, and procedures that run to their end."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from braidmq.select.members import Aggregates
from braidmq.select.messages import NotReserved, Reserved
from braidmq.select.request import SelectionRequest
from braidmq.sim.engine import Simulator
from braidmq.sim.network import Constant, Loss
from braidmq.sim.trials.selection_network import SelectionNetwork, SelectionPlan

T = TypeVar("T")
Outcome = Reserved | NotReserved


def network(
    group_size: int = 8,
    *,
    seed: int = 1,
    slots_max: int = 1,
    aggregates: Aggregates = Aggregates.CUT,
    plain: bool = False,
    loss: float = 0.0,
    brokers: int | None = None,
) -> SelectionNetwork:
    sim = Simulator(seed, Loss(loss, Constant(0.01)) if loss else None)
    plan = SelectionPlan(
        brokers=brokers or 2 * group_size,
        group_size=group_size,
        slots_max=slots_max,
        aggregates=aggregates,
        plain=plain,
    )
    return SelectionNetwork(sim, plan)


def ended(net: SelectionNetwork, broker: int, *procedures: Coroutine[Any, Any, T], within_s: float = 60.0) -> list[T]:
    """What procedures of a broker return, begun at the same time."""
    results: dict[int, T] = {}

    async def run(number: int, procedure: Coroutine[Any, Any, T]) -> None:
        results[number] = await procedure

    for number, procedure in enumerate(procedures):
        net.sim.hosts[broker].spawn(run(number, procedure))
    until = net.sim.now + within_s
    while len(results) < len(procedures):
        assert net.sim.now < until, "it does not end"
        net.sim.run(net.sim.now + 0.05)
    return [results[number] for number in range(len(procedures))]


def asked(net: SelectionNetwork, name: str, lease_s: float = 600.0, **more: Any) -> SelectionRequest:
    return SelectionRequest(name, net.plan.group, lease_s, **more)


def reserved(net: SelectionNetwork, *requests: SelectionRequest, broker: int | None = None) -> list[Outcome]:
    """By the ledger, all at the same time: from the delegate's broker, or another."""
    at = net.delegate[0] if broker is None else broker
    return ended(net, at, *(net.selectors[at].reserve(request) for request in requests))
