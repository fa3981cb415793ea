"""The order in which a site starts."""

from __future__ import annotations

import pytest

from braidmq.broker.federation import Alone
from braidmq.config.settings import BraidConfig, Config, Listener, StoreConfig
from braidmq.server.server import Server


async def test_clients_are_let_in_once_their_sessions_can_be_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that came before would be told that it has no session."""
    listeners = (Listener(kind="tcp", port=0),)
    server = Server(
        Config(listeners=listeners, store=StoreConfig(enabled=False), braid=BraidConfig(listen="127.0.0.1:0"))
    )
    federations: list[object] = []
    start = server.listeners.start

    async def note_and_start() -> None:
        federations.append(server.broker.federation)
        await start()

    monkeypatch.setattr(server.listeners, "start", note_and_start)
    await server.start()
    await server.stop()
    assert federations
    assert not isinstance(federations[0], Alone)


async def test_nothing_runs_on_if_clients_cannot_be_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(Config(store=StoreConfig(enabled=False), braid=BraidConfig(listen="127.0.0.1:0")))

    async def fail() -> None:
        raise OSError("this port is taken")

    monkeypatch.setattr(server.listeners, "start", fail)
    with pytest.raises(OSError, match="taken"):
        await server.start()
    assert server._node is not None
    assert not server._node.host._is_running
