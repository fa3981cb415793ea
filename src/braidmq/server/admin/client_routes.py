"""Clients and their homes on the admin port: what `braidmq clients` and `braidmq place` ask for."""

from __future__ import annotations

from heapq import nsmallest
from typing import TYPE_CHECKING, TypeVar

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from braidmq.admin.clients_contract import (
    FILTERS_MAX,
    HOMES_BYTES_MAX,
    PAGE_MAX,
    ClientsPage,
    ClientStatus,
    HomesRequest,
    HomesStatus,
    MoveRequest,
    MovesAnswer,
    TopicHome,
)
from braidmq.mqtt.packets import V5
from braidmq.server.admin.braid_routes import NO_BRAID, NOT_YET
from braidmq.server.admin.responses import NOT_JSON, answer, is_json, read_body, refusal

if TYPE_CHECKING:
    from braidmq.braid.node import BraidNode
    from braidmq.braid.roaming.client_homes import ClientHomes
    from braidmq.broker.broker import Broker
    from braidmq.broker.session import Session

T = TypeVar("T", bound=msgspec.Struct)


class ClientRoutes:
    """`GET /clients?after=ID&limit=N`; `GET /homes`, `POST /homes` and `POST /homes/move` for a broker of a braid."""

    def __init__(self, broker: Broker, node: BraidNode | None) -> None:
        self._broker = broker
        self._node = node

    def add_to(self, router: web.UrlDispatcher) -> None:
        router.add_get("/clients", self._on_clients)
        router.add_get("/homes", _answered(self._on_homes))
        router.add_post("/homes", _answered(self._on_assign))
        router.add_post("/homes/move", _answered(self._on_move))

    async def _on_clients(self, request: web.Request) -> web.Response:
        after, limit = request.query.get("after", ""), request.query.get("limit", str(PAGE_MAX))
        if not limit.isascii() or not limit.isdigit() or not 1 <= int(limit) <= PAGE_MAX:
            return refusal(400, f"limit={limit}: expected a number from 1 to {PAGE_MAX}")
        sessions = self._broker.sessions
        found = nsmallest(int(limit) + 1, (one for one in sessions if one > after))
        page, rest = found[: int(limit)], found[int(limit) :]
        clients = [self._status(session) for one in page if (session := sessions.get(one)) is not None]
        return answer(ClientsPage(clients, len(sessions), page[-1] if rest else None))

    def _status(self, session: Session) -> ClientStatus:
        connection = session.connection
        homes = None if self._node is None or self._node.braid is None else self._node.braid.homes
        filters = list(session.subscriptions)
        return ClientStatus(
            session.client_id,
            session.owner or None,
            connection is not None,
            None if connection is None else "5" if connection.version == V5 else "3.1.1",
            None if connection is None else connection.origin.listener,
            None if connection is None else connection.origin.peer or None,
            session.expiry_s,
            filters[:FILTERS_MAX],
            len(filters),
            0 if session.backlog is None else len(session.backlog),
            session.window - session.free if connection is not None else len(session.inflight),
            None if homes is None else homes.home_of(session.client_id),
            homes is not None and homes.pinned_to(session.client_id) is not None,
        )

    async def _on_homes(self, _request: web.Request) -> web.Response:
        return self._told(self._homes())

    async def _on_assign(self, request: web.Request) -> web.Response:
        homes = self._homes()
        wanted = await _read(request, HomesRequest)
        try:
            homes.assign(wanted.plan, wanted.homes)
        except ValueError as error:
            raise Refused(413, str(error)) from None
        return self._told(homes)

    async def _on_move(self, request: web.Request) -> web.Response:
        homes = self._homes()
        wanted = await _read(request, MoveRequest)
        if wanted.plan != homes.plan:
            raise Refused(409, f"another plan holds here: {homes.plan or 'none'}")
        return answer(MovesAnswer({one: outcome.value for one, outcome in homes.move(wanted.clients).items()}))

    def _homes(self) -> ClientHomes:
        if self._node is None:
            raise Refused(404, NO_BRAID)
        braid = self._node.braid
        if braid is None or not braid.presence.is_in:
            raise Refused(503, NOT_YET)
        return braid.homes

    def _told(self, homes: ClientHomes) -> web.Response:
        status = HomesStatus(
            homes.broker,
            homes.plan,
            len(homes),
            homes.sent,
            homes.staying,
            homes.refused,
            homes.under_way,
            [TopicHome(rule.topic, rule.broker) for rule in homes.rules if rule.topic is not None],
        )
        return answer(status)


class Refused(Exception):
    """Why a request is not met."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def _answered(respond: Handler) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            return await respond(request)
        except Refused as error:
            return refusal(error.status, str(error))

    return handle


async def _read(request: web.Request, kind: type[T]) -> T:
    if not is_json(request):
        raise Refused(415, NOT_JSON)
    body = await read_body(request, HOMES_BYTES_MAX)
    if body is None:
        raise Refused(413, f"at most {HOMES_BYTES_MAX:,} bytes")
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise Refused(400, f"this cannot be read: {error}") from None
