"""The braid on the admin port, as JSON: what `braidmq ring`, `topics`, `demand` and `trace` show."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import msgspec
from aiohttp import web

from braidmq.admin.contract import BraidStatus, DemandAnswer, LinkStatus, TopicsAnswer, TraceAnswer
from braidmq.admin.ring_contract import DistancesAnswer, RingAnswer
from braidmq.braid.inspect.answers import Unanswerable
from braidmq.braid.inspect.status import TOPICS_MAX, BraidInspector
from braidmq.server.admin.responses import answer, refusal

if TYPE_CHECKING:
    from braidmq.braid.node import BraidNode
    from braidmq.net.counters import Counters

QUESTIONS_MAX: Final = 8
"""Questions to other brokers that are under way at a time."""

LINKS_SHOWN_MAX: Final = 1024

NO_BRAID: Final = "this broker is in no braid: start it with --braid, --join or --brokers"
NOT_YET: Final = "this broker is just starting"

Respond = Callable[[BraidInspector, web.Request], Awaitable[msgspec.Struct]]


class BraidRoutes:
    """Without a node there is no braid, and every answer says so."""

    def __init__(self, node: BraidNode | None) -> None:
        self._node = node
        self._under_way = 0

    def add_to(self, router: web.UrlDispatcher) -> None:
        routes: dict[str, Respond] = {
            "/braid": self._braid,
            "/braid/ring": _ring,
            "/braid/distances": _distances,
            "/braid/topics": _topics,
            "/braid/demand": _demand,
            "/braid/trace": _trace,
        }
        for path, respond in routes.items():
            router.add_get(path, self._handler(respond))

    def _handler(self, respond: Respond) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            if self._node is None:
                return refusal(404, NO_BRAID)
            if self._node.status is None:
                return refusal(503, NOT_YET)
            if self._under_way >= QUESTIONS_MAX:
                return refusal(503, f"{QUESTIONS_MAX} questions are under way already")
            self._under_way += 1
            try:
                return answer(await respond(self._node.status, request))
            except Unanswerable as error:
                return refusal(409, str(error))
            finally:
                self._under_way -= 1

        return handle

    async def _braid(self, status: BraidInspector, _request: web.Request) -> BraidStatus:
        assert self._node is not None
        host = self._node.host
        links = [_link(peer, host.counters(peer)) for peer in host.linked[:LINKS_SHOWN_MAX]]
        return msgspec.structs.replace(status.describe(), links=links)


def _link(peer: str, counters: Counters) -> LinkStatus:
    counts = {name: getattr(counters, name) for name in LinkStatus.__struct_fields__ if name != "peer"}
    return LinkStatus(peer, **counts)


async def _ring(status: BraidInspector, _request: web.Request) -> RingAnswer:
    return await status.ring()


async def _distances(status: BraidInspector, _request: web.Request) -> DistancesAnswer:
    return await status.distances()


async def _topics(status: BraidInspector, request: web.Request) -> TopicsAnswer:
    limit = _number(request, "limit", TOPICS_MAX, TOPICS_MAX)
    return await status.topics(request.query.get("filter", "#"), limit)


async def _demand(status: BraidInspector, request: web.Request) -> DemandAnswer:
    return await status.demand(_topic(request))


async def _trace(status: BraidInspector, request: web.Request) -> TraceAnswer:
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
