"""Selection in a braid: instances of components, what is reserved of them, and what clients here have reserved.

A client asks by publishing to a topic of its broker's own; whether that is taken up is said with the acknowledgement,
and what came of it is published to the client alone (`client_answers`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from braidmq.braid.membership.broker_records import BrokerRecords
from braidmq.braid.membership.presence import Presence
from braidmq.braid.selection.asked import ATTRIBUTES_MAX, Malformed, read_load, read_request
from braidmq.braid.selection.client_answers import ClientAnswers, ReplyTo, reply_to
from braidmq.braid.selection.holds import Holds
from braidmq.braid.selection.indexing import IndexedDelivery
from braidmq.braid.selection.instances import Instances
from braidmq.braid.selection.reservations import Answer, RefusedRequest, Reservations
from braidmq.braid.selection.shortages import Shortages
from braidmq.braid.selection.state_transfers import StateTransfers
from braidmq.braid.selection.survey import ComponentSurvey
from braidmq.braid.shares.group_records import GroupRecords
from braidmq.braid.transfer.awaited_predecessors import AwaitedPredecessors
from braidmq.braid.transfer.predecessors import Predecessors
from braidmq.broker.broker import Broker
from braidmq.broker.local_topics import LOAD_PREFIX, RELEASE_PREFIX, RENEW_PREFIX, RESERVE_PREFIX, STATE_PREFIX
from braidmq.broker.session import Session
from braidmq.host import Address, Host
from braidmq.mqtt.packets import Publish
from braidmq.mqtt.reasons import Reason
from braidmq.overlay import Overlay
from braidmq.select import Aggregates, Selector

LOAD_EVERY_S: Final = 0.1
"""How often an instance may say how it is."""

Verdict = tuple[Reason, str]


class SelectionParts:
    def __init__(
        self,
        broker: Broker,
        overlay: Overlay,
        presence: Presence,
        records: BrokerRecords,
        groups: GroupRecords,
        name: str,
        cluster: str,
        origin: str,
        predecessors: Predecessors,
        awaited: AwaitedPredecessors,
    ) -> None:
        """`origin`, `predecessors` and `awaited`: see `state_transfers`."""
        host: Host = overlay.host
        self._broker = broker
        self._host = host
        self.cluster = cluster
        self.selector = Selector(overlay, Aggregates.NONE)
        self.answers = ClientAnswers(broker)
        self.instances = Instances(broker, host, presence, self.selector, name, cluster)
        self.holds = Holds(broker, host, self.selector, self.instances, self.answers)
        self.reservations = Reservations(
            host, self.selector, self.instances, self.holds, self.answers, records, cluster
        )
        self.transfers = self.reservations.transfers = StateTransfers(
            host, self.instances, self.holds, self.answers, origin, predecessors, awaited
        )
        self.indexed = IndexedDelivery(broker, host, groups, origin, cluster)
        self.shortages = Shortages(broker, host, self.selector, self.instances)
        self.instances.on_first = self._on_first
        self.survey = ComponentSurvey(host, self.selector, self.instances, records, name, cluster)
        self.reservations.has_session = broker.sessions.__contains__
        self.gone_to: Callable[[str], Address | None] = lambda _client_id: None
        """The broker that a client's session has just gone to."""
        self.loads = self.loads_refused = self.requests_refused = 0

    def start(self) -> None:
        """Takes up what is there from before."""
        self.holds.start()
        self.instances.start()

    def _on_first(self) -> None:
        """There is an instance here."""
        self.indexed.stand()
        self.shortages.start()

    async def leave(self) -> None:
        await self.instances.leave()

    # What happens to clients

    def on_share(self, session: Session) -> None:
        self.instances.on_share(session)

    def on_presence(self, session: Session, is_over: bool, moved: bool) -> None:
        if moved:
            self.holds.let_go(session.client_id, self.gone_to(session.client_id))
        self.instances.on_presence(session)
        if is_over:
            self.reservations.on_session_end(session.client_id, moved)

    # What they ask for

    def request(self, session: Session, packet: Publish) -> Verdict:
        """Takes a request up, or says why not."""
        try:
            if packet.topic.startswith(LOAD_PREFIX):
                return self._load(session, packet)
            if packet.topic.startswith(STATE_PREFIX):
                return self._state(session, packet)
            return self._asked(session, packet)
        except Malformed as error:
            verdict = Reason.PAYLOAD_FORMAT_INVALID, str(error)
        except RefusedRequest as refusal:
            verdict = Reason.IMPLEMENTATION_SPECIFIC_ERROR, refusal.text
        self.requests_refused += 1
        return verdict

    def _asked(self, session: Session, packet: Publish) -> Verdict:
        prefix, about = _split(packet.topic)
        to = reply_to(session, packet, about)
        if not self.answers.hears(to):
            raise RefusedRequest("not-heard", f"nobody would hear the answer: subscribe to {to.topic!r} first")
        client_id = session.client_id
        what: Awaitable[Answer]
        if prefix == RESERVE_PREFIX:
            try:
                asked = read_request(packet.payload, self.cluster)
            except Malformed as error:
                self.answers.tell(to, RefusedRequest("bad-request", str(error)).answer)
                raise
            what = self.reservations.reserve(about, asked, client_id, to)
        elif prefix == RENEW_PREFIX:
            what = self.reservations.renew(about, client_id, to)
        else:
            assert prefix == RELEASE_PREFIX
            what = self.reservations.release(about, client_id)
        self._host.spawn(self._answer(to, what))
        return Reason.SUCCESS, ""

    async def _answer(self, to: ReplyTo, what: Awaitable[Answer]) -> None:
        try:
            answer = await what
        except RefusedRequest as refusal:
            answer = refusal.answer
        self.answers.tell(to, answer)

    def _load(self, session: Session, packet: Publish) -> Verdict:
        """An instance says how it is."""
        component = packet.topic.removeprefix(LOAD_PREFIX)
        instance = self.instances.of(component, session)
        now = self._host.now()
        try:
            if instance is None:
                raise RefusedRequest("unknown-component", f"this client has no subscription $share/{component}/…")
            slots, attributes = read_load(packet.payload)
            count = len({**instance.attributes, **attributes})
            if count > ATTRIBUTES_MAX:
                raise Malformed(f"{count} attributes of one instance: at most {ATTRIBUTES_MAX}")
            if now < instance.reported_at + LOAD_EVERY_S:
                self.loads_refused += 1
                return Reason.QUOTA_EXCEEDED, f"a report of load every {LOAD_EVERY_S:g} s is the most"
        except (Malformed, RefusedRequest):
            self.loads_refused += 1
            raise
        self.loads += 1
        self.instances.report(instance, slots, attributes, now)
        return Reason.SUCCESS, ""

    def _state(self, session: Session, packet: Publish) -> Verdict:
        """An instance says what it knows of a stream."""
        _, about = _split(packet.topic)
        problem = self.transfers.on_state(session.client_id, about, packet.payload)
        if problem:
            raise RefusedRequest("not-held", problem)
        return Reason.SUCCESS, ""


def _split(topic: str) -> tuple[str, str]:
    prefix, _, about = topic.partition("/")
    if not about or "/" in about:
        raise RefusedRequest("bad-request", f"{topic!r}: one level is expected behind {prefix}/")
    return prefix + "/", about
