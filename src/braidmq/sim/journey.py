"""One copy of a message on its way through a simulated network."""

from __future__ import annotations

import msgspec

from braidmq.host import Address, Message


class Journey(msgspec.Struct):
    """A message on its way. `arrives_s` is None if the network lost it; `heard` if a living host took it."""

    sent_s: float
    arrives_s: float | None
    sender: Address
    receiver: Address
    message: Message
    hops: int
    """1 for the first, one more with each forward, 0 for a reply."""
    heard: bool = False
