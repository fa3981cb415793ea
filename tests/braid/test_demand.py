"""`$demand/<topic>`: whether anybody anywhere wants a topic, told to clients as a topic of its own."""

from __future__ import annotations

import pytest

from braidmq.braid.interest import demand
from braidmq.sim.network import Constant
from tests.conformance import wire
from tests.conformance.pair import Peer, Rules, Type, persistent
from tests.conformance.wire import V3, V5

from .sites import Sites, payloads

pytestmark = pytest.mark.usefixtures("both_kinds")

METHODS = pytest.mark.parametrize("method", ["relayfree", "suzaku", "covers"])
VERSIONS = pytest.mark.parametrize("version", [V3, V5])

DO_NOT_SEND = 0x20
AS_PUBLISHED = 0x08
NOBODY = 0x10


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a client does may meet a join or a crash that others are busy with: the braid gets time for it."""
    monkeypatch.setattr("tests.braid.sites.SETTLE_S", 3.0)


def told(peer: Peer) -> list[tuple[str, bytes, bool]]:
    """(topic, payload, RETAIN) of what has come."""
    got = [one for one in peer.take() if one.type is Type.PUBLISH]
    for one in got:
        peer.acknowledge(one)
    return [(one.topic or "", one.payload, one.retain) for one in got]


@METHODS
@VERSIONS
def test_demand_comes_and_goes_with_subscriptions_elsewhere(method: str, version: int) -> None:
    sites = Sites(4, method=method)
    device = sites.client(0, version=version)
    assert device.subscribe("$demand/tide/high", 1) == 1
    assert told(device) == [("$demand/tide/high", b"0", True)]
    subscribers = [sites.client(number, version=version) for number in (2, 3)]
    for subscriber in subscribers:
        subscriber.subscribe("tide/high")
    assert told(device) == [("$demand/tide/high", b"1", False)]
    subscribers[0].unsubscribe("tide/high")
    assert told(device) == []
    subscribers[1].unsubscribe("tide/high")
    sites.run(2)
    assert told(device) == [("$demand/tide/high", b"0", False)]


@pytest.mark.parametrize("topic_filter", ["tide/high", "tide/+", "tide/#", "+/high", "#", "$share/group/tide/+"])
def test_every_filter_that_matches_is_demand(topic_filter: str) -> None:
    sites = Sites(3)
    device = sites.client(0)
    device.subscribe("$demand/tide/high")
    subscriber = sites.client(2)
    subscriber.subscribe("wind/#")
    subscriber.subscribe(topic_filter)
    sites.run(2)
    subscriber.unsubscribe(topic_filter)
    sites.run(2)
    assert [payload for _, payload, _ in told(device)] == [b"0", b"1", b"0"]


@VERSIONS
def test_an_offline_session_is_demand_until_it_ends(version: int) -> None:
    sites = Sites(3)
    device = sites.client(0)
    device.subscribe("$demand/tide")
    subscriber = sites.client(2, "sleeper", version=version, **persistent(version))
    subscriber.subscribe("tide", 1)
    assert [payload for _, payload, _ in told(device)] == [b"0", b"1"]
    subscriber.disconnect()
    sites.run(30)
    assert told(device) == []
    assert device.publish("tide", b"x", 1) == 0
    subscriber = sites.client(2, "sleeper", version=version, clean=True)
    sites.run(2)
    assert [payload for _, payload, _ in told(device)] == [b"0"]


def test_an_offline_session_is_demand_for_who_comes_later() -> None:
    sites = Sites(3)
    subscriber = sites.client(2, "sleeper", **persistent(V5))
    subscriber.subscribe("tide/+", 1)
    subscriber.disconnect()
    device = sites.client(0)
    device.subscribe("$demand/tide/high")
    assert told(device) == [("$demand/tide/high", b"1", True)]


def test_subscribers_at_the_same_site_are_demand_at_once() -> None:
    sites = Sites(2)
    device = sites.client(0, "device")
    device.subscribe("$demand/tide")
    told(device)
    subscriber = sites.client(0, "subscriber")
    subscriber.connection.receive(wire.subscribe(1, ("+", 0), version=V5))
    sites[0].broker.flush()
    assert [payload for _, payload, _ in told(device)] == [b"1"]
    subscriber.send(wire.unsubscribe(2, "+", version=V5))
    sites.run(2)
    assert [payload for _, payload, _ in told(device)] == [b"0"]


def test_a_wildcard_tells_of_the_topics_that_are_published_here() -> None:
    sites = Sites(3)
    sites.client(2).subscribe("tide/high")
    device = sites.client(0, "device")
    for topic in ("tide/high", "tide/low", "wind", "$things/a"):
        device.publish(topic, b"x")
    sites.client(1).publish("tide/elsewhere", b"x")
    watcher = sites.client(0, "watcher")
    watcher.subscribe("$demand/tide/+")
    assert sorted(told(watcher)) == [("$demand/tide/high", b"1", True), ("$demand/tide/low", b"0", True)]
    watcher.subscribe("$demand/#", options=DO_NOT_SEND)
    assert told(watcher) == []
    device.publish("wind/new", b"x")
    sites.run(2)
    assert told(watcher) == [("$demand/wind/new", b"0", False)]
    other = sites.client(1, "other")
    for topic_filter in ("wind/#", "$things/#"):
        other.subscribe(topic_filter)
    assert sorted(told(watcher)) == [("$demand/wind", b"1", False), ("$demand/wind/new", b"1", False)]
    watcher.unsubscribe("$demand/#")
    other.unsubscribe("wind/#")
    sites.run(2)
    assert told(watcher) == []


def test_retain_as_published_and_subscription_identifiers_hold() -> None:
    sites = Sites(2)
    device = sites.client(0)
    device.subscribe("$demand/tide", options=AS_PUBLISHED, properties=wire.props(subscription_id=5))
    sites.client(1).subscribe("tide")
    got = [one for one in device.take() if one.type is Type.PUBLISH]
    assert [(one.payload, one.retain) for one in got] == [(b"0", True), (b"1", True)]
    assert [one.properties["subscription_id"] for one in got] == [[5], [5]]


def test_a_topic_is_watched_only_while_a_client_asks() -> None:
    sites = Sites(3)
    devices = [sites.client(0, f"device{number}") for number in range(2)]
    for device in devices:
        device.subscribe("$demand/tide")
        assert told(device) == [("$demand/tide", b"0", True)]
    outbound = sites[0].braid.transfer.outbound
    assert "tide" in outbound
    devices[0].unsubscribe("$demand/tide")
    assert "tide" in outbound
    sites.run(2000)
    assert "tide" in outbound
    devices[1].disconnect()
    assert "tide" not in outbound
    sites.run(2)
    assert not sites[0].braid.method.is_wanted("tide")  # type: ignore[attr-defined]
    again = sites.client(0, "again")
    again.subscribe("$demand/tide")
    assert told(again) == [("$demand/tide", b"0", True)]


def test_watching_and_publishing_do_not_disturb_each_other() -> None:
    sites = Sites(3)
    device = sites.client(0)
    device.subscribe("$demand/tide")
    subscriber = sites.client(2)
    subscriber.subscribe("tide", 1)
    assert [payload for _, payload, _ in told(device)] == [b"0", b"1"]
    for number in range(4):
        device.publish("tide", b"%d" % number, number % 2)
    device.unsubscribe("$demand/tide")
    device.publish("tide", b"4", 1)
    device.publish("tide", b"5")
    device.subscribe("$demand/tide")
    assert told(device) == [("$demand/tide", b"1", True)]
    device.publish("tide", b"6")
    assert payloads(subscriber) == [b"%d" % number for number in range(7)]


def test_watches_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demand, "WATCHES_MAX", 2)
    sites = Sites(2)
    device = sites.client(0)
    found = []
    for number in range(3):
        found.append(device.subscribe(f"$demand/tide/{number}"))
        told(device)
    assert found == [0, 0, 0x97]
    assert device.subscribe("$demand/tide/1") == 0
    told(device)
    assert device.subscribe("$demand/tide/+") == 0


@pytest.mark.parametrize("method", ["covers"])
def test_a_change_looks_only_at_topics_that_are_asked_about(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sites = Sites(2, method=method)
    device = sites.client(0)
    for number in range(50):
        device.publish(f"dev/{number}/state", b"x")
    for about in ("dev/7/+", "dev/9/state"):
        device.subscribe(f"$demand/{about}")
        assert [payload for _, payload, _ in told(device)] == [b"0"]
    looked: list[str] = []
    demand_topics = sites[0].braid.demand
    on_change = demand_topics.on_change

    def noting(topic: str) -> None:
        looked.append(topic)
        on_change(topic)

    monkeypatch.setattr(demand_topics, "on_change", noting)
    subscriber = sites.client(1)
    subscriber.subscribe("dev/1/#")
    assert looked == []
    subscriber.subscribe("dev/+/state")
    sites.run(2)
    assert sorted(set(looked)) == ["dev/7/state", "dev/9/state"]
    assert sorted(told(device)) == [("$demand/dev/7/state", b"1", False), ("$demand/dev/9/state", b"1", False)]


# Access


def test_who_may_not_read_a_topic_may_not_read_its_demand() -> None:
    sites = Sites(2)
    sites.add(5, access=Rules())
    sites.run(3)
    client = sites.client(5)
    assert client.subscribe("$demand/tide") == 0
    told(client)
    for topic_filter in ("$demand/secret/x", "$demand/secret/#", "$share/a/$demand/secret"):
        assert client.subscribe(topic_filter) == 0x87
    assert client.publish("$demand/tide", b"1", 1) == 0x87
    client.publish("$demand/tide", b"1", 0)
    assert told(client) == []


def test_a_client_cannot_feign_demand() -> None:
    sites = Sites(2)
    device = sites.client(0, "device")
    device.subscribe("$demand/tide")
    assert told(device) == [("$demand/tide", b"0", True)]
    liar = sites.client(0, "liar")
    for qos in (0, 0, 0, 1, 1, 2, 2):
        assert liar.publish("$demand/tide", b"1", qos) in (None, 0x87)
    liar.publish("$demand/tide", b"1", retain=True)
    assert told(device) == []
    for version in (V3, V5):
        peer = sites[0].peer(version)
        peer.send(wire.connect("willful", version=version, will=wire.Will("$demand/tide", b"1")))
        peer.drop()
    assert told(device) == []


# What MQTT 5 publishers are told


def reasons(device: Peer, qos: int) -> list[int | None]:
    return [device.publish("tide", b"x", qos) for _ in range(3)]


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("where", [0, 2])
@pytest.mark.parametrize("kind", ["plain", "wildcard", "offline", "shared"])
def test_0x10_is_true_for_the_whole_network(where: int, kind: str, qos: int) -> None:
    sites = Sites(3)
    device = sites.client(0, "device")
    device.publish("tide", b"x", qos)  # nobody can know yet
    assert reasons(device, qos) == 3 * [NOBODY]
    subscriber = sites.client(where, "subscriber", **persistent(V5))
    subscriber.subscribe({"wildcard": "+", "shared": "$share/group/tide"}.get(kind, "tide"), 2)
    if kind == "offline":
        subscriber.disconnect()
    sites.run(2)
    assert reasons(device, qos) == 3 * [0]
    sites.client(where, "subscriber", clean=True)
    sites.run(2)
    assert reasons(device, qos) == 3 * [NOBODY]


def test_0x10_is_true_where_the_topic_came_from_elsewhere_first() -> None:
    sites = Sites(3)
    reader = sites.client(2, "reader")
    reader.subscribe("tide", 1)
    sites.client(0, "other").publish("tide", b"from afar")
    device = sites.client(2, "device")
    assert device.publish("tide", b"x", 1) == 0
    assert payloads(reader) == [b"from afar", b"x"]
    reader.unsubscribe("tide")
    sites.run(2)
    assert [device.publish("tide", b"x", 1) for _ in range(2)] == 2 * [NOBODY]


# How long it takes


def windows(publishers: int, method: str, topic_filter: str, known: str = "") -> tuple[float, float]:
    """From SUBSCRIBE to SUBACK, and from SUBACK until the last publisher's client reads `1`, in one-way delays.

    `known` is a filter that another client subscribes to already.
    """
    delay_s = 0.01
    sites = Sites(12, network=Constant(delay_s), method=method)
    if known:
        sites.client(10).subscribe(known)
    devices = [sites.client(number, f"device{number}") for number in range(publishers)]
    for device in devices:
        device.subscribe("$demand/tide/high")
        sites.run(1)
        assert [payload for _, payload, _ in told(device)] == [b"0"]
    subscriber = sites.client(11, "subscriber")
    began_at = sites.sim.now
    subscriber.connection.receive(wire.subscribe(1, (topic_filter, 0), version=V5))
    answered_at = _when(sites, [subscriber])
    resumed_at = _when(sites, devices)
    return (answered_at - began_at) / delay_s, (resumed_at - answered_at) / delay_s


def _when(sites: Sites, peers: list[Peer]) -> float:
    while not all(peer.link.stream for peer in peers):
        sites.run(0.0005)
    return sites.sim.now


@METHODS
@pytest.mark.parametrize(("topic_filter", "known"), [("tide/high", ""), ("tide/+", "wind/+")])
def test_the_window_between_subscription_and_resumption_is_a_few_hops(
    method: str, topic_filter: str, known: str
) -> None:
    suback, window = windows(10, method, topic_filter, known)
    assert suback <= 20
    assert window <= 10


@METHODS
def test_a_wildcard_of_a_new_shape_takes_longer_as_all_publishers_move_at_once(method: str) -> None:
    suback, window = windows(10, method, "tide/+")
    assert suback + window <= 500
