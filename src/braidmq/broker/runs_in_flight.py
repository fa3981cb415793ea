"""What a client was sent at QoS 1 and 2 in runs, and has not acknowledged: ranges of packet ids.

Only for a session that ends with its connection: nothing of it is ever sent again, so nothing but its ids is needed.
Clients answer in the order in which they were sent to, so a run of answers is for the oldest of a range:

    sent1 ──PUBACKs──▶ done        sent2 ──PUBRECs──▶ released2 ──PUBCOMPs──▶ done

A client that answers in another order, or with something else in between, is followed id by id.
"""

from __future__ import annotations

from braidmq.broker.backlog import NOTHING
from braidmq.broker.message import Delivery
from braidmq.broker.packet_ids import IdRange, following

PUBACK, PUBREC, PUBCOMP = 0x40, 0x50, 0x70
"""The first bytes of the answers."""

SENT = (Delivery(NOTHING, 0), Delivery(NOTHING, 1, under_way=True), Delivery(NOTHING, 2, under_way=True))
"""By QoS: stands for a publication that is followed by its id, and never sent again."""


class RunsInFlight:
    __slots__ = ("_inflight", "_released", "released2", "sent1", "sent2")

    def __init__(self, inflight: dict[int, Delivery], released: dict[int, Delivery]) -> None:
        """`inflight` and `released` are those of the session that are followed by their ids."""
        self._inflight = inflight
        self._released = released
        self.sent1 = IdRange()
        self.sent2 = IdRange()
        self.released2 = IdRange()

    def __contains__(self, packet_id: int) -> bool:
        return packet_id in self.sent1 or packet_id in self.sent2 or packet_id in self.released2

    @property
    def sent_count(self) -> int:
        return self.sent1.count + self.sent2.count

    @property
    def under_way(self) -> int:
        """How many count against the client's Receive Maximum."""
        return self.sent_count + self.released2.count

    def put(self, qos: int, last_id: int, count: int) -> IdRange | None:
        """Puts so many in flight, with the ids behind the last one that was given; None if not all of these are free
        [MQTT-2.2.1-4]."""
        new = IdRange(following(last_id), count)
        for ids in (self.sent1, self.sent2, self.released2):
            if ids.count and ids.overlaps(new):
                return None
        if self._inflight or self._released:
            if any(one in new for one in (*self._inflight, *self._released)):
                return None
        ids = self.sent1 if qos == 1 else self.sent2
        if not ids.is_followed_by(new):
            self.follow_singly()
        ids.add(new)
        return new

    def answer(self, header: int, high: bytes, low: bytes) -> bool:
        """A run of answers of one kind; False if it is not for the oldest of what waits for it."""
        ids = self.sent1 if header == PUBACK else self.sent2 if header == PUBREC else self.released2
        if not ids.begins_with(high, low):
            return False
        answered = IdRange(ids.first, len(high))
        if header == PUBREC:
            if not self.released2.is_followed_by(answered):
                return False
            self.released2.add(answered)
        ids.advance(answered.count)
        return True

    def follow_singly(self) -> None:
        """What is in flight is followed id by id from now on."""
        for qos, ids, by_id in (
            (1, self.sent1, self._inflight),
            (2, self.sent2, self._inflight),
            (2, self.released2, self._released),
        ):
            by_id.update(dict.fromkeys(ids, SENT[qos]))
            ids.count = 0
