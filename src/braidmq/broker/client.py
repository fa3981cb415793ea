"""A session's client while it is connected, as the core sees it; `connection` has it.

Sessions, routes and the broker know no more of a connection than this, so that they stand below it.
"""

from __future__ import annotations

from typing import Protocol

from braidmq.broker.flow import Flow
from braidmq.broker.message import Message
from braidmq.broker.tick import TickConnection
from braidmq.mqtt.errors import PacketError
from braidmq.mqtt.reasons import Reason
from braidmq.security.identity import Identity, Origin


class ConnectedClient(TickConnection, Protocol):
    version: int
    writable: bool
    """Whether its socket takes more."""
    takes_plain: bool
    """Whether QoS 0 publications may reach it as plain bytes."""
    allowed_topics: set[bytes] | None
    """Topics that it may publish to, as far as they were asked about; None if it may publish to all."""

    @property
    def identity(self) -> Identity: ...

    @property
    def origin(self) -> Origin: ...

    @property
    def flow(self) -> Flow: ...

    def send(self, data: bytes) -> None:
        """Puts bytes into what leaves at the end of the tick."""
        ...

    def send_publish(
        self, message: Message, first_byte: int, packet_id: int, ids: tuple[int, ...], publisher: Flow | None = None
    ) -> bool:
        """Sends a publication; False if the client does not take packets so large [MQTT-3.1.2-24]."""
        ...

    def reset_plain(self) -> None:
        """Sets `takes_plain` to what was agreed on in CONNECT."""
        ...

    def fail(self, error: PacketError) -> None:
        """Tells the client what it did wrong, and closes."""
        ...

    def disconnect(self, reason: Reason, text: str = "", server_reference: str | None = None) -> None:
        """Closes by the broker's own wish. `server_reference` is where the client finds another one (MQTT 5 §4.11)."""
        ...
