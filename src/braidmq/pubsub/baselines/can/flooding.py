"""How a publication spreads over the mini CAN of its topic (Banno et al. 2015, §3.1).

A publisher sends to all neighbours. A member that gets a publication along dimension i passes it on along dimensions 1
to i - 1 both ways, and along i in the same direction, but not where it has come half way round already. Where zones
differ in size, copies meet: the first one is delivered, and a later one is passed on only in the directions that
earlier ones left out, so that all zones are reached whatever their shape.
"""

from __future__ import annotations

from collections.abc import Callable

from braidmq.host import Address, Host, Reply, Service, handles
from braidmq.pubsub.baselines.can.member import CanMember
from braidmq.pubsub.baselines.can.messages import CanFlood, Way
from braidmq.pubsub.baselines.can.network import Can, Space, overlap
from braidmq.pubsub.method import OnMessage, Publication

HOLE_S = 0.5
HELD_MAX = 1024
"""How long a publication waits for neighbours that are not known, or for an own zone, and how many do at a time."""

MemberOf = Callable[[str, int], tuple[CanMember | None, Can | None]]
"""This broker's part in a topic, and its network if it is in the one of this name."""


class Flooding(Service):
    """A broker's part in spreading publications."""

    __slots__ = ("_held", "_host", "_member_of", "_on_message", "_space")

    def __init__(self, host: Host, space: Space, member_of: MemberOf, on_message: OnMessage) -> None:
        self._host = host
        self._space = space
        self._member_of = member_of
        self._on_message = on_message
        self._held = 0
        """Publications that wait until all neighbours are known."""
        host.serve(self)

    @handles(CanFlood)
    def on_flood(self, _origin: Address, flood: CanFlood) -> Reply:
        member, can = self._member_of(flood.topic, flood.can)
        if member is not None and can is not None:
            self.flood(member, can, flood)
        elif member is not None and member.is_entering and self._held < HELD_MAX:
            self._host.spawn(self._flood_when_in(member, flood))
        return None

    async def _flood_when_in(self, member: CanMember, flood: CanFlood) -> None:
        """Neighbours may know of a zone before the member that holds it."""
        ends_at = self._host.now() + HOLE_S
        self._held += 1
        while member.is_entering and member.can is None and self._host.now() < ends_at:
            await member.next_change(self._host, ends_at - self._host.now())
        self._held -= 1
        _, can = self._member_of(flood.topic, flood.can)
        if can is not None:
            self.flood(member, can, flood)

    def flood(self, member: CanMember, can: Can, flood: CanFlood) -> None:
        """Passes a publication on, and delivers it here if it is new and wanted."""
        sent = member.floods.get((flood.origin, flood.number))
        is_new = sent is None
        if sent is None:
            sent = member.floods[flood.origin, flood.number] = set()
        if can.holes() and self._held < HELD_MAX:
            self._host.spawn(self._pass_on_later(member, can, flood, sent))
        else:
            self._pass_on(can, flood, sent)
        if is_new and member.subscribed:
            self._on_message(Publication(flood.topic, flood.body, flood.origin, flood.number, flood.hops))

    async def _pass_on_later(self, member: CanMember, can: Can, flood: CanFlood, sent: set[Way]) -> None:
        """A neighbour has given a part of its zone away, and its new holder is not known here yet, but soon."""
        ends_at = self._host.now() + HOLE_S
        self._held += 1
        while can.holes() and self._host.now() < ends_at:
            await member.next_change(self._host, ends_at - self._host.now())
        self._held -= 1
        self._pass_on(can, flood, sent)

    def _pass_on(self, can: Can, flood: CanFlood, sent: set[Way]) -> None:
        for to, ways in self._ways_on(can, flood, sent).items():
            on = CanFlood(
                *(flood.topic, flood.can, flood.origin, flood.number),
                *(flood.hops + 1, flood.body, flood.start, tuple(ways)),
            )
            self._host.send(to, on)

    def _ways_on(self, can: Can, flood: CanFlood, sent: set[Way]) -> dict[Address, list[Way]]:
        """Where a publication goes from here: to whom, and by which ways. Own zones pass it to each other at once."""
        found: dict[Address, list[Way]] = {}
        ways = [(mine, *way[1:]) for way in flood.ways for mine in can.zones if overlap(mine, way[0])]
        for way in flood.ways:
            _pass_to_heirs(can, way, sent, found)
        while ways:
            zone, came, direction = ways.pop()
            for dimension, sign in self._space.directions():
                if dimension > came or (dimension == came and sign != direction) or (zone, dimension, sign) in sent:
                    continue
                sent.add((zone, dimension, sign))
                if self._space.has_come_half_way(zone, flood.start[dimension], dimension, sign):
                    continue
                for address, other in can.neighbours(zone, dimension, sign):
                    if address == self._host.address:
                        ways.append((other, dimension, sign))
                    else:
                        found.setdefault(address, []).append((other, dimension, sign))
        return found


def _pass_to_heirs(can: Can, way: Way, sent: set[Way], found: dict[Address, list[Way]]) -> None:
    """What comes to a zone of which a part was given away meanwhile comes to the holder of that part, too."""
    zone, came, direction = way
    for address, holder in can.holders.items():
        for theirs, _ in holder.claims:
            passed = (theirs, came, direction)
            if theirs != zone and theirs.startswith(zone) and passed not in sent:
                sent.add(passed)
                found.setdefault(address, []).append(passed)
