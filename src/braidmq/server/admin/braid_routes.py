"""The braid on the admin port, as JSON: what `braidmq ring`, `topics`, `demand` and `trace` show."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from braidmq.braid.inspect.answers import Unanswerable
from braidmq.braid.inspect.status import TOPICS_MAX, Status
from braidmq.server.admin.exchange import refusal

if TYPE_CHECKING:
    from braidmq.braid.node import BraidNode
    from braidmq.net.counters import Counters

QUESTIONS_MAX: Final = 8
"""Questions to other brokers that are under way at a time."""

LINKS_SHOWN_MAX: Final = 1024

NO_BRAID: Final = "this broker is in no braid: start it with --braid, --join or --brokers"
NOT_YET: Final = "this broker is just starting"

Json = dict[str, Any]
Answer = Callable[[Status, web.Request], Awaitable[Json]]


class BraidRoutes:
    """Without a place there is no braid, and every answer says so."""

    def __init__(self, place: BraidNode | None) -> None:
        self._place = place
        self._under_way = 0

    def add_to(self, router: web.UrlDispatcher) -> None:
        answers: dict[str, Answer] = {
            "/braid": self._self,
            "/braid/ring": _ring,
            "/braid/topics": _topics,
            "/braid/demand": _demand,
            "/braid/trace": _trace,
        }
        for path, answer in answers.items():
            router.add_get(path, self._handler(answer))

    def _handler(self, answer: Answer) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            if self._place is None:
                return refusal(404, NO_BRAID)
            if self._place.status is None:
                return refusal(503, NOT_YET)
            if self._under_way >= QUESTIONS_MAX:
                return refusal(503, f"{QUESTIONS_MAX} questions are under way already")
            self._under_way += 1
            try:
                return web.json_response(await answer(self._place.status, request))
            except Unanswerable as error:
                return refusal(409, str(error))
            finally:
                self._under_way -= 1

        return handle

    async def _self(self, status: Status, _request: web.Request) -> Json:
        assert self._place is not None
        host = self._place.host
        linked = host.linked[:LINKS_SHOWN_MAX]
        return status.describe() | {"links": [{"peer": peer} | link_counts(host.counters(peer)) for peer in linked]}


def link_counts(counters: Counters) -> dict[str, int]:
    """What passed on a link, and how much of it was publications."""
    return {
        name: getattr(counters, name)
        for name in (
            "messages_in",
            "messages_out",
            "bytes_in",
            "bytes_out",
            "publications_in",
            "publications_out",
            "publication_bytes_in",
            "publication_bytes_out",
            "dropped",
            "reconnects",
        )
    }


async def _ring(status: Status, _request: web.Request) -> Json:
    return await status.ring()


async def _topics(status: Status, request: web.Request) -> Json:
    return status.topics(request.query.get("filter", "#"), _number(request, "limit", TOPICS_MAX, TOPICS_MAX))


async def _demand(status: Status, request: web.Request) -> Json:
    return await status.demand(_topic(request))


async def _trace(status: Status, request: web.Request) -> Json:
    return await status.trace(_topic(request), surely=_number(request, "qos", 0, 2) > 0)


def _topic(request: web.Request) -> str:
    topic = request.query.get("topic")
    if topic is None:
        raise Unanswerable("a topic is needed: ?topic=T")
    return topic


def _number(request: web.Request, name: str, default: int, most: int) -> int:
    text = request.query.get(name, str(default))
    if not text.isascii() or not text.isdigit() or int(text) > most:
        raise Unanswerable(f"{name}={text}: expected a number from 0 to {most}")
    return int(text)
