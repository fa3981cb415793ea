"""Epochs of clients: of two sessions of one client, the one with the higher epoch is the client's.

The directory gives an epoch with each claim. That of a session that stays is kept in the store, so a broker that comes
back, and whoever has a copy of its store, knows which of two sessions is the newer one.

Beside it stands the epoch in which the session was begun. Whatever has an epoch between the two is an earlier state of
the same session, or a branch of it: all that it has, the session has had, or gets from the histories.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from braidmq.broker.broker import Broker
from braidmq.broker.store import Snapshot

if TYPE_CHECKING:
    from collections.abc import Container

UNKNOWN_EPOCH: Final = 1
"""Of a session of which nothing is known: lower than any claim."""

EPOCH: Final = "$epoch/"
"""The store's rows stand among the cursors, under this and the client id."""


class SessionEpochs(dict[str, int]):
    """By client id: those of the clients that this broker has."""

    def __init__(self) -> None:
        super().__init__()
        self._begun: dict[str, int] = {}
        self._changed: dict[str, None] = {}
        self._saved: dict[str, None] = {}

    def __setitem__(self, client_id: str, epoch: int) -> None:
        if self.get(client_id) != epoch:
            self._changed[client_id] = None
            super().__setitem__(client_id, epoch)

    def __delitem__(self, client_id: str) -> None:
        self._changed[client_id] = None
        self._begun.pop(client_id, None)
        super().__delitem__(client_id)

    def drop(self, client_id: str) -> int:
        """The client is not this broker's any more; which epoch it had, 0 if none."""
        epoch = self.get(client_id, 0)
        if epoch:
            del self[client_id]
        return epoch

    def begun(self, client_id: str) -> int:
        """In which epoch a client's session was begun; 0 if that is not known."""
        return self._begun.get(client_id, 0)

    def set_begun(self, client_id: str, epoch: int) -> None:
        self._begun[client_id] = epoch
        self._changed[client_id] = None

    def begin_anew(self, client_id: str) -> None:
        """The client has no session from before."""
        if client_id in self:
            self.set_begun(client_id, self[client_id])

    def restore(self, broker: Broker) -> None:
        """Takes up what an earlier process wrote."""
        for key, row in broker.saved_cursors:
            if key.startswith(EPOCH):
                client_id = key.removeprefix(EPOCH)
                self._saved[client_id] = None
                if client_id in broker.sessions:
                    epoch, self._begun[client_id] = _decode(row)
                    super().__setitem__(client_id, epoch)
                else:
                    self._changed[client_id] = None

    @property
    def is_changed(self) -> bool:
        """Whether something is to be written."""
        return bool(self._changed)

    def save(self, broker: Broker, arriving: Container[str]) -> None:
        """Writes what has changed with the commit that follows; of a client that is just coming, with its session."""
        for client_id in list(self._changed):
            session = broker.sessions.get(client_id)
            epoch = self.get(client_id)
            if epoch is not None and session is None and client_id in arriving:
                continue
            del self._changed[client_id]
            if epoch is not None and session is not None and session.durable:
                self._saved[client_id] = None
                broker.store.save_cursor(EPOCH + client_id, msgspec.msgpack.encode((epoch, self.begun(client_id))))
            elif client_id in self._saved:
                del self._saved[client_id]
                broker.store.drop_cursor(EPOCH + client_id)


_decode: Final = msgspec.msgpack.Decoder(tuple[int, int]).decode


def epochs_in(snapshot: Snapshot) -> dict[str, tuple[int, int]]:
    """By client id, of the sessions that a copy of a store has: their epochs, and those in which they were begun."""
    found = {key.removeprefix(EPOCH): _decode(row) for key, row in snapshot.cursors if key.startswith(EPOCH)}
    return {one.client_id: found.get(one.client_id, (UNKNOWN_EPOCH, 0)) for one in snapshot.sessions}
