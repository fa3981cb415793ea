"""The histories of brokers that are gone, out of the copies of their journals: told and answered for by a mirror.

What a broker published last, others may not have heard of when it is gone. So its mirror tells all of them how far its
history has come, and they fetch from there what they lack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from braidmq.braid.catch_up.heads import Head
from braidmq.braid.catch_up.history import History
from braidmq.braid.catch_up.left_history import AskFollowed, HasFollowed
from braidmq.braid.mirrors.broker_copy import BrokerCopies, BrokerCopy
from braidmq.braid.mirrors.copied_sessions import history_in
from braidmq.braid.roaming.reaching import BrokerReach
from braidmq.host import Address, Host, ask

TELL_S: Final = 1.0
"""How often it is looked for brokers that are gone, and how long after each other others are told …"""

TELLS_MAX: Final = 20
"""… and how often: until they have followed their histories to the end."""


class GoneHistories:
    def __init__(
        self, host: Host, copies: BrokerCopies, reach: BrokerReach, others: Callable[[], Iterable[Address]]
    ) -> None:
        """`others` are the brokers that are known."""
        self._host = host
        self._copies = copies
        self._reach = reach
        self._others = others
        self._told: dict[str, int] = {}
        """By broker that is gone: how far it was told that its history has come."""
        self._read: dict[str, History] = {}
        """By broker that is gone: what its copy has of its history."""

    def get(self, origin: str) -> History | None:
        """The history of a broker, if that is gone and there is a copy of it."""
        copy = self._copies.get(origin)
        if copy is None or copy.is_streaming:
            self._read.pop(origin, None)
            return None
        return self._of(copy)

    def heads(self) -> list[Head]:
        """How far they had come: to be asked for here."""
        found = []
        for copy in self._copies:
            history = self.get(copy.owner)
            if history is not None and history.head:
                found.append((copy.owner, self._host.address, history.head))
        return found

    # Telling it

    def start(self) -> None:
        self._host.spawn(self._keep_telling())

    async def _keep_telling(self) -> None:
        while True:
            await self._host.sleep(TELL_S)
            for copy in self._copies:
                history = self.get(copy.owner)
                if history is None:
                    self._told.pop(copy.owner, None)
                elif history.head > self._told.get(copy.owner, 0):
                    if await self._reach.find(copy.owner, copy.address) is None:
                        self._told[copy.owner] = history.head
                        for other in self._others():
                            self._host.spawn(self._tell(other, copy.owner, history.head))

    async def _tell(self, other: Address, origin: str, head: int) -> None:
        for _ in range(TELLS_MAX):
            told = await ask(self._host, other, AskFollowed(origin, head), HasFollowed, timeout_s=TELL_S)
            if told is not None and told.has_followed:
                return
            await self._host.sleep(TELL_S)

    def _of(self, copy: BrokerCopy) -> History:
        history = self._read.get(copy.owner)
        if history is None:
            history = self._read[copy.owner] = history_in(copy.snapshot())
        return history
