"""The sessions in the copy of a broker's journal, each at hand by its client id.

When a broker is gone all its clients come back at once, and each asks for its session. So what the copy says of all of
them is put in order once, and kept for as long as the copy does not grow.
"""

from __future__ import annotations

import msgspec

from braidmq.braid.catch_up.cursors import SavedCursor
from braidmq.braid.catch_up.history import History, Sent
from braidmq.braid.catch_up.last_sent import LastSent
from braidmq.braid.identity import IDENTITY_ROW
from braidmq.braid.interest.clusters import CLUSTERS_ROW
from braidmq.braid.roaming.epochs import epochs_in
from braidmq.braid.roaming.incoming import MOVED
from braidmq.braid.roaming.marks import Row, SavedMove
from braidmq.braid.selection.hold_rows import HOLD, decode_hold, moved_with
from braidmq.braid.transfer.batch import Predecessor
from braidmq.braid.transfer.predecessors import ByTopic
from braidmq.broker.group_queue import is_queue
from braidmq.broker.store import MemoryStore, SavedSession, Snapshot
from braidmq.host import Address


class CopiedSessions:
    def __init__(self, owner: str, snapshot: Snapshot) -> None:
        """`owner` is the broker whose sessions they are."""
        self._owner = owner
        self._snapshot = snapshot
        self._last_sent: LastSent | None = None
        """Of the broker's history, once somebody asks for it."""
        self.all = [one for one in snapshot.sessions if not is_queue(one.client_id)]
        self.queues = [one for one in snapshot.sessions if is_queue(one.client_id)]
        """What waits for shared subscriptions."""
        self.retained = snapshot.retained
        self._by_client = {one.client_id: one for one in self.all}
        self._epochs = epochs_in(snapshot)
        self.followed: dict[str, SavedCursor] = {}
        """By origin: how far the broker had followed it."""
        self._moved: dict[str, bytes] = {}
        """By client id, of sessions that had come to that broker not long before: a `SavedMove`."""
        self._holds: dict[str, list[bytes]] = {}
        """By client id: what is reserved of it."""
        for key, row in snapshot.cursors:
            if key.startswith(MOVED):
                self._moved[key.removeprefix(MOVED)] = row
            elif key.startswith(HOLD):
                self._holds.setdefault(decode_hold(row)[0], []).append(row)
            elif _is_cursor(key):
                self.followed[key] = msgspec.msgpack.decode(row, type=SavedCursor)
        self._horizon: list[Row] = [(origin, one.floor, tuple(one.seen)) for origin, one in self.followed.items()]
        if snapshot.sent:
            self._horizon.append((owner, msgspec.msgpack.decode(snapshot.sent[-1], type=Sent).last, ()))

    def get(self, client_id: str, now: float) -> SavedSession | None:
        """A client's session, unless its time is over (Unix time)."""
        found = self._by_client.get(client_id)
        return None if found is None or (found.ends_at is not None and found.ends_at <= now) else found

    def epoch_of(self, client_id: str) -> int:
        """0 if the client has no session here."""
        return self._epochs.get(client_id, (0, 0))[0]

    def begun(self, client_id: str) -> int:
        """The epoch in which the session of a client was begun; 0 if that is not known."""
        return self._epochs.get(client_id, (0, 0))[1]

    def instances_of(self, client_id: str) -> bytes:
        """What a client is an instance of, as far as something is reserved of it."""
        return moved_with(self._holds.get(client_id, ()))

    def horizon_of(self, client_id: str) -> list[Row]:
        """What a session has had, or has in its state, of all histories."""
        moved = self._move_of(client_id)
        return [*self._horizon, *(() if moved is None else moved.horizon)]

    def published_by(self, client_id: str, at: Address) -> ByTopic:
        """What a client has published last, at that broker or before it came there. `at` answers for that broker."""
        if self._last_sent is None:
            self._last_sent = LastSent(history_in(self._snapshot))
        found = {topic: Predecessor(self._owner, offset, at) for topic, offset in self._last_sent.of(client_id).items()}
        moved = self._move_of(client_id)
        return tuple((found | dict(() if moved is None else moved.published)).items())

    def _move_of(self, client_id: str) -> SavedMove | None:
        row = self._moved.get(client_id)
        return None if row is None else msgspec.msgpack.decode(row, type=SavedMove)


def history_in(snapshot: Snapshot) -> History:
    return History(MemoryStore(), [msgspec.msgpack.decode(row, type=Sent) for row in snapshot.sent])


def ends_of(snapshot: Snapshot) -> tuple[int, int]:
    """The last offset of the history, and the last number of a message that waits for a client."""
    head = msgspec.msgpack.decode(snapshot.sent[-1], type=Sent).last if snapshot.sent else 0
    waiting = [each.delivery.message.row for one in snapshot.sessions for each in one.deliveries]
    return head, max(waiting, default=0)


def _is_cursor(key: str) -> bool:
    return key not in (IDENTITY_ROW, CLUSTERS_ROW) and not key.startswith("$")
