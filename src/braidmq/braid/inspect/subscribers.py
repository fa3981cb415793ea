"""Which brokers have clients that want a topic: all that subscribe to a filter that could match it are asked.

Where the method knows wildcards, all brokers are: none of them has to know which filters the others use.
"""

from __future__ import annotations

from itertools import islice

import msgspec

from braidmq.admin.contract import DemandAnswer, InterestedBroker
from braidmq.braid.inspect.answers import BROKERS_MAX, Unanswerable, check_passed_on
from braidmq.braid.interest.client_filters import ClientFilters
from braidmq.braid.interest.shapes import Shapes
from braidmq.braid.membership.home import HOME
from braidmq.host import Address, Host
from braidmq.keys import parts_of
from braidmq.overlay.ranges import Outcome
from braidmq.pubsub.method import Method, ProvenMethod, WildcardMethod

DEMAND_S = 5.0
"""How long subscribers are waited for."""

SLACK_S = 2.0
"""How much longer, at the most: the method's own waiting ends first."""

FILTERS_TOLD_MAX = 16
"""Filters that a subscriber names."""

WHO = b"\xc1who"
"""The question to subscribers begins so: who are you?"""

_Answer = tuple[Address, tuple[str, ...]]
"""What a subscriber says to `WHO`: where it is, and which filters of its clients match."""

_encode = msgspec.msgpack.Encoder().encode
_decode_topic = msgspec.msgpack.Decoder(str).decode
_decode_answer = msgspec.msgpack.Decoder(_Answer).decode


class SubscriberSurvey:
    """One broker's side: it asks, and answers other brokers."""

    def __init__(self, host: Host, method: Method, method_name: str, shapes: Shapes, known: ClientFilters) -> None:
        self._host = host
        self._method = method
        self._method_name = method_name
        self._shapes = shapes
        self._client_filters = known

    @staticmethod
    def is_question(body: bytes) -> bool:
        return body.startswith(WHO)

    def on_question(self, body: bytes) -> bytes | None:
        try:
            topic = _decode_topic(body[len(WHO) :])
        except msgspec.MsgspecError:
            return None
        filters = islice(self._client_filters.matching(topic), FILTERS_TOLD_MAX)
        return _encode((self._host.address, tuple(filters)))

    async def ask(self, topic: str) -> DemandAnswer:
        """The brokers whose clients want a topic."""
        check_passed_on(topic)
        is_for_all = isinstance(self._method, WildcardMethod)
        filters = (HOME,) if is_for_all else self._shapes.filters_for(topic)
        if not isinstance(self._method, ProvenMethod):
            raise Unanswerable(f"with the method {self._method_name} nobody knows who subscribes to a topic")
        outcomes = await self._ask_all(self._method, topic, filters)
        brokers = [
            InterestedBroker(name, cluster, sorted(known))
            for (name, cluster), known in _brokers_of(outcomes).items()
            if known
        ]
        is_complete = len(outcomes) == len(filters) and all(one.complete for one in outcomes)
        could_match = [topic] if is_for_all else list(filters)
        return DemandAnswer(topic, could_match, sorted(brokers, key=lambda one: one.name), is_complete)

    async def _ask_all(self, method: ProvenMethod, topic: str, filters: tuple[str, ...]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        through = self._host.event()

        def on_outcome(outcome: Outcome) -> None:
            outcomes.append(outcome)
            if len(outcomes) == len(filters):
                through.set()

        for topic_filter in filters:
            method.ask(topic_filter, WHO + _encode(topic), DEMAND_S, on_outcome)
        await through.wait(DEMAND_S + SLACK_S)
        return list(outcomes)


def _brokers_of(outcomes: list[Outcome]) -> dict[tuple[str, str], dict[str, None]]:
    """By name and cluster: the filters by which brokers want the topic."""
    brokers: dict[tuple[str, str], dict[str, None]] = {}
    for outcome in outcomes:
        for key, answer in list(outcome.answers.items())[:BROKERS_MAX]:
            topic_filter, _, cluster, name = parts_of(key)
            try:
                _, known = _decode_answer(answer)
            except msgspec.MsgspecError:
                known = ()
            brokers.setdefault((name, cluster), {}).update(
                dict.fromkeys((*([topic_filter] if topic_filter != HOME else []), *known))
            )
    return brokers
