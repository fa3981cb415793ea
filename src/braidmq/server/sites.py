"""Several brokers in one process and one event loop: a braid to try out, or several sites of one machine.

Each site is a whole broker with its own store, its own ports and its own node in the braid. The first site begins the
braid, or joins the one that the configuration names; each further site joins the first. They stop in reverse order. At
SIGTERM they are not drained, since all of them end; one alone can be (`braidmq drain`), and the others go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec

from braidmq.admin.contract import ADMIN_FILE, AdminFile
from braidmq.config.naming import broker_name
from braidmq.config.settings import Config
from braidmq.server import log_lines as logs
from braidmq.server.listening.sockets import ADMIN_PORT, LISTENER_PORT, bind_tcp
from braidmq.server.server import Server, on_end_signals, on_reload_signal, rarely_collect_garbage

ENTER_S = 10.0
"""How long a site gets to enter the braid before a warning is logged and the next site starts."""

_log = logging.getLogger("braidmq.server")


class Site(msgspec.Struct, frozen=True):
    """A site as it is announced."""

    name: str
    addresses: list[str]


async def serve_sites(
    configs: Sequence[Config], announce: Callable[[list[Site]], None], read_configs: Callable[[], Sequence[Config]]
) -> int:
    """Runs a braid of brokers until SIGTERM or SIGINT, or until all are drained; returns the exit code. `announce` is
    called once all are in."""
    logs.configure(configs[0].log)
    await asyncio.to_thread(check_ports, configs)
    servers: list[Server] = []
    try:
        for config in configs:
            server = Server(_joining(config, servers))
            await server.start()
            servers.append(server)
            if not await server.wait_until_in(ENTER_S):
                _log.warning("%s is not in the braid after %g s; it goes on trying", config.data, ENTER_S)
            _write_admin_file(server)
        rarely_collect_garbage()
        ended: asyncio.Queue[Server | None] = asyncio.Queue()
        on_end_signals(partial(ended.put_nowait, None), partial(ended.put_nowait, None))
        for server in servers:
            server.draining.on_finished = partial(ended.put_nowait, server)
        on_reload_signal(lambda: _reload(servers, read_configs()))
        announce([Site(broker_name(server.config), server.addresses) for server in servers])
        while servers and (drained := await ended.get()) is not None:
            servers.remove(drained)
            _admin_file(drained).unlink(missing_ok=True)
            await drained.stop()
        _log.info("stopping")
    finally:
        is_polite = True
        for server in reversed(servers):
            _admin_file(server).unlink(missing_ok=True)
            is_polite = await server.stop(is_polite)  # once one could not leave in time, the rest leave without waiting
    return 0


def check_ports(configs: Sequence[Config]) -> None:
    """Raises a ListenError, before anything starts, if a port of a site is taken by another process or site."""
    with contextlib.ExitStack() as bound:
        for config in configs:
            ports = [(one.name, one.host, one.port, LISTENER_PORT) for one in config.listeners if one.kind != "unix"]
            if config.admin is not None:
                ports.append(("admin", config.admin.host, config.admin.port, ADMIN_PORT))
            for name, host, port, change in ports:
                for each in bind_tcp(f"{broker_name(config)} {name}", host, port, change):
                    bound.callback(socket.socket.close, each)


def _joining(config: Config, servers: Sequence[Server]) -> Config:
    """The configuration of a site that also joins the first one, if this is not the first."""
    assert config.braid is not None
    if not servers:
        return config
    first = servers[0].braid_address
    assert first is not None
    return msgspec.structs.replace(
        config, braid=msgspec.structs.replace(config.braid, join=(first, *config.braid.join))
    )


def _reload(servers: Sequence[Server], configs: Sequence[Config]) -> None:
    """Sites that were drained have ended."""
    by_folder = {config.data: config for config in configs}
    for number, server in enumerate(servers):
        server.reload(_joining(by_folder[server.config.data], servers[:number]))


def _admin_file(server: Server) -> Path:
    return Path(server.config.data) / ADMIN_FILE


def _write_admin_file(server: Server) -> None:
    if server.admin_url is not None:
        Path(server.config.data).mkdir(parents=True, exist_ok=True)
        content = AdminFile(broker_name(server.config), server.admin_url, os.getpid())
        _admin_file(server).write_text(json.dumps(msgspec.to_builtins(content)) + "\n")
