"""Message processors on the admin port: what `braidmq process` shows and moves, and how Spark takes and gives topics.

    GET  /processing                                  the processors, and how they are
    GET  /processing/topics?processor=P&topic=T       where topics are processed, and their turns by offset
    POST /processing/move       {"processor", "topic", "place"}
    GET  /processing/delegated?processor=P&known=V    what is Spark's, and up to which offset that is settled
    GET  /processing/state?processor=P&topic=T        the spool that Spark begins with: MessagePack of a SpoolState
    POST /processing/state?processor=P&topic=T&first=N  Spark returns a topic that was asked back from offset N on
    POST /processing/errors     {"processor", "errors"}  what went wrong on Spark, to be told as what goes wrong here

A topic that is asked back has `returns_at` in its answer: Spark processes it up to there and no further, and then posts
the spool. 200 says that the topic is the edge's from there on; 409 that it is not, and that Spark is to go on with it.
Spark reads no further than `settled`: a topic may be about to change hands there. Its answer has the topics only if
something has changed since the `version` that is known.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

import msgspec
from aiohttp import web

from braidmq.admin.client import SPOOL_BYTES_MAX
from braidmq.admin.contract import (
    SPOOL,
    AssignedTopic,
    AssignedTopics,
    DelegatedTopic,
    Delegation,
    FailureReport,
    FailuresTold,
    Move,
    ProcessingStatus,
    ProcessorStatus,
    ResourceUse,
)
from braidmq.processing.assignments import MoveError, TopicAssignment
from braidmq.processors.processor import SpoolState
from braidmq.server.admin.responses import answer, is_json, not_json, read_body, refusal

if TYPE_CHECKING:
    from braidmq.processing.processing import Processing
    from braidmq.processing.runner import ProcessorRunner

TOPICS_MAX: Final = 10_000
"""Topics of one answer; more are there if `in_all` says so."""
MOVE_BYTES_MAX: Final = 1 << 18
ERRORS_BYTES_MAX: Final = 4 << 20


class ProcessingRoutes:
    def __init__(self, processing: Processing) -> None:
        self._processing = processing
        self._start = secrets.token_hex(8)
        """Says which start of the broker a version is of."""

    def add_to(self, router: web.UrlDispatcher) -> None:
        router.add_get("/processing", self._on_list)
        router.add_get("/processing/topics", self._on_topics)
        router.add_post("/processing/move", self._on_move)
        router.add_get("/processing/delegated", self._on_delegated)
        router.add_get("/processing/state", self._on_state)
        router.add_post("/processing/errors", self._on_errors)
        router.add_post("/processing/state", self._on_return)

    async def _on_list(self, _request: web.Request) -> web.Response:
        processing = self._processing
        places = processing.places
        return answer(
            ProcessingStatus(
                [self._describe(runner) for runner in processing.stations],
                ResourceUse(places.use.storage, places.capacity.storage),
                ResourceUse(places.use.compute, places.capacity.compute),
                places.share,
            )
        )

    def _describe(self, station: ProcessorRunner) -> ProcessorStatus:
        ready, counts, config = station.ready, station.counts, station.config
        topics: dict[str, int] = {}
        for spot in self._processing.places:
            if spot.key[0] == station.name:
                topics[spot.name] = topics.get(spot.name, 0) + 1
        return ProcessorStatus(
            name=station.name,
            file=config.file,
            where=config.where,
            topic=config.topic if ready is None else ready.topic,
            spool=config.spool if ready is None else ready.spool,
            output=config.output if ready is None else ready.output,
            time_limit_s=config.time_limit_s if ready is None else ready.time_limit_s,
            state=station.state,
            problem=station.problem,
            pid=station.pid,
            queue=len(station.line),
            topics=topics,
            **{name: getattr(counts, name) for name in counts.__struct_fields__},
        )

    async def _on_topics(self, request: web.Request) -> web.Response:
        processor, topic = request.query.get("processor"), request.query.get("topic")
        found = [
            spot for spot in self._processing.places if processor in (None, spot.key[0]) and topic in (None, spot.topic)
        ]
        return answer(AssignedTopics([self._described(spot) for spot in found[:TOPICS_MAX]], len(found)))

    def _described(self, spot: TopicAssignment) -> AssignedTopic:
        turns = self._processing.places.placements.turns(spot.key)
        return AssignedTopic(
            processor=spot.key[0],
            topic=spot.topic,
            place=spot.name,
            is_logged=spot.is_logged,
            turns=[(turn.first, turn.place) for turn in turns],
            returns_at=spot.returns_at if spot.returns_at >= 0 else None,
            last_offset=spot.last,
            publishers=len(spot.publishers),
        )

    async def _on_move(self, request: web.Request) -> web.Response:
        if not is_json(request):
            return not_json()
        body = await read_body(request, MOVE_BYTES_MAX)
        try:
            move = msgspec.json.decode(body or b"", type=Move)
            if move.place not in ("edge", "spark"):
                raise MoveError(f"place {move.place!r}: expected edge or spark")
            spot = await self._processing.changes.move(move.processor, move.topic, move.place)
        except msgspec.MsgspecError as error:
            return refusal(400, f"expected processor, topic and place as JSON: {error}")
        except MoveError as error:
            return refusal(409, str(error))
        except OSError as error:
            return refusal(503, str(error))
        return answer(self._described(spot))

    async def _on_delegated(self, request: web.Request) -> web.Response:
        processing = self._processing
        places = processing.places
        try:
            name = processing.changes.station(request.query.get("processor", "")).name
            if processing.log is None:
                raise MoveError("this broker keeps no log, so nothing can be left to Spark: name topics in [log]")
        except MoveError as error:
            is_early = any(not station.settled.is_set() for station in processing.stations)
            return refusal(503 if is_early else 409, str(error))
        version = f"{self._start}-{places.changes}"
        settled = places.settled(name, processing.log.next_offset)
        if request.query.get("known") == version:
            return answer(Delegation(version, settled))
        return answer(Delegation(version, settled, [self._delegated(spot) for spot in places.delegated(name)]))

    def _delegated(self, spot: TopicAssignment) -> DelegatedTopic:
        turns = self._processing.places.placements.turns(spot.key)
        returns_at = spot.returns_at if spot.returns_at >= 0 else None
        return DelegatedTopic(spot.topic, turns[-1].first, len(turns) > 1, returns_at)

    async def _on_errors(self, request: web.Request) -> web.Response:
        if not is_json(request):
            return not_json()
        body = await read_body(request, ERRORS_BYTES_MAX)
        try:
            told = msgspec.json.decode(body or b"", type=FailureReport)
        except msgspec.MsgspecError as error:
            return refusal(400, f"expected a processor and its errors as JSON: {error}")
        for one in told.errors:
            self._processing.on_far_error(told.processor, one.what, one.message, one.topic, one.offset)
        return answer(FailuresTold(len(told.errors)))

    async def _on_state(self, request: web.Request) -> web.Response:
        try:
            spot = self._spot(request)
        except MoveError as error:
            return refusal(409, str(error))
        if spot.place != "spark":
            return refusal(409, f"{spot.topic} of {spot.key[0]} is the edge's")
        state = self._processing.places.placements.handed(spot.key) or SpoolState(-1, ())
        return web.Response(body=state.encode(), content_type=SPOOL)

    async def _on_return(self, request: web.Request) -> web.Response:
        if request.content_type != SPOOL:
            return refusal(415, f"expected a spool: Content-Type: {SPOOL}")
        first = request.query.get("first", "")
        if not first.isascii() or not first.isdigit() or len(first) > 18:
            return refusal(400, "first=N: expected the offset from which on the edge is to process")
        body = await read_body(request, SPOOL_BYTES_MAX)
        if body is None:
            return refusal(413, f"a spool has at most {SPOOL_BYTES_MAX >> 20} MiB")
        try:
            spot = self._spot(request)
            self._processing.changes.take_back(spot.key[0], spot.topic, int(first), SpoolState.decode(body))
        except msgspec.MsgspecError as error:
            return refusal(400, f"this is no spool: {error}")
        except MoveError as error:
            return refusal(409, str(error))
        except OSError as error:
            return refusal(503, f"the change cannot be written: {error}")
        return answer(self._described(spot))

    def _spot(self, request: web.Request) -> TopicAssignment:
        processor, topic = request.query.get("processor"), request.query.get("topic")
        if processor is None or topic is None:
            raise MoveError("a processor and a topic are needed: ?processor=P&topic=T")
        return self._processing.changes.spot(processor, topic)
