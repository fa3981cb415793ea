"""What a broker had written when it died, and its mirrors had not got: publications of QoS 2 that nobody was told of.

They had not left the broker, since their packet ids were not in the copies; so their publishers send them again. One
that comes back here is known by its packet id. But a mirror may have given the session to another broker meanwhile:
then it is published there, and what is in the journal here must not be published, too. So a broker that has just
started asks its mirrors which sessions they have taken up, and how far their copies are; what is behind, of these
publishers, is taken out of its history, and out of what waits for its own clients.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from braidmq.braid.catch_up.history import History
from braidmq.braid.mirrors.messages import AskTakenUp, CopyRefused, TakenUp
from braidmq.braid.mirrors.mirror_set import Mirror
from braidmq.braid.roaming.epochs import UNKNOWN_EPOCH
from braidmq.broker.broker import Broker
from braidmq.broker.message import Delivery
from braidmq.broker.session import Session
from braidmq.host import Host, ask, run_all

TAKEN_UP_S: Final = 7 * 86_400.0
"""How long ago a mirror may have taken up a session: as long as it keeps a copy whose owner is silent."""
ASK_S, ASK_TRIES = 0.25, 2
"""How long a mirror has to answer, and how often it is asked: clients wait."""

_log = logging.getLogger("braidmq.braid")


class UnconfirmedTail:
    def __init__(
        self, broker: Broker, host: Host, owner: str, history: History, epochs: Mapping[str, int], mirrors: list[Mirror]
    ) -> None:
        """`mirrors` are those that counted last; `epochs` those of the sessions that are here."""
        self._broker = broker
        self._host = host
        self._owner = owner
        self._history = history
        self._epochs = epochs
        self._mirrors = mirrors
        self.known = host.event()
        """Happens when it is known what must not be published, or nobody can say it."""
        if not mirrors:
            self.known.set()

    async def find_out(self) -> None:
        await run_all(self._host, [self._ask(mirror) for mirror in self._mirrors])
        self.known.set()

    async def _ask(self, mirror: Mirror) -> None:
        asked = AskTakenUp(self._owner, TAKEN_UP_S, has_started=True)
        kinds = (TakenUp, CopyRefused)
        answer = await ask(self._host, mirror.address, asked, kinds, timeout_s=ASK_S, tries=ASK_TRIES)
        if isinstance(answer, TakenUp):
            epochs = self._epochs
            gone = {one for one, epoch in answer.sessions if epochs.get(one, UNKNOWN_EPOCH) <= epoch}
            if gone:
                self._take_out(gone, answer)

    def _take_out(self, publishers: set[str], copy: TakenUp) -> None:
        count = self._history.void(publishers, copy.head)

        def is_void(delivery: Delivery) -> bool:
            message = delivery.message
            return message.qos == 2 and message.row > copy.row and message.sender in publishers

        for session in list(self._broker.sessions.values()):
            count += _discard(session, is_void)
        if count:
            _log.info("%d publications are left out: their clients have sent them again to other brokers", count)
            self._broker.request_flush()


def _discard(session: Session, is_void: Callable[[Delivery], bool]) -> int:
    found = [] if session.backlog is None else session.backlog.remove(is_void)
    for packet_id, delivery in list(session.inflight.items()):
        if is_void(delivery):
            del session.inflight[packet_id]
            found.append(delivery)
    for delivery in found:
        session.discard(delivery)
    return len(found)
