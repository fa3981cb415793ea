"""The one client of the admin port.

A question that may be asked twice goes over a connection that is already open, if there is one: a stream of small
batches asks many. The broker closes such a connection after a while, which shows when it is used; then the question is
asked again over a new one.
"""

from __future__ import annotations

import http.client
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http import HTTPStatus
from types import TracebackType
from typing import Final, Self, TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec

from braidmq.admin import clients_contract, contract, drain_contract, ring_contract, selection_contract
from braidmq.admin.errors import AdminError, AnswerRefused, NotABroker, TooSlow, Unanswered, Unreachable, WrongToken

TIMEOUT_S: Final = 30.0
"""How long a connection, an answer, or the next piece of it may take."""

ANSWER_BYTES_MAX: Final = 64 << 20
REFUSAL_BYTES_MAX: Final = 1 << 16
REST_BYTES_MAX: Final = 1 << 16
"""What may stand behind the part of a stream that was read; a connection with more to read is not used again."""

Connections = deque[http.client.HTTPConnection]
"""Connections to one broker that wait for the next question; the latest ones stay."""

Query = Mapping[str, str | int | Sequence[str]]

T = TypeVar("T")


class AdminClient:
    """`url` is the admin port's, such as http://edge1:9883; `token` that of [admin] in the broker's configuration.

    What it is asked raises an AdminError if there is no answer. `idle` may be shared by several clients of one broker.
    """

    def __init__(
        self, url: str, token: str | None = None, timeout_s: float = TIMEOUT_S, idle: Connections | None = None
    ) -> None:
        self.url = url.rstrip("/")
        self._headers = {} if not token else {"Authorization": f"Bearer {token}"}
        self._timeout_s = timeout_s
        self._idle: Connections = deque(maxlen=1) if idle is None else idle

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections that wait. It may be used again."""
        for connection in self._idle_ones():
            connection.close()

    # The braid

    def braid(self) -> contract.BraidStatus:
        return self._get("/braid", contract.BraidStatus)

    def ring(self) -> ring_contract.RingAnswer:
        return self._get("/braid/ring", ring_contract.RingAnswer)

    def distances(self) -> ring_contract.DistancesAnswer:
        """Measured while one waits."""
        return self._get("/braid/distances", ring_contract.DistancesAnswer)

    def topics(self, topic_filter: str, count_max: int) -> contract.TopicsAnswer:
        return self._get("/braid/topics", contract.TopicsAnswer, {"filter": topic_filter, "limit": count_max})

    def demand(self, topic: str) -> contract.DemandAnswer:
        return self._get("/braid/demand", contract.DemandAnswer, {"topic": topic})

    def trace(self, topic: str, qos: int) -> contract.TraceAnswer:
        return self._get("/braid/trace", contract.TraceAnswer, {"topic": topic, "qos": qos})

    # Components

    def components(self, component: str = "") -> selection_contract.ComponentsAnswer:
        return self._get("/braid/components", selection_contract.ComponentsAnswer, {"component": component})

    def select(self, wanted: selection_contract.ReserveRequest) -> selection_contract.SelectAnswer:
        """Which one a request would get; nothing is reserved."""
        return self._post("/braid/select", wanted, selection_contract.SelectAnswer, is_repeatable=True)

    def reserve(self, wanted: selection_contract.ReserveRequest) -> selection_contract.ReservationAnswer:
        return self._post("/braid/reserve", wanted, selection_contract.ReservationAnswer)

    def renew(self, reservation: str) -> selection_contract.ReservationAnswer:
        return self._about("renew", reservation)

    def release(self, reservation: str) -> selection_contract.ReservationAnswer:
        return self._about("release", reservation)

    def _about(self, verb: str, reservation: str) -> selection_contract.ReservationAnswer:
        asked = selection_contract.ReservationRequest(reservation)
        return self._post(f"/braid/{verb}", asked, selection_contract.ReservationAnswer)

    # Clients and their homes

    def clients(self) -> Iterator[clients_contract.ClientStatus]:
        """All that have a session there, in the order of their ids, asked for page by page."""
        after: str | None = ""
        while after is not None:
            page = self._get("/clients", clients_contract.ClientsPage, {"after": after})
            yield from page.clients
            after = page.next

    def homes(self) -> clients_contract.HomesStatus:
        return self._get("/homes", clients_contract.HomesStatus)

    def assign_homes(self, plan: str, homes: dict[str, str]) -> clients_contract.HomesStatus:
        wanted = clients_contract.HomesRequest(plan, homes)
        return self._post("/homes", wanted, clients_contract.HomesStatus, is_repeatable=True)

    def move_home(self, plan: str, clients: list[str]) -> dict[str, str]:
        """What became of each; can be asked again without harm."""
        wanted = clients_contract.MoveRequest(plan, clients)
        return self._post("/homes/move", wanted, clients_contract.MovesAnswer, is_repeatable=True).outcomes

    # Draining

    def drain_status(self) -> drain_contract.DrainStatus:
        return self._get("/drain", drain_contract.DrainStatus)

    def drain(self, timeout_s: float) -> drain_contract.DrainStatus:
        """Begins; can be asked again without harm."""
        return self._post(
            "/drain", drain_contract.DrainRequest(timeout_s), drain_contract.DrainStatus, is_repeatable=True
        )

    def cancel_drain(self) -> drain_contract.DrainStatus:
        return self._post("/drain/cancel", drain_contract.DrainCancel(), drain_contract.DrainStatus)

    # The log

    def log(self) -> contract.LogStatus:
        return self._get("/log", contract.LogStatus)

    def log_offset_at(self, time: str) -> int:
        """Of the first row that was received then, in ISO 8601, or later."""
        return self._get("/log/offsets", contract.LogOffset, {"at": time}).offset

    def log_offset_after(self, start: int, rows: int) -> int:
        """Where to stop so that at most so many rows are read."""
        return self._get("/log/offsets", contract.LogOffset, {"from": start, "rows": rows}).offset

    @contextmanager
    def log_rows(
        self, partition: int, start: int, until: int, filters: Sequence[str], columns: Sequence[str] | None
    ) -> Iterator[http.client.HTTPResponse]:
        """Rows as an Arrow IPC stream; OSError or HTTPException if it breaks off while it is read."""
        query: dict[str, int | Sequence[str]] = {"from": start, "until": until, "filter": filters}
        if columns is not None:
            query["column"] = columns
        with self._answer("GET", f"/log/{partition}", query) as response:
            yield response

    # Message processors

    def processing(self) -> contract.ProcessingStatus:
        return self._get("/processing", contract.ProcessingStatus)

    def assigned_topics(
        self, *, processor: str | None = None, topic: str | None = None
    ) -> list[contract.AssignedTopic]:
        wanted = {"processor": processor, "topic": topic}
        query = {name: value for name, value in wanted.items() if value is not None}
        return self._get("/processing/topics", contract.AssignedTopics, query).topics

    def move(self, move: contract.Move) -> contract.AssignedTopic:
        return self._post("/processing/move", move, contract.AssignedTopic)

    def delegation(self, processor: str, known: str | None) -> contract.Delegation:
        """What is Spark's; without the topics if nothing has changed since the version `known`."""
        query = {"processor": processor} | ({} if known is None else {"known": known})
        return self._get("/processing/delegated", contract.Delegation, query)

    def spool(self, processor: str, topic: str) -> bytes:
        """The spool, as bytes, with which Spark's turn begins."""
        with self._answer("GET", "/processing/state", {"processor": processor, "topic": topic}) as response:
            return self._read(response, contract.SPOOL_BYTES_MAX)

    def return_spool(self, processor: str, topic: str, first: int, spool: bytes) -> None:
        """Gives a topic back to the edge from an offset on. Refused with 409 if it is still Spark's turn."""
        query: dict[str, str | int] = {"processor": processor, "topic": topic, "first": first}
        with self._answer("POST", "/processing/state", query, spool, contract.SPOOL) as response:
            self._read(response)

    def report_failures(self, report: contract.FailureReport) -> None:
        self._post("/processing/errors", report, contract.FailuresTold)

    # Transactions

    def publish(self, part: contract.BatchPart) -> contract.PartReceipt:
        """Can be asked again without harm: a batch is published once."""
        return self._post("/publish", part, contract.PartReceipt, is_repeatable=True)

    # One exchange

    def _get(self, path: str, kind: type[T], query: Query | None = None) -> T:
        with self._answer("GET", path, query or {}) as response:
            return self._decode(self._read(response), kind)

    def _post(self, path: str, question: msgspec.Struct, kind: type[T], *, is_repeatable: bool = False) -> T:
        body = msgspec.json.encode(question)
        with self._answer("POST", path, {}, body, contract.JSON, is_repeatable=is_repeatable) as response:
            return self._decode(self._read(response), kind)

    @contextmanager
    def _answer(
        self,
        method: str,
        path: str,
        query: Query,
        body: bytes | None = None,
        content_type: str = "",
        *,
        is_repeatable: bool = False,
    ) -> Iterator[http.client.HTTPResponse]:
        """A yes of the broker; once all of it was read, the connection waits for the next question."""
        target = f"{urlsplit(self.url).path}{path}" + (f"?{urlencode(query, doseq=True)}" if query else "")
        headers = self._headers | ({"Content-Type": content_type} if content_type else {})
        connection, response = self._ask(method, target, body, headers, is_repeatable or method == "GET")
        is_whole = False
        try:
            if response.status != HTTPStatus.OK:
                raise self._refusal(response.status, self._read(response, REFUSAL_BYTES_MAX))
            yield response
            response.read(REST_BYTES_MAX)
            is_whole = response.isclosed() and not response.will_close
        finally:
            if is_whole:
                self._idle.append(connection)
            else:
                connection.close()

    def _ask(
        self, method: str, target: str, body: bytes | None, headers: dict[str, str], is_repeatable: bool
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        if is_repeatable:
            for connection in self._idle_ones():
                with suppress(ConnectionError, http.client.HTTPException):  # the broker has closed it
                    return connection, self._send(connection, method, target, body, headers)
        connection = self._connection()
        try:
            return connection, self._send(connection, method, target, body, headers)
        except (OSError, http.client.HTTPException) as error:
            raise self._unanswered(error) from None

    def _send(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        target: str,
        body: bytes | None,
        headers: dict[str, str],
    ) -> http.client.HTTPResponse:
        try:
            connection.request(method, target, body, headers)
            return connection.getresponse()
        except BaseException:
            connection.close()
            raise

    def _idle_ones(self) -> Iterator[http.client.HTTPConnection]:
        with suppress(IndexError):
            while True:
                yield self._idle.pop()

    def _connection(self) -> http.client.HTTPConnection:
        """One that is open."""
        try:
            parts = urlsplit(self.url)
            make = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
            connection = make(parts.hostname or "", parts.port, timeout=self._timeout_s)
            connection.connect()
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Unreachable(self.url, getattr(error, "strerror", None) or error) from None
        return connection

    def _read(self, response: http.client.HTTPResponse, bytes_max: int = ANSWER_BYTES_MAX) -> bytes:
        try:
            return response.read(bytes_max)
        except (OSError, http.client.HTTPException) as error:
            raise self._unanswered(error) from None

    def _unanswered(self, error: Exception) -> AdminError:
        if isinstance(error, TimeoutError):
            return TooSlow(self.url, self._timeout_s)
        return Unanswered(self.url, getattr(error, "strerror", None) or error)

    def _decode(self, body: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.ValidationError as error:
            raise NotABroker(self.url, f"gave an answer that this version cannot read ({error})") from None
        except msgspec.DecodeError:
            raise NotABroker(self.url) from None

    def _refusal(self, status: int, body: bytes) -> AdminError:
        if status == HTTPStatus.UNAUTHORIZED:
            return WrongToken(self.url)
        try:
            return AnswerRefused(self.url, status, msgspec.json.decode(body, type=contract.ErrorAnswer).error)
        except msgspec.DecodeError:
            return AnswerRefused(self.url, status, None)
