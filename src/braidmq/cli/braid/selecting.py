"""What `braidmq select` and `braidmq reserve` have in common: which component is wanted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from braidmq.cli.errors import UsageError

if TYPE_CHECKING:
    from braidmq.admin.selection_contract import ReserveRequest

ComponentArgument = Annotated[
    str, typer.Argument(metavar="COMPONENT", help="The NAME of the shared subscriptions $share/NAME/….")
]


@dataclass(frozen=True)
class WantedOptions:
    """Which one."""

    where: Annotated[
        list[str] | None,
        typer.Option("-w", "--where", metavar="CONDITION", help="As 'cpu <= 50'; may be given several times."),
    ] = None
    cluster: Annotated[
        str | None,
        typer.Option("--in", metavar="CLUSTER", help="Only there and below. `.` is the broker's own."),
    ] = None
    score: Annotated[
        str, typer.Option("--score", metavar="SCORE", help="The best is wanted: 'nearest', or 'least cpu'.")
    ] = ""

    def request(self, component: str, lease_s: float = 60.0, key: str = "") -> ReserveRequest:
        from braidmq.admin.selection_contract import ReserveRequest

        check_component(component)
        return ReserveRequest(
            component=component,
            conditions=list(self.where or []),
            cluster=self.cluster,
            lease=lease_s,
            key=key,
            score=self.score,
        )


def check_component(component: str) -> None:
    if not component or any(one in component for one in "/+#"):
        raise UsageError(f"{component!r} is no component", "It is the NAME of shared subscriptions $share/NAME/….")
