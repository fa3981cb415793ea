"""Publications across brokers: one copy to each client, whatever the filters, and silence where nobody listens."""

from __future__ import annotations

import pytest

from braidmq.braid.transfer.shaped_topics import ShapedTopics
from tests.conformance.wire import V3, V5

from .sites import Sites, payloads

pytestmark = pytest.mark.usefixtures("both_kinds")

METHODS = pytest.mark.parametrize("method", ["relayfree", "suzaku", "covers"])


@METHODS
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("versions", [(V3, V3), (V5, V5), (V3, V5), (V5, V3)])
def test_a_publication_reaches_a_subscriber_at_another_site(method: str, qos: int, versions: tuple[int, int]) -> None:
    sites = Sites(3, method=method)
    subscriber = sites.client(2, version=versions[1])
    assert subscriber.subscribe("tide/high", qos) == qos
    publisher = sites.client(0, version=versions[0])
    for number in range(5):
        assert publisher.publish("tide/high", b"%d" % number, qos) in (None, 0)
    assert payloads(subscriber) == [b"0", b"1", b"2", b"3", b"4"]


@METHODS
def test_everybody_gets_one_copy(method: str) -> None:
    sites = Sites(6, method=method)
    peers = [sites.client(number) for number in range(6)]
    for peer in peers[1:]:
        peer.subscribe("tide", 1)
    publisher = peers[0]
    for number in range(3):
        publisher.publish("tide", b"%d" % number, 1)
    for peer in peers[1:]:
        assert payloads(peer) == [b"0", b"1", b"2"]


@METHODS
@pytest.mark.parametrize(
    "filters",
    [
        ("tide/+/high", "tide/#"),
        ("tide/+/high", "+/west/+", "tide/west/high"),
        ("#", "tide/west/high", "tide/#", "+/+/+"),
        ("$share/group/tide/+/high",),
    ],
)
def test_overlapping_filters_of_a_site_make_one_copy(method: str, filters: tuple[str, ...]) -> None:
    sites = Sites(4, method=method)
    subscriber = sites.client(3)
    for one in filters:
        subscriber.subscribe(one, 1)
    publisher = sites.client(0)
    publisher.publish("tide/west/high", b"1", 1)
    publisher.publish("tide/west/high", b"2", 0)
    publisher.publish("wind/west", b"no", 0)
    got = payloads(subscriber)
    assert [one for one in got if one != b"no"] == [b"1", b"2"]
    assert (b"no" in got) == ("#" in filters)


def test_a_wildcard_that_comes_later_reaches_topics_that_are_published_already() -> None:
    sites = Sites(4)
    publisher = sites.client(0)
    publisher.publish("tide/west/high", b"0", 0)
    subscriber = sites.client(3)
    subscriber.subscribe("tide/+/high", 0)
    sites.run(2)
    publisher.publish("tide/west/high", b"1", 0)
    assert payloads(subscriber) == [b"1"]


def test_what_nobody_wants_does_not_travel() -> None:
    sites = Sites(4)
    publisher = sites.client(0)
    bystander = sites.client(3)
    bystander.subscribe("wind/#")
    sites.sent.clear()
    for number in range(20):
        publisher.publish("tide/high", b"%d" % number, number % 3)
    assert sites.sent == []
    assert publisher.publish("tide/high", b"x", 1) == 0x10


def test_no_broker_without_a_matching_subscriber_receives_a_message() -> None:
    sites = Sites(8)
    for number in (2, 3):
        sites.client(number).subscribe("tide/+")
    for number in (4, 5):
        sites.client(number).subscribe("wind/#")
    sites.client(6).subscribe("tide/low")
    publisher = sites.client(0)
    publisher.publish("tide/high", b"x")
    sites.sent.clear()
    publisher.publish("tide/high", b"x")
    assert {site for hop in sites.sent for site in hop} == {0, 2, 3}


@pytest.mark.parametrize(
    "method", ["adaptive", "suzaku", "covers"]
)  # in a Skip Graph publishers relay what others publish
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_many_sites_publish_goes_to_those_who_want_it_and_to_no_other_publisher(method: str, qos: int) -> None:
    sites = Sites(8, method=method)
    sites.client(3).subscribe("alarm", qos)
    publishers = {number: sites.client(number) for number in (0, 1, 2, 4, 5)}
    for publisher in publishers.values():
        publisher.publish("alarm", b"first", qos)
    sites.run(2)
    for number, publisher in publishers.items():
        sites.sent.clear()
        publisher.publish("alarm", b"x", qos)
        sites.run(2)
        assert {to for _, to in sites.sent} == {3}, f"what {number} published"


@pytest.mark.parametrize("qos", [0, 1])
def test_a_topic_that_came_from_elsewhere_first_leaves_when_it_is_published_here(qos: int) -> None:
    sites = Sites(3)
    here, there = sites.client(0, "here"), sites.client(2, "there")
    for one in (here, there):
        one.subscribe("tide", 1)
    sites.client(1, "elsewhere").publish("tide", b"1", 1)
    for number in (b"2", b"3"):
        sites.client(0, "publisher").publish("tide", number, qos)
    assert payloads(there) == [b"1", b"2", b"3"]
    assert payloads(here) == [b"1", b"2", b"3"]


def test_dollar_topics_are_not_matched_by_a_leading_wildcard() -> None:
    sites = Sites(3)
    subscriber = sites.client(2)
    subscriber.subscribe("#")
    subscriber.subscribe("$things/#")
    publisher = sites.client(0)
    publisher.publish("$things/a", b"1")
    publisher.publish("$other/a", b"2")
    assert payloads(subscriber) == [b"1"]


def test_order_is_kept_over_qos_levels() -> None:
    sites = Sites(5)
    subscriber = sites.client(4)
    subscriber.subscribe("tide", 2)
    publisher = sites.client(0)
    publisher.publish("tide", b"first")
    for number in range(40):
        publisher.publish("tide", b"%d" % number, number % 3)
    assert payloads(subscriber) == [b"first", *(b"%d" % number for number in range(40))]


def test_a_site_that_comes_later_knows_the_shapes() -> None:
    sites = Sites(3)
    subscriber = sites.client(2)
    subscriber.subscribe("+/west/#")
    late = sites.add(9)
    sites.run(5)
    publisher = late.client("late")
    publisher.publish("tide/west/1", b"x")
    publisher.publish("tide/west/1", b"y")
    assert payloads(subscriber) == [b"x", b"y"]


def test_a_site_that_leaves_is_gone() -> None:
    sites = Sites(4)
    sites.client(3).subscribe("tide")
    publisher = sites.client(0)
    publisher.publish("tide", b"x")
    site = sites[3]
    site.host.spawn(site.braid.leave())
    sites.run(5)
    site.crash()
    sites.sent.clear()
    assert publisher.publish("tide", b"y", 1) == 0x10
    assert sites.sent == []


def test_a_publication_that_shows_that_nobody_wants_a_filter_reaches_those_of_the_others() -> None:
    """The rendezvous point hears at once, while it publishes, that a filter has lost its last subscriber."""
    sites = Sites(3, method="relayfree")
    sites.client(1, "a").subscribe("tide", 0)
    other = sites.client(2, "b")
    other.subscribe("+", 0)
    publisher = sites.client(0)
    publisher.publish("tide", b"0", 0)
    braid = sites[0].braid
    outbound = braid.transfer.outbound
    assert isinstance(outbound, ShapedTopics)
    publish = braid.method.publish

    def publish_and_hear(topic: str, body: bytes) -> bool:
        if topic == "tide":
            outbound.set_demand(topic, False)
        return publish(topic, body)

    braid.method.publish = publish_and_hear  # type: ignore[method-assign]
    publisher.publish("tide", b"1", 0)
    assert payloads(other) == [b"0", b"1"]
