"""A broker's part in the mini CAN of one topic: what it is there for, and which zones it holds."""

from __future__ import annotations

from collections.abc import Awaitable

from braidmq.bounded import BoundedDict
from braidmq.host import Address, Event, Host
from braidmq.pubsub.baselines.can.messages import CanGranted, Way
from braidmq.pubsub.baselines.can.network import Can, Zone

GRANTS_MAX = 16
"""Wishes of newcomers that a member remembers, to give the same answer if they are repeated."""

FLOODS_MAX = 256
"""Publications of a topic whose copies a member recognises."""


class CanMember:
    """A broker's part in a topic."""

    __slots__ = (
        "_change",
        "advertised",
        "can",
        "floods",
        "grants",
        "is_entering",
        "is_leaving",
        "is_mending",
        "subscribed",
        "taking_over",
    )

    def __init__(self) -> None:
        self.subscribed = False
        self.advertised = False
        self.can: Can | None = None
        self.is_entering = False
        self.is_leaving = False
        self.is_mending = False
        self.taking_over: set[Zone] = set()
        self.grants: BoundedDict[tuple[Address, int], CanGranted] = BoundedDict(GRANTS_MAX)
        self.floods: BoundedDict[tuple[Address, int], set[Way]] = BoundedDict(FLOODS_MAX)
        """The last publications, and from which zones they were sent in which directions."""
        self._change: Event | None = None

    @property
    def is_wanted(self) -> bool:
        return self.subscribed or self.advertised

    def next_change(self, host: Host, timeout_s: float | None = None) -> Awaitable[bool]:
        """Waits until it holds other zones, knows other neighbours, has entered or left; or for so long."""
        if self._change is None:
            self._change = host.event()
        return self._change.wait(timeout_s)

    def has_changed(self) -> None:
        """What waits for a change goes on."""
        if self._change is not None:
            self._change.set()
            self._change = None
