from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest

from braidmq.placement.errors import PlacementError
from braidmq.placement.model import evaluate
from braidmq.placement.plan import HomePlan, check_for, check_plan, read_plan, reversed_plan, write_plan
from braidmq.placement.planning import PLAN_METHODS, assign, make_plan
from braidmq.placement.problem import PlacementProblem
from tests.placement.problems import small_field


@pytest.fixture(scope="module")
def problem() -> PlacementProblem:
    return small_field(0, 5, 12.0, 48.0).problem


@pytest.fixture(scope="module")
def plan(problem: PlacementProblem) -> HomePlan:
    now = assign("random", problem, np.random.default_rng(1)).homes
    found = assign("refined", problem, np.random.default_rng(0))
    return make_plan(problem, found.homes, "refined, seed 0", now=now, prices=found.prices)


def test_a_plan_says_what_it_leads_to(problem: PlacementProblem, plan: HomePlan) -> None:
    homes = problem.homes_of(plan.homes)
    found = evaluate(problem, homes)
    assert plan.planned.delay_ms == found.delay_ms
    assert plan.planned.distance_ms + plan.planned.resource_ms == pytest.approx(plan.planned.delay_ms)
    assert [server.storage for server in plan.planned.servers] == found.storage.tolist()
    assert sum(server.clients for server in plan.planned.servers) == len(problem.clients)
    assert plan.now is not None
    assert plan.now.delay_ms > plan.planned.delay_ms
    assert plan.bound_ms is not None
    assert 0 < plan.bound_ms <= plan.planned.delay_ms
    assert plan.gap is not None
    assert plan.gap < 0.02


def test_the_moves_lead_from_now_to_the_plan(problem: PlacementProblem, plan: HomePlan) -> None:
    now = problem.named(assign("random", problem, np.random.default_rng(1)).homes)
    for move in plan.moves:
        assert now.pop(move.client) == move.source
        assert plan.homes[move.client] == move.target
    assert all(plan.homes[client] == home for client, home in now.items())


def test_a_plan_is_the_same_after_writing_and_reading(plan: HomePlan) -> None:
    text = write_plan(plan)
    again = read_plan(text)
    assert again == plan
    assert again.digest == plan.digest
    assert json.loads(text)["id"] == plan.id == plan.digest[:12]
    assert json.loads(text)["plan"]["moves"][0].keys() == {"client", "from", "to"}


def test_the_digest_is_of_what_it_says(problem: PlacementProblem, plan: HomePlan) -> None:
    shuffled = msgspec.structs.replace(plan, homes=dict(reversed(plan.homes.items())))
    assert shuffled.digest == plan.digest
    other = msgspec.structs.replace(plan, method="by hand")
    assert other.digest != plan.digest


def test_back_and_forth(plan: HomePlan) -> None:
    back = reversed_plan(plan)
    check_plan(back)
    assert back.planned == plan.now
    assert reversed_plan(back).homes == plan.homes
    with pytest.raises(PlacementError, match="no way back"):
        reversed_plan(msgspec.structs.replace(plan, now=None, moves=()))


def changed(plan: HomePlan, change: Any) -> bytes:
    written = json.loads(write_plan(plan))
    change(written)
    return json.dumps(written).encode()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda it: it["plan"]["homes"].update(c1="s9"), "unknown server: s9"),
        (lambda it: it["plan"].update(method="another"), "the plan was changed"),
        (lambda it: it["plan"]["planned"]["servers"][0].update(storage_max=0), "server s0 of the plan has no capacity"),
        (lambda it: it["plan"]["planned"].update(delay_ms=-1), "planned.delay_ms of the plan is -1"),
        (lambda it: it["plan"]["planned"].update(delay_ms=float("nan")), "not JSON"),
        (lambda it: it["plan"]["planned"].update(delay_ms=None), "not a plan of home servers: .*delay_ms"),
        (lambda it: it["plan"]["planned"].update(servers=[]), "no servers"),
        (lambda it: it["plan"]["moves"][0].update(to=it["plan"]["moves"][0]["from"]), "the move of c"),
        (lambda it: it["plan"].pop("homes"), "missing required field `homes`"),
        (lambda it: it["plan"].update(format=2), "format 2"),
    ],
)
def test_what_is_wrong_with_a_plan_is_told(plan: HomePlan, change: Any, told: str) -> None:
    with pytest.raises(PlacementError, match=told):
        read_plan(changed(plan, change))


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff\xfe", b'{"id": 1}'])
def test_what_is_no_plan_is_refused(text: bytes) -> None:
    with pytest.raises(PlacementError):
        read_plan(text)


def test_a_plan_for_another_braid_is_refused(problem: PlacementProblem, plan: HomePlan) -> None:
    servers = dict.fromkeys(problem.servers)
    check_for(plan, problem.digest, servers)
    with pytest.raises(PlacementError, match="another braid"):
        check_for(plan, small_field(1).problem.digest, servers)
    with pytest.raises(PlacementError, match="unknown server: s3"):
        check_for(plan, problem.digest, dict.fromkeys(problem.servers[:3]))


def test_every_method_has_a_name(problem: PlacementProblem) -> None:
    for method in set(PLAN_METHODS) - {"reloc"}:
        homes = assign(method, problem, np.random.default_rng(0)).homes
        assert homes.shape == (len(problem.clients),)
    with pytest.raises(PlacementError, match="no method best: there are refined, reloc"):
        assign("best", problem, np.random.default_rng(0))
