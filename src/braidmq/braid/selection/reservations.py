"""Reservations that clients here ask for, and what they hold: `$reserve/<component>`, `$renew/<id>`, `$release/<id>`.

A request goes to the nearest group that has something free: that of the broker's own cluster, those above it, the whole
braid. What this broker has itself is taken at once, unless a score has all compared. A lease longer than the first one,
or one that the copies do not have yet, is confirmed before the client hears of it: it can count on every lease that it
is told of, from when it asked.

What a client holds is released when its session ends. A session that moves on takes it along: the id says where the
component is, so the client renews and releases from wherever it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from braidmq.braid.membership.broker_records import BrokerRecords
from braidmq.braid.selection.asked import Asked
from braidmq.braid.selection.client_answers import ClientAnswers, ReplyTo
from braidmq.braid.selection.group_names import component_of, group_topic, groups_asked
from braidmq.braid.selection.hold_reach import HoldReach
from braidmq.braid.selection.holds import OPERATOR, Holds, fence_number, reservation_id
from braidmq.braid.selection.instances import Instances
from braidmq.braid.selection.messages import HoldEnded, HoldState, ReleaseHold, RenewHold
from braidmq.braid.selection.state_transfers import StateTransfers
from braidmq.broker.component_topics import instance_topic
from braidmq.host import Address, Event, Host, Reply, Service, handles
from braidmq.keys import parts_of
from braidmq.select import ComponentGroup, NotReserved, Reserved, SelectionRequest, Selector
from braidmq.select.holder import SAFETY
from braidmq.select.member import FIRST_LEASE_S

UNDER_WAY_MAX: Final = 1_000
"""Requests of clients here that are worked on at a time."""

HELD_MAX: Final = 100
"""Reservations that one client has at a time."""

ID_BITS: Final = 64

COPIED_S: Final = 1.0
COPIED_PAUSE_S: Final = 0.002
"""How long it is waited until what was reserved is in the copies at other brokers, and how often it is asked for."""

Answer = dict[str, Any]


class RefusedRequest(Exception):
    """Nothing is reserved, renewed or released: the reason in a word, in a sentence, and when it may be otherwise."""

    def __init__(self, word: str, text: str, expected_in_s: float | None = None) -> None:
        super().__init__(text)
        self.word = word
        self.text = text
        self.expected_in_s = expected_in_s

    @property
    def answer(self) -> Answer:
        answer: Answer = {"ok": False, "reason": self.word, "text": self.text}
        if self.expected_in_s is not None:
            answer["expected_in"] = round(self.expected_in_s, 3)
        return answer


class Held(msgspec.Struct):
    """What a client has reserved through this broker; `answer` is what it was told."""

    client_id: str
    key: str
    answer: Answer
    to: ReplyTo | None
    until: float
    """When it is surely over, if it is not renewed: that may not have been heard of here."""


class Reservations(Service):
    def __init__(
        self,
        host: Host,
        selector: Selector,
        instances: Instances,
        holds: Holds,
        answers: ClientAnswers,
        records: BrokerRecords,
        cluster: str,
    ) -> None:
        self._host = host
        self._selector = selector
        self._instances = instances
        self._holds = holds
        self._answers = answers
        self._reach = HoldReach(host, holds, records, instances.broker_name)
        self._cluster = cluster
        self.transfers: StateTransfers
        self.has_session: Callable[[str], bool] = lambda _client_id: True
        """Whether a client has a session here: one that has ended meanwhile holds nothing."""
        self._held: dict[str, Held] = {}
        self._by_client: dict[str, dict[str, None]] = {}
        self._asking: dict[tuple[str, str], Event] = {}
        """By holder and key: requests that are worked on, and their ends."""
        self.under_way = 0
        self.made = self.refused = self.ended = 0
        holds.on_ended_here = self._ended
        host.serve(self)

    def __len__(self) -> int:
        return len(self._held)

    # Reserving

    async def reserve(self, component: str, asked: Asked, holder: str, to: ReplyTo | None = None) -> Answer:
        """Reserves for a client, or for somebody else by a name that no client has; raises a RefusedRequest."""
        self._drop_old(holder)
        key = f"{component}/{asked.key}" if asked.key and not asked.source else ""
        while (asking := self._asking.get((holder, key))) is not None:
            await asking.wait()
        same = self._same(key, holder)
        if same is not None:
            return same
        if len(self._by_client.get(holder, ())) >= HELD_MAX:
            raise RefusedRequest("too-many", f"{HELD_MAX} reservations of one client are the most at a time")
        if self.under_way >= UNDER_WAY_MAX:
            raise RefusedRequest("busy", f"{UNDER_WAY_MAX} requests are under way at this broker already", 1.0)
        self.under_way += 1
        if key:
            self._asking[holder, key] = self._host.event()
        try:
            request = self._request(component, asked, holder)
            reserved = await self._find(request, asked)
            answer = await self._confirm(component, request, reserved, asked)
            if asked.source:
                answer["state"] = await self._go_on_from(component, holder, asked.source, answer["id"])
            self._keep(answer, holder, f"{component}/{asked.key}" if asked.key else "", to, asked.lease_s)
        except RefusedRequest:
            self.refused += 1
            raise
        finally:
            self.under_way -= 1
            if key:
                self._asking.pop((holder, key)).set()
        self.made += 1
        return answer

    def _same(self, key: str, holder: str) -> Answer | None:
        """What a client has reserved by this key already."""
        held = [self._held[one] for one in self._by_client.get(holder, ())] if key else []
        return next((one.answer for one in held if one.key == key), None)

    def _drop_old(self, holder: str) -> None:
        """That something is over may not have been heard of: its broker may be gone."""
        now = self._host.now()
        for known_as in [one for one in self._by_client.get(holder, ()) if self._held[one].until <= now]:
            self._drop(known_as)

    def _request(self, component: str, asked: Asked, holder: str) -> SelectionRequest:
        """Each with an id of its own: delegates remember what they have answered."""
        return SelectionRequest(
            f"{self._host.chance.getrandbits(ID_BITS):0{ID_BITS // 4}x}",
            ComponentGroup(group_topic(component), ""),
            asked.lease_s / SAFETY,
            asked.needs,
            asked.score,
            self._cluster,
            holder,
            self._host.address,
            asked.key,
        )

    async def _find(self, request: SelectionRequest, asked: Asked) -> Reserved:
        component = component_of(request.group)
        groups = groups_asked(component, asked.cluster, self._cluster)
        outcome = NotReserved(0)
        for group in groups:
            here = msgspec.structs.replace(request, group=group)
            own = None if asked.score else self._selector.take_here(here)
            found = own or await self._selector.reserve(here)
            if isinstance(found, Reserved):
                return found
            outcome = found
        if await self._selector.delegate_of(groups[-1]) is None:
            where = f" in the cluster {asked.cluster!r}" if asked.cluster else ""
            raise RefusedRequest("unknown-component", f"no client{where} has a subscription $share/{component}/…")
        if not outcome.is_known:
            raise RefusedRequest("no-answer", f"the brokers with {component!r} did not answer in time", 1.0)
        fitting = " that meets the conditions" if asked.needs else ""
        text = f"no {component!r}{fitting} is free"
        raise RefusedRequest("none-free", text, outcome.expected_in_s)

    async def _confirm(self, component: str, request: SelectionRequest, reserved: Reserved, asked: Asked) -> Answer:
        """What the client is told, once it can count on it."""
        reservation = reserved.reservation
        _, _, cluster, broker = parts_of(reservation.member.key)
        known_as = reservation_id(request.id, broker)
        if request.lease_s > FIRST_LEASE_S or not reservation.is_copied:
            await self._until_safe(known_as, RenewHold(request.id, request.holder), broker)
        return {
            "ok": True,
            "id": known_as,
            "component": component,
            "instance": reservation.component,
            "topic": instance_topic(component, reservation.component),
            "broker": broker,
            "cluster": cluster,
            "lease": asked.lease_s,
            "fence": fence_number(reservation.fence),
            "hops": reserved.hops,
        }

    async def _until_safe(self, known_as: str, asked: RenewHold, broker: str) -> None:
        """It is held for as long as was asked for, and if its broker has copies, they have it: or it was waited for
        that for a while."""
        ends_at = self._host.now() + COPIED_S
        while True:
            state = await self._reach.call(known_as, asked, is_counted_on=True)
            if state is None or not state.lease_s:
                text = f"broker {broker!r} reserved it, and did not confirm that in time"
                raise RefusedRequest("no-answer", text, 1.0)
            if state.is_copied or self._host.now() > ends_at:
                return
            await self._host.sleep(COPIED_PAUSE_S)

    async def _go_on_from(self, component: str, holder: str, old: str, new: str) -> bool:
        """The client's stream goes on with what it has reserved now; whether the new instance knows what the old one
        did."""
        try:
            is_known = await self.transfers.bring(component, holder, self._locate(old), self._locate(new))
        except RefusedRequest:  # the broker of the old one is gone
            return False
        self._drop(old)
        await self._release_quietly(old, holder)
        return is_known

    def _keep(self, answer: Answer, holder: str, key: str, to: ReplyTo | None, lease_s: float) -> None:
        known_as = answer["id"]
        self._held[known_as] = Held(holder, key, answer, to, self._host.now() + lease_s / SAFETY)
        self._by_client.setdefault(holder, {})[known_as] = None
        if to is not None and not self.has_session(holder):
            self._drop(known_as)
            self._host.spawn(self._release_quietly(known_as, holder))

    def _drop(self, known_as: str) -> Held | None:
        held = self._held.pop(known_as, None)
        if held is not None:
            some = self._by_client[held.client_id]
            some.pop(known_as, None)
            if not some:
                del self._by_client[held.client_id]
        return held

    # Renewing and releasing

    async def renew(self, known_as: str, holder: str, to: ReplyTo | None = None) -> Answer:
        """Holds for the whole lease again, from now."""
        state = await self._call(known_as, RenewHold(_request_of(known_as), holder))
        if state is None:
            raise RefusedRequest("no-answer", "the broker of the component did not answer in time", 1.0)
        if not state.lease_s:
            self._drop(known_as)
            raise RefusedRequest("not-held", state.problem)
        held = self._held.get(known_as)
        if held is None:  # it was reserved at another broker, or before this one was started
            self._keep({"ok": True, "id": known_as}, holder, "", to, state.lease_s)
        else:
            held.until = self._host.now() + state.lease_s / SAFETY
        return {"ok": True, "id": known_as, "lease": round(state.lease_s, 3)}

    async def release(self, known_as: str, holder: str) -> Answer:
        state = await self._call(known_as, ReleaseHold(_request_of(known_as), holder))
        if state is None:
            raise RefusedRequest("no-answer", "the broker of the component did not answer in time", 1.0)
        if state.problem:
            raise RefusedRequest("not-held", state.problem)
        self._drop(known_as)
        return {"ok": True, "id": known_as}

    async def _release_quietly(self, known_as: str, holder: str) -> None:
        """What cannot be released now runs out."""
        try:
            await self.release(known_as, holder)
        except RefusedRequest:
            return

    async def _call(self, known_as: str, asked: RenewHold | ReleaseHold) -> HoldState | None:
        """What the broker of the component says; None if none that has it answers."""
        held = self._held.get(known_as)
        is_counted_on = asked.holder == OPERATOR or (held is not None and self._host.now() < held.until)
        state = await self._reach.call(known_as, asked, is_counted_on)
        if state is None and self._reach.locate(known_as) is None:
            name = known_as.partition("@")[2]
            raise RefusedRequest("not-held", f"no broker of the braid is called {name!r}, and none has it")
        return state

    def _locate(self, known_as: str) -> tuple[str, Address]:
        """The id of the request, and where the component is."""
        address = self._reach.locate(known_as)
        if address is None:
            raise RefusedRequest("not-held", f"no broker of the braid is called {known_as.partition('@')[2]!r}")
        return _request_of(known_as), address

    # When it is over

    def on_session_end(self, client_id: str, moved: bool) -> None:
        """What a client held is free again; one that goes on at another broker takes it along."""
        for known_as in list(self._by_client.get(client_id, ())):
            self._drop(known_as)
            if not moved:
                self._host.spawn(self._release_quietly(known_as, client_id))

    @handles(HoldEnded)
    def on_ended(self, origin: Address, told: HoldEnded) -> Reply:
        self._ended(told)
        return None

    def _ended(self, told: HoldEnded) -> None:
        for known_as in self._by_client.get(told.holder, ()):
            if known_as.partition("@")[0] == told.request:
                break
        else:
            return
        self.ended += 1
        held = self._drop(known_as)
        if held is not None and held.to is not None:
            self._answers.tell(held.to, {"ok": False, "id": known_as, "reason": told.how, "text": _TEXTS[told.how]})


def _request_of(known_as: str) -> str:
    """The id of the request for a reservation that a client knows so."""
    request, at, _ = known_as.partition("@")
    if not at:
        raise RefusedRequest("bad-request", f"{known_as!r} is no id of a reservation")
    return request


_TEXTS: Final = {
    "expired": "its lease is over",
    "gone": "the instance is gone",
    "withdrawn": "the operator has released it",
}
