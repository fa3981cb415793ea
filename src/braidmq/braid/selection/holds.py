"""What is reserved of the instances here: kept in the store, and told to those whom it concerns.

A reservation is in the store before anybody hears of it, so a broker that was killed has given nothing twice when it is
back. The store does not know how far a lease was renewed: what is found there has a whole lease from now on, which is
at least as long as its holder counts on. A holder renews and releases by the id of its request, from any broker.

An instance whose session goes to another broker, or is taken up by a mirror from the copy of one that is gone, keeps
what is reserved of it: that travels with the session and is in the same commits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from braidmq.bounded import BoundedDict
from braidmq.braid.selection.client_answers import ClientAnswers
from braidmq.braid.selection.group_names import component_of
from braidmq.braid.selection.hold_rows import HOLD, decode_hold, decode_moved, encode_hold, encode_moved
from braidmq.braid.selection.instances import Instances
from braidmq.braid.selection.messages import FindHold, HoldEnded, HoldFound, HoldState, ReleaseHold, RenewHold
from braidmq.broker.broker import Broker
from braidmq.broker.component_topics import level_of
from braidmq.broker.local_topics import RESERVATION_PREFIX
from braidmq.host import Address, Host, Reply, Service, handles
from braidmq.select import Selector
from braidmq.select.holder import SAFETY
from braidmq.select.member import End, Hold, Member, Version

FENCE_BITS: Final = 20
"""Of a fencing number, for the changes within a tenth of a second; it grows beyond them where there are more."""

MOVED_MAX: Final = 10_000
"""Reservations of which is remembered to which broker they have gone from here."""

OPERATOR: Final = ""
"""Who holds what was reserved on the admin port: no client is called so. It may release what others hold, too."""

NOT_HELD: Final = "it is not reserved any more"
NOT_YOURS: Final = "another client has reserved it"


def reservation_id(request: str, broker: str) -> str:
    """What a client calls its reservation: by it every broker finds the one where it is."""
    return f"{request}@{level_of(broker)}"


def fence_number(fence: Version) -> int:
    """One number that grows from each reservation of an instance to the next."""
    return (fence[0] << FENCE_BITS) + fence[1]


class Holds(Service):
    def __init__(
        self, broker: Broker, host: Host, selector: Selector, instances: Instances, answers: ClientAnswers
    ) -> None:
        self._broker = broker
        self._host = host
        self._selector = selector
        self._instances = instances
        self._answers = answers
        self._at: dict[str, Member] = {}
        """By the id of a request: where what it has reserved is."""
        self._moved_to: BoundedDict[str, Address] = BoundedDict(MOVED_MAX)
        """By the id of a request: to which broker its instance has gone from here."""
        self.on_ended_here: Callable[[HoldEnded], None] = lambda _told: None
        """Called when something is over that was asked for here."""
        instances.on_member = self._watch
        host.serve(self)

    def __len__(self) -> int:
        return len(self._at)

    def start(self) -> None:
        """Takes up what an earlier process had given."""
        for key, row in self._broker.saved_cursors:
            if key.startswith(HOLD):
                self._restore(row)

    def _restore(self, row: bytes) -> None:
        name, request, fence = decode_hold(row)
        member = self._instances.member(component_of(request.group))
        if request.id not in member.held:
            member.rise(fence[0] + 1)
            member.restore(request, name, fence, self._host.now())
            self._at[request.id] = member
            self._selector.members.watch_leases()

    def _watch(self, member: Member) -> None:
        member.on_taken = self._on_taken
        member.on_over = self._on_over

    def _on_taken(self, hold: Hold) -> bool:
        request = hold.request = msgspec.structs.replace(hold.request, known_at=self._instances.broker_name)
        self._broker.store.save_cursor(HOLD + request.id, encode_hold(hold))
        if not self._broker.tick.commit_early():
            self._broker.store.drop_cursor(HOLD + request.id)
            return False
        self._at[request.id] = self._instances.member(component_of(request.group))
        hold.is_copied = False
        self._broker.tick.when_copied(partial(_set_copied, hold))
        self.tell_instance(hold, "reserved")
        return True

    def _on_over(self, hold: Hold, end: End) -> None:
        request = hold.request
        self._at.pop(request.id, None)
        self._broker.store.drop_cursor(HOLD + request.id)
        self._broker.request_flush()
        self.tell_instance(hold, end.value)
        if end is not End.RELEASED:
            told = HoldEnded(request.id, request.holder, end.value)
            if request.asker == self._host.address:
                self.on_ended_here(told)
            else:
                self._host.send(request.asker, told)
        self._forget_absent(hold)

    def _forget_absent(self, hold: Hold) -> None:
        """A component that is only there because it was reserved, and has not come back, is not needed any more."""
        component = component_of(hold.request.group)
        member = self._instances.members.get(component)
        name = hold.component.name
        is_absent = self._instances.get(component, name) is None and not hold.component.taken
        if member is not None and is_absent and member.components.get(name) is hold.component:
            del member.components[name]

    def tell_instance(self, hold: Hold, event: str) -> None:
        request = hold.request
        component = component_of(request.group)
        answer: dict[str, Any] = {
            "event": event,
            "id": self.known_as(hold),
            "by": request.holder,
            "fence": fence_number(hold.fence),
        }
        if request.key:
            answer["key"] = request.key
        self._answers.tell_session(hold.component.name, RESERVATION_PREFIX + component, answer)

    def known_as(self, hold: Hold) -> str:
        """The id by which its holder knows it."""
        return reservation_id(hold.request.id, hold.request.known_at or self._instances.broker_name)

    # Instances that go to other brokers, and come from them

    def pack(self, client_id: str) -> bytes:
        """What a client is an instance of, and what is reserved of it: for the broker that its session goes to."""
        moved = [
            msgspec.structs.replace(one, holds=tuple(map(encode_hold, self._of(one.component, client_id))))
            for one in self._instances.moved(client_id)
        ]
        return encode_moved(moved) if moved else b""

    def unpack(self, client_id: str, packed: bytes) -> None:
        """Takes it up with a session that has come, in the commit that has the session."""
        self._instances.on_arrived(client_id)
        for one in decode_moved(packed) if packed else ():
            self._instances.bring(client_id, one)
            self._instances.member(one.component).rise(one.incarnation + 1)
            for row in one.holds:
                self._broker.store.save_cursor(HOLD + decode_hold(row)[1].id, row)
                self._restore(row)

    def let_go(self, client_id: str, to: Address | None) -> None:
        """A client's session has gone to another broker, with what is reserved: nothing of that ends."""
        for component, member in self._instances.members.items():
            for hold in self._of(component, client_id):
                request = hold.request.id
                del member.held[request]
                hold.component.taken -= 1
                self._at.pop(request, None)
                self._broker.store.drop_cursor(HOLD + request)
                if to is not None:
                    self._moved_to.renew(request, to)

    def _of(self, component: str, client_id: str) -> list[Hold]:
        member = self._instances.members.get(component)
        return [] if member is None else [one for one in member.held.values() if one.component.name == client_id]

    @handles(FindHold)
    def on_find(self, _origin: Address, asked: FindHold) -> Reply:
        return HoldFound(asked.request in self._at)

    # By the ids of requests, from any broker

    def renew(self, request: str, holder: str, asker: Address) -> HoldState:
        """Holds for as long as was asked for, from now; a holder counts on somewhat less than that."""
        member, problem = self._find(request, holder)
        if member is None:
            return HoldState(0.0, problem, self._moved_to.get(request))
        hold = member.held[request]
        lease_s = member.renew(request, hold.fence, self._host.now())
        if lease_s is None:
            return HoldState(0.0, NOT_HELD)
        if hold.request.asker != asker:  # its client is at another broker now
            hold.request = msgspec.structs.replace(hold.request, asker=asker)
        return HoldState(lease_s * SAFETY, is_copied=hold.is_copied)

    def release(self, request: str, holder: str) -> HoldState:
        member, problem = self._find(request, holder)
        if member is None:
            return HoldState(0.0, problem, self._moved_to.get(request))
        is_own = member.held[request].request.holder == holder
        delegate = member.release(request, end=End.RELEASED if is_own else End.WITHDRAWN)
        self._selector.members.on_freed(member, self._host.address if delegate is None else delegate)
        return HoldState(0.0)

    def held_by(self, request: str, holder: str = OPERATOR) -> Hold | None:
        """What a request has reserved here, if this is its holder."""
        member, _ = self._find(request, holder)
        return None if member is None else member.held[request]

    def _find(self, request: str, holder: str) -> tuple[Member | None, str]:
        member = self._at.get(request)
        if member is None or request not in member.held:
            return None, NOT_HELD
        if holder != OPERATOR and member.held[request].request.holder != holder:
            return None, NOT_YOURS
        return member, ""

    @handles(RenewHold)
    def on_renew(self, origin: Address, asked: RenewHold) -> Reply:
        return self.renew(asked.request, asked.holder, origin)

    @handles(ReleaseHold)
    def on_release(self, origin: Address, asked: ReleaseHold) -> Reply:
        return self.release(asked.request, asked.holder)


def _set_copied(hold: Hold) -> None:
    hold.is_copied = True
