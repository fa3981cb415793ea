"""Approving a plan: its digest is written down beside it, and nothing but that very plan is carried out."""

from __future__ import annotations

import getpass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from braidmq.cli.errors import CliError, UsageError

if TYPE_CHECKING:
    from braidmq.placement.plan import HomePlan


PLAN_FILE: Final = Path("plan.json")
PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="The file of the plan.")]


class Approval(msgspec.Struct, frozen=True):
    digest: str
    by: str
    at: str


def read_plan_file(path: Path) -> HomePlan:
    """A UsageError says what is wrong with it."""
    from braidmq.placement.errors import PlacementError
    from braidmq.placement.plan import PLAN_BYTES_MAX, read_plan

    try:
        if path.stat().st_size > PLAN_BYTES_MAX:
            raise UsageError(f"{path} is larger than any plan")
        return read_plan(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "Make one with `braidmq place plan`.") from None
    except PlacementError as error:
        raise UsageError(f"{path}: {error}") from None


def write_approval(path: Path, plan: HomePlan) -> Approval:
    made = Approval(plan.digest, getpass.getuser(), datetime.now(UTC).isoformat(timespec="seconds"))
    try:
        _beside(path).write_bytes(msgspec.json.encode(made) + b"\n")
    except OSError as error:
        raise CliError(f"the approval cannot be written: {error}") from None
    return made


def check_approved(path: Path, plan: HomePlan) -> Approval:
    """The approval of this very plan; a CliError if there is none."""
    hint = f"Look at it with `braidmq place show {path}`, then `braidmq place approve {path}`."
    try:
        found = msgspec.json.decode(_beside(path).read_bytes(), type=Approval)
    except OSError:
        raise CliError(f"the plan {plan.id} was not approved", hint=hint) from None
    except msgspec.MsgspecError:
        raise CliError(f"{_beside(path)} is no approval", hint=hint) from None
    if found.digest != plan.digest:
        raise CliError(f"another plan was approved: {found.digest[: len(plan.id)]}, and this is {plan.id}", hint=hint)
    return found


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.approved")
