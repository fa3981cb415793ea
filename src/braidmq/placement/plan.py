"""A plan of home servers as it is passed on, approved and carried out: JSON, with a digest over all that it says.

Nothing of it needs numpy, so a broker can read one. Whoever approves a plan approves its digest: what is carried out is
exactly that, or it is refused.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from braidmq.placement.errors import PlacementError

FORMAT: Final = 1
ID_LENGTH: Final = 12
PLAN_BYTES_MAX: Final = 256 << 20
"""The largest file that is read: a million clients have some 100 MB."""


class ServerFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a server has to bear, what of it there is, and θ: the share that it processes itself."""

    name: str
    clients: int
    storage: float
    storage_max: float
    compute: float
    compute_max: float
    local_share: float


class PlanFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an assignment of homes leads to, by the model: Y, Y1 and Y2 in ms, and each server."""

    delay_ms: float
    distance_ms: float
    resource_ms: float
    servers: tuple[ServerFigures, ...]


class ClientMove(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"source": "from", "target": "to"}):
    """A client that is to change its home."""

    client: str
    source: str
    target: str


class HomePlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where every client is to be at home, and who has to move for it."""

    format: int = FORMAT
    braid: str
    """The digest of the problem that it solves: of servers, clients and topics."""
    method: str
    """How it was made, with seed and settings, in words for people."""
    homes: dict[str, str]
    moves: tuple[ClientMove, ...]
    """What is different from now; empty where nobody has a home yet."""
    planned: PlanFigures
    now: PlanFigures | None = None
    bound_ms: float | None = None
    """No plan can have a smaller Y."""

    @property
    def digest(self) -> str:
        """Over the canonical JSON: keys in order, no spaces."""
        return hashlib.sha256(_canonical(self)).hexdigest()

    @property
    def id(self) -> str:
        """What people call it: the first letters of its digest."""
        return self.digest[:ID_LENGTH]

    @property
    def gap(self) -> float | None:
        """How far it may be above the optimum at most: 0.01 is 1 %."""
        return self.planned.delay_ms / self.bound_ms - 1 if self.bound_ms else None


class _Written(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A plan in a file: its id and digest first, for who looks into it, and to notice changes."""

    id: str
    digest: str
    plan: HomePlan


def write_plan(plan: HomePlan) -> bytes:
    check_plan(plan)
    written = msgspec.json.encode(_Written(plan.id, plan.digest, plan))
    return msgspec.json.format(written, indent=1) + b"\n"


def read_plan(text: bytes | str) -> HomePlan:
    """A PlacementError says what is wrong with it."""
    if len(text) > PLAN_BYTES_MAX:
        raise PlacementError(f"the plan has more than {PLAN_BYTES_MAX >> 20} MB")
    try:
        written = msgspec.json.decode(text, type=_Written)
    except msgspec.ValidationError as error:
        raise PlacementError(f"this is not a plan of home servers: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PlacementError(f"the plan is not JSON: {error}") from None
    plan = written.plan
    if plan.format != FORMAT:
        raise PlacementError(f"the plan has format {plan.format}, and only {FORMAT} is known here")
    check_plan(plan)
    if written.digest != plan.digest or written.id != plan.id:
        raise PlacementError(f"the plan was changed: it is called {written.digest[:ID_LENGTH]}, and it is {plan.id}")
    return plan


def check_plan(plan: HomePlan) -> None:
    """A PlacementError if it contradicts itself."""
    for what, value in _numbers(plan):
        if not math.isfinite(value) or value < 0:
            raise PlacementError(f"{what} of the plan is {value}")
    for server in plan.planned.servers:
        if not (server.storage_max > 0 and server.compute_max > 0):
            raise PlacementError(f"server {server.name} of the plan has no capacity")
    known = {server.name for server in plan.planned.servers}
    if len(known) < len(plan.planned.servers) or not known:
        raise PlacementError("the plan has no servers, or one of them twice")
    for client, home in plan.homes.items():
        if home not in known:
            raise PlacementError(f"unknown server: {home}, which is to be the home of {client}")
    seen = set()
    for move in plan.moves:
        if plan.homes.get(move.client) != move.target or move.source == move.target or move.client in seen:
            raise PlacementError(f"the move of {move.client} does not fit the homes of the plan")
        seen.add(move.client)


def check_for(plan: HomePlan, braid: str, servers: Mapping[str, object]) -> None:
    """A PlacementError if the plan is not for the braid of this digest, with these servers."""
    if plan.braid != braid:
        raise PlacementError(
            f"the plan {plan.id} is for another braid, or for this one before it changed: for "
            f"{plan.braid[:ID_LENGTH]}, and this is {braid[:ID_LENGTH]}"
        )
    missing = sorted({server.name for server in plan.planned.servers} - servers.keys())
    if missing:
        raise PlacementError(f"unknown server: {', '.join(missing)}")


def reversed_plan(plan: HomePlan) -> HomePlan:
    """The plan that leads back to where this one began."""
    if plan.now is None:
        raise PlacementError(f"the plan {plan.id} does not say what was before: there is no way back")
    back = {move.client: move.source for move in plan.moves}
    return HomePlan(
        braid=plan.braid,
        method=f"back from {plan.id}",
        homes={client: back.get(client, home) for client, home in plan.homes.items()},
        moves=tuple(ClientMove(move.client, move.target, move.source) for move in plan.moves),
        planned=plan.now,
        now=plan.planned,
        bound_ms=plan.bound_ms,
    )


def _numbers(plan: HomePlan) -> Iterator[tuple[str, float]]:
    for name, figures in (("planned", plan.planned), ("now", plan.now)):
        if figures is None:
            continue
        for field in ("delay_ms", "distance_ms", "resource_ms"):
            yield f"{name}.{field}", getattr(figures, field)
        for server in figures.servers:
            for field in ("storage", "storage_max", "compute", "compute_max", "local_share"):
                yield f"{name}.{server.name}.{field}", getattr(server, field)
    if plan.bound_ms is not None:
        yield "bound_ms", plan.bound_ms


def _canonical(plan: HomePlan) -> bytes:
    return msgspec.json.encode(plan, order="deterministic")
