"""Instances of components: clients here that have a shared subscription `$share/<component>/…`.

Each has a topic of its own, to which its broker subscribes for it, and can be reserved once that has taken effect in
the whole braid, while it is connected. This broker is a member of the component's group for all its instances.

What happens to sessions is not acted on at once but looked at when it is through: what a session has then is compared
with what is known of it here. So it does not matter in which order things happen to it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import msgspec

from braidmq.bounded import BoundedDict
from braidmq.braid.membership.presence import Presence
from braidmq.braid.selection.group_names import group_topic
from braidmq.braid.selection.hold_rows import MovedInstance
from braidmq.broker.broker import Broker
from braidmq.broker.component_topics import instance_topic
from braidmq.broker.member_load import MemberLoad
from braidmq.broker.session import Session
from braidmq.broker.subscription import Subscribed
from braidmq.host import Event, Host
from braidmq.mqtt.topics import split_share
from braidmq.select import Component, ComponentGroup, Selector
from braidmq.select.member import COMPONENTS_MAX, Member

COMPONENTS_HERE_MAX: Final = 1_000
"""Components of which a broker has instances: with more of them, the others cannot be reserved here."""

LINGER_S: Final = 30.0
"""How long a broker stays in a group that it has no instance of any more: most come back."""

BROUGHT_MAX: Final = 10_000
"""Instances that come from other brokers at a time."""

TENTHS_SINCE: Final = 1_750_000_000
"""Fencing numbers begin with the tenths of a second since then, by the broker's clock."""

SLOTS: Final = 1
"""Of an instance that does not say how many it has: whoever reserves it has it alone."""

_log = logging.getLogger("braidmq.braid")


class LocalInstance(msgspec.Struct):
    """A client, as one of a component."""

    component: str
    client_id: str
    topic: str
    slots: int = SLOTS
    """As it says, or as is assumed."""
    attributes: dict[str, float] = msgspec.field(default_factory=dict)
    load: MemberLoad | None = None
    """What it says of itself, as far as that counts for shared subscriptions."""
    is_effective: bool = False
    """Whether its own topic has taken effect: not before that can it be reserved."""
    reported_at: float = float("-inf")


class Instances:
    def __init__(
        self, broker: Broker, host: Host, presence: Presence, selector: Selector, name: str, cluster: str
    ) -> None:
        self._broker = broker
        self._host = host
        self._presence = presence
        self._selector = selector
        self.broker_name = name
        self._cluster = cluster
        self.on_member: Callable[[Member], None] = lambda _member: None
        """Called with a member that is made, before anything is reserved there."""
        self.on_load: Callable[[Session, str, MemberLoad], None] = lambda _session, _component, _load: None
        """Called with what a client says of itself as one of a component."""
        self.on_first: Callable[[], None] = lambda: None
        """Called when there is an instance."""
        self.members: dict[str, Member] = {}
        """By component: this broker as a member of its group."""
        self._by_client: dict[str, dict[str, LocalInstance]] = {}
        self._standing: dict[str, None] = {}
        """Components for which this broker is in the overlay, or on its way."""
        self._changing: dict[str, Event] = {}
        """Those for which it is just joining or leaving it."""
        self._sharing: dict[str, None] = {}
        """Clients that have, or had, shared subscriptions: those whose sessions are looked at."""
        self._due: dict[str, None] = {}
        self._brought: BoundedDict[tuple[str, str], MovedInstance] = BoundedDict(BROUGHT_MAX)
        """By client and component: instances that come from other brokers, until their sessions are looked at."""

    def start(self) -> None:
        """Looks at all sessions that are there from before."""
        for client_id, session in self._broker.sessions.items():
            if components_of(session):
                self._sharing[client_id] = None
                self._look_later(client_id)

    def __iter__(self) -> Iterator[LocalInstance]:
        return (one for some in self._by_client.values() for one in some.values())

    def get(self, component: str, client_id: str) -> LocalInstance | None:
        return self._by_client.get(client_id, {}).get(component)

    def of(self, component: str, session: Session) -> LocalInstance | None:
        """What a client is of a component, also if it has subscribed just now and was not looked at yet."""
        found = self.get(component, session.client_id)
        if found is None and component in components_of(session):
            self._compare(session.client_id, session)
            found = self.get(component, session.client_id)
        return found

    def member(self, component: str) -> Member:
        """This broker as a member of a component's group: made if it is not there."""
        member = self.members.get(component)
        if member is None:
            group = ComponentGroup(group_topic(component), self._cluster)
            member = self._selector.members.offer(group, self.broker_name, self._incarnation())
            self.members[component] = member
            self.on_member(member)
        return member

    def _incarnation(self) -> int:
        return int((self._broker.now() - TENTHS_SINCE) * 10)

    # What happens to sessions

    def on_share(self, session: Session) -> None:
        self._sharing[session.client_id] = None
        self._look_later(session.client_id)

    def on_arrived(self, client_id: str) -> None:
        """A session has come from another broker; its subscriptions were there before it was."""
        session = self._broker.sessions.get(client_id)
        if session is not None and components_of(session):
            self.on_share(session)

    def on_presence(self, session: Session) -> None:
        if session.client_id in self._sharing:
            self._look_later(session.client_id)

    def _look_later(self, client_id: str) -> None:
        if not self._due:
            self._host.spawn(self._look())
        self._due[client_id] = None

    async def _look(self) -> None:
        due, self._due = self._due, {}
        for client_id in due:
            self._compare(client_id, self._broker.sessions.get(client_id))
        self._broker.request_flush()

    def _compare(self, client_id: str, session: Session | None) -> None:
        wanted = {} if session is None else components_of(session)
        known = self._by_client.setdefault(client_id, {})
        for component in [one for one in known if one not in wanted]:
            self._remove(known.pop(component), session)
        for component in [one for one in wanted if one not in known]:
            if session is not None and self._has_room(component):
                known[component] = self._new(component, client_id)
                self.on_first()
                shared = [split_share(one)[1] for one in session.subscriptions if one.startswith("$share/")]
                self._broker.federation.when_effective(shared, partial(self._add, known[component]))
        for instance in known.values():
            self._offer(instance)
            self._tell_load(instance)
        if not known:
            del self._by_client[client_id]
        if not wanted and session is None:
            self._sharing.pop(client_id, None)

    def _new(self, component: str, client_id: str) -> LocalInstance:
        instance = LocalInstance(component, client_id, instance_topic(component, client_id))
        moved = self._brought.pop((client_id, component), None)
        if moved is not None:
            instance.slots = SLOTS if moved.slots is None else moved.slots
            instance.attributes = moved.attributes
            instance.load = MemberLoad().told(moved.slots, moved.attributes)
        return instance

    def bring(self, client_id: str, moved: MovedInstance) -> None:
        """An instance comes from another broker, with what it has said of itself."""
        known = self._by_client.get(client_id)
        if known is not None:  # of an older session here
            known.pop(moved.component, None)
        self._brought[client_id, moved.component] = moved

    def moved(self, client_id: str) -> list[MovedInstance]:
        """What a client is, or was, an instance of, for the broker that its session goes to."""
        known = self._by_client.get(client_id, {})
        found = []
        for component, member in self.members.items():
            instance = known.get(component)
            if instance is not None and instance.load is not None:
                found.append(MovedInstance(component, member.version[0], instance.load.slots, instance.attributes))
            elif instance is not None or client_id in member.components:
                found.append(MovedInstance(component, member.version[0]))
        return found

    def _has_room(self, component: str) -> bool:
        member = self.members.get(component)
        has_room = (
            len(self.members) < COMPONENTS_HERE_MAX if member is None else len(member.components) < COMPONENTS_MAX
        )
        if not has_room:
            _log.warning("no more components can be reserved at this broker: an instance of %r is left out", component)
        return has_room

    def _add(self, instance: LocalInstance) -> None:
        """What the client itself has subscribed to has taken effect: its own topic does not come before that."""
        session = self._broker.sessions.get(instance.client_id)
        if session is None or self.get(instance.component, instance.client_id) is not instance:
            return
        if instance.topic not in session.subscriptions:
            self._broker.sessions.subscribe(session, instance.topic, Subscribed(min(2, self._broker.limits.qos_max)))
        self._broker.federation.when_effective([instance.topic], partial(self._effective, instance))

    def _effective(self, instance: LocalInstance) -> None:
        instance.is_effective = True
        self._offer(instance)

    def _remove(self, instance: LocalInstance, session: Session | None) -> None:
        if session is not None:
            self._broker.sessions.unsubscribe(session, instance.topic)
        member = self.members.get(instance.component)
        if member is not None and instance.client_id in member.components:
            member.remove(instance.client_id)
            if not member.components:
                self._host.spawn(self._leave_later(instance.component))

    # What can be reserved

    def _offer(self, instance: LocalInstance) -> None:
        """Its slots, while it is here and can be reached."""
        if not instance.is_effective or self.get(instance.component, instance.client_id) is not instance:
            return
        session = self._broker.sessions.get(instance.client_id)
        slots = instance.slots if session is not None and session.connection is not None else 0
        member = self.member(instance.component)
        known = member.components.get(instance.client_id)
        if known is not None and (known.slots, known.attributes) == (slots, instance.attributes):
            return
        if known is None:
            member.rise(self._incarnation())
            member.add(Component(instance.client_id, slots, dict(instance.attributes)))
        else:
            if not known.slots:
                member.rise(self._incarnation())
            known.attributes = dict(instance.attributes)
            member.set_slots(instance.client_id, slots)
        self._host.spawn(self._stand(member, instance.component))

    async def _stand(self, member: Member, component: str) -> None:
        """Is in the overlay for a component, and has its delegates know what can be reserved here."""
        await self._presence.entered.wait()
        await self._change(component)
        await self._selector.announce(member)

    async def _leave_later(self, component: str) -> None:
        await self._host.sleep(LINGER_S)
        await self._change(component)

    async def _change(self, component: str) -> None:
        """Joins or leaves the overlay for a component, as is right now; one at a time, and looked at again after it."""
        while component in self._changing:
            await self._changing[component].wait()
        changing = self._changing[component] = self._host.event()
        try:
            while (member := self.members.get(component)) is not None:
                is_wanted = bool(member.components or member.held) and not self._presence.is_leaving
                if is_wanted == (component in self._standing):
                    break
                if is_wanted:
                    self._standing[component] = None
                    await self._selector.overlay.join(member.key)
                else:
                    del self._standing[component]
                    await self._selector.overlay.leave(member.key)
            if member is not None and not member.components and not member.held:
                del self.members[component]
                self._selector.members.members.pop(member.key, None)
        finally:
            del self._changing[component]
            changing.set()

    async def leave(self) -> None:
        """The broker ends: it is no member any more."""
        for component in list(self._standing):
            await self._change(component)

    # What they say of themselves

    def report(self, instance: LocalInstance, slots: int | None, attributes: dict[str, float], now: float) -> None:
        """An instance says how it is; what it does not mention stays as it was."""
        instance.reported_at = now
        instance.slots = instance.slots if slots is None else slots
        instance.attributes = {**instance.attributes, **attributes}
        instance.load = (instance.load or MemberLoad()).told(slots, attributes)
        self._offer(instance)
        self._tell_load(instance)

    def _tell_load(self, instance: LocalInstance) -> None:
        session = self._broker.sessions.get(instance.client_id)
        if session is not None and instance.load is not None:
            self.on_load(session, instance.component, instance.load)


def components_of(session: Session) -> dict[str, None]:
    """The components that a client is an instance of."""
    shared = [full_filter for full_filter in session.subscriptions if full_filter.startswith("$share/")]
    return {name: None for name, _ in map(split_share, shared) if name is not None}
