"""Which session gets what: all subscriptions, and the routes that are made of them.

The fast path asks only `routes`, a bounded dictionary from a topic as it stands on the wire to its `Route`. On a miss
the tree of filters is walked once. A change of one plain filter drops one route; a change of a wildcard drops them all.
"""

from __future__ import annotations

from collections.abc import Callable

from braidmq.broker.client import ConnectedClient
from braidmq.broker.federation import Alone, Federation, Outbound
from braidmq.broker.feed import TopicFeed
from braidmq.broker.local_topics import is_local
from braidmq.broker.session import Session
from braidmq.broker.shares import ShareGroup
from braidmq.broker.subscription import Subscribed
from braidmq.mqtt.packets import V3, V5
from braidmq.mqtt.topics import has_wildcard, split_share
from braidmq.mqtt.trees import FilterTree
from braidmq.mqtt.wire import string

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


class Route:
    """The receivers of one topic.

    `plain3` and `plain5` hold, by protocol version, the connections that take a QoS 0 publication as plain bytes;
    `special` the targets that need it made for them (identifiers, no-local, aliases, a packet size bound, or away).
    """

    __slots__ = (
        "feed",
        "groups",
        "logged",
        "mixed",
        "offered",
        "outbound",
        "plain1",
        "plain1_version",
        "plain3",
        "plain5",
        "special",
        "targets",
        "topic",
    )

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.targets: list[Target] = []
        self.groups: list[ShareGroup] = []
        self.mixed = False
        """Whether a session is reached both by itself and in a group: then its copies must keep step."""
        self.outbound: Outbound | None = None
        """Where publications of clients here leave for other brokers, if they may be wanted there."""
        self.feed: TopicFeed | None = None
        """What message processors get of it, if it is the topic of any."""
        self.offered = True
        """False while other brokers have not been asked about this topic: then the fast path does not know it."""
        self.logged = False
        """Whether publications of clients here are logged, to be read later."""
        self.plain3: list[ConnectedClient] = []
        self.plain5: list[ConnectedClient] = []
        self.special: list[Target] = []
        self.plain1: list[Session] | None = None
        self.plain1_version = 0
        """The receivers of a QoS 1 publication of this version, if all of them take it plain and need not keep it."""

    def void(self) -> None:
        """It no longer holds: a connection that remembers it must not keep alive receivers that have left."""
        self.plain3.clear()
        self.plain5.clear()


class Audience:
    """All that subscribed with one filter."""

    __slots__ = ("groups", "holds", "members")

    def __init__(self) -> None:
        self.members: dict[Session, Subscribed] = {}
        self.groups: dict[str, ShareGroup] = {}
        self.holds = 0
        """How many want it without a session: message processors."""


class Router:
    def __init__(self, routes_max: int) -> None:
        self.routes: dict[bytes, Route] = {}
        self.version = 0
        """Grows whenever a route may have changed."""
        self.routes_max = routes_max
        self.federation: Federation = Alone()
        """The way to other brokers."""
        self.feed_for: Callable[[str], TopicFeed | None] = _nobody
        """What message processors get of a topic."""
        self.is_logged: Callable[[str], bool] = _never
        """Whether what is published to a topic here is logged, to be read later."""
        self._tree: FilterTree[Audience] = FilterTree()
        self._filters: dict[str, None] = {}

    def filters(self) -> list[str]:
        """All filters that have a subscription, without the share that they are in."""
        return list(self._filters)

    def route(self, topic: str) -> Route:
        """The receivers of a valid topic name; remembered."""
        name = string(topic)
        route = self.routes.get(name)
        if route is None:
            route = self._build(topic)
            if is_local(topic):
                return route  # no client may publish there: never on the fast path
            if len(self.routes) >= self.routes_max:
                self.version += 1
                self.forget_all()
            self.routes[name] = route
        return route

    def _build(self, topic: str) -> Route:
        route = Route(topic)
        route.feed = self.feed_for(topic)
        route.logged = self.is_logged(topic)
        route.outbound = self.federation.outbound_for(topic)
        route.offered = self.federation.is_offered(topic)
        found: dict[Session, list[Subscribed]] = {}
        for audience in self._tree.match(topic):
            for session, subscribed in audience.members.items():
                found.setdefault(session, []).append(subscribed)
            route.groups.extend(audience.groups.values())
        route.targets = [target_of(session, subscriptions) for session, subscriptions in found.items()]
        for target in route.targets:
            connection = target.session.connection
            if connection is None or target.ids or target.no_local or not target.session.takes_plain:
                route.special.append(target)
            elif connection.version == V3:
                route.plain3.append(connection)
            else:
                route.plain5.append(connection)
        route.mixed = any(session in found for group in route.groups for session in group.members)
        one_version = bool(route.plain3) != bool(route.plain5)
        if one_version and not route.special and not route.groups:
            if all(target.qos > 0 and not target.session.durable for target in route.targets):
                route.plain1 = [target.session for target in route.targets]
                route.plain1_version = V3 if route.plain3 else V5
        return route

    def subscribe(self, session: Session, full_filter: str, subscribed: Subscribed) -> bool:
        """Adds or replaces a subscription; True if it is a new one."""
        share, topic_filter = split_share(full_filter)
        audience = self._audience(topic_filter)
        members = audience.members
        if share is not None:
            members = audience.groups.setdefault(share, ShareGroup(full_filter)).members
        new = session not in members
        members[session] = subscribed
        self.forget(full_filter)
        return new

    def unsubscribe(self, session: Session, full_filter: str) -> bool:
        """Removes a subscription; False if there was none."""
        share, topic_filter = split_share(full_filter)
        audience = self._tree.get(topic_filter)
        if audience is None:
            return False
        if share is None:
            existed = audience.members.pop(session, None) is not None
        else:
            group = audience.groups.get(share)
            existed = group is not None and group.members.pop(session, None) is not None
            if group is not None and not group.members:
                del audience.groups[share]
        self._drop_if_empty(topic_filter, audience)
        self.forget(full_filter)
        return existed

    def hold(self, topic_filter: str) -> None:
        """A message processor wants what a filter matches, from any broker."""
        self._audience(topic_filter).holds += 1

    def release(self, topic_filter: str) -> None:
        audience = self._audience(topic_filter)
        audience.holds -= 1
        self._drop_if_empty(topic_filter, audience)

    def _audience(self, topic_filter: str) -> Audience:
        audience = self._tree.get(topic_filter)
        if audience is None:
            audience = Audience()
            self._tree.set(topic_filter, audience)
            self._filters[topic_filter] = None
            self.federation.on_filter(topic_filter, True)
        return audience

    def _drop_if_empty(self, topic_filter: str, audience: Audience) -> None:
        if not audience.members and not audience.groups and not audience.holds:
            self._tree.remove(topic_filter)
            self._filters.pop(topic_filter, None)
            self.federation.on_filter(topic_filter, False)

    def has_receivers(self, topic: str) -> bool:
        """Whether anybody here subscribes to a topic, connected or not, or processes it."""
        return bool(self._tree.match(topic)) or self.feed_for(topic) is not None

    def group(self, full_filter: str) -> ShareGroup | None:
        share, topic_filter = split_share(full_filter)
        audience = self._tree.get(topic_filter)
        return audience.groups.get(share) if audience and share is not None else None

    def forget(self, full_filter: str) -> None:
        """Drops the routes that a change of this filter, or of a session behind it, can have changed."""
        _, topic_filter = split_share(full_filter)
        self.version += 1
        if has_wildcard(topic_filter):
            self.forget_all()
        else:
            route = self.routes.pop(string(topic_filter), None)
            if route is not None:
                route.void()

    def forget_all(self) -> None:
        for route in self.routes.values():
            route.void()
        self.routes.clear()


def _nobody(_topic: str) -> None:
    return None


def _never(_topic: str) -> bool:
    return False
