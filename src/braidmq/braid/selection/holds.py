"""What is reserved of the instances here: kept in the store, and told to those whom it concerns.

A reservation is in the store before anybody hears of it, so a broker that was killed has given nothing twice when it is
back. The store does not know how far a lease was renewed: what is found there has a whole lease from now on, which is
at least as long as its holder counts on. A holder renews and releases by the id of its request, from any broker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from braidmq.braid.selection.client_answers import ClientAnswers
from braidmq.braid.selection.hold_rows import HOLD, decode_hold, encode_hold
from braidmq.braid.selection.instances import GROUP_PREFIX, Instances
from braidmq.braid.selection.messages import HoldEnded, HoldState, ReleaseHold, RenewHold
from braidmq.broker.broker import Broker
from braidmq.broker.component_topics import level_of
from braidmq.broker.local_topics import RESERVATION_PREFIX
from braidmq.host import Address, Host, Reply, Service, handles
from braidmq.select import Selector
from braidmq.select.holder import SAFETY
from braidmq.select.member import End, Hold, Member, Version

FENCE_BITS: Final = 20
"""Of a fencing number, for the changes within a tenth of a second; it grows beyond them where there are more."""

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
                name, request, fence = decode_hold(row)
                member = self._instances.member(request.group.topic.removeprefix(GROUP_PREFIX))
                member.restore(request, name, fence, self._host.now())
                self._at[request.id] = member
        if self._at:
            self._selector.members.watch_leases()

    def _watch(self, member: Member) -> None:
        member.on_taken = self._on_taken
        member.on_over = self._on_over

    def _on_taken(self, hold: Hold) -> bool:
        request = hold.request
        self._broker.store.save_cursor(HOLD + request.id, encode_hold(hold))
        if not self._broker.tick.commit_early():
            self._broker.store.drop_cursor(HOLD + request.id)
            return False
        self._at[request.id] = self._instances.member(request.group.topic.removeprefix(GROUP_PREFIX))
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
        component = hold.request.group.topic.removeprefix(GROUP_PREFIX)
        member = self._instances.members.get(component)
        name = hold.component.name
        is_absent = self._instances.get(component, name) is None and not hold.component.taken
        if member is not None and is_absent and member.components.get(name) is hold.component:
            del member.components[name]

    def tell_instance(self, hold: Hold, event: str) -> None:
        request = hold.request
        component = request.group.topic.removeprefix(GROUP_PREFIX)
        known_as = reservation_id(request.id, self._instances.broker_name)
        answer: dict[str, Any] = {
            "event": event,
            "id": known_as,
            "by": request.holder,
            "fence": fence_number(hold.fence),
        }
        if request.key:
            answer["key"] = request.key
        self._answers.tell_session(hold.component.name, RESERVATION_PREFIX + component, answer)

    # By the ids of requests, from any broker

    def renew(self, request: str, holder: str, asker: Address) -> HoldState:
        """Holds for as long as was asked for, from now; a holder counts on somewhat less than that."""
        member, problem = self._find(request, holder)
        if member is None:
            return HoldState(0.0, problem)
        hold = member.held[request]
        lease_s = member.renew(request, hold.fence, self._host.now())
        if lease_s is None:
            return HoldState(0.0, NOT_HELD)
        if hold.request.asker != asker:  # its client is at another broker now
            hold.request = msgspec.structs.replace(hold.request, asker=asker)
        return HoldState(lease_s * SAFETY)

    def release(self, request: str, holder: str) -> HoldState:
        member, problem = self._find(request, holder)
        if member is None:
            return HoldState(0.0, problem)
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
