"""What edges leave to Spark, asked of their brokers, and given back to them (there: `processing_routes`).

A broker says which topics are Spark's and from which offset on, and up to which offset that is settled: no turn below
it will change any more. A query reads no further. A topic that is asked back stops the query at the offset from which
on the edge wants it; there its spool is returned, and the broker's answer says who goes on.
"""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec

from braidmq.log.remote import AwayError
from braidmq.pipeline import admin_port
from braidmq.pipeline.logs import Patience, Place, SourceError
from braidmq.pipeline.shipped import Shipped
from braidmq.processors.processor import SpoolState

TIMEOUT_S: Final = 30.0
STATE_TYPE: Final = "application/msgpack"
ERRORS_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True)
class Delegated:
    """One processor at one broker."""

    version: str
    """Says whether anything has changed."""
    settled: int
    """Whose turn it is below this offset is known for good."""
    firsts: dict[str, int]
    """Topics that are Spark's, and where its turn began."""
    handed: frozenset[str]
    """Those of them that begin with a spool."""
    returns: dict[str, int]
    """Those that are asked back, and from which offset on."""


class BrokerClient:
    """A broker's admin port, for the processor of one name. A broker that is down is asked again for a while."""

    def __init__(self, place: Place, processor: str) -> None:
        self._place = place
        self._processor = processor
        self._known: Delegated | None = None

    def at_edge(self, shipped: Shipped) -> Shipped:
        """The processor as the broker's configuration has it: both have to take and keep the same."""
        status, body = self._ask("GET", "/processing")
        for one in self._answer(status, body).get("processors", ()):
            if one["name"] == self._processor and one["spool"] is not None:
                return msgspec.structs.replace(shipped, topic=one["topic"], spool=one["spool"], output=one["output"])
        raise SourceError(
            f"the broker at {self._place.where} runs no processor {self._processor}, so it leaves nothing to Spark",
            "Name it in a [[processor]] table there, or give this one the name that it has there",
        )

    def delegated(self) -> Delegated:
        known = self._known
        query = {"processor": self._processor} | ({} if known is None else {"known": known.version})
        status, body = self._ask("GET", f"/processing/delegated?{urlencode(query)}")
        answer = self._answer(status, body)
        if "topics" not in answer:
            assert known is not None
            found = Delegated(known.version, answer["settled"], known.firsts, known.handed, known.returns)
        else:
            topics = answer["topics"]
            found = Delegated(
                answer["version"],
                answer["settled"],
                {topic: first for topic, first, _, _ in topics},
                frozenset(topic for topic, _, has_spool, _ in topics if has_spool),
                {topic: returns_at for topic, _, _, returns_at in topics if returns_at is not None},
            )
        self._known = found
        return found

    def handed(self, topic: str) -> SpoolState:
        """The spool with which Spark's turn begins."""
        status, body = self._ask("GET", f"/processing/state?{self._query(topic)}")
        if status != http.client.OK:
            self._answer(status, body)
        try:
            return SpoolState.decode(body)
        except msgspec.MsgspecError as error:
            raise SourceError(f"the broker at {self._place.where} gave no spool for {topic}: {error}") from None

    def give_back(self, topic: str, first: int, state: SpoolState) -> bool:
        """Whether the edge goes on from `first`; if not, it is still Spark's turn."""
        path = f"/processing/state?{self._query(topic)}&first={first}"
        status, body = self._ask("POST", path, state.encode(), STATE_TYPE)
        if status == http.client.CONFLICT:
            return False
        self._answer(status, body)
        return True

    def _query(self, topic: str) -> str:
        return f"processor={quote(self._processor, safe='')}&topic={quote(topic, safe='')}"

    def _answer(self, status: int, body: bytes) -> dict[str, Any]:
        try:
            answer = json.loads(body)
        except ValueError:
            answer = {}
        if status == http.client.OK and isinstance(answer, dict):
            return answer
        if status == http.client.UNAUTHORIZED:
            text = "it wants the token of its admin port: give it with the option token"
        elif status == http.client.NOT_FOUND:
            text = "it has no processors"
        else:
            text = str(answer.get("error", f"status {status}")) if isinstance(answer, dict) else f"status {status}"
        raise SourceError(
            f"the broker at {self._place.where} does not say what it leaves to Spark: {text}",
            f"It needs a [[processor]] {self._processor}, and its topics in [log]",
        )

    def _ask(self, method: str, path: str, body: bytes | None = None, kind: str = "") -> tuple[int, bytes]:
        patience = Patience(self._place)
        while True:
            try:
                status, answer = request(self._place.where, self._place.token, method, path, body, kind)
                if status != http.client.SERVICE_UNAVAILABLE:
                    return status, answer
                patience.wait(AwayError(answer.decode(errors="replace")))
            except (OSError, http.client.HTTPException) as error:
                patience.wait(AwayError(str(error)))


def request(
    url: str, token: str | None, method: str, path: str, body: bytes | None, kind: str, timeout_s: float = TIMEOUT_S
) -> tuple[int, bytes]:
    """Asks an admin port once."""
    connection = admin_port.connection(url, timeout_s)
    try:
        connection.request(method, path, body, admin_port.headers(token, kind))
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()
