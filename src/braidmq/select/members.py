"""All members of a broker: what it adds to the aggregates, and what comes for one of them alone."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from braidmq.host import Address, Forward, Host, Reply, Service, handles
from braidmq.keys import Key, in_arc
from braidmq.overlay import Overlay
from braidmq.overlay.aggregates import Aggregate
from braidmq.overlay.peers import Peer
from braidmq.overlay.suzaku import Suzaku
from braidmq.select.group import ComponentGroup
from braidmq.select.interest import Interest
from braidmq.select.member import Member
from braidmq.select.messages import NotReserved, Release, Released, Renew, Renewed, Reserved, TakeAt
from braidmq.select.nodes import SearchNode, node_of

EXPIRE_EVERY_S = 1.0
"""How often leases that have run out are looked for, while there are some."""

ROUTE_HOPS_MAX = 64


class Aggregates(Enum):
    """Which aggregates travel with the updates of the overlay."""

    NONE = "none"
    CUT = "those of groups that are asked for, within these groups"
    ALL = "all, as in the papers"


class Members(Service):
    """What this broker offers, by the keys under which it stands."""

    def __init__(self, overlay: Overlay, aggregates: Aggregates = Aggregates.CUT, *, at_once: bool = False) -> None:
        """There are aggregates over Suzaku only."""
        self.overlay = overlay
        self.host: Host = overlay.host
        self.interest = Interest(self.host.now)
        self.members: dict[Key, Member] = {}
        self.on_freed: Callable[[Member, Address], None] = lambda _member, _address: None
        """Called with a member that has more free than before, and with the delegate that reserved there."""
        self._at_once = at_once
        self._is_expiring = False
        if isinstance(overlay, Suzaku) and aggregates is not Aggregates.NONE:
            overlay.value = self.value
        if isinstance(overlay, Suzaku) and aggregates is Aggregates.CUT:
            overlay.labels = self.interest.labels
            overlay.on_wanted = self.interest.asked
        self.host.serve(self)

    def offer(self, group: ComponentGroup, broker: str, incarnation: int = 0, resting_s: float = 0.0) -> Member:
        """A member of a group from now on; its components are added to it, and its key joins the overlay."""
        now = self.host.now()
        member = Member(group, group.key(broker), incarnation, now + resting_s if resting_s else 0.0)
        member.on_change = self._changed
        self.members[member.key] = member
        return member

    def value(self, key: Key) -> Aggregate:
        member = self.members.get(key)
        return {} if member is None else member.value(self.host.now())

    def here(self, key: Key) -> tuple[Member, Peer] | None:
        """The member at a key, if it stands there, with its node; leases that have run out are over."""
        member = self.members.get(key)
        node = None if member is None else self.node(key)
        if member is None or node is None:
            return None
        self._expire(member)
        return member, node.me

    def node(self, key: Key) -> SearchNode | None:
        return node_of(self.overlay, key)

    def _changed(self, key: Key) -> None:
        if self._at_once and isinstance(self.overlay, Suzaku):
            self.overlay.revise(key)

    # Leases

    def watch_leases(self) -> None:
        """Something was reserved: it may run out."""
        if not self._is_expiring:
            self._is_expiring = True
            self.host.spawn(self._expire_regularly())

    async def _expire_regularly(self) -> None:
        while any(member.first_end is not None for member in self.members.values()):
            await self.host.sleep(EXPIRE_EVERY_S)
            for member in self.members.values():
                self._expire(member)
        self._is_expiring = False

    def _expire(self, member: Member) -> None:
        for address in member.expire(self.host.now()):
            self.on_freed(member, address)

    @handles(Renew)
    def on_renew(self, origin: Address, asked: Renew) -> Reply:
        found = self.here(asked.to)
        lease_s = None if found is None else found[0].renew(asked.request, asked.fence, self.host.now())
        return Renewed(lease_s or 0.0)

    @handles(Release)
    def on_release(self, origin: Address, asked: Release) -> Reply:
        member = self.members.get(asked.to)
        if member is not None:
            address = member.release(asked.request, asked.fence)
            if address is not None:
                self.on_freed(member, address)
        return Released()

    # On the way to a member that is known

    @handles(TakeAt)
    def on_take_at(self, origin: Address, asked: TakeAt) -> Reply:
        """Reserves, or passes it on to the finger that is nearest before the goal."""
        if asked.to == asked.goal:
            found = self.here(asked.to)
            taken = None if found is None else found[0].take(asked.request, found[1], self.host.now())
            if taken is None:
                return NotReserved(asked.hops)
            self.watch_leases()
            return Reserved(taken, asked.hops)
        node = self.node(asked.to)
        if node is None or asked.hops >= ROUTE_HOPS_MAX:
            return NotReserved(asked.hops)
        best = node.link.right
        for finger in node.forward:
            is_nearer = best.key != asked.goal and in_arc(best.key, finger.peer.key, asked.goal)
            if is_nearer or finger.peer.key == asked.goal:
                best = finger.peer
        return Forward(best.address, TakeAt(best.key, asked.goal, asked.request, asked.hops + 1))
