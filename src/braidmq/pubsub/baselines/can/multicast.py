"""CAN-MC: a small content-addressable network for each topic, of its subscribers and publishers, that is flooded.

The network of all brokers only names an introducer for each topic (`introducer`): by the DHT on the Skip Graph here,
where the paper has a CAN of all. A newcomer asks a member for a zone: the wish travels to the holder of a random point
(and on to a larger neighbour, so that zones stay alike), which halves its zone. `flooding` has how publications spread.

Members tell their neighbours now and then what they hold and whom they know (`CanUpdate`). A member that does not know
the holder of what borders on its zones has that looked for (`CanProbe`). A silent member is dropped, and a zone that
nobody holds is taken over by the neighbour that waits least: the wait is as long as its own volume is large. A member
that leaves hands its zones to a neighbour. Now and then a member also has one elsewhere look for its own zone, so that
two halves of a network that was parted find each other.

There are no roles in a mini CAN, so a publisher cannot know whether anybody listens (§3.2.1): `publish` always sends,
and an advertised topic counts as wanted from the beginning.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from braidmq.host import Address, Forward, Reply, Service, ask, handles
from braidmq.overlay.skip_graph import IdRouter
from braidmq.pubsub.baselines.can.flooding import Flooding
from braidmq.pubsub.baselines.can.member import CanMember
from braidmq.pubsub.baselines.can.messages import (
    CanFlood,
    CanGranted,
    CanJoin,
    CanNoZone,
    CanProbe,
    CanTakenOver,
    CanTakeOver,
    CanUpdate,
    Course,
    Members,
)
from braidmq.pubsub.baselines.can.network import Can, Space, Zone
from braidmq.pubsub.baselines.introducer import KnownMembers, TopicIntroducer
from braidmq.pubsub.baselines.rendezvous_tree import LEASE_REFRESHES, NUMBER_BITS, REFRESH_S, RETRY_S
from braidmq.pubsub.method import OnDemand, OnMessage, Publication

DIMENSIONS = 2
UPDATES_A_REFRESH = 6
SILENT_UPDATES_MAX = 3.5
"""Periods of silence after which a member counts as gone."""

TAKE_OVER_S = 4.0
"""How long a member that holds the whole space would wait before it takes a zone over; others wait their share."""

CALL_TIMEOUT_S = 3.0
HEIRS_MAX = 3
"""Neighbours that are asked to take the zones of a member that leaves."""

MEND_TRIES = 12
MEND_TRIES_NEAR = 2
MEND_PAUSE_S = 0.2
"""How often, and after which pause each time, a member looks for neighbours that it should have, at first nearby."""


class CanMulticast(Service):
    """A broker's part. `refresh_s` None: nothing is renewed and no member expires, for networks that are laid out."""

    def __init__(
        self,
        router: IdRouter,
        on_message: OnMessage,
        on_demand: OnDemand,
        refresh_s: float | None = REFRESH_S,
        dimensions: int = DIMENSIONS,
    ) -> None:
        self.router = router
        self.host = router.host
        self.on_message: OnMessage = on_message
        self.on_demand: OnDemand = on_demand
        self.space = Space(dimensions)
        self.topics: dict[str, CanMember] = {}
        self._number = self.host.chance.getrandbits(NUMBER_BITS)
        self._flooding = Flooding(self.host, self.space, self._member, self._deliver)
        self.introducer = TopicIntroducer(router, inf if refresh_s is None else LEASE_REFRESHES * refresh_s)
        self.host.serve(self)
        if refresh_s is not None:
            self.host.spawn(self._update_regularly(refresh_s / UPDATES_A_REFRESH))

    # What the broker asks for

    async def subscribe(self, topic: str) -> None:
        part = self._part(topic)
        part.subscribed = True
        await self._enter(topic, part)

    async def unsubscribe(self, topic: str) -> None:
        part = self.topics.get(topic)
        if part is not None and part.subscribed:
            part.subscribed = False
            await self._leave(topic, part)

    async def advertise(self, topic: str) -> None:
        """Publishers are members too."""
        part = self._part(topic)
        if part.advertised:
            return
        part.advertised = True
        await self._enter(topic, part)
        if part.advertised:
            self.on_demand(topic, True)

    async def withdraw(self, topic: str) -> None:
        part = self.topics.get(topic)
        if part is not None and part.advertised:
            part.advertised = False
            await self._leave(topic, part)

    def publish(self, topic: str, body: bytes) -> bool:
        """Floods the topic's network, and is True: there is no telling which of its members subscribe."""
        part = self.topics.get(topic)
        if part is None or not part.advertised:
            raise ValueError(f"nothing can be published on {topic!r} before it is advertised")
        if part.can is None or not part.can.zones:
            return True  # its zones were lost, and it enters again: this publication goes nowhere
        self._number += 1
        zone = next(iter(part.can.zones))
        everywhere = (zone, self.space.dimensions, 0)  # as if it had come along one dimension more than there are
        start = self.space.centre(zone)
        me = self.host.address
        self._flooding.flood(
            part, part.can, CanFlood(topic, part.can.name, me, self._number, 0, body, start, (everywhere,))
        )
        return True

    def _deliver(self, publication: Publication) -> None:
        self.on_message(publication)

    def _part(self, topic: str) -> CanMember:
        part = self.topics.get(topic)
        if part is None:
            part = self.topics[topic] = CanMember()
        return part

    def _member(self, topic: str, name: int) -> tuple[CanMember | None, Can | None]:
        """This broker's part in a topic's network, if it is in that very one."""
        part = self.topics.get(topic)
        if part is None or part.can is None or part.can.name != name or not part.can.zones:
            return part, None
        return part, part.can

    # Joining

    async def _enter(self, topic: str, part: CanMember) -> None:
        """Returns when this broker holds a zone, however long that takes, or when it is not wanted any more."""
        while part.is_wanted and (part.is_entering or part.is_leaving):
            await part.next_change(self.host)
        if not part.is_wanted or (part.can is not None and part.can.zones):
            return
        part.is_entering = True
        gone: tuple[Address, ...] = ()
        while part.is_wanted:
            introduced = await self.introducer.ask(topic, None, gone)
            if introduced is not None:
                gone = await self._try_to_enter(topic, part, introduced)
                if part.can is not None:
                    break
            await self._pause()
        part.is_entering = False
        part.has_changed()
        if not part.is_wanted:
            await self._leave(topic, part)
        elif part.can is not None:
            await self.introducer.ask(topic, part.can.name)

    async def _try_to_enter(self, topic: str, part: CanMember, introduced: KnownMembers) -> tuple[Address, ...]:
        """Founds the network or asks a member for a zone; returns members that turned out to be gone."""
        can = Can(self.space, self.host.address, introduced.can)
        if not introduced.members:
            can.claim([""])
            self._enter_as(part, can)
            return ()
        chance = self.host.chance
        member = chance.choice(introduced.members)
        self._number += 1
        course = Course(self.space.any_point(chance))
        wish = CanJoin(topic, introduced.can, self.host.address, self._number, course)
        answer = await ask(self.host, member, wish, (CanGranted, CanNoZone), timeout_s=CALL_TIMEOUT_S)
        if answer is None:
            return (member,)
        if isinstance(answer, CanGranted):
            can.accept(answer.claim)
            self._enter_as(part, can)
            now = self.host.now()
            for address, claims in answer.members:
                if address != self.host.address:
                    can.hear(address, claims, now)
            self._tell(topic, can)
            self._mend(topic, part, can)
        return (member,) if isinstance(answer, CanNoZone) and not answer.is_member else ()

    def _enter_as(self, part: CanMember, can: Can) -> None:
        part.can = can
        can.on_change = part.has_changed
        part.has_changed()

    @handles(CanJoin)
    def on_join(self, origin: Address, join: CanJoin) -> Reply:
        part, can = self._member(join.topic, join.can)
        if can is None or part is None:
            return CanNoZone(part is not None and part.is_entering)
        granted = part.grants.get((join.newcomer, join.number))
        if granted is not None:
            return granted
        topic, newcomer, number, course = join.topic, join.newcomer, join.number, join.course
        zone = can.zone_of(course.point)
        if zone is None:
            on = self._step(can, course, newcomer)
            if on is None:
                return CanNoZone(True)
            return Forward(on[0], CanJoin(topic, join.can, newcomer, number, on[1], join.is_last))
        larger = None if join.is_last else can.larger(zone)
        if larger is not None and larger[0] != newcomer:
            there = Course(self.space.any_point(self.host.chance, larger[1]))
            return Forward(larger[0], CanJoin(topic, join.can, newcomer, number, there, True))
        return self._grant(part, can, join)

    def _grant(self, part: CanMember, can: Can, join: CanJoin) -> Reply:
        """Gives a newcomer half a zone."""
        members = self._members(can)
        given = can.split(join.course.point)
        if given is None:
            return CanNoZone(True)
        can.hear(join.newcomer, (given,), self.host.now())
        self._tell(join.topic, can, [address for address, _ in members])
        self._mend(join.topic, part, can)
        granted = part.grants[join.newcomer, join.number] = CanGranted(
            given, ((self.host.address, can.claims), *members)
        )
        return granted

    def _step(self, can: Can, course: Course, asker: Address) -> tuple[Address, Course] | None:
        """The next hop to a point, and what is left of the course; None if there is none."""
        nearest = can.nearest(course.point, asker)
        if nearest is None:
            return None
        detours = course.detours - (nearest[0] >= course.distance)
        return (nearest[1], Course(course.point, nearest[0], detours)) if detours >= 0 else None

    # Leaving

    async def _leave(self, topic: str, part: CanMember) -> None:
        """Hands the zones over, and is gone; unless it is wanted again, or still."""
        if part.is_wanted or part.is_entering or part.is_leaving:
            return
        part.is_leaving = True
        can = part.can
        if can is not None:
            await self._hand_over(topic, can)
            part.can = None
            for address in can.holders:
                self.host.send(address, CanUpdate(topic, can.name, (), ()))
            await self.introducer.ask(topic, can.name, leaves=True)
        part.is_leaving = False
        part.has_changed()
        if not part.is_wanted and self.topics.get(topic) is part:
            del self.topics[topic]

    async def _hand_over(self, topic: str, can: Can) -> None:
        for _ in range(HEIRS_MAX):
            heir = can.heir(next(iter(can.zones), ""))
            if heir is None or not can.zones:
                return
            take = CanTakeOver(topic, can.name, can.claims, self._members(can))
            if await ask(self.host, heir, take, CanTakenOver, timeout_s=CALL_TIMEOUT_S) is not None:
                return
            can.holders.pop(heir, None)

    @handles(CanTakeOver)
    def on_take_over(self, origin: Address, take: CanTakeOver) -> Reply:
        part, can = self._member(take.topic, take.can)
        if can is None or part is None or part.is_leaving:
            return CanNoZone(False)
        now = self.host.now()
        can.hear(origin, (), now)
        can.claim([zone for zone, _ in take.claims])
        for address, claims in take.members:
            if address not in can.holders and address != self.host.address:
                can.hear(address, claims, now)
        self._tell(take.topic, can)
        self._mend(take.topic, part, can)
        return CanTakenOver()

    # Neighbours

    def _members(self, can: Can) -> Members:
        return tuple([(address, holder.claims) for address, holder in can.holders.items()])

    def _tell(self, topic: str, can: Can, former: Iterable[Address] = ()) -> None:
        """Tells all neighbours, and former ones, what is held here."""
        update = CanUpdate(topic, can.name, can.claims, self._members(can))
        for address in {**can.holders, **dict.fromkeys(former)}:
            self.host.send(address, update)

    @handles(CanUpdate)
    def on_update(self, origin: Address, update: CanUpdate) -> Reply:
        part, can = self._member(update.topic, update.can)
        if part is None or can is None:
            if update.claims and (part is None or not part.is_entering):
                self.host.send(origin, CanUpdate(update.topic, update.can, (), ()))
            return None
        before, former = can.claims, list(can.holders)
        can.hear(origin, update.claims, self.host.now(), tuple([address for address, _ in update.members]))
        if can.claims != before:
            self._yielded(update.topic, part, can, former)
            return None
        mine = CanUpdate(update.topic, can.name, can.claims, self._members(can))
        named = next((claims for address, claims in update.members if address == self.host.address), None)
        if named != can.claims and (named is not None or can.is_near(update.claims)):
            self.host.send(origin, mine)
        for address, claims in update.members:
            if address != self.host.address and address not in can.holders and can.is_near(claims):
                self.host.send(address, mine)
        self._mend(update.topic, part, can)
        return None

    def _mend(self, topic: str, part: CanMember, can: Can) -> None:
        """Looks for the holders of what borders on own zones, if they are not known."""
        if can.holes() and not part.is_mending:
            part.is_mending = True
            self.host.spawn(self._look_for_neighbours(topic, part, can))

    async def _look_for_neighbours(self, topic: str, part: CanMember, can: Can) -> None:
        """By way of the neighbours first; then of members elsewhere, which may come there from another side."""
        chance = self.host.chance
        for tries in range(MEND_TRIES):
            await self.host.sleep(chance.uniform(0.5, 1.0) * MEND_PAUSE_S)
            introduced = await self.introducer.ask(topic, can.name) if tries >= MEND_TRIES_NEAR else None
            via = list(introduced.members if introduced is not None else can.holders)
            if part.can is not can or not can.holes() or not via:
                break
            for hole in can.holes():
                point = self.space.any_point(chance, hole)
                probe = CanProbe(topic, can.name, self.host.address, can.claims, Course(point))
                self.host.send(chance.choice(via), probe)
        part.is_mending = False

    def _yielded(self, topic: str, part: CanMember, can: Can, former: list[Address]) -> None:
        """Another member had a better right to some of what was held here."""
        self._tell(topic, can, former)
        if can.zones:
            self._mend(topic, part, can)
        else:
            part.can = None
            self.host.spawn(self._enter(topic, part))

    @handles(CanProbe)
    def on_probe(self, origin: Address, probe: CanProbe) -> Reply:
        _, can = self._member(probe.topic, probe.can)
        if can is None or probe.member == self.host.address:
            return None
        if can.zone_of(probe.course.point) is None:
            on = self._step(can, probe.course, probe.member)
            return Forward(on[0], CanProbe(probe.topic, probe.can, probe.member, probe.claims, on[1])) if on else None
        if not can.is_near(probe.claims):  # it may be near to one of the neighbours
            self.host.send(probe.member, CanUpdate(probe.topic, can.name, can.claims, self._members(can)))
            return None
        return self.on_update(probe.member, CanUpdate(probe.topic, probe.can, probe.claims, ()))

    # What is done again and again

    async def _update_regularly(self, update_s: float) -> None:
        """One task a broker, for all its topics."""
        rounds = 0
        while True:
            await self.host.sleep(self.host.chance.uniform(0.75, 1.0) * update_s)
            rounds += 1
            for topic, part in list(self.topics.items()):
                can = part.can
                if can is None or part.is_leaving:
                    continue
                now = self.host.now()
                heard_at = can.forget_silent(now - SILENT_UPDATES_MAX * update_s)
                self._tell(topic, can)
                since = now if heard_at is None else heard_at + SILENT_UPDATES_MAX * update_s
                self._look_for_vacancies(topic, part, can, since + update_s)
                if rounds % UPDATES_A_REFRESH == 0:
                    self.host.spawn(self._register(topic, part, can))

    def _look_for_vacancies(self, topic: str, part: CanMember, can: Can, grace_until: float) -> None:
        """All neighbours of a zone that is vacant notice it within a period, and then wait for each other."""
        for zone in can.vacancies():
            if zone not in part.taking_over:
                part.taking_over.add(zone)
                self.host.spawn(self._take_over(topic, part, can, zone, grace_until))

    async def _take_over(self, topic: str, part: CanMember, can: Can, zone: Zone, grace_until: float) -> None:
        """Takes a zone that nobody holds, unless a member with less does so before."""
        await self.host.sleep(grace_until - self.host.now() + TAKE_OVER_S * can.volume)
        part.taking_over.discard(zone)
        vacancies = can.vacancies()
        if part.can is can and not part.is_leaving and zone in vacancies:
            can.claim([zone])
            self._tell(topic, can, [address for address in vacancies[zone] if address != self.host.address])
            self._mend(topic, part, can)
            self._look_for_vacancies(topic, part, can, self.host.now() + MEND_PAUSE_S)

    async def _register(self, topic: str, part: CanMember, can: Can) -> None:
        """Lets the introducer know that this member is there, and has a member elsewhere look for its zone."""
        introduced = await self.introducer.ask(topic, can.name)
        if introduced is None or part.can is not can or part.is_leaving or not can.zones:
            return
        if introduced.can < can.name:
            for address in can.holders:
                self.host.send(address, CanUpdate(topic, can.name, (), ()))
            part.can = None
            await self._enter(topic, part)
        elif introduced.members:
            point = self.space.centre(next(iter(can.zones)))
            probe = CanProbe(topic, can.name, self.host.address, can.claims, Course(point))
            self.host.send(self.host.chance.choice(introduced.members), probe)

    async def _pause(self) -> None:
        await self.host.sleep(self.host.chance.uniform(0.25, 1.0) * RETRY_S)
