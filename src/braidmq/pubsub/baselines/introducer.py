"""Introducers: for each topic a broker that knows a few members of the topic's own network, so that newcomers find it.

The owner of the topic's ID in the DHT on the Skip Graph is its introducer. Members register with it now and then; those
that do not are forgotten. Where it knows of none, the broker that asks founds a network, under a name by chance. When
networks of two names are registered, which a change of introducers or a partition can bring about, the smaller name
stays: members of the other one learn it when they register, and join there.
"""

from __future__ import annotations

from braidmq.bounded import BoundedDict
from braidmq.host import Address, Forward, Message, Reply, Service, handles
from braidmq.overlay.lookup import outcome
from braidmq.overlay.skip_graph import IdRouter, LostId, Walk, id_of
from braidmq.pubsub.baselines.rendezvous_tree import NUMBER_BITS, TOPICS_MAX

INTRODUCED_MAX = 8
"""Members that an introducer knows of a topic: the newest."""


class AskMembers(Message, tag="Introduce", frozen=True, array_like=True, gc=False):
    """Asks the introducer for members. `can` is the network that the asker is in; it leaves if `leaves`.

    `gone` are members that did not answer the asker.
    """

    topic: str
    walk: Walk
    member: Address
    can: int | None
    gone: tuple[Address, ...] = ()
    leaves: bool = False


class KnownMembers(Message, tag="Introduced", frozen=True, array_like=True, gc=False):
    """The topic's network and some of its members, the asker aside; if there are none, the asker founds it."""

    can: int
    members: tuple[Address, ...]


class TopicMembers:
    """What an introducer knows of a topic."""

    __slots__ = ("can", "members")

    def __init__(self, can: int) -> None:
        self.can = can
        self.members: BoundedDict[Address, float] = BoundedDict(INTRODUCED_MAX)
        """Until when each counts as a member; the newest last."""


class TopicIntroducer(Service):
    """A broker's part: as the introducer of some topics, and asking those of other topics."""

    def __init__(self, router: IdRouter, lease_s: float) -> None:
        self.router = router
        self.host = router.host
        self.topics: dict[str, TopicMembers] = {}
        self._lease_s = lease_s
        self.host.serve(self)

    async def ask(
        self, topic: str, can: int | None, gone: tuple[Address, ...] = (), leaves: bool = False
    ) -> KnownMembers | None:
        """What the introducer of a topic knows; None if it did not answer."""
        ask = AskMembers(topic, Walk(id_of(topic)), self.host.address, can, gone, leaves)
        answer = await outcome(self.host, self.on_introduce(self.host.address, ask))
        return answer if isinstance(answer, KnownMembers) else None

    @handles(AskMembers)
    def on_introduce(self, origin: Address, ask: AskMembers) -> Reply:
        step = self.router.step(ask.walk)
        if step is None:
            return LostId()
        if step.to is not None:
            return Forward(step.to, AskMembers(ask.topic, step.walk, ask.member, ask.can, ask.gone, ask.leaves))
        self._expire(ask)
        if ask.leaves:
            return KnownMembers(0, ())
        known = self.topics.get(ask.topic)
        if known is None and len(self.topics) >= TOPICS_MAX:
            return LostId()
        if known is None or (ask.can is not None and ask.can < known.can):
            name = self.host.chance.getrandbits(NUMBER_BITS) if ask.can is None else ask.can
            known = self.topics[ask.topic] = TopicMembers(name)
        if ask.can == known.can or not known.members:
            known.members.renew(ask.member, self.host.now() + self._lease_s)
        return KnownMembers(known.can, tuple([member for member in known.members if member != ask.member]))

    def _expire(self, ask: AskMembers) -> None:
        """Forgets members that have not registered lately, or are gone; and the topic, if none is left."""
        known = self.topics.get(ask.topic)
        if known is None:
            return
        now = self.host.now()
        gone = (*ask.gone, ask.member) if ask.leaves else ask.gone
        for address in [address for address, until in known.members.items() if until <= now or address in gone]:
            del known.members[address]
        if not known.members:
            del self.topics[ask.topic]
