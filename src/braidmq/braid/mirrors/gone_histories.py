"""The histories of brokers that are gone, out of the copies of their journals: told and answered for by a mirror."""

from __future__ import annotations

import msgspec

from braidmq.braid.catch_up.heads import Head
from braidmq.braid.catch_up.history import History, Sent
from braidmq.braid.catch_up.last_sent import LastSent
from braidmq.braid.mirrors.broker_copy import BrokerCopies, BrokerCopy
from braidmq.braid.transfer.batch import Predecessor
from braidmq.braid.transfer.predecessors import ByTopic
from braidmq.broker.store import MemoryStore
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

    def last_of(self, copy: BrokerCopy, client_id: str) -> ByTopic:
        """What a client has published last at a broker that is taken for gone."""
        history = self.get(copy.owner) or _history_in(copy)
        found = LastSent(history).of(client_id)
        at = self._host.address
        return tuple([(topic, Predecessor(copy.owner, offset, at)) for topic, offset in found.items()])

    def _of(self, copy: BrokerCopy) -> History:
        history = self._read.get(copy.owner)
        if history is None:
            history = self._read[copy.owner] = _history_in(copy)
        return history


def _history_in(copy: BrokerCopy) -> History:
    return History(MemoryStore(), [msgspec.msgpack.decode(row, type=Sent) for row in copy.snapshot().sent])
