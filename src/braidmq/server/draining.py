"""A broker's drain as its server sees it: begun on the admin port or by SIGTERM, and what follows when it is over.

One that was begun by SIGTERM ends with the broker, whatever became of it. One that was asked for on the admin port is
taken back if no other broker can take anything: then clients are better off here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from braidmq.admin.drain_contract import DrainStatus
from braidmq.braid.roaming.drain import DrainOutcome

if TYPE_CHECKING:
    from braidmq.braid.node import BraidNode
    from braidmq.braid.roaming.drain import Drain

REPORT_S: Final = 1.0
"""How long a broker that is drained stays, so that who has asked for it can read how it went."""

NO_BRAID: Final = "this broker is in no braid: nobody else could take its sessions"
NOT_YET: Final = "this broker is not in its braid yet"
NOBODY: Final = "no other broker of the braid can take anything: none answers, has room and is not drained itself"


class RefusedDrain(Exception):
    """Why a broker is not drained, or its drain not taken back."""

    def __init__(self, text: str, is_lasting: bool = True) -> None:
        super().__init__(text)
        self.is_lasting = is_lasting


class Draining:
    def __init__(self, node: BraidNode | None) -> None:
        self._node = node
        self._by_signal = False
        self._trouble: str | None = None
        self._is_leaving = False
        self.on_finished: Callable[[], None] = lambda: None
        """Called when the broker is to end."""

    @property
    def _drain(self) -> Drain | None:
        braid = None if self._node is None else self._node.braid
        return None if braid is None else braid.drain

    def trouble(self) -> str | None:
        """Why load balancers should send no clients here."""
        return "draining" if self._drain is not None and self._drain.is_on else None

    # From outside

    async def begin(self, timeout_s: float) -> DrainStatus:
        """Begins, if there is a broker that can take anything; a RefusedDrain says why not."""
        if self._node is None:
            raise RefusedDrain(NO_BRAID)
        braid = self._node.braid
        if braid is None or not braid.presence.is_in:
            raise RefusedDrain(NOT_YET, is_lasting=False)
        if not braid.drain.is_on and not await braid.drain.can_start():
            raise RefusedDrain(NOBODY, is_lasting=False)
        self._start(braid.drain, timeout_s)
        return self.status()

    def begin_at_signal(self, timeout_s: float) -> bool:
        """Begins whatever the others say; False if the broker is to end at once, as at a second signal."""
        drain = self._drain
        if self._by_signal or not timeout_s or drain is None:
            return False
        self._by_signal = True
        self._start(drain, timeout_s)
        return True

    def _start(self, drain: Drain, timeout_s: float) -> None:
        self._trouble = None
        drain.on_over = self._on_over
        drain.start(timeout_s)

    def cancel(self) -> DrainStatus:
        """Takes it back."""
        drain = self._drain
        if drain is None or not drain.is_on:
            raise RefusedDrain("this broker is not being drained")
        if drain.outcome is not None or self._by_signal:
            raise RefusedDrain("it is too late: this broker is about to end")
        drain.cancel()
        return self.status()

    def status(self) -> DrainStatus:
        drain = self._drain
        if drain is None:
            return DrainStatus("serving", trouble=NO_BRAID if self._node is None else NOT_YET)
        progress = drain.progress
        outcome = None if progress.outcome is None else progress.outcome.value
        return DrainStatus(
            "leaving" if self._is_leaving else "draining" if progress.is_on else "serving",
            progress.sessions,
            progress.clients,
            progress.sessions_moved,
            progress.clients_moved,
            round(progress.elapsed_s, 3),
            round(progress.left_s, 3),
            progress.takers,
            outcome,
            self._trouble,
            progress.retained,
            progress.retained_moved,
        )

    # Its end

    def _on_over(self, outcome: DrainOutcome) -> None:
        drain = self._drain
        assert drain is not None, "it is over"
        if outcome is DrainOutcome.NOBODY and not self._by_signal:
            self._trouble = NOBODY
            drain.cancel()
            return
        self._is_leaving = True
        asyncio.get_running_loop().call_later(0.0 if self._by_signal else REPORT_S, lambda: self.on_finished())
