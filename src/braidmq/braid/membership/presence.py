"""Whether this broker is in its braid: what the parts of the braid look at before they act for it."""

from __future__ import annotations

from braidmq.host import Host


class Presence:
    def __init__(self, host: Host) -> None:
        self._host = host
        self.is_in = False
        self.is_leaving = False
        """Whether this broker is about to end: what it stands for then is left in good order by `leaving`."""
        self.entered = host.event()
        """Happens when this broker is in, and not again once it has left."""

    def enter(self) -> None:
        self.is_in = True
        self.entered.set()

    def leave(self) -> None:
        self.is_in = False
        self.is_leaving = True
        self.entered = self._host.event()
