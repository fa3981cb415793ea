"""Routes: who a topic reaches, and that what is remembered of it is never out of date."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.broker.limits import Limits
from braidmq.broker.router import Route, Router
from braidmq.broker.session import Session
from braidmq.broker.subscription import Subscribed
from braidmq.mqtt.topics import matches, split_share
from braidmq.mqtt.wire import string
from tests.conformance import wire
from tests.conformance.pair import V3, V5, Peer, Type, World, persistent
from tests.conformance.wire import props

NO_LOCAL = 4


@pytest.fixture
def world() -> World:
    return World()


def session_of(world: World, client_id: str) -> Session:
    return world.broker.sessions[client_id]


def receivers(route: Route) -> set[str]:
    return {target.session.client_id for target in route.receivers.targets}


# One change after another


def test_every_kind_of_change_is_seen_by_the_next_publication(world: World) -> None:
    publisher = world.client("p")
    subscriber = world.client("s", **persistent(V5))
    other = world.client("o", V3)

    def reached(payload: bytes) -> list[str]:
        publisher.publish("a/b", payload)
        found = []
        for name, peer in (("s", subscriber), ("o", other)):
            got = [one.payload for one in peer.take()]
            assert got in ([], [payload])
            found += [name] * len(got)
        return found

    assert reached(b"nobody") == []
    subscriber.subscribe("a/b")
    assert reached(b"subscribe") == ["s"]
    other.subscribe("a/#")
    assert reached(b"wildcard subscribe") == ["s", "o"]
    subscriber.unsubscribe("a/b")
    assert reached(b"unsubscribe") == ["o"]
    subscriber.subscribe("+/b")
    assert reached(b"another wildcard") == ["s", "o"]
    other.unsubscribe("a/#")
    assert reached(b"wildcard unsubscribe") == ["s"]
    subscriber.drop()
    assert reached(b"away") == []
    subscriber = world.client("s", **persistent(V5))
    assert reached(b"back") == ["s"]
    subscriber = world.client("s", **persistent(V5))
    assert reached(b"taken over") == ["s"]
    subscriber = world.client("s", V3, clean=False)
    assert reached(b"back in another version") == ["s"]
    subscriber = world.client("s", clean=True)
    assert reached(b"clean") == []
    other.subscribe("$share/g/a/b")
    assert reached(b"shared") == ["o"]
    other.unsubscribe("$share/g/a/b")
    assert reached(b"no longer shared") == []
    other.subscribe("a/b")
    other.drop()
    assert reached(b"gone") == []


def test_changed_options_are_seen_by_the_next_publication(world: World) -> None:
    client = world.client("c", properties=props(topic_alias_maximum=0))
    client.subscribe("t")
    client.publish("t", b"1")
    client.expect_publish("t", b"1", qos=0, properties={})
    client.subscribe("t", 1, properties=props(subscription_id=7))
    client.publish("t", b"2")
    client.expect_publish("t", b"2", properties={"subscription_id": [7]})
    client.subscribe("t", options=NO_LOCAL)
    client.publish("t", b"3")
    client.expect_nothing()
    client.subscribe("t")
    client.publish("t", b"4")
    client.expect_publish("t", b"4", properties={})


def test_a_reconnect_that_takes_no_plain_bytes_is_seen(world: World) -> None:
    """A packet size bound, or aliases, need publications that are made for the client."""
    publisher = world.client("p")
    subscriber = world.client("s", **persistent(V5))
    subscriber.subscribe("t")
    publisher.publish("t", bytes(100))
    subscriber.expect_publish("t", bytes(100))
    for properties in (props(maximum_packet_size=50), props(topic_alias_maximum=1), b""):
        subscriber = world.client("s", clean=False, properties=props(session_expiry=1000) + properties)
        for size in (10, 100):
            publisher.publish("t", bytes(size))
        sizes = [len(one.payload) for one in subscriber.take()]
        assert sizes == ([10] if b"\x27" in properties else [10, 100])


def test_a_route_sorts_its_receivers_by_what_they_take(world: World) -> None:
    names: dict[str, dict[str, Any]] = {
        "v3": {"version": V3},
        "v5": {},
        "ids": {},
        "no_local": {},
        "alias": {"properties": props(topic_alias_maximum=5)},
        "small": {"properties": props(maximum_packet_size=100)},
        "away": persistent(V5),
    }
    peers = {name: world.client(name, **options) for name, options in names.items()}
    for name, peer in peers.items():
        properties = props(subscription_id=3) if name == "ids" else b""
        peer.subscribe("t", options=NO_LOCAL if name == "no_local" else 0, properties=properties)
    peers["away"].drop()
    route = world.broker.router.route("t").receivers
    assert route.plain3 == [peers["v3"].connection]
    assert route.plain5 == [peers["v5"].connection]
    assert {target.session.client_id for target in route.special} == {"ids", "no_local", "alias", "small", "away"}
    assert receivers(world.broker.router.route("t")) == set(names)


def test_overlapping_subscriptions_are_one_target_with_all_that_they_ask_for() -> None:
    world = World()
    client = world.client("c")
    client.subscribe("a/b", 0, properties=props(subscription_id=1))
    client.subscribe("a/+", 2)
    client.subscribe("#", 1, options=8, properties=props(subscription_id=2))
    client.subscribe("b/#", 2, properties=props(subscription_id=3))
    (target,) = world.broker.router.route("a/b").receivers.targets
    assert target.session is session_of(world, "c")
    assert (target.qos, target.retain_as_published, sorted(target.ids)) == (2, True, [1, 2])


def test_who_comes_back_is_reached_by_the_plain_way_again(world: World) -> None:
    world.client("s", **persistent(V5)).subscribe("t")
    for _ in range(2):
        peer = world.client("s", **persistent(V5))
        assert world.broker.router.route("t").receivers.plain5 == [peer.connection]
        peer.drop()
        route = world.broker.router.route("t").receivers
        assert (route.plain5, [target.session for target in route.special]) == ([], [session_of(world, "s")])


@pytest.mark.parametrize("version", [V3, V5])
def test_what_is_queued_for_who_is_away_is_not_sent_into_its_old_connection(version: int) -> None:
    world = World(limits=Limits(queue_qos0=True))
    subscriber = world.client("s", version, **persistent(version))
    subscriber.subscribe("t")
    publisher = world.client("p", version)
    for _ in range(3):
        publisher.publish("t", b"live")
    subscriber.expect_payloads(b"live", b"live", b"live")
    subscriber.drop()
    publisher.publish("t", b"away")
    assert not subscriber.connection.out
    world.client("s", version, **persistent(version)).expect_payloads(b"away")


def test_statistics_are_never_remembered(world: World) -> None:
    client = world.client("c")
    client.subscribe("$SYS/#")
    assert receivers(world.broker.router.route("$SYS/broker/uptime")) == {"c"}
    assert not world.broker.router.routes


# The bound


def test_the_cache_has_a_bound() -> None:
    world = World(limits=Limits(route_cache_max=8))
    client = world.client("c")
    client.subscribe("#")
    for number in range(50):
        client.publish(f"t/{number % 20}", b"%d" % number)
        assert len(world.broker.router.routes) <= 8
        client.expect_publish(f"t/{number % 20}", b"%d" % number)


def test_a_plain_change_leaves_the_other_routes(world: World) -> None:
    client = world.client("c")
    for topic in ("a", "b", "c"):
        client.publish(topic, b"")
    routes = world.broker.router.routes
    assert set(routes) == {string("a"), string("b"), string("c")}
    client.subscribe("b")
    assert set(routes) == {string("a"), string("c")}
    client.subscribe("$share/g/c")
    assert set(routes) == {string("a")}
    client.unsubscribe("+")
    assert set(routes) == {string("a")}
    client.subscribe("x/+")
    assert not world.broker.router.routes


def test_nothing_is_left_of_what_was_unsubscribed(world: World) -> None:
    client = world.client("c")
    filters = ("a", "a/+", "#", "$share/g/a", "$share/g/+/b", "$share/h/a", "a/b/c/d/#")
    for topic_filter in filters:
        client.subscribe(topic_filter)
    assert world.broker.metrics.subscriptions == len(filters)
    for topic_filter in filters:
        client.unsubscribe(topic_filter)
    router = world.broker.router
    assert world.broker.metrics.subscriptions == 0
    assert len(router._tree) == 0
    assert not router._tree._root.children


def test_what_was_never_there_is_not_unsubscribed() -> None:
    router = Router(10)
    session: Any = object()
    assert not router.unsubscribe(session, "a")
    assert router.subscribe(session, "a", Subscribed(0))
    assert not router.subscribe(session, "a", Subscribed(1))
    assert not router.unsubscribe(session, "b")
    assert not router.unsubscribe(session, "$share/g/a")
    assert not router.unsubscribe(object(), "a")  # type: ignore[arg-type]
    assert router.unsubscribe(session, "a")
    assert len(router._tree) == 0


# Against a router that remembers nothing


@dataclass
class Client:
    version: int
    kept: bool
    peer: Peer | None = None
    filters: dict[str, int] = field(default_factory=dict)


topics = st.sampled_from(["a", "a/b", "b", "a/b/c", "$x/a"])
filters = st.sampled_from(["a", "a/b", "b", "a/+", "+/b", "#", "a/#", "+", "$x/#", "$x/a"])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), topics, st.integers(0, 2)),
        st.tuples(st.just("subscribe"), st.integers(0, 2), filters, st.integers(0, 2)),
        st.tuples(st.just("unsubscribe"), st.integers(0, 2), filters),
        st.tuples(st.just("toggle"), st.integers(0, 2)),
    ),
    min_size=5,
    max_size=40,
)


@given(steps, st.sampled_from([1, 2, 100]))
@settings(max_examples=60, deadline=None, print_blob=True)
def test_a_publication_reaches_those_whose_filters_match_now(drawn: list[tuple[Any, ...]], routes_max: int) -> None:
    world = World(limits=Limits(route_cache_max=routes_max))
    publishers = [world.client(f"p{version}", version) for version in (V3, V5)]
    clients = [Client(V3, False), Client(V5, True), Client(V5, False)]

    def toggle(number: int) -> None:
        client = clients[number]
        if client.peer is not None:
            client.peer.drop()
            client.peer = None
        else:
            client.peer = world.client(f"c{number}", client.version, **persistent(V5) if client.kept else {})
        if not client.kept:
            client.filters.clear()

    for number in range(3):
        toggle(number)
    count = 0
    for kind, *rest in drawn:
        if kind == "toggle":
            toggle(*rest)
        elif kind == "publish":
            topic, qos = rest
            count += 1
            publishers[count % 2].publish(topic, b"%d" % count, qos)
            assert len(world.broker.router.routes) <= routes_max
            for client in clients:
                granted = [level for one, level in client.filters.items() if matches(one, topic)]
                if client.peer is not None:
                    got = [one for one in client.peer.take() if one.payload == b"%d" % count]
                    assert [one.qos for one in got] == ([min(qos, max(granted))] if granted else [])
                    for one in got:
                        client.peer.acknowledge(one)
                        client.peer.take()
        else:
            client = clients[rest[0]]
            if client.peer is None:
                continue
            if kind == "subscribe":
                client.peer.send(wire.subscribe(9, (rest[1], rest[2]), version=client.version))
                client.filters[rest[1]] = rest[2]
            else:
                client.peer.send(wire.unsubscribe(9, rest[1], version=client.version))
                client.filters.pop(rest[1], None)
            assert {one.type for one in client.peer.take()} <= {Type.SUBACK, Type.UNSUBACK, Type.PUBLISH}


def test_the_parts_of_a_shared_filter_lead_to_its_group(world: World) -> None:
    client = world.client("c")
    client.subscribe("$share/g/a/+")
    group = world.broker.router.group("$share/g/a/+")
    assert group is not None
    assert split_share(group.full_filter) == ("g", "a/+")
    assert world.broker.router.group("$share/h/a/+") is None
    assert world.broker.router.group("$share/g/a") is None
    assert world.broker.router.group("a/+") is None


def test_a_fleet_that_is_larger_than_the_cache_still_finds_most_of_its_routes() -> None:
    """Topics come round and round: if the oldest went, each would be gone when its turn comes."""
    world = World(limits=Limits(route_cache_max=80))
    client = world.client("c")
    topics = [f"t/{number}" for number in range(100)]
    found = 0
    for _ in range(20):
        for topic in topics:
            found += string(topic) in world.broker.router.routes
            client.publish(topic, b"")
            assert len(world.broker.router.routes) <= 80
    assert found > 0.5 * 19 * len(topics)


def test_topics_that_the_same_wildcards_match_have_their_receivers_in_common(world: World) -> None:
    client, other = world.client("c"), world.client("o")
    client.subscribe("dev/+/telemetry")
    other.subscribe("dev/#")
    other.subscribe("dev/3/telemetry")
    router = world.broker.router
    one, two, three, state = (
        router.route(f"dev/{topic}") for topic in ("1/telemetry", "2/telemetry", "3/telemetry", "1/state")
    )
    assert one.receivers is two.receivers
    assert three.receivers is not one.receivers
    assert receivers(one) == receivers(three) == {"c", "o"}
    assert receivers(state) == {"o"}
    assert router.arriving("dev/4/telemetry").receivers is one.receivers


def test_who_left_is_kept_alive_by_no_route(world: World) -> None:
    world.client("c").subscribe("dev/+")
    plain = world.client("o")
    plain.subscribe("dev/1")
    router = world.broker.router
    shared, own = router.route("dev/2").receivers, router.route("dev/1").receivers
    assert (len(shared.plain5), len(own.plain5)) == (1, 2)
    plain.unsubscribe("dev/1")
    assert (len(shared.plain5), len(own.plain5)) == (1, 0), "what others have in common still holds"
    plain.subscribe("+/2")
    assert not shared.plain5
    assert receivers(router.route("dev/2")) == {"c", "o"}


def test_a_connection_does_not_go_by_a_route_that_was_given_up_to_make_room() -> None:
    """What it published last it remembers itself."""
    world = World(limits=Limits(route_cache_max=8))
    client, other, subscriber = world.client("c"), world.client("o"), world.client("s")
    world.client("all").subscribe("#")
    for _ in range(3):
        client.publish("t", b"1")
    for number in range(100):
        other.publish(f"x/{number}", b"")
    assert string("t") not in world.broker.router.routes
    subscriber.subscribe("t")
    client.publish("t", b"2")
    subscriber.expect_payloads(b"2")


def test_making_room_for_a_fleet_does_not_disturb_those_that_send_one_at_a_time() -> None:
    world = World(limits=Limits(route_cache_max=8))
    world.client("all").subscribe("#")
    client = world.client("c")
    before = world.broker.router.version
    for number in range(100):
        client.publish(f"x/{number}", b"")
    assert world.broker.router.version == before
