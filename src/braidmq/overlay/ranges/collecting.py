"""Deliveries of this host's own that are not proven yet: what is still a gap, what was answered, when to send again.

Every answer names the ranges that it covers. They are subtracted from the gaps, and a delivery without gaps is proven;
what is sent again after a failure is just the gaps.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from braidmq.host import Host
from braidmq.keys import Key
from braidmq.overlay.key_ranges import KeyRange, without
from braidmq.overlay.peers import Peer
from braidmq.overlay.ranges.messages import RETRIED_SLOWLY, Covered, Deliver

OPEN_MAX = 65536
"""Deliveries of its own that a host waits for at a time."""

REISSUE_S = 1.0
REISSUE_S_MAX = 8.0
"""How long the sender waits for answers before it sends to the gaps again: twice as long each time, up to a bound."""

SWEEP_S = 0.5
"""How often the sender looks for deliveries that are due."""


class Outcome(msgspec.Struct, frozen=True):
    """`gaps` is what no node has answered for; `ruled_out` was left out, as aggregates said that no node matches there.

    An aggregate is of the past: a node that has joined or changed since may be missing from it. So without gaps, all
    nodes have the message that have matched for longer than `age_s`; and all that match now only if nothing was ruled
    out.
    """

    gaps: tuple[KeyRange, ...]
    ruled_out: tuple[KeyRange, ...]
    age_s: float
    answers: dict[Key, bytes]

    @property
    def complete(self) -> bool:
        """Every node that the message is for has it."""
        return not self.gaps and not self.ruled_out


OnOutcome = Callable[[Outcome], None]


class _OpenDelivery(msgspec.Struct):
    """A delivery of this host's own that is not proven yet."""

    message: Deliver
    gaps: tuple[KeyRange, ...]
    on_outcome: OnOutcome
    again_at: float
    ends_at: float
    entrance: Peer | None = None
    answers: dict[Key, bytes] = msgspec.field(default_factory=dict)
    ruled_out: tuple[KeyRange, ...] = ()
    age_s: float = 0.0


class Collector:
    """Collects the answers to the deliveries of one host."""

    def __init__(self, host: Host, begin: Callable[[Deliver, Peer | None], None]) -> None:
        """`begin` sends a message out, from here or from an entrance."""
        self._host = host
        self._begin = begin
        self._open: dict[int, _OpenDelivery] = {}
        self._is_sweeping = False

    def check_room(self) -> None:
        """A RuntimeError if too many deliveries are under way."""
        if len(self._open) >= OPEN_MAX:
            raise RuntimeError(f"{OPEN_MAX} deliveries are under way: wait for their outcomes before beginning more")

    def begin(self, message: Deliver, entrance: Peer | None, timeout_s: float, on_outcome: OnOutcome) -> None:
        """Sends a message out, and says when it is proven, or what is missing when time is over."""
        now, number = self._host.now(), message.number
        self._open[number] = _OpenDelivery(
            message, message.ranges, on_outcome, now + REISSUE_S, now + timeout_s, entrance
        )
        self._begin(message, entrance)
        if number in self._open and not self._is_sweeping:
            self._is_sweeping = True
            self._host.spawn(self._sweep())

    def message(self, number: int, attempt: int) -> Deliver | None:
        """The message of an attempt that is under way."""
        mine = self._open.get(number)
        return mine.message if mine is not None and mine.message.attempt == attempt else None

    def account(self, answer: Covered) -> None:
        """Subtracts what is answered for from the gaps."""
        mine = self._open.get(answer.number)
        if mine is None:
            return
        mine.answers.update(answer.answers)
        mine.ruled_out += answer.ruled_out
        mine.age_s = max(mine.age_s, answer.age_s)
        mine.gaps = without(mine.gaps, answer.ranges)
        if not mine.gaps:
            self._conclude(answer.number, mine)

    async def _sweep(self) -> None:
        """Re-issues gaps, and ends what takes too long."""
        while self._open:
            await self._host.sleep(SWEEP_S)
            now = self._host.now()
            for number, mine in list(self._open.items()):
                if now >= mine.ends_at:
                    self._conclude(number, mine)
                elif now >= mine.again_at:
                    mine.again_at = now + min(REISSUE_S_MAX, REISSUE_S * 2 ** (1 + mine.message.attempt))
                    if mine.message.plan.retrying in RETRIED_SLOWLY:
                        self._send_again(mine)
        self._is_sweeping = False

    def _send_again(self, mine: _OpenDelivery) -> None:
        attempt = mine.message.attempt + 1
        mine.message = msgspec.structs.replace(mine.message, attempt=attempt, ranges=mine.gaps, errand=None)
        self._begin(mine.message, mine.entrance)

    def _conclude(self, number: int, mine: _OpenDelivery) -> None:
        del self._open[number]
        mine.on_outcome(Outcome(mine.gaps, mine.ruled_out, mine.age_s, mine.answers))
