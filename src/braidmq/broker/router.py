"""Which session gets what: all subscriptions, and the routes that are made of them.

The fast path asks only `routes`, a bounded dictionary from a topic as it stands on the wire to its `Route`. On a miss
the tree of filters is walked once. A change of one plain filter drops one route; a change of a wildcard drops them all.
Topics are many, so a route is small: the receivers that many topics have in common are kept once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from braidmq.broker.client import ConnectedClient
from braidmq.broker.federation import Alone, Federation, Outbound
from braidmq.broker.feed import TopicFeed
from braidmq.broker.local_topics import is_brokers_own, is_local
from braidmq.broker.packet_ids import PACKET_ID_MAX
from braidmq.broker.session import Session
from braidmq.broker.share_policies import NEAR, SharePolicy
from braidmq.broker.shares import ShareGroup
from braidmq.broker.subscription import Subscribed
from braidmq.mqtt.errors import PacketError
from braidmq.mqtt.packets import V3, V5
from braidmq.mqtt.topics import check_topic, has_wildcard, split_share
from braidmq.mqtt.trees import FilterTree
from braidmq.mqtt.wire import string, text_of

KEPT_AT_ONCE = 64
"""Deliveries that a run makes at most, to sessions that keep each for itself."""

ARRIVING_MAX = 8192
"""Topics of other brokers whose receivers here are remembered: to find them again is not dear."""

SHARED_MAX = 1024
"""Sets of wildcards whose receivers are kept for all topics that they match."""

THINNED_OUT = 8
"""When no more routes can be remembered, one of so many goes."""

LEVEL_BYTES = 200
"""What a level of a filter costs in the tree, if no other filter has it."""


def filter_cost(full_filter: str) -> int:
    """The memory, in bytes, that a filter may take up."""
    return len(full_filter.encode()) + LEVEL_BYTES * (full_filter.count("/") + 1)


class Target:
    """One session that a topic reaches, whatever the number of its filters that match: one copy, all identifiers."""

    __slots__ = ("ids", "no_local", "own", "qos", "retain_as_published", "session")

    def __init__(self, session: Session) -> None:
        self.session = session
        self.qos = 0
        self.no_local = False
        self.own: Target | None = None
        """Where `no_local` is set: what holds for the session's own publications, None if it wants none of them."""
        self.retain_as_published = False
        self.ids: tuple[int, ...] = ()

    def add(self, subscribed: Subscribed) -> None:
        self.qos = max(self.qos, subscribed.qos)
        self.retain_as_published = self.retain_as_published or subscribed.retain_as_published
        if subscribed.identifier:
            self.ids += (subscribed.identifier,)


def target_of(session: Session, subscriptions: list[Subscribed]) -> Target:
    target = Target(session)
    for subscribed in subscriptions:
        target.add(subscribed)
    if any(subscribed.no_local for subscribed in subscriptions):
        target.no_local = True
        others = [subscribed for subscribed in subscriptions if not subscribed.no_local]
        target.own = target_of(session, others) if others else None
    return target


class Receivers:
    """Who gets a topic here; topics that only wildcards match have it in common, if the same ones match them.

    `plain3` and `plain5` hold, by protocol version, the connections that take a QoS 0 publication as plain bytes;
    `special` the targets that need it made for them (identifiers, no-local, aliases, a packet size bound, or away).
    """

    __slots__ = (
        "groups",
        "is_plain",
        "is_shared",
        "mixed",
        "plain3",
        "plain5",
        "special",
        "sure",
        "sure_version",
        "targets",
    )

    def __init__(self, audiences: Iterable[Audience], is_arriving: bool = False) -> None:
        """What `is_arriving` from another broker is not for groups: that broker gives it to one member of each."""
        self.is_shared = False
        found: dict[Session, list[Subscribed]] = {}
        self.groups: list[ShareGroup] = []
        for audience in audiences:
            for session, subscribed in audience.members.items():
                found.setdefault(session, []).append(subscribed)
            if not is_arriving:
                self.groups.extend([group for group in audience.groups.values() if group.has_anybody])
        self.targets = [target_of(session, subscriptions) for session, subscriptions in found.items()]
        self.plain3: list[ConnectedClient] = []
        self.plain5: list[ConnectedClient] = []
        self.special: list[Target] = []
        for target in self.targets:
            connection = target.session.connection
            if connection is None or target.ids or target.no_local or not target.session.takes_plain:
                self.special.append(target)
            elif connection.version == V3:
                self.plain3.append(connection)
            else:
                self.plain5.append(connection)
        self.mixed = any(session in found for group in self.groups for session in group.members)
        """Whether a session is reached both by itself and in a group: then its copies must keep step."""
        self.is_plain = not self.special and not self.groups and all(target.qos > 0 for target in self.targets)
        """Whether all of them take QoS 1 and 2, and take it plain."""
        self.sure: list[Target] | None = None
        """The receivers of QoS 1 and 2, if they are plain and none of them must keep it."""
        if self.is_plain and not any(target.session.durable for target in self.targets):
            self.sure = self.targets
        self.sure_version = 0
        """The version of all of these, if there are any and they have only one."""
        if self.sure and bool(self.plain3) != bool(self.plain5):
            self.sure_version = V3 if self.plain3 else V5

    def room_for_run(self, publisher: Session | None) -> int:
        """How many publications of QoS 1 or 2 can be given to all receivers at once; at least one, since that is looked
        at with care. To a publisher that is a receiver itself copies and acknowledgements take turns."""
        if not self.is_plain:
            return 1
        room = PACKET_ID_MAX if self.sure is not None else max(1, KEPT_AT_ONCE // len(self.targets))
        for target in self.targets:
            session = target.session
            if session is publisher or not session.ready:
                return 1
            if session.free < room:
                room = session.free
        return room

    def void(self) -> None:
        """It no longer holds: a connection that remembers it must not keep alive receivers that have left."""
        self.plain3.clear()
        self.plain5.clear()


class Route:
    """Where the publications of one topic go."""

    __slots__ = ("feed", "logged", "outbound", "receivers")

    def __init__(
        self, receivers: Receivers, feed: TopicFeed | None, logged: bool = False, outbound: Outbound | None = None
    ) -> None:
        self.receivers = receivers
        self.feed = feed
        """What message processors get of it, if it is the topic of any."""
        self.logged = logged
        """Whether publications of clients here are logged, to be read later."""
        self.outbound = outbound
        """Where publications of clients here leave for other brokers, if they may be wanted there."""


class Audience:
    """All that subscribed with one filter."""

    __slots__ = ("groups", "holds", "is_announced", "is_wild", "members")

    def __init__(self, is_wild: bool) -> None:
        self.is_wild = is_wild
        """Whether the filter has a wildcard."""
        self.members: dict[Session, Subscribed] = {}
        self.groups: dict[str, ShareGroup] = {}
        self.holds = 0
        """How many want it without a session: message processors."""
        self.is_announced = False
        """Whether it is wanted here, and not only shared: then other brokers are told."""

    @property
    def has_anybody(self) -> bool:
        return self.is_announced or any(group.has_anybody for group in self.groups.values())


class Router:
    def __init__(self, routes_max: int) -> None:
        self.routes: dict[bytes, Route] = {}
        """Of topics that are published here."""
        self.version = 0
        """Grows whenever a route that is remembered anywhere may have changed."""
        self.routes_max = routes_max
        self.federation: Federation = Alone()
        """The way to other brokers."""
        self.feed_for: Callable[[str], TopicFeed | None] = _nobody
        """What message processors get of a topic."""
        self.is_logged: Callable[[str], bool] = _never
        """Whether what is published to a topic here is logged, to be read later."""
        self.share_policies: Mapping[str, SharePolicy] = {}
        """By the name of a group; those that are not there are `near`."""
        self._arriving: dict[str, Route] = {}
        """Of topics that come from other brokers."""
        self._shared: dict[tuple[tuple[Audience, ...], bool], Receivers] = {}
        """By the wildcards that match, and whether it comes from another broker: the receivers of all topics that these
        match, and no other filter does."""
        self._tree: FilterTree[Audience] = FilterTree()
        self._filters: dict[str, None] = {}

    def filters(self) -> list[str]:
        """All filters that have a subscription which is not shared."""
        return list(self._filters)

    def route(self, topic: str, name: bytes | None = None) -> Route:
        """Where what is published here to a valid topic name goes; remembered by its bytes on the wire."""
        if is_brokers_own(topic):  # no client may publish there: never on the fast path
            return Route(self._receivers(topic), self._feed_of(topic), self.is_logged(topic))
        if name is None:
            name = string(topic)
        return self.routes.get(name) or self._remember(topic, name)

    def _feed_of(self, topic: str) -> TopicFeed | None:
        return self.federation.feed_for(topic) or self.feed_for(topic)

    def new_route(self, name: bytes, levels_max: int) -> Route | None:
        """The route of a topic of which nothing is known but its bytes; None if it has to be looked at with care."""
        if name[2:3] == b"$":
            return None
        try:
            topic = text_of(name[2:])
            check_topic(topic, levels_max)
        except PacketError:
            return None
        return self._remember(topic, name)

    def _remember(self, topic: str, name: bytes) -> Route:
        outbound = self.federation.outbound_for(topic)
        route = Route(self._receivers(topic), self._feed_of(topic), self.is_logged(topic), outbound)
        if len(self.routes) >= self.routes_max:
            self._thin_out(self.routes)
        self.routes[name] = route
        return route

    def arriving(self, topic: str) -> Route:
        """Where what comes from another broker goes here; remembered for some of the topics."""
        route = self._arriving.get(topic)
        if route is None:
            route = Route(self._receivers(topic, is_arriving=True), self._feed_of(topic))
            if is_local(topic):
                return route
            if len(self._arriving) >= min(ARRIVING_MAX, self.routes_max):
                self._thin_out(self._arriving)
            self._arriving[topic] = route
        return route

    def _receivers(self, topic: str, is_arriving: bool = False) -> Receivers:
        audiences = tuple(self._tree.match(topic))
        is_arriving = is_arriving and any(audience.groups for audience in audiences)
        shared = self._shared.get((audiences, is_arriving))
        if shared is None:
            shared = Receivers(audiences, is_arriving)
            if all(audience.is_wild for audience in audiences) and len(self._shared) < SHARED_MAX:
                shared.is_shared = True
                self._shared[audiences, is_arriving] = shared
        return shared

    def _thin_out(self, routes: dict[Any, Route]) -> None:
        """Makes room for others. Not the oldest go, or a fleet that is larger would never find one again."""
        for name in list(routes)[::THINNED_OUT]:
            self._void(routes.pop(name))

    def _void(self, route: Route) -> None:
        """A route is no longer remembered here. Its receivers, if others have them in common, still hold."""
        if not route.receivers.is_shared:
            self.version += 1
            route.receivers.void()

    def subscribe(self, session: Session, full_filter: str, subscribed: Subscribed) -> bool:
        """Adds or replaces a subscription; True if it is a new one."""
        share, topic_filter = split_share(full_filter)
        if share is not None:
            return self._join(session, self.group_for(full_filter), subscribed)
        audience = self._audience(topic_filter)
        self._announce(topic_filter, audience, True)
        new = session not in audience.members
        audience.members[session] = subscribed
        self.forget(full_filter)
        return new

    def _join(self, session: Session, group: ShareGroup, subscribed: Subscribed) -> bool:
        new = session not in group.members
        group.members[session] = subscribed
        session.shares = True
        self.forget(group.full_filter)
        self.federation.on_group(group)
        self.federation.on_share(session)
        return new

    def unsubscribe(self, session: Session, full_filter: str) -> bool:
        """Removes a subscription; False if there was none."""
        share, topic_filter = split_share(full_filter)
        if share is not None:
            group = self.group(full_filter)
            return group is not None and self._leave(session, group)
        audience = self._tree.get(topic_filter)
        if audience is None:
            return False
        existed = audience.members.pop(session, None) is not None
        self._update(topic_filter, audience)
        self.forget(full_filter)
        return existed

    def _leave(self, session: Session, group: ShareGroup) -> bool:
        if group.members.pop(session, None) is None:
            return False
        group.loads.pop(session, None)
        self.forget(group.full_filter)
        self.drop_unused(group)
        self.federation.on_group(group)
        self.federation.on_share(session)
        return True

    def hold(self, topic_filter: str) -> None:
        """A message processor wants what a filter matches, from any broker."""
        audience = self._audience(topic_filter)
        self._announce(topic_filter, audience, True)
        audience.holds += 1

    def release(self, topic_filter: str) -> None:
        audience = self._audience(topic_filter)
        audience.holds -= 1
        self._update(topic_filter, audience)

    def _audience(self, topic_filter: str) -> Audience:
        audience = self._tree.get(topic_filter)
        if audience is None:
            audience = Audience(has_wildcard(topic_filter))
            self._tree.set(topic_filter, audience)
        return audience

    def _update(self, topic_filter: str, audience: Audience) -> None:
        """Somebody has gone: perhaps the last, or the last that does not share it with others."""
        is_wanted = bool(audience.members or audience.holds or (audience.groups and is_local(topic_filter)))
        if not is_wanted and not audience.groups:
            self._tree.remove(topic_filter)
        self._announce(topic_filter, audience, is_wanted)

    def _announce(self, topic_filter: str, audience: Audience, is_wanted: bool) -> None:
        """Other brokers may have to be told whether a filter is wanted here; of groups they know in another way."""
        if is_wanted == audience.is_announced:
            return
        audience.is_announced = is_wanted
        if is_wanted:
            self._filters[topic_filter] = None
        else:
            self._filters.pop(topic_filter, None)
        self.federation.on_filter(topic_filter, is_wanted)

    # Shared subscriptions

    def groups(self) -> list[ShareGroup]:
        return [group for audience in self._tree.values() for group in audience.groups.values()]

    def group(self, full_filter: str) -> ShareGroup | None:
        share, topic_filter = split_share(full_filter)
        audience = self._tree.get(topic_filter)
        return audience.groups.get(share) if audience and share is not None else None

    def group_for(self, full_filter: str) -> ShareGroup:
        """That of a shared subscription, or a new one."""
        share, topic_filter = split_share(full_filter)
        assert share is not None
        audience = self._audience(topic_filter)
        group = audience.groups.get(share)
        if group is None:
            group = audience.groups[share] = ShareGroup(full_filter, self.share_policies.get(share, NEAR))
            if is_local(topic_filter):
                self._announce(topic_filter, audience, True)
        return group

    def drop_unused(self, group: ShareGroup) -> None:
        """A group that nobody is in, and nothing waits for, is not remembered."""
        share, topic_filter = split_share(group.full_filter)
        audience = self._tree.get(topic_filter)
        if audience is None or share is None or group.has_anybody or audience.groups.get(share) is not group:
            return
        if group.queue is not None:
            if len(group.queue):
                return
            group.queue.clear()
        del audience.groups[share]
        self._update(topic_filter, audience)

    def has_receivers(self, topic: str) -> bool:
        """Whether anybody here subscribes to a topic, connected or not, or processes it."""
        return any(one.has_anybody for one in self._tree.match(topic)) or self._feed_of(topic) is not None

    def forget(self, full_filter: str) -> None:
        """Drops the routes that a change of this filter, or of a session behind it, can have changed."""
        _, topic_filter = split_share(full_filter)
        if has_wildcard(topic_filter):
            self.forget_all()
            return
        self.version += 1  # a connection may remember a route that was given up here to make room
        for route in (self.routes.pop(string(topic_filter), None), self._arriving.pop(topic_filter, None)):
            if route is not None:
                self._void(route)

    def forget_all(self) -> None:
        self.version += 1
        for route in (*self.routes.values(), *self._arriving.values()):
            route.receivers.void()
        for receivers in self._shared.values():
            receivers.void()
        self.routes.clear()
        self._arriving.clear()
        self._shared.clear()


def _nobody(_topic: str) -> None:
    return None


def _never(_topic: str) -> bool:
    return False
