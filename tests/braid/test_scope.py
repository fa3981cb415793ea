"""Scopes: a publication stays inside a cluster, and each other cluster is entered once."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from braidmq.braid.interest.clusters import CLUSTERS_ROW, KEPT_S, Clusters
from braidmq.braid.transfer.inbound import REORDER_S
from braidmq.braid.transfer.outbound_topic import SKIPS_MAX
from braidmq.broker.journal_store import JournalStore
from braidmq.broker.store import MemoryStore
from braidmq.config.check import check
from braidmq.config.problems import Findings
from braidmq.config.settings import BraidConfig, Config
from braidmq.host import Address, Message
from braidmq.keys import cluster_problem, is_within
from braidmq.pubsub.locality.delegates import CHECK_S
from braidmq.pubsub.method import ProvenMethod, ScopedMethod, WildcardMethod
from braidmq.sim.network import Faults, Uniform
from tests.conformance import wire
from tests.conformance.pair import Peer, Rules, persistent
from tests.conformance.wire import V3, V5, Type, Will, props

from .sites import Sites, payloads
from .test_catch_up import start

NOBODY = 0x10

pytestmark = pytest.mark.usefixtures("both_kinds")

METHODS = pytest.mark.parametrize("method", ["adaptive", "relayfree", "locality", "covers"])

CLUSTERS = ("sea", "cloud1", "cloud1/edge1", "cloud1/edge2", "cloud10", "cloud2/edge1", "cloud1/edge1", "")
"""Of sites 0 to 7."""


def scoped(peer: Peer, cluster: str, topic: str, payload: bytes, qos: int = 0, **options: Any) -> int | None:
    """Publishes into a cluster as the client's version has it."""
    if peer.version == V5:
        return peer.publish(topic, payload, qos, properties=props(user=("scope", cluster)), **options)
    return peer.publish(f"$in/{cluster}/{topic}", payload, qos, **options)


def everybody(sites: Sites, topic_filter: str = "tide", qos: int = 2, version: int = V5) -> dict[int, Peer]:
    """A subscriber at each site."""
    peers = {site.number: site.client(f"s{site.number}", version=version) for site in sites}
    for peer in peers.values():
        peer.subscribe(topic_filter, qos)
    sites.run(CHECK_S + 5)
    return peers


def where_it_came(sites: Sites) -> dict[str, set[int]]:
    """The sites that any message came to with what was for a cluster, a text with its name in angle brackets."""
    came: dict[str, set[int]] = {cluster: set() for cluster in ("cloud2", *(site.cluster for site in sites))}

    def on_message(_sender: Address, to: Address, message: Message, _hops: int) -> None:
        body = msgspec.msgpack.encode(message)
        for cluster, seen in came.items():
            if b"<%s>" % cluster.encode() in body:
                seen.add(int(to))

    sites.sim.on_message = on_message
    return came


def inside(sites: Sites, scope: str) -> set[int]:
    return {site.number for site in sites if is_within(site.cluster, scope)}


def touched(sites: Sites) -> set[int]:
    """The sites that publications went to."""
    return {int(to) for _, to in sites.sent}


# Who gets it


@METHODS
@pytest.mark.parametrize("version", [V3, V5])
def test_those_inside_get_it_and_no_bytes_go_outside(method: str, version: int) -> None:
    sites = Sites(8, method=method, clusters=CLUSTERS)
    peers = everybody(sites)
    for at in (0, 2):
        publisher = sites.client(at, "publisher", version=version)
        publisher.publish("tide", b"for all")
        for peer in peers.values():
            assert payloads(peer) == [b"for all"]
        for number, scope in enumerate(("cloud1", "cloud1/edge1", "cloud2", "cloud10")):
            for qos in (0, 1, 2):
                sites.sent.clear()
                text = b"%d of %d" % (number, qos)
                assert scoped(publisher, scope, "tide", text, qos) in (None, 0)
                sites.run(2)
                got = {site for site, peer in peers.items() if payloads(peer) == [text]}
                assert got == inside(sites, scope)
                assert touched(sites) <= inside(sites, scope)
        publisher.publish("tide", b"for all again")
        for peer in peers.values():
            assert payloads(peer) == [b"for all again"]
        publisher.disconnect()


@METHODS
def test_a_receiver_sees_the_plain_topic_and_the_scope(method: str) -> None:
    sites = Sites(4, method=method, clusters=CLUSTERS)
    five, three = sites.client(2, "five"), sites.client(3, "three", version=V3)
    for peer in (five, three):
        peer.subscribe("tide/+", 1)
    sites.run(CHECK_S + 5)
    for version in (V3, V5):
        scoped(sites.client(0, f"p{version}", version=version), "cloud1", "tide/high", b"x", 1)
        sites.run(2)
        got = five.expect_publish("tide/high", b"x")
        assert got.properties["user"] == [("scope", "cloud1")]
        five.acknowledge(got)
        three.acknowledge(three.expect_publish("tide/high", b"x"))


@METHODS
@pytest.mark.parametrize("filters", [("tide/+/high", "tide/#"), ("#", "tide/west/high"), ("+/west/+",)])
def test_wildcards_get_one_copy_each_inside(method: str, filters: tuple[str, ...]) -> None:
    sites = Sites(6, method=method, clusters=CLUSTERS)
    peers = {number: sites.client(number, f"s{number}") for number in (2, 3, 4, 5)}
    for peer in peers.values():
        for one in filters:
            peer.subscribe(one, 1)
    sites.run(CHECK_S + 5)
    publisher = sites.client(0, "publisher")
    for number in range(3):
        scoped(publisher, "cloud1", "tide/west/high", b"%d" % number, number)
    sites.run(2)
    got = {number: payloads(peer) for number, peer in peers.items()}
    assert got == {2: [b"0", b"1", b"2"], 3: [b"0", b"1", b"2"], 4: [], 5: []}


def test_the_own_broker_delivers_if_it_is_inside_only() -> None:
    sites = Sites(3, clusters=CLUSTERS)
    publisher, neighbour = sites.client(2, "publisher"), sites.client(2, "neighbour")
    neighbour.subscribe("tide", 1)
    nobody_is_known = isinstance(sites[2].braid.method, WildcardMethod)
    assert scoped(publisher, "sea", "tide", b"away", 1) == (NOBODY if nobody_is_known else 0)
    assert scoped(publisher, "cloud1", "tide", b"here", 1) == 0
    assert scoped(publisher, ".", "tide", b"own", 1) == 0
    sites.run(2)
    here = neighbour.expect_publish("tide", b"here")
    own = neighbour.expect_publish("tide", b"own")
    assert here.properties["user"] == [("scope", "cloud1")]
    assert own.properties["user"] == [("scope", "cloud1/edge1")]
    neighbour.expect_nothing()


def test_other_user_properties_keep_their_order() -> None:
    sites = Sites(2, clusters=CLUSTERS)
    subscriber = sites.client(1, "s")
    subscriber.subscribe("tide")
    pairs = [("a", "1"), ("scope", "."), ("b", "2"), ("a", "3")]
    sites.client(1, "p").publish("tide", b"x", properties=props(user=pairs))
    got = subscriber.expect_publish("tide", b"x")
    assert got.properties["user"] == [("a", "1"), ("scope", "cloud1"), ("b", "2"), ("a", "3")]


# Order, and nothing that is waited for in vain


@METHODS
def test_scoped_and_plain_publications_arrive_in_order_and_nobody_waits(method: str) -> None:
    sites = Sites(6, 4, method=method, clusters=CLUSTERS)
    peers = everybody(sites)
    publisher = sites.client(0, "publisher")
    publisher.publish("tide", b"first")
    wanted: dict[int, list[bytes]] = {number: [b"first"] for number in peers}
    scopes = ("cloud1", None, "cloud1/edge1", "cloud2", "cloud1", None, "cloud10", "sea")
    sites.settle_s = 0.0
    for number in range(48):
        scope, text = scopes[number % len(scopes)], b"%d" % number
        if scope is None:
            publisher.publish("tide", text)
        else:
            scoped(publisher, scope, "tide", text)
        sites.run(0.1)
        for site in sites:
            if is_within(site.cluster, scope):
                wanted[site.number].append(text)
    sites.run(1)
    sites.settle_s = 1.0
    assert {number: payloads(peer) for number, peer in peers.items()} == wanted
    assert [site.braid.transfer.inbound.given_up for site in sites] == [0] * len(peers)
    fetched = [site.braid.catch_up.reconciler.fetched for site in sites]
    for number in range(24):
        scope, text, qos = scopes[number % len(scopes)], b"%d" % number, number % 3
        _ = publisher.publish("tide", text, qos) if scope is None else scoped(publisher, scope, "tide", text, qos)
    sites.run(2)
    for number, peer in peers.items():
        cluster = sites[number].cluster
        assert payloads(peer) == [b"%d" % one for one in range(24) if is_within(cluster, scopes[one % len(scopes)])]
    assert [site.braid.catch_up.reconciler.fetched for site in sites] == fetched


def test_one_who_was_never_told_goes_on_after_a_moment() -> None:
    """More stretches for clusters than a batch tells of: they are waited for, and then given up."""
    sites = Sites(3, clusters=("sea", "cloud1", "cloud2"))
    peers = everybody(sites)
    publisher = sites.client(0, "publisher")
    publisher.publish("tide", b"first")
    sites.settle_s = 0.05
    for number in range(SKIPS_MAX + 4):
        scoped(publisher, ("cloud1", "sea")[number % 2], "tide", b"%d" % number)
    publisher.publish("tide", b"last")
    sites.run(REORDER_S + 0.1)
    assert payloads(peers[2]) == [b"first", b"last"]
    assert sites[2].braid.transfer.inbound.given_up == 4
    assert payloads(peers[1]) == [b"first", *(b"%d" % number for number in range(0, SKIPS_MAX + 4, 2)), b"last"]
    assert sites[1].braid.transfer.inbound.given_up == 0


# Brokers that were away


@METHODS
@pytest.mark.parametrize("qos", [1, 2])
def test_who_comes_back_gets_what_it_missed_inside_its_clusters_only(tmp_path: Path, method: str, qos: int) -> None:
    sites = Sites(3, method=method, clusters=CLUSTERS)
    sites.clusters[7] = "cloud1/edge2"
    store = start(sites, 7, tmp_path)
    subscriber = sites.client(7, "ada", **persistent(V5))
    subscriber.subscribe("tide", 2)
    sites.run(CHECK_S + 5)
    publisher = sites.client(0, "publisher")
    assert scoped(publisher, "cloud1", "tide", b"before", qos) == 0
    sites.run(2)
    assert payloads(subscriber) == [b"before"]
    store.close()
    sites[7].crash()
    sites.run(60)
    for number, scope in enumerate(("cloud1", "cloud1/edge1", "cloud1/edge2", "sea", "cloud1")):
        assert scoped(publisher, scope, "tide", b"%d" % number, qos) is not None
    publisher.publish("tide", b"all", qos)
    sites.run(5)
    sites.sent.clear()
    store = start(sites, 7, tmp_path)
    sites.run(60)
    subscriber = sites.client(7, "ada", **persistent(V5))
    assert payloads(subscriber) == [b"0", b"2", b"4", b"all"]
    assert scoped(publisher, "cloud1", "tide", b"after", qos) == 0
    sites.run(60)
    assert payloads(subscriber) == [b"after"]
    store.close()


@METHODS
def test_a_publisher_that_was_down_goes_on_from_its_history_and_keeps_to_the_scope(tmp_path: Path, method: str) -> None:
    sites = Sites(4, method=method, clusters=CLUSTERS)
    peers = everybody(sites)
    sites.clusters[9] = "sea"
    store = start(sites, 9, tmp_path)
    publisher = sites.client(9, "publisher")
    publisher.publish("tide", b"first", 1)
    scoped(publisher, "cloud1/edge1", "tide", b"second", 1)
    sites.run(2)
    store.close()
    sites[9].crash()
    sites.run(30)
    store = start(sites, 9, tmp_path)
    publisher = sites.client(9, "publisher")
    scoped(publisher, "cloud1/edge1", "tide", b"third", 1)
    publisher.publish("tide", b"fourth", 1)
    sites.run(60)
    for number, peer in peers.items():
        is_in = number in inside(sites, "cloud1/edge1")
        assert payloads(peer) == ([b"first", b"second", b"third", b"fourth"] if is_in else [b"first", b"fourth"])
    store.close()


@METHODS
@pytest.mark.parametrize("seed", range(2))
def test_losses_do_not_show_and_nothing_gets_out(method: str, seed: int) -> None:
    network = Faults.parse("loss=0.05,dup=0.05,reorder=0.1").over(Uniform(0.001, 0.02))
    sites = Sites(6, seed, network, method, CLUSTERS)
    sites.settle_s = 8.0
    peers = everybody(sites)
    publisher = sites.client(0, "publisher")
    sites.settle_s = 1.0
    scopes = ("cloud1", None, "cloud1/edge1", "cloud2", "sea", "cloud1/edge2")
    came = where_it_came(sites)
    wanted: dict[int, list[bytes]] = {number: [] for number in peers}
    for number in range(30):
        scope, qos = scopes[(number + 1) % len(scopes)], 1 + number % 2
        text = b"%d for <%s>" % (number, (scope or "all").encode())
        _ = publisher.publish("tide", text, qos) if scope is None else scoped(publisher, scope, "tide", text, qos)
        for site in sites:
            if is_within(site.cluster, scope):
                wanted[site.number].append(text)
    sites.run(90)
    assert {number: payloads(peer) for number, peer in peers.items()} == wanted
    for scope in filter(None, scopes):
        assert came[scope] <= inside(sites, scope)


def test_the_first_of_a_cluster_may_crash() -> None:
    """It is where the cluster is entered."""
    sites = Sites(8, clusters=("sea", *["cloud1"] * 7))
    peers = everybody(sites)
    publisher = sites.client(0, "publisher")
    scoped(publisher, "cloud1", "tide", b"before", 1)
    sites.run(2)
    sites[1].crash()
    del peers[1]
    scoped(publisher, "cloud1", "tide", b"after", 1)
    sites.run(60)
    assert payloads(peers.pop(0)) == []
    for peer in peers.values():
        assert payloads(peer) == [b"before", b"after"]
    is_missed = isinstance(sites[0].braid.method, WildcardMethod)  # or it has left the ring, and counts no more
    assert sites[0].braid.transfer.sender.unproven == is_missed


def test_a_session_that_moves_out_leaves_behind_what_is_for_the_cluster() -> None:
    sites = Sites(3, clusters=CLUSTERS)
    subscriber = sites.client(2, "ada", **persistent(V5))
    subscriber.subscribe("tide", 1)
    subscriber.drop()
    publisher = sites.client(2, "publisher")
    for number, scope in enumerate(("cloud1/edge1", None, "cloud1", None)):
        text = b"%d" % number
        _ = publisher.publish("tide", text, 1) if scope is None else scoped(publisher, scope, "tide", text, 1)
    subscriber = sites.client(1, "ada", **persistent(V5))  # its cluster is cloud1
    assert payloads(subscriber) == [b"1", b"2", b"3"]


# Demand


@METHODS
def test_who_publishes_into_a_cluster_without_subscribers_is_told(method: str) -> None:
    sites = Sites(4, method=method, clusters=CLUSTERS)
    sites.client(2, "s").subscribe("tide", 1)
    sites.run(CHECK_S + 5)
    publisher = sites.client(0, "publisher")
    publisher.publish("tide", b"x", 1)
    sites.run(2)
    scoped(publisher, "cloud1/edge2", "tide", b"x", 1)
    sites.run(2)
    sites.sent.clear()
    assert scoped(publisher, "cloud1/edge2", "tide", b"x", 1) == 0x10
    assert sites.sent == []
    assert scoped(publisher, "cloud1", "tide", b"x", 1) == 0
    sites.client(3, "t").subscribe("tide", 1)
    sites.run(2 * CHECK_S + 5)
    scoped(publisher, "cloud1/edge2", "tide", b"x", 1)
    sites.run(2)
    assert scoped(publisher, "cloud1/edge2", "tide", b"x", 1) == 0
    assert publisher.publish("nobody/wants/this", b"x", 1, properties=props(user=("scope", "sea"))) in (0, 0x10)
    assert publisher.publish("nobody/wants/this", b"x", 1, properties=props(user=("scope", "sea"))) == 0x10


# How a scope is said


@pytest.mark.parametrize(
    ("full", "scope", "topic"),
    [
        ("$in/cloud1/tide", "cloud1", "tide"),
        ("$in/cloud1/tide/high", "cloud1", "tide/high"),
        ("$in/cloud1/edge1/tide", "cloud1/edge1", "tide"),
        ("$in/cloud1/edge9/tide", "cloud1", "edge9/tide"),
        ("$in/cloud1/-/edge1/tide", "cloud1", "edge1/tide"),
        ("$in/cloud1/edge1/-/tide/-", "cloud1/edge1", "tide/-"),
        ("$in/cloud1/edge1", "cloud1", "edge1"),
        ("$in/cloud1//tide", "cloud1", "/tide"),
        ("$in/./tide", "cloud1/edge1", "tide"),
        ("$in/./-/tide", "cloud1/edge1", "tide"),
    ],
)
def test_where_the_cluster_ends(full: str, scope: str, topic: str) -> None:
    sites = Sites(3, clusters=CLUSTERS)
    subscriber = sites.client(2, "s")
    subscriber.subscribe("#", 1)
    publisher = sites.client(2, "p", version=V3)
    publisher.publish(full, b"x", 1)
    sites.run(2)
    got = subscriber.expect_publish(topic, b"x")
    assert got.properties["user"] == [("scope", scope)]


@pytest.mark.parametrize(
    "full",
    [
        "$in/",
        "$in/cloud1",
        "$in/cloud1/",
        "$in/cloud1/-",
        "$in/cloud1/-/",
        "$in/-/tide",
        "$in//tide",
        "$in/nowhere/tide",
        "$in/nowhere/-/tide",
        "$in/cloud1/nowhere/-/tide",
        "$in/cloud1/./-/tide",
        "$in/cloud1/$in/sea/tide",
        "$in/cloud1/-/$in/sea/tide",
        "$in/edge1/tide",
    ],
)
@pytest.mark.parametrize("version", [V3, V5])
def test_a_topic_without_a_cluster_or_a_topic_is_refused(
    full: str, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "braidmq.broker")
    sites = Sites(3, clusters=CLUSTERS)
    subscriber = sites.client(1, "s")
    subscriber.subscribe("#", 1)
    publisher = sites.client(1, "p", version=version)
    for _ in range(2):
        for qos in (0, 1, 2):
            assert publisher.publish(full, b"x", qos) == (None if not qos else 0x90 if version == V5 else 0)
    publisher.expect_open()
    subscriber.expect_nothing()
    assert len([one for one in caplog.records if "'p'" in one.getMessage()]) == 1
    assert sites[1].broker.metrics.publish_refused == 6


@pytest.mark.parametrize(
    "values",
    [["nowhere"], ["cloud"], ["edge1"], [""], ["/cloud1"], ["cloud1/"], ["cloud1/+"], ["#"], ["-"], ["cloud1", "sea"]],
)
def test_a_property_that_names_no_cluster_is_refused(values: list[str]) -> None:
    sites = Sites(2, clusters=CLUSTERS)
    subscriber = sites.client(1, "s")
    subscriber.subscribe("tide", 1)
    publisher = sites.client(1, "p")
    properties = props(user=[("scope", value) for value in values])
    for qos in (0, 1, 2):
        assert publisher.publish("tide", b"x", qos, properties=properties) == (0x83 if qos else None)
    publisher.expect_open()
    subscriber.expect_nothing()


def test_why_it_is_refused_is_told() -> None:
    sites = Sites(2, clusters=CLUSTERS)
    publisher = sites.client(1, "p")
    packet_id = publisher.new_id()
    properties = props(user=("scope", "nowhere"))
    publisher.send(wire.publish("tide", b"x", version=V5, qos=1, packet_id=packet_id, properties=properties))
    text = publisher.expect(Type.PUBACK, reason=0x83).properties["reason_string"]
    assert "no broker of the braid is in the cluster 'nowhere'" in text


def test_topic_and_property_must_agree() -> None:
    sites = Sites(2, clusters=CLUSTERS)
    publisher = sites.client(1, "p")
    for value, reason in (("cloud1", 0x10), ("sea", 0x90)):
        properties = props(user=("scope", value))
        publisher.publish("$in/cloud1/tide", b"x", 1, properties=properties)
        assert publisher.publish("$in/cloud1/tide", b"x", 1, properties=properties) == reason


@pytest.mark.parametrize("topic_filter", ["$in/#", "$in/cloud1/tide", "$share/group/$in/cloud1/tide"])
def test_a_subscription_is_to_the_plain_topic(topic_filter: str) -> None:
    sites = Sites(2, clusters=CLUSTERS)
    assert sites.client(1, "five").subscribe(topic_filter) == 0x8F
    assert sites.client(1, "three", version=V3).subscribe(topic_filter) == 0x80


@pytest.mark.parametrize("payload", [b"x", b""])
def test_a_retained_publication_cannot_stay_inside(payload: bytes) -> None:
    sites = Sites(3, clusters=CLUSTERS)
    publisher = sites.client(1, "p")
    publisher.publish("tide", b"kept", 1, retain=True)
    assert scoped(publisher, "cloud1", "tide", payload, 1, retain=True) == 0x83
    late = sites.client(2, "late")
    late.subscribe("tide", 1)
    late.expect_publish("tide", b"kept")


def test_a_broker_in_no_cluster_has_no_own_one() -> None:
    sites = Sites(2)
    publisher = sites.client(1, "p")
    assert scoped(publisher, ".", "tide", b"x", 1) == 0x83
    assert publisher.publish("$in/./tide", b"x", 1) == 0x90


def test_access_is_checked_for_the_plain_topic() -> None:
    sites = Sites(1, clusters=CLUSTERS)
    sites.clusters[1] = "cloud1"
    site = sites.add(1, access=Rules())
    sites.run(5)
    publisher = site.client("p")
    assert scoped(publisher, "cloud1", "secret/plan", b"x", 1) == 0x87
    assert publisher.publish("$in/cloud1/secret/plan", b"x", 1) == 0x87
    assert publisher.publish("$in/cloud1/$SYS/plan", b"x", 1) == 0x87
    assert publisher.publish("$in/cloud1/tide", b"x", 1) in (0, 0x10)


def test_a_topic_alias_may_stand_for_a_topic_with_a_cluster() -> None:
    sites = Sites(2, clusters=CLUSTERS)
    subscriber = sites.client(1, "s")
    subscriber.subscribe("tide")
    publisher = sites.client(0, "p")
    publisher.publish("$in/cloud1/tide", b"0", properties=props(topic_alias=3))
    publisher.publish("", b"1", properties=props(topic_alias=3))
    sites.run(2)
    assert payloads(subscriber) == [b"0", b"1"]


# Wills


@pytest.mark.parametrize("version", [V3, V5])
def test_a_will_stays_inside(version: int) -> None:
    sites = Sites(6, clusters=CLUSTERS)
    peers = everybody(sites)
    if version == V5:
        will = Will("tide", b"gone", qos=1, properties=props(user=("scope", "cloud1/edge1")))
    else:
        will = Will("$in/cloud1/edge1/tide", b"gone", qos=1)
    sites.client(0, "p", version=version, will=will).drop()
    sites.run(5)
    assert {number for number, peer in peers.items() if payloads(peer) == [b"gone"]} == {2}


@pytest.mark.parametrize(
    ("will", "reason"),
    [
        (Will("$in/nowhere/tide"), 0x90),
        (Will("tide", properties=props(user=("scope", "nowhere"))), 0x83),
        (Will("$in/cloud1/tide", retain=True), 0x83),
    ],
)
def test_a_will_with_a_scope_that_cannot_be_kept_is_refused(will: Will, reason: int) -> None:
    sites = Sites(2, clusters=CLUSTERS)
    peer = sites[1].peer()
    peer.connect("p", will=will, reason=reason)
    peer.expect_nothing()
    assert peer.link.closed


def test_a_will_is_checked_for_its_plain_topic() -> None:
    sites = Sites(1, clusters=CLUSTERS)
    sites.clusters[1] = "cloud1"
    site = sites.add(1, access=Rules())
    sites.run(5)
    site.peer().connect("p", will=Will("$in/cloud1/secret/plan"), reason=0x87)


# Methods that cannot, and brokers without a braid


@pytest.mark.parametrize("method", ["scribe", "bayeux", "canmc"])
def test_a_method_that_cannot_keep_it_inside_says_so(method: str) -> None:
    sites = Sites(3, method=method, clusters=CLUSTERS)
    assert not isinstance(sites[0].braid.method, ProvenMethod | ScopedMethod)
    subscriber = sites.client(1, "s")
    subscriber.subscribe("tide")
    publisher = sites.client(2, "p")
    assert scoped(publisher, "cloud1", "tide", b"no", 1) == 0x83
    assert publisher.publish("$in/cloud1/tide", b"no", 1) == 0x83
    publisher.publish("tide", b"yes", 1)
    assert payloads(subscriber) == [b"yes"]


# Which clusters there are


@METHODS
def test_a_cluster_is_known_when_its_first_broker_is_in(method: str) -> None:
    sites = Sites(4, method=method, clusters=CLUSTERS)
    publisher = sites.client(0, "p")
    assert scoped(publisher, "cloud7/edge7", "tide", b"x", 1) == 0x83
    sites.clusters[9] = "cloud7/edge7"
    sites.add(9)
    sites.run(3)
    for number in range(4):
        assert "cloud7/edge7" in sites[number].braid.interest.clusters
        assert "cloud7" in sites[number].braid.interest.clusters
    assert scoped(publisher, "cloud7", "tide", b"x", 1) in (0, 0x10)
    assert sites[9].braid.interest.clusters.paths.keys() == sites[0].braid.interest.clusters.paths.keys()
    assert scoped(sites.client(9, "q"), "cloud1/edge2", "tide", b"x", 1) in (0, 0x10)


@pytest.mark.parametrize("path", ["a//b", "/a", "a/", "a/-", "./a", "a+", "#", "a\x01b", "-", "."])
def test_what_can_be_no_cluster_is_told_at_the_start(path: str) -> None:
    findings = Findings()
    check(Config(braid=BraidConfig(cluster=path)), findings)
    assert [one.key for one in findings.problems if one.key.startswith("braid.")] == ["braid.cluster"]
    assert cluster_problem("cloud1/edge1") is cluster_problem("") is None


def test_clusters_are_remembered_and_forgotten(tmp_path: Path) -> None:
    store = JournalStore(tmp_path)
    store.load()
    clusters = Clusters("sea", store, ())
    now = 1e9
    clusters.learn([("cloud1/edge1", now - 5), ("bad//path", now), ("old", now - KEPT_S - 1), ("sea", now)], now)
    store.commit()
    assert list(clusters.paths) == ["sea", "cloud1", "cloud1/edge1"]
    assert clusters.told(now, b"") == (("sea", now), ("cloud1/edge1", now - 5))
    assert clusters.told(now, clusters.digest(now)) == (("sea", now),)
    saved = store.load().cursors
    assert [key for key, _ in saved] == [CLUSTERS_ROW]
    again = Clusters("", MemoryStore(), saved)
    assert list(again.paths) == ["cloud1", "cloud1/edge1"]
    assert again.digest(now) != clusters.digest(now)
    assert again.digest(now + KEPT_S / 2) == b""
    assert again.digest(now + KEPT_S) == Clusters("", MemoryStore(), ()).digest(now)
    assert again.told(now + KEPT_S, b"") == ()
    assert list(again.paths) == []
    store.close()


# Locality: each other cluster is entered once


def entries(sites: Sites) -> Counter[str]:
    """By cluster: how often publications came into it from outside."""
    clusters = {site.number: site.cluster for site in sites}
    return Counter(clusters[int(to)] for sender, to in sites.sent if clusters[int(sender)] != clusters[int(to)])


@pytest.mark.parametrize("qos", [0, 1])
def test_each_other_cluster_is_entered_once(qos: int) -> None:
    clusters = ["home", *(name for name in ("a", "b", "c", "home") for _ in range(4))]
    sites = Sites(len(clusters), method="locality", clusters=clusters)
    peers = everybody(sites)
    publisher = sites.client(0, "publisher")
    publisher.publish("tide", b"first", qos)
    sites.run(5)
    for number in range(5):
        sites.sent.clear()
        publisher.publish("tide", b"%d" % number, qos)
        sites.run(2)
        assert entries(sites) == {"a": 1, "b": 1, "c": 1}
        assert len(sites.sent) == len(peers) - 1
    for peer in peers.values():
        assert payloads(peer) == [b"first", b"0", b"1", b"2", b"3", b"4"]


def test_a_cluster_is_entered_once_for_a_scope_with_clusters_below() -> None:
    clusters = ["sea", *(name for name in ("a", "a/x", "a/y", "b") for _ in range(3))]
    sites = Sites(len(clusters), method="locality", clusters=clusters)
    peers = everybody(sites)
    publisher = sites.client(0, "publisher")
    scoped(publisher, "a", "tide", b"first")
    sites.run(5)
    sites.sent.clear()
    scoped(publisher, "a", "tide", b"second")
    sites.run(2)
    assert entries(sites) == {"a": 1, "a/x": 1, "a/y": 1}
    for number, peer in peers.items():
        assert payloads(peer) == ([b"first", b"second"] if is_within(sites[number].cluster, "a") else [])
