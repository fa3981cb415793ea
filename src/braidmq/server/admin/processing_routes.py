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

from braidmq.admin.contract import (
    SPOOL,
    SPOOL_BYTES_MAX,
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
        assignments = processing.assignments
        return answer(
            ProcessingStatus(
                [self._describe(runner) for runner in processing.runners],
                ResourceUse(assignments.load.storage, assignments.capacity.storage),
                ResourceUse(assignments.load.compute, assignments.capacity.compute),
                assignments.share,
            )
        )

    def _describe(self, runner: ProcessorRunner) -> ProcessorStatus:
        processing = self._processing
        ready, counts, config = runner.ready, runner.counts, runner.config
        topics: dict[str, int] = {}
        for assignment in processing.assignments:
            if assignment.key[0] == runner.name:
                topics[assignment.name] = topics.get(assignment.name, 0) + 1
        return ProcessorStatus(
            name=runner.name,
            file=config.file,
            where=config.where,
            topic=config.topic if ready is None else ready.topic,
            spool=config.spool if ready is None else ready.spool,
            output=config.output if ready is None else ready.output,
            time_limit_s=config.time_limit_s if ready is None else ready.time_limit_s,
            state=runner.state,
            problem=runner.problem,
            pid=runner.pid,
            queue=len(runner.queue),
            topics=topics,
            spool_scope=runner.spool_scope,
            homes=processing.homes.count(runner.name),
            **{name: getattr(counts, name) for name in counts.__struct_fields__},
        )

    async def _on_topics(self, request: web.Request) -> web.Response:
        processor, topic = request.query.get("processor"), request.query.get("topic")
        found = [
            assignment
            for assignment in self._processing.assignments
            if processor in (None, assignment.key[0]) and topic in (None, assignment.topic)
        ]
        return answer(AssignedTopics([self._described(assignment) for assignment in found[:TOPICS_MAX]], len(found)))

    def _described(self, assignment: TopicAssignment) -> AssignedTopic:
        intervals = self._processing.assignments.store.intervals(assignment.key)
        return AssignedTopic(
            processor=assignment.key[0],
            topic=assignment.topic,
            place=assignment.name,
            is_logged=assignment.is_logged,
            turns=[(one.first, one.location) for one in intervals],
            returns_at=assignment.returns_at if assignment.returns_at >= 0 else None,
            last_offset=assignment.last,
            publishers=len(assignment.publishers),
            is_home=assignment.key in self._processing.homes,
        )

    async def _on_move(self, request: web.Request) -> web.Response:
        if not is_json(request):
            return not_json()
        body = await read_body(request, MOVE_BYTES_MAX)
        try:
            move = msgspec.json.decode(body or b"", type=Move)
            if move.place not in ("edge", "spark"):
                raise MoveError(f"place {move.place!r}: expected edge or spark")
            assignment = await self._processing.reassignment.move(move.processor, move.topic, move.place)
        except msgspec.MsgspecError as error:
            return refusal(400, f"expected processor, topic and place as JSON: {error}")
        except MoveError as error:
            return refusal(409, str(error))
        except OSError as error:
            return refusal(503, str(error))
        return answer(self._described(assignment))

    async def _on_delegated(self, request: web.Request) -> web.Response:
        processing = self._processing
        assignments = processing.assignments
        try:
            name = processing.reassignment.runner(request.query.get("processor", "")).name
            if processing.log is None:
                raise MoveError("this broker keeps no log, so nothing can be left to Spark: name topics in [log]")
        except MoveError as error:
            is_early = any(not runner.started.is_set() for runner in processing.runners)
            return refusal(503 if is_early else 409, str(error))
        version = f"{self._start}-{assignments.changes}"
        settled = assignments.final_below(name, processing.log.next_offset)
        if request.query.get("known") == version:
            return answer(Delegation(version, settled))
        return answer(
            Delegation(version, settled, [self._delegated(assignment) for assignment in assignments.delegated(name)])
        )

    def _delegated(self, assignment: TopicAssignment) -> DelegatedTopic:
        intervals = self._processing.assignments.store.intervals(assignment.key)
        returns_at = assignment.returns_at if assignment.returns_at >= 0 else None
        return DelegatedTopic(assignment.topic, intervals[-1].first, len(intervals) > 1, returns_at)

    async def _on_errors(self, request: web.Request) -> web.Response:
        if not is_json(request):
            return not_json()
        body = await read_body(request, ERRORS_BYTES_MAX)
        try:
            told = msgspec.json.decode(body or b"", type=FailureReport)
        except msgspec.MsgspecError as error:
            return refusal(400, f"expected a processor and its errors as JSON: {error}")
        for one in told.errors:
            self._processing.on_remote_error(told.processor, one.what, one.message, one.topic, one.offset)
        return answer(FailuresTold(len(told.errors)))

    async def _on_state(self, request: web.Request) -> web.Response:
        try:
            assignment = self._assignment(request)
        except MoveError as error:
            return refusal(409, str(error))
        if assignment.location != "spark":
            return refusal(409, f"{assignment.topic} of {assignment.key[0]} is the edge's")
        state = self._processing.assignments.store.handed(assignment.key) or SpoolState(-1, ())
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
            assignment = self._assignment(request)
            self._processing.reassignment.take_back(
                assignment.key[0], assignment.topic, int(first), SpoolState.decode(body)
            )
        except msgspec.MsgspecError as error:
            return refusal(400, f"this is no spool: {error}")
        except MoveError as error:
            return refusal(409, str(error))
        except OSError as error:
            return refusal(503, f"the change cannot be written: {error}")
        return answer(self._described(assignment))

    def _assignment(self, request: web.Request) -> TopicAssignment:
        processor, topic = request.query.get("processor"), request.query.get("topic")
        if processor is None or topic is None:
            raise MoveError("a processor and a topic are needed: ?processor=P&topic=T")
        return self._processing.reassignment.assignment(processor, topic)
