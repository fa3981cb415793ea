"""The admin port: metrics for Prometheus, health for a process manager, readiness for a load balancer.

It runs in the broker's own loop, so `/health` answers only while the loop turns. It is meant for few clients that are
trusted: it listens on loopback by default and wants a bearer token elsewhere, and everything has a bound.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import socket
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler
from msgspec import UNSET

import braidmq
from braidmq.admin.contract import Health, Readiness
from braidmq.broker.notices import ClientNotices, one_line
from braidmq.server.admin.responses import answer
from braidmq.server.listening.sockets import ADMIN_PORT, bind_tcp, host_and_port

if TYPE_CHECKING:
    from braidmq.config.settings import AdminConfig
    from braidmq.server.metrics.exposition import Exposition

CONNECTIONS_MAX: Final = 64
"""Connections to the admin port; those above are closed as they come in."""
IDLE_TIMEOUT_S: Final = 30.0
"""What a connection gets to send its first, or its next, request."""
STOP_TIMEOUT_S: Final = 1.0
"""What a request under way gets when the broker stops."""

INDEX: Final = """\
BraidMQ

GET /metrics   the broker's numbers, for Prometheus
GET /health    200 while the process lives
GET /ready     200 while clients can connect, what they send can be stored and the broker is in its braid, if it has
               one, and not being drained; else 503 with the reasons
GET /braid     this broker's part of its braid; and /braid/ring, /braid/distances, /braid/topics?filter=F&limit=N,
               /braid/demand?topic=T, /braid/trace?topic=T&qos=Q, /braid/components?component=C
POST /braid/reserve   reserves a component; and /braid/select, /braid/renew, /braid/release
GET /clients   who has a session here, in pages: ?after=ID&limit=N
GET /homes     where clients are at home; POST tells it, POST /homes/move sends some of them there
GET /drain     how far its drain is; POST begins it, POST /drain/cancel takes it back
GET /log       the log of publications; and /log/offsets?at=TIME, /log/PARTITION?from=N&until=M&filter=F
POST /publish  a part of a batch of publications, each batch once
"""

Check = Callable[[], str | None]
"""Says why something is not ready; None if it is."""

_log = logging.getLogger("braidmq.admin")
_QUOTATION: Final = re.compile(r"""(?::?\s(?:bytearray\()?b?['"])|:?\n""")
"""Where aiohttp's words end and those of the request begin: in quotation marks, or on a line of their own."""


class RequestLog(logging.LoggerAdapter[logging.Logger]):
    """aiohttp's own log. A request that is not HTTP is its sender's mistake: worth one line, and no traceback."""

    def __init__(self) -> None:
        super().__init__(_log, {})
        self._notices = ClientNotices(_log, _now, _at)

    def log(self, level: int, msg: object, *args: Any, **kwargs: Any) -> None:
        error = kwargs.get("exc_info")
        if isinstance(error, HttpProcessingError | web.RequestPayloadError):
            self.malformed(str(args[0]) if args else None, error)
        else:
            super().log(level, msg, *args, **kwargs)

    def malformed(self, remote: str | None, error: Exception) -> None:
        """Says what aiohttp does, without the bytes that it quotes: the token may be among them."""
        text = error.message if isinstance(error, HttpProcessingError) else str(error)
        problem = _QUOTATION.split(text, maxsplit=1)[0].strip()
        sender = remote or "somewhere"
        self._notices.say(sender, f"a request from {sender}", "it is malformed: %s", one_line(problem))


def _now() -> float:
    return asyncio.get_running_loop().time()


def _at(when: float, action: Callable[[], None]) -> asyncio.TimerHandle:
    return asyncio.get_running_loop().call_at(when, action)


class Routes(Protocol):
    """Paths that belong together, and what answers them."""

    def add_to(self, router: web.UrlDispatcher) -> None: ...


class AdminServer:
    """Serves the admin port. `checks` are what `/ready` asks, by the name under which a failure is reported; `remarks`
    are told there, too, but do not make the broker unready."""

    def __init__(
        self,
        settings: AdminConfig,
        exposition: Exposition,
        checks: Mapping[str, Check],
        routes: Iterable[Routes] = (),
        remarks: Mapping[str, Check] | None = None,
    ) -> None:
        """`remarks` are asked, too, and keep nobody from being ready."""
        self._settings = settings
        self._exposition = exposition
        self._checks = checks
        self._remarks = remarks or {}
        self._sockets: list[socket.socket] = []
        self._servers: list[asyncio.Server] = []
        self._request_log = RequestLog()
        app = web.Application(middlewares=[self._guard], client_max_size=1024)
        app.router.add_get("/", self._on_index)
        app.router.add_get("/metrics", self._on_metrics)
        app.router.add_get("/health", self._on_health)
        app.router.add_get("/ready", self._on_ready)
        for group in routes:
            group.add_to(app.router)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=self._request_log,
            auto_decompress=False,  # no client needs it, and a small body could grow without bound
            keepalive_timeout=IDLE_TIMEOUT_S,
            lingering_time=STOP_TIMEOUT_S,
            shutdown_timeout=STOP_TIMEOUT_S,
        )

    async def start(self) -> None:
        """Opens the port; a ListenError says why it would not open."""
        self._sockets = await asyncio.to_thread(bind_tcp, "admin", self._settings.host, self._settings.port, ADMIN_PORT)
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        self._servers = [await loop.create_server(self._on_connection, sock=each) for each in self._sockets]

    @property
    def addresses(self) -> list[str]:
        return [f"http://{host_and_port(*each.getsockname()[:2])}" for each in self._sockets]

    async def stop(self) -> None:
        for server in self._servers:
            server.close()
        self._sockets = []
        self._servers = []
        await self._runner.cleanup()

    def _on_connection(self) -> asyncio.BaseProtocol:
        server = self._runner.server
        assert server is not None
        return server() if len(server.connections) < CONNECTIONS_MAX else _Refusal()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Asks for the token, if there is one; not for /health, for it is no secret that the process lives."""
        token = self._settings.token
        if token is not None and request.path != "/health":
            shown = request.headers.get("Authorization", "")
            scheme, _, credentials = shown.partition(" ")
            matches = hmac.compare_digest(credentials.strip().encode(errors="surrogateescape"), token.encode())
            if scheme.lower() != "bearer" or not matches:
                return web.Response(
                    status=401,
                    text="This needs the header 'Authorization: Bearer <token>' with the token of [admin].\n",
                    headers={"WWW-Authenticate": 'Bearer realm="braidmq"'},
                )
        try:
            return await handler(request)
        except (web.RequestPayloadError, ConnectionResetError) as error:
            if isinstance(error, ConnectionResetError) and request.transport is not None:
                raise  # not this client's connection
            self._request_log.malformed(request.remote, error)
            return web.Response(status=400, text="The body of the request cannot be read.\n")

    async def _on_index(self, request: web.Request) -> web.Response:
        return web.Response(text=INDEX)

    async def _on_metrics(self, request: web.Request) -> web.Response:
        body, content_type = self._exposition.render(request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _on_health(self, request: web.Request) -> web.Response:
        return answer(Health("ok", braidmq.__version__))

    async def _on_ready(self, request: web.Request) -> web.Response:
        reasons = _told(self._checks)
        remarks = _told(self._remarks) or UNSET
        if reasons:
            return answer(Readiness("not ready", reasons, remarks), status=503)
        return answer(Readiness("ready", remarks=remarks))


def _told(checks: Mapping[str, Check]) -> dict[str, str]:
    return {name: text for name, check in checks.items() if (text := check()) is not None}


class _Refusal(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).abort()
