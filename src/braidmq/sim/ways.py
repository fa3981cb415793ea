"""Detours in virtual time: what a host is to pass on travels as one message, with all that belongs to it.

A simulated network has no links and no queues. So a host is in touch with those that it has sent something to lately,
and whether anything comes from one of them is found out by asking it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from braidmq.bounded import BoundedDict
from braidmq.host import Address, Message

LINKED_MAX = 1024
LINKED_S = 30.0
"""How long a host that was sent something counts as one that this host is in touch with; and so many of them do."""


class SimPassed(Message, frozen=True, gc=False):
    """What one host sends to another by a third."""

    to: Address
    origin: Address
    message: Any
    call: Any
    """The call that it belongs to, if it is a request or a reply."""
    hops: int
    is_reply: bool


class Sender(Protocol):
    """What the ways of a host ask of it."""

    def now(self) -> float: ...
    def send(self, to: Address, message: Message) -> None: ...


class SimWays:
    def __init__(self, host: Sender) -> None:
        self.is_confined: Callable[[bytes], bool] = _no
        self.on_passed: Callable[[Address, Address], None] = _ignore
        self._host = host
        self._detours: dict[Address, Address] = {}
        self._asked: dict[Address, None] = {}
        self._linked: BoundedDict[Address, float] = BoundedDict(LINKED_MAX)
        """When each of them was last sent something."""

    def detour_of(self, message: Message, to: Address, came_by: Address | None = None) -> Address | None:
        """The host that is to pass a message on, if any is. What is passed on already goes directly. A reply goes by
        the host by which its request came: one by which others were sent to before may be gone."""
        by = self._detours.get(to) if came_by is None or came_by in self._detours else came_by
        if by is None or type(message) is SimPassed or self.is_confined(msgspec.msgpack.encode(message)):
            return None
        return by

    def way_of(self, message: Message, to: Address) -> Address | None:
        """The same, and notes that something is sent."""
        by = self.detour_of(message, to)
        if by is None:
            self._asked[to] = None
        self._linked.renew(to if by is None else by, self._host.now())
        return by

    @property
    def detours(self) -> Mapping[Address, Address]:
        return self._detours

    @property
    def linked(self) -> Sequence[Address]:
        now = self._host.now()
        return [one for one, sent_at in self._linked.items() if now - sent_at < LINKED_S]

    def unanswered(self) -> Sequence[Address]:
        asked, self._asked = self._asked, {}
        return list(asked)

    def hears(self, address: Address) -> bool:
        return False

    def send_directly(self, to: Address, message: Message) -> None:
        by = self._detours.pop(to, None)
        self._host.send(to, message)
        self._asked.pop(to, None)
        if by is not None:
            self._detours[to] = by

    def go_round(self, to: Address, by: Address, is_sure: bool = True) -> None:
        self._detours[to] = by

    def go_directly(self, to: Address) -> None:
        self._detours.pop(to, None)

    def hurry(self) -> None:
        """There are no links that would have to be made."""


def _no(_message: bytes) -> bool:
    return False


def _ignore(*_: object) -> None:
    """Nobody decides on detours."""
