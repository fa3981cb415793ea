"""A broker that stood still: its process was stopped, or had no turn for a while.

Its mirrors may have taken it for gone meanwhile, and have given sessions to other brokers. What it reads now from their
clients is old: they have sent it again elsewhere. So nothing of a session that stays is looked at before all mirrors
that count have answered anew, and said which sessions they have taken up. Connections of these are closed, with what
was read from them.

Whether it stood still is found out by a beat: if that is missing for longer than a mirror waits for an answer before it
acts, the broker is not sure of its sessions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import Final

from braidmq.braid.mirrors.messages import AskTakenUp, CopyRefused, TakenUp
from braidmq.broker.broker import Broker
from braidmq.host import Address, Host, ask

BEAT_S: Final = 0.1
STILL_S: Final = 0.15
"""A broker that has not had its turn for so long stood still: no mirror takes a broker for gone sooner."""
ASK_S: Final = 0.3
"""How long a mirror has to answer before it is asked again; one that does not is given up as ever (`own_copies`)."""
SLACK_S: Final = 5.0
"""How long before it stood still a mirror may have begun to act for it."""


class Standstill:
    def __init__(self, broker: Broker, host: Host, mirrors: Callable[[], tuple[Address, ...]]) -> None:
        """`mirrors` are those that count."""
        self._broker = broker
        self._host = host
        self._mirrors = mirrors
        self._beat_at = inf
        self._still_s = 0.0
        """For how long it stood still, while it is not sure of its sessions."""
        self._is_asking = False
        self.owner: str
        """The identity of this broker."""
        self.on_taken_up: Callable[[Iterable[tuple[str, int]]], None] = lambda _sessions: None
        """Called with sessions that are elsewhere now, and the epochs that they had here."""
        self.went_on_at = 0.0
        """When it had its turn again after it stood still."""
        self.count = 0
        """How often it stood still."""

    @property
    def is_unsure(self) -> bool:
        """Whether mirrors are asked what they have taken up."""
        return self._is_asking

    def beat(self) -> bool:
        """It has its turn; whether it stood still before."""
        now = self._broker.tick.clock()
        gap_s, self._beat_at = now - self._beat_at, now
        if gap_s > STILL_S:
            self.count += 1
            self.went_on_at = self._host.now()
            self._still_s += gap_s if self._mirrors() else 0.0
        if not self._still_s:
            self._broker.tick.sure_until = now + STILL_S if self._mirrors() else inf
        elif not self._is_asking:
            self._is_asking = True
            self._broker.tick.sure_until = -inf
            self._host.spawn(self._ask_all())
        return gap_s > STILL_S

    async def _ask_all(self) -> None:
        """Until all have answered, and it did not stand still meanwhile; one that is given up need not."""
        answered: dict[Address, None] = {}
        while left := [one for one in self._mirrors() if one not in answered]:
            asked = AskTakenUp(self.owner, self._still_s + SLACK_S)
            answer = await ask(self._host, left[0], asked, (TakenUp, CopyRefused), timeout_s=ASK_S)
            if self.beat():
                answered.clear()  # it may have been given before that
            elif answer is not None:
                answered[left[0]] = None
            if isinstance(answer, TakenUp):
                self.on_taken_up(answer.sessions)
        self._still_s, self._is_asking = 0.0, False
        self._broker.tick.be_sure(self._beat_at + STILL_S if self._mirrors() else inf)
