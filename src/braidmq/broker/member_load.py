"""What a member of a shared subscription says of itself, on `$load/<group>`: how many messages it can have at a time,
and how much of its processor is left. What it does not say, its broker reckons: Receive Maximum less what is in flight.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

CPU: Final = "cpu"
"""The attribute that counts: how much of its processor is in use, in per cent."""

IDLE_MIN: Final = 0.05
"""A member whose processor is in use altogether still counts for so much."""


class MemberLoad(msgspec.Struct, frozen=True):
    slots: int | None = None
    """How many messages it has at most that it has not acknowledged; None if it does not say."""
    idle: float = 1.0
    """The part of its processor that is left."""

    def told(self, slots: int | None, attributes: Mapping[str, float]) -> MemberLoad:
        """What holds after it has said this: what is not mentioned stays as it was."""
        idle = max(IDLE_MIN, min(1.0, 1.0 - attributes[CPU] / 100.0)) if CPU in attributes else self.idle
        return MemberLoad(self.slots if slots is None else slots, idle)
