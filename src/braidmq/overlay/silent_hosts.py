"""Hosts that did not answer just now: remembered, so that one that is gone is waited for once and not at each step.

A host that is far away needs longer to answer than others: how long the last answer took is remembered, too. One that
was never asked may be as far as any.
"""

from __future__ import annotations

from typing import TypeVar

from braidmq.bounded import BoundedDict
from braidmq.host import Address, CallError, CallRefused, Host, Message

SILENT_S = 5.0
"""How long a host that did not answer is taken to be silent, unless it answers meanwhile."""

SOON_S = 0.25
"""How long one that is taken to be silent is waited for."""

SLACK = 2.0
"""An answer may take so many times as long as the last one."""

HOSTS_MAX = 256
"""Hosts of which something is remembered."""

Answer = TypeVar("Answer", bound=Message)


class SilentHosts:
    __slots__ = ("_host", "_took", "_until")

    def __init__(self, host: Host) -> None:
        self._host = host
        self._until: BoundedDict[Address, float] | None = None
        self._took: BoundedDict[Address, float] | None = None
        """How long the last answer of a host took."""

    def note(self, address: Address) -> None:
        """A host has not answered."""
        if self._until is None:
            self._until = BoundedDict(HOSTS_MAX)
        self._until.renew(address, self._host.now() + SILENT_S)

    def heard(self, address: Address, took_s: float) -> None:
        """A host has answered."""
        if self._until:
            self._until.pop(address, None)
        if self._took is None:
            self._took = BoundedDict(HOSTS_MAX)
        self._took.renew(address, took_s)

    @property
    def slowest_s(self) -> float:
        """How long the answer of the farthest host took; 0 if none has answered yet."""
        return max(self._took.values()) if self._took else 0.0

    def is_silent(self, address: Address) -> bool:
        return self._until is not None and self._host.now() < self._until.get(address, 0.0)

    @property
    def are_any(self) -> bool:
        """Whether any host was silent just now."""
        now = self._host.now()
        return bool(self._until) and any(now < until for until in (self._until or {}).values())

    async def ask(
        self,
        to: Address,
        request: Message,
        replies: type[Answer] | tuple[type[Answer], ...],
        timeouts_s: tuple[float, ...],
    ) -> Answer | None:
        """As `braidmq.host.ask`, with so much patience each time; less if the host was silent just now."""
        took_s = self._took.get(to) if self._took else None
        least_s = SLACK * (self.slowest_s if took_s is None else took_s)
        for number, timeout_s in enumerate((SOON_S,) if self.is_silent(to) else timeouts_s):
            if number and self.is_silent(to):  # somebody has found out meanwhile
                return None
            began_at = self._host.now()
            try:
                reply = await self._host.call(to, request, max(least_s, timeout_s))
            except CallRefused:
                return None
            except CallError:
                continue
            self.heard(to, self._host.now() - began_at)
            return reply if isinstance(reply, replies) else None
        self.note(to)
        return None
