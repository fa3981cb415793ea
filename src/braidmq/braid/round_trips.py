"""How long other brokers take to answer, and which of them are silent just now: so a client that waits for its session
waits for a broker that is gone once, and not longer than an answer of it would have taken.

Brokers that were never asked are asked ahead, with much patience: one that is far away must not be taken for gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from braidmq.bounded import BoundedDict
from braidmq.braid.roaming.directory_messages import AreYouThere, StillThere
from braidmq.host import Address, CallError, CallRefused, Host, Message, ask, run_all

LEAST_S: Final = 0.06
"""A broker has so long to answer, however fast it was before: it may have been busy …"""

UNKNOWN_S: Final = 0.15
"""… so long if it was never asked …"""

FAR_S: Final = 1.0
"""… and so long at most, however far it is."""

SLACK: Final = 2.0
"""An answer may take so many times as long as those before."""

FORGET: Final = 0.1
"""How much of the way to a shorter time each answer goes."""

SILENT_S: Final = 1.0
"""How long a broker that did not answer is taken to be silent, unless it answers meanwhile."""

MEASURE_S, MEASURE_EVERY_S = 2.0, 10.0
"""How long a broker has to answer that was never asked, and how often it is looked for such brokers."""

FORGIVEN_S = 15.0
"""How long it counts that a broker did not answer then: it is asked again before."""

LOOKS, LOOK_S = 3, 0.15
"""How often a broker is asked that somebody does not reach, and how long it has to answer at least."""

AT_ONCE_MAX: Final = 32
"""Brokers that are measured at a time."""

KNOWN_MAX: Final = 1024

Answer = TypeVar("Answer", bound=Message)


class RoundTrips:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._longest: BoundedDict[Address, float] = BoundedDict(KNOWN_MAX)
        self._silent_until: BoundedDict[Address, float] = BoundedDict(KNOWN_MAX)
        self._unmeasured_at: BoundedDict[Address, float] = BoundedDict(KNOWN_MAX)
        """Brokers that were given much time ahead, and did not answer; and when that was."""

    def timeout_s(self, address: Address) -> float:
        longest_s = self._longest.get(address)
        return UNKNOWN_S if longest_s is None else min(FAR_S, max(LEAST_S, SLACK * longest_s))

    def patience_s(self, address: Address) -> float:
        """How long to wait before a broker is taken for gone: if nothing is known of it, long, unless it had all that
        time just now."""
        if address in self._longest or self._host.now() < self._unmeasured_at.get(address, -FORGIVEN_S) + FORGIVEN_S:
            return self.timeout_s(address)
        return FAR_S

    def moment_s(self, address: Address) -> float:
        """How long to wait for one that was silent just now, and may be back: not long, however far it is."""
        return min(LEAST_S, SLACK * self._longest.get(address, LEAST_S))

    def usual_s(self, address: Address) -> float:
        """How long an answer takes, at the most as far as is known."""
        return self._longest.get(address, LEAST_S)

    @property
    def slowest_s(self) -> float:
        """The round trip to the farthest broker."""
        return min(FAR_S, max(self._longest.values(), default=0.0))

    # Ahead

    async def keep_measuring(self, others: Callable[[], Iterable[Address]]) -> None:
        """Finds out how far brokers are that were never asked, before a client waits for one."""
        while True:
            unknown = [one for one in others() if one not in self._longest and one != self._host.address]
            await run_all(self._host, [self._measure(one) for one in unknown[:AT_ONCE_MAX]])
            await self._host.sleep(MEASURE_EVERY_S)

    async def _measure(self, address: Address) -> None:
        began_at = self._host.now()
        if await ask(self._host, address, AreYouThere(), StillThere, timeout_s=MEASURE_S) is not None:
            self._note(address, self._host.now() - began_at)
        else:
            self._unmeasured_at.renew(address, self._host.now())

    # Asking

    async def who_is_at(self, address: Address) -> str | None:
        """The identity of the broker that answers at an address; None if none does. Several questions, since one may
        be lost, and time for any of the answers, since the way may be long."""
        wait_s = max(LOOK_S, self.patience_s(address))
        ends_at = self._host.now() + wait_s
        answered = self._host.event()
        names: list[str] = []

        async def ask_once() -> None:
            left_s = max(0.0, ends_at - self._host.now())  # this host may have been held up
            answer = await ask(self._host, address, AreYouThere(), StillThere, timeout_s=left_s)
            if answer is not None:
                names.append(answer.name)
                answered.set()

        for _ in range(LOOKS):
            self._host.spawn(ask_once())
            if await answered.wait(wait_s / LOOKS):
                return names[0]
        return None

    def is_silent(self, address: Address) -> bool:
        """Whether a broker has not answered, just now."""
        return self._host.now() < self._silent_until.get(address, 0.0)

    async def ask(self, to: Address, request: Message, replies: type[Answer], tries: int) -> Answer | None:
        """As `braidmq.host.ask`, for as long as that broker needs."""
        for number in range(tries):
            began_at = self._host.now()
            try:
                reply = await self._host.call(
                    to, request, max(UNKNOWN_S, self.timeout_s(to)) if number else self.timeout_s(to)
                )
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
        self._unmeasured_at.pop(address, None)
        longest_s = self._longest.get(address, took_s)
        self._longest.renew(address, max(took_s, longest_s + FORGET * (took_s - longest_s)))
