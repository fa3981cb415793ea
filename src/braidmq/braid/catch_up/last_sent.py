"""Which publication of a client on each topic is the last in a history: looked up when the client has roamed.

Nothing is noted when it publishes. The history is looked through once, from where that ended the last time.
"""

from __future__ import annotations

from braidmq.bounded import BoundedDict
from braidmq.braid.catch_up.history import History

SENDERS_MAX = 65_536
"""Clients of which that is known; the one that has published least recently goes."""

TOPICS_MAX = 64
"""Topics of a client of which it is known; the one that it has published on least recently goes."""


class LastSent:
    def __init__(self, history: History) -> None:
        self._history = history
        self._looked = 0
        """Up to this offset it was looked through."""
        self._by_sender: BoundedDict[str, BoundedDict[str, int]] = BoundedDict(SENDERS_MAX)

    def of(self, sender: str) -> dict[str, int]:
        """By topic: the offset of the last publication of a client."""
        for sent in self._history.behind(self._looked):
            self._note(sent.sender if sent.item is None else sent.item.sender, sent.topic, sent.last)
        return dict(self._by_sender.get(sender, {}))

    def _note(self, sender: str, topic: str, offset: int) -> None:
        self._looked = offset
        by_topic = self._by_sender.pop(sender, None)
        if by_topic is None:
            by_topic = BoundedDict(TOPICS_MAX)
        by_topic.renew(topic, offset)
        self._by_sender[sender] = by_topic
