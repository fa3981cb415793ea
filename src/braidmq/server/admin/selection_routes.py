"""Components on the admin port: what `braidmq components`, `select`, `reserve` and `release` ask for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from aiohttp import web

from braidmq.admin.selection_contract import ReservationAnswer, ReservationRequest, ReserveRequest
from braidmq.braid.selection.asked import REQUEST_BYTES_MAX, Asked, Malformed, read_request
from braidmq.braid.selection.holds import OPERATOR
from braidmq.braid.selection.reservations import RefusedRequest
from braidmq.server.admin.braid_routes import NO_BRAID, NOT_YET, QUESTIONS_MAX
from braidmq.server.admin.responses import answer, is_json, not_json, read_body, refusal

if TYPE_CHECKING:
    from braidmq.braid.node import BraidNode
    from braidmq.braid.selection.selection import SelectionParts

T = TypeVar("T", bound=msgspec.Struct)

BODY_MAX: Final = REQUEST_BYTES_MAX + 1024

Respond = Callable[["SelectionParts", web.Request], Awaitable[web.Response]]


class SelectionRoutes:
    """Without a node there is no braid, and every answer says so."""

    def __init__(self, node: BraidNode | None) -> None:
        self._node = node
        self._under_way = 0

    def add_to(self, router: web.UrlDispatcher) -> None:
        router.add_get("/braid/components", self._handler(_components))
        router.add_post("/braid/select", self._handler(_select))
        router.add_post("/braid/reserve", self._handler(_reserve))
        router.add_post("/braid/renew", self._handler(_renew))
        router.add_post("/braid/release", self._handler(_release))

    def _handler(self, respond: Respond) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            if self._node is None:
                return refusal(404, NO_BRAID)
            if self._node.braid is None:
                return refusal(503, NOT_YET)
            if self._under_way >= QUESTIONS_MAX:
                return refusal(503, f"{QUESTIONS_MAX} questions are under way already")
            if request.method == "POST" and not is_json(request):
                return not_json()
            self._under_way += 1
            try:
                return await respond(self._node.braid.selection, request)
            except Malformed as error:
                return refusal(400, str(error))
            except RefusedRequest as refused:
                return answer(msgspec.convert(refused.answer, ReservationAnswer))
            finally:
                self._under_way -= 1

        return handle


async def _components(parts: SelectionParts, request: web.Request) -> web.Response:
    return answer(await parts.survey.components(request.query.get("component", "")))


async def _select(parts: SelectionParts, request: web.Request) -> web.Response:
    wanted = await _read(request, ReserveRequest)
    return answer(await parts.survey.explain(wanted.component, _asked(parts, wanted)))


async def _reserve(parts: SelectionParts, request: web.Request) -> web.Response:
    wanted = await _read(request, ReserveRequest)
    return _told(await parts.reservations.reserve(wanted.component, _asked(parts, wanted), OPERATOR))


async def _renew(parts: SelectionParts, request: web.Request) -> web.Response:
    return _told(await parts.reservations.renew((await _read(request, ReservationRequest)).id, OPERATOR))


async def _release(parts: SelectionParts, request: web.Request) -> web.Response:
    return _told(await parts.reservations.release((await _read(request, ReservationRequest)).id, OPERATOR))


def _told(told: dict[str, Any]) -> web.Response:
    return answer(msgspec.convert(told, ReservationAnswer))


async def _read(request: web.Request, kind: type[T]) -> T:
    body = await read_body(request, BODY_MAX)
    if body is None:
        raise Malformed(f"at most {BODY_MAX:,} bytes")
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise Malformed(str(error)) from None


def _asked(parts: SelectionParts, wanted: ReserveRequest) -> Asked:
    """As a client would ask: the same checks."""
    told = {name: getattr(wanted, name) for name in wanted.__struct_fields__ if name != "component"}
    return read_request(msgspec.json.encode(told), parts.cluster)
