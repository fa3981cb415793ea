"""Draining on the admin port: what `braidmq drain` asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from aiohttp import web

from braidmq.admin.drain_contract import DrainRequest
from braidmq.server.admin.responses import answer, is_json, not_json, read_body, refusal
from braidmq.server.draining import RefusedDrain

if TYPE_CHECKING:
    from braidmq.server.draining import Draining

BODY_MAX: Final = 1024


class DrainRoutes:
    """`GET /drain` says how far it is, `POST /drain` begins it, `POST /drain/cancel` takes it back."""

    def __init__(self, draining: Draining) -> None:
        self._draining = draining
        self._decode = msgspec.json.Decoder(DrainRequest).decode

    def add_to(self, router: web.UrlDispatcher) -> None:
        router.add_get("/drain", self._on_status)
        router.add_post("/drain", self._on_drain)
        router.add_post("/drain/cancel", self._on_cancel)

    async def _on_status(self, _request: web.Request) -> web.Response:
        return answer(self._draining.status())

    async def _on_drain(self, request: web.Request) -> web.Response:
        if not is_json(request):
            return not_json()
        body = await read_body(request, BODY_MAX)
        try:
            wanted = self._decode(body or b"")
        except msgspec.MsgspecError as error:
            return refusal(400, f"this is no wish to drain: {error}")
        try:
            return answer(await self._draining.begin(wanted.timeout_s))
        except RefusedDrain as error:
            return refusal(409 if error.is_lasting else 503, str(error))

    async def _on_cancel(self, request: web.Request) -> web.Response:
        if not is_json(request):
            return not_json()
        try:
            return answer(self._draining.cancel())
        except RefusedDrain as error:
            return refusal(409, str(error))
