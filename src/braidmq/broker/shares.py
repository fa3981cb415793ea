"""Shared subscriptions on this broker (MQTT 5 §4.8.2): each message goes to one member of the group.

Members take turns; one that is away, slow or full is passed over while another is free.
"""

from __future__ import annotations

from braidmq.broker.session import Session
from braidmq.broker.subscription import Subscribed


class ShareGroup:
    """The sessions that share one filter under one name."""

    __slots__ = ("full_filter", "members", "turn")

    def __init__(self, full_filter: str) -> None:
        self.full_filter = full_filter
        self.members: dict[Session, Subscribed] = {}
        self.turn = 0

    def choose(self, qos: int, size: int) -> Session | None:
        """The member whose turn it is: free before busy, connected before away; None if none has room for it."""
        sessions = list(self.members)
        count = len(sessions)
        for step in range(count):
            session = sessions[(self.turn + step) % count]
            if session.ready:
                self.turn = (self.turn + step + 1) % count
                return session
        busy = [
            session
            for session in sessions
            if session.has_room(size) and (session.connection is not None or (qos > 0 and session.durable))
        ]
        return min(busy, key=lambda session: (session.connection is None, session.burden), default=None)
