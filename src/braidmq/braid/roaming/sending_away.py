"""Sends a client to another broker, and its session behind it: the step that drains and moves to a home are made of.

An MQTT 5 client is told where to go (§4.11); its session, if that outlives the connection, is given to the very broker
that the client is told of (`pushing`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from braidmq.braid.membership.broker_records import BrokerRecord
from braidmq.braid.roaming.messages import TakeAnswer
from braidmq.braid.roaming.pushing import SessionPusher
from braidmq.broker.broker import Broker
from braidmq.broker.session import Session
from braidmq.host import Host
from braidmq.mqtt.reasons import Reason

Given = Callable[[Session, BrokerRecord, TakeAnswer | None], None]
"""Called when a session has gone, or could not: what the taker has said, None if it was silent."""


class SendingAway:
    def __init__(self, broker: Broker, host: Host, pusher: SessionPusher) -> None:
        self._broker = broker
        self._host = host
        self._pusher = pusher
        self.listener_kinds: Mapping[str, str] = {}
        """Of this broker, by their names."""

    def kind_of(self, listener: str) -> str:
        """What a client that came by a listener needs elsewhere; empty if it is not known."""
        return self.listener_kinds.get(listener, "")

    @property
    def under_way(self) -> int:
        """Sessions that are about to go."""
        return self._pusher.under_way

    def can_send(self, client_id: str) -> bool:
        return self._pusher.can_push(client_id)

    def send(
        self,
        session: Session,
        taker: BrokerRecord | None,
        reason: Reason,
        text: str,
        reference: str | None,
        given: Given,
    ) -> None:
        """Ends the connection of a session, if it has one, and gives the session to a taker, if there is one."""
        client_id = session.client_id
        if session.connection is not None:
            session.connection.disconnect(reason, text, reference)
            self._broker.request_flush()
        if taker is not None and self._broker.sessions.get(client_id) is session:
            self._pusher.begin(client_id)
            self._host.spawn(self._push(session, taker, given))

    async def _push(self, session: Session, taker: BrokerRecord, given: Given) -> None:
        given(session, taker, await self._pusher.push(session, taker))
