"""What a connection asks of the listener that accepted it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio

    from websockets.typing import Origin as WebOrigin

    from braidmq.broker.connection import Connection
    from braidmq.broker.limits import Limits
    from braidmq.broker.transport import Transport
    from braidmq.config.settings import Listener


class ClientProtocol(Protocol):
    """One client's end of a connection, as a listener knows it."""

    @property
    def closing(self) -> bool:
        """Whether it was closed at either end, though bytes may still be on their way."""
        ...

    def abort(self) -> None: ...


class AcceptingListener(Protocol):
    """The rules of a listener, and the way from it into the broker's core."""

    settings: Listener
    web_origins: list[WebOrigin | None] | None
    web_path: str

    @property
    def limits(self) -> Limits: ...

    @property
    def frame_bytes_max(self) -> int: ...

    def admit(self, link: Transport, transport: asyncio.Transport, peer: str) -> Connection:
        """Joins a connection whose handshakes are done to the core."""
        ...

    def on_closed(self, protocol: ClientProtocol) -> None: ...
