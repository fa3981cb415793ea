"""The histories of brokers that are gone, out of the copies of their journals: told and answered for by a mirror."""

from __future__ import annotations

from braidmq.braid.catch_up.heads import Head
from braidmq.braid.catch_up.history import History
from braidmq.braid.mirrors.broker_copy import BrokerCopies, BrokerCopy
from braidmq.braid.mirrors.copied_sessions import history_in
from braidmq.host import Host


class GoneHistories:
    def __init__(self, host: Host, copies: BrokerCopies) -> None:
        self._host = host
        self._copies = copies
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

    def _of(self, copy: BrokerCopy) -> History:
        history = self._read.get(copy.owner)
        if history is None:
            history = self._read[copy.owner] = history_in(copy.snapshot())
        return history
