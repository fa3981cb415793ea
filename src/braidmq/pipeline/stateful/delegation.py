"""The topics that edges leave to Spark: asked of their brokers, and given back to them.

A broker says which topics are Spark's and from which offset on, and below which offset that is final. A query reads no
further. A topic that is asked back stops the query at the offset from which on the edge wants it; there its spool is
returned, and the broker's answer says whether the edge or Spark goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import TypeVar

import msgspec

from braidmq.admin.client import AdminClient
from braidmq.admin.errors import AdminError, AnswerRefused, Unanswered, Unreachable, WrongToken
from braidmq.log.remote import AwayError
from braidmq.pipeline.portable import PortableProcessor
from braidmq.pipeline.source.logs import LogLocation, Patience, SourceError
from braidmq.processors.processor import SpoolState

T = TypeVar("T")


@dataclass(frozen=True)
class Delegated:
    """One processor at one broker."""

    version: str
    """Says whether anything has changed."""
    final_below: int
    """Below this offset it is final which topics are Spark's."""
    firsts: dict[str, int]
    """Topics that are Spark's, and the offsets from which on they are."""
    handed: frozenset[str]
    """Those of them that begin with a spool."""
    returns: dict[str, int]
    """Those that are asked back, and from which offset on."""


class StillDelegated(SourceError):
    """The edge does not take, or has not left, what was asked for."""


class BrokerClient:
    """A broker's admin port, for the processor of one name. A broker that is down is asked again for a while."""

    def __init__(self, location: LogLocation, processor: str) -> None:
        self._location = location
        self._processor = processor
        self._known: Delegated | None = None

    def at_edge(self, portable: PortableProcessor) -> PortableProcessor:
        """The processor as the broker's configuration has it: both have to take and keep the same."""
        for one in self._ask(AdminClient.processing).processors:
            if one.name == self._processor and one.topic is not None and one.spool is not None:
                return msgspec.structs.replace(portable, topic=one.topic, spool=one.spool, output=one.output)
        raise SourceError(
            f"the broker at {self._location.where} runs no processor {self._processor}, so it leaves nothing to Spark",
            "Name it in a [[processor]] table there, or give this one the name that it has there",
        )

    def delegated(self) -> Delegated:
        known = self._known
        answer = self._ask(lambda admin: admin.delegation(self._processor, None if known is None else known.version))
        if answer.topics is msgspec.UNSET:
            assert known is not None
            found = Delegated(known.version, answer.settled, known.firsts, known.handed, known.returns)
        else:
            topics = answer.topics
            found = Delegated(
                answer.version,
                answer.settled,
                {one.topic: one.first for one in topics},
                frozenset(one.topic for one in topics if one.has_spool),
                {one.topic: one.returns_at for one in topics if one.returns_at is not None},
            )
        self._known = found
        return found

    def handed(self, topic: str) -> SpoolState:
        """The spool with which Spark begins."""
        body = self._ask(lambda admin: admin.spool(self._processor, topic))
        try:
            return SpoolState.decode(body)
        except msgspec.MsgspecError as error:
            raise SourceError(f"the broker at {self._location.where} gave no spool for {topic}: {error}") from None

    def give_back(self, topic: str, first: int, state: SpoolState) -> bool:
        """Whether the edge goes on from `first`; if not, Spark does."""
        try:
            self._ask(lambda admin: admin.return_spool(self._processor, topic, first, state.encode()))
        except StillDelegated:
            return False
        return True

    def _ask(self, question: Callable[[AdminClient], T]) -> T:
        patience = Patience(self._location)
        while True:
            try:
                with AdminClient(self._location.where, self._location.token) as admin:
                    return question(admin)
            except (Unreachable, Unanswered) as error:
                patience.wait(AwayError(error.reason))
            except AdminError as error:
                if not isinstance(error, AnswerRefused) or not error.is_for_now:
                    raise self._refusal(error) from None
                patience.wait(AwayError(error.reason))

    def _refusal(self, error: AdminError) -> SourceError:
        text = error.reason
        if isinstance(error, WrongToken):
            text = "it wants the token of its admin port: give it with the option token"
        elif isinstance(error, AnswerRefused) and error.status == HTTPStatus.NOT_FOUND:
            text = "it has no processors"
        key = (
            StillDelegated if isinstance(error, AnswerRefused) and error.status == HTTPStatus.CONFLICT else SourceError
        )
        return key(
            f"the broker at {self._location.where} does not say what it leaves to Spark: {text}",
            f"It needs a [[processor]] {self._processor}, and its topics in [log]",
        )
