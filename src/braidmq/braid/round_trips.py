"""How long other brokers take to answer, and which of them are silent just now: so a client that waits for its session
waits for a broker that is gone once, and not longer than an answer of it would have taken."""

from __future__ import annotations

from typing import Final, TypeVar

from braidmq.bounded import BoundedDict
from braidmq.host import Address, CallError, CallRefused, Host, Message

LEAST_S: Final = 0.06
"""A broker has so long to answer, however fast it was before: it may have been busy …"""

MOST_S: Final = 0.15
"""… and so long if it was slow, or was never asked."""

SLACK: Final = 2.0
"""An answer may take so many times as long as those before."""

FORGET: Final = 0.1
"""How much of the way to a shorter time each answer goes."""

SILENT_S: Final = 1.0
"""How long a broker that did not answer is taken to be silent, unless it answers meanwhile."""

KNOWN_MAX: Final = 1024

Answer = TypeVar("Answer", bound=Message)


class RoundTrips:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._longest: BoundedDict[Address, float] = BoundedDict(KNOWN_MAX)
        self._silent_until: BoundedDict[Address, float] = BoundedDict(KNOWN_MAX)

    def timeout_s(self, address: Address) -> float:
        longest_s = self._longest.get(address)
        return MOST_S if longest_s is None else min(MOST_S, max(LEAST_S, SLACK * longest_s))

    def is_silent(self, address: Address) -> bool:
        """Whether a broker has not answered, just now."""
        return self._host.now() < self._silent_until.get(address, 0.0)

    async def ask(self, to: Address, request: Message, replies: type[Answer], tries: int) -> Answer | None:
        """As `braidmq.host.ask`, for as long as that broker needs."""
        for number in range(tries):
            began_at = self._host.now()
            try:
                reply = await self._host.call(to, request, MOST_S if number else self.timeout_s(to))
            except CallRefused:
                return None
            except CallError:
                self._silent_until.renew(to, self._host.now() + SILENT_S)
                continue
            self._note(to, self._host.now() - began_at)
            return reply if isinstance(reply, replies) else None
        return None

    def _note(self, address: Address, took_s: float) -> None:
        self._silent_until.pop(address, None)
        longest_s = self._longest.get(address, took_s)
        self._longest.renew(address, max(took_s, longest_s + FORGET * (took_s - longest_s)))
