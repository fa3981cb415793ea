"""Hosts that stand still for a while, as a process does that is stopped: what comes to them comes late, and behind it
come their timers."""

from __future__ import annotations

from typing import Any

from braidmq.host import Address
from braidmq.sim.engine import REPLY, WAKE, Simulator
from braidmq.sim.task import EventWait, Sleep
from braidmq.sim.timeline import Event

TIMERS_S = 1e-6
"""By so much later timers come than what has arrived."""


class FreezingSimulator(Simulator):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._frozen: dict[Address, float] = {}

    def freeze(self, address: Address, seconds: float) -> None:
        self._frozen[address] = self.now + seconds

    def thaws_at(self, address: Address) -> float:
        """When a host goes on; 0 if it does not stand still."""
        at = self._frozen.get(address, 0.0)
        return at if at > self.now else 0.0

    def _deliver(self, event: Event) -> None:
        if at := self.thaws_at(event[2]):
            self._push((at, *event[1:]))
        else:
            super()._deliver(event)

    def _reply(self, event: Event) -> None:
        _, _, call, sender, reply = event
        if at := self.thaws_at(call.host.address):
            self._push((at, REPLY, call, sender, reply))
        else:
            super()._reply(event)

    def _awake(self, wait: Sleep | EventWait) -> None:
        if wait.task is not None and (at := self.thaws_at(wait.task.host.address)):
            self._push((at + TIMERS_S, WAKE, wait))
        else:
            super()._awake(wait)

    def _expire(self) -> None:
        wait = self._deadlines.expired()
        if wait is None or wait.task is None:
            return
        at = self._frozen.get(wait.task.host.address, 0.0) + TIMERS_S
        if at > wait.deadline:
            self._deadlines.postpone(wait, at)
        else:
            super()._expire()
