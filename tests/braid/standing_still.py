"""Hosts in virtual time that stand still, as a process does that is stopped: what comes for one waits, and so does all
that it was about to do."""

from __future__ import annotations

from typing import Any

from braidmq.host import Address
from braidmq.sim.engine import ACT, SimTask, Simulator
from braidmq.sim.timeline import Event


class StandingStill:
    def __init__(self, sim: Simulator) -> None:
        self._sim = sim
        self._until: dict[Address, float] = {}
        self._deliver, self._step = sim._deliver, sim.step
        sim._deliver = self._deliver_later  # type: ignore[method-assign]
        sim.step = self._step_later  # type: ignore[method-assign]

    def stop(self, address: Address, seconds: float) -> None:
        """A host does nothing for so long; then it goes on where it was."""
        self._until[address] = self._sim.now + seconds

    def goes_on_at(self, address: Address) -> float:
        return self._until[address]

    def _is_still(self, address: Address) -> bool:
        return self._sim.now < self._until.get(address, 0.0)

    def _deliver_later(self, event: Event) -> None:
        if self._is_still(event[2]):
            self._sim._push((self._until[event[2]], *event[1:]))
        else:
            self._deliver(event)

    def _step_later(self, task: SimTask, value: Any, error: BaseException | None) -> None:
        if self._is_still(task.host.address):
            self._sim._push((self._until[task.host.address], ACT, lambda: self._step(task, value, error)))
        else:
            self._step(task, value, error)
