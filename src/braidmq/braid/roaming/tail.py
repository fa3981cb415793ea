"""The tail of a session that has moved: what was still on its way to where it was is passed on, once each."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from braidmq.bounded import BoundedDict
from braidmq.braid.interest.scope import may_see
from braidmq.braid.roaming.handover_state import Handover, HandoverState
from braidmq.braid.roaming.marks import Mark, Marks
from braidmq.braid.roaming.messages import SessionTail, TailStored, TailWaits
from braidmq.braid.roaming.moved import MovedDelivery, delivery_of, moved_late
from braidmq.braid.roaming.sessions import RoamingSession, SessionRelay
from braidmq.broker.broker import Broker
from braidmq.broker.session import Session
from braidmq.host import Address, Host, Reply, Service, ask, handles
from braidmq.mqtt.topics import matches

TAIL_S = 30.0
"""How long what is still on its way to a session is passed on: as long as a publication is repeated."""

TAIL_MAX = 256
"""Publications that are passed on in one message."""

CALL_TIMEOUT_S = 1.0

ASK_AGAIN_S = 0.05
"""How long it is waited for the copies of the other broker's store before it is asked again."""

COPIED_MAX = 1024
"""Sessions of which it is remembered that what was passed on is in the copies of the store here."""


class SessionTails(Service):
    def __init__(self, broker: Broker, host: Host, marks: Marks, handovers: Mapping[str, Handover]) -> None:
        """`handovers` are those of this broker, by client id."""
        self._broker = broker
        self._host = host
        self._marks = marks
        self._handovers = handovers
        self._copied: BoundedDict[str, SessionTail] = BoundedDict(COPIED_MAX)
        """By client id: what was passed on last, once the copies of the store have it."""
        host.serve(self)

    def pass_on(self, handover: Handover) -> None:
        """Sends what the relay of a session that is gone has, if that is not under way."""
        relay = handover.relay
        is_gone = handover.state is HandoverState.GONE
        if is_gone and relay is not None and relay.waiting and not handover.is_relaying:
            handover.is_relaying = True
            self._host.spawn(self._pass_on(handover, relay))

    async def _pass_on(self, handover: Handover, relay: SessionRelay) -> None:
        client_id = relay.client_id
        while relay.waiting and self._handovers.get(client_id) is handover:
            copied = self._host.event()
            if not self._broker.tick.commit_once(copied.set):
                await copied.wait()
            some = relay.waiting[:TAIL_MAX]
            now = self._broker.now()
            items = [moved_late(one, now) for one in some]
            tail = SessionTail(client_id, tuple([one for one in items if may_move(one, handover)]))
            while not await self._is_stored(handover, tail):
                if self._handovers.get(client_id) is not handover:
                    break
            else:
                del relay.waiting[: len(some)]
        handover.is_relaying = False

    async def _is_stored(self, handover: Handover, tail: SessionTail) -> bool:
        """Sends a part of the tail; if that does not come to its end, it is to be sent again."""
        kinds = (TailStored, TailWaits)
        answer = await ask(self._host, handover.holder.address, tail, kinds, timeout_s=CALL_TIMEOUT_S)
        if not isinstance(answer, TailStored):
            await self._host.sleep(CALL_TIMEOUT_S if answer is None else ASK_AGAIN_S)
        return isinstance(answer, TailStored)

    @handles(SessionTail)
    def on_session_tail(self, _origin: Address, told: SessionTail) -> Reply:
        if self._copied.get(told.client_id) == told:
            return TailStored()
        handover = self._handovers.get(told.client_id)
        session = self._broker.sessions.get(told.client_id)
        if handover is not None and handover.relay is not None:
            session = handover.relay
        if session is not None:
            self.deliver(session, told.items)
            self._broker.flush()
        if self._broker.degraded:
            return None
        self._broker.tick.when_copied(partial(self._copied.renew, told.client_id, told))
        return TailStored() if self._copied.get(told.client_id) == told else TailWaits()

    def deliver(self, session: Session, items: tuple[MovedDelivery, ...]) -> None:
        """Gives late publications to a session that can tell whether it has had them.

        What it no longer subscribes to it does not get: its client may have unsubscribed since it came, or the rules
        here do not let it read what it could read there.
        """
        if isinstance(session, RoamingSession) and not session.checks_marks:
            return
        if not isinstance(session, RoamingSession | SessionRelay):
            return
        now = self._broker.now()
        for item in items:
            message = delivery_of(item, now).message
            if not message.expired(now) and is_wanted(session, item.topic, item.group):
                self._marks.current, self._marks.follows = item.mark, item.follows
                session.deliver(message, item.qos, item.retain, item.ids, item.group)
        self._marks.current = self._marks.follows = None

    def deliver_waiting(self, session: Session, relay: SessionRelay) -> None:
        """Gives a session that stays here what its relay has gathered, each publication once."""
        had: set[tuple[Mark | None, str]] = set()
        for one in relay.waiting:
            d = one.delivery
            if (one.mark, d.group) not in had and is_wanted(session, d.message.topic, d.group):
                self._marks.current = one.mark
                session.deliver(d.message, d.qos, d.retain, d.ids, d.group)
            if one.mark is not None:
                had.add((one.mark, d.group))
        self._marks.current = None


def is_wanted(session: Session, topic: str, group: str) -> bool:
    """Whether a session still subscribes to what it is late to get. A relay takes all: its session is asked later."""
    if isinstance(session, SessionRelay):
        return True
    if group:
        return group in session.subscriptions
    return any(matches(one, topic) for one in session.subscriptions if not one.startswith("$share/"))


def may_move(moved: MovedDelivery, handover: Handover) -> bool:
    """Whether a publication may go where the session goes."""
    return moved.released or may_see(handover.cluster, moved.item.forward)
