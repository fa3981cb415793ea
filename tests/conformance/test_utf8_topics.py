"""Strings (§1.5.4), topic names and topic filters (§4.7): what is well-formed, and what matches what."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from . import wire
from .pair import V3, V5, Type, Will, World
from .wire import Type as Kind
from .wire import packet, props

ILL_FORMED = {
    "lone continuation": b"a\x80b",
    "never in UTF-8": b"\xff",
    "truncated": b"a\xc3",
    "overlong slash": b"\xc0\xaf",
    "overlong null": b"\xc0\x80",
    "overlong three": b"\xe0\x80\xaf",
    "surrogate": b"\xed\xa0\x80",
    "surrogate pair": b"\xed\xa0\xbd\xed\xb8\x80",
    "last surrogate": b"\xed\xbf\xbf",
    "above U+10FFFF": b"\xf4\x90\x80\x80",
    "five bytes": b"\xf8\x88\x80\x80\x80",
    "null": b"a\x00b",
}

IN_CONNECT: dict[str, Callable[[bytes, int], bytes]] = {
    "client id": lambda bad, version: wire.connect(bad, version=version),
    "will topic": lambda bad, version: wire.connect(version=version, will=Will(bad)),
    "user name": lambda bad, version: wire.connect(version=version, username=bad),
}
IN_CONNECT_5: dict[str, Callable[[bytes], bytes]] = {
    "user property name": lambda bad: wire.connect(properties=props(user=(bad, "v"))),
    "user property value": lambda bad: wire.connect(properties=props(user=("k", bad))),
    "authentication method": lambda bad: wire.connect(properties=props(auth_method=bad)),
    "will content type": lambda bad: wire.connect(will=Will(properties=props(content_type=bad))),
    "will response topic": lambda bad: wire.connect(will=Will(properties=props(response_topic=bad))),
    "will user property": lambda bad: wire.connect(will=Will(properties=props(user=("k", bad)))),
}
AFTER: dict[str, Callable[[bytes, int], bytes]] = {
    "PUBLISH 0": lambda bad, version: wire.publish(bad, b"x", version=version),
    "PUBLISH 1": lambda bad, version: wire.publish(bad, b"x", version=version, qos=1, packet_id=1),
    "PUBLISH retained": lambda bad, version: wire.publish(bad, b"x", version=version, retain=True),
    "SUBSCRIBE": lambda bad, version: wire.subscribe(1, (bad, 0), version=version),
    "SUBSCRIBE second": lambda bad, version: wire.subscribe(1, ("a", 0), (bad, 0), version=version),
    "UNSUBSCRIBE": lambda bad, version: wire.unsubscribe(1, bad, version=version),
}
AFTER_5: dict[str, Callable[[bytes], bytes]] = {
    "PUBLISH with alias": lambda bad: wire.publish(bad, b"x", properties=props(topic_alias=1)),
    "response topic": lambda bad: wire.publish("t", properties=props(response_topic=bad)),
    "content type": lambda bad: wire.publish("t", properties=props(content_type=bad)),
    "user property name": lambda bad: wire.publish("t", properties=props(user=(bad, "v"))),
    "user property value": lambda bad: wire.publish("t", properties=props(user=("k", bad))),
    "PUBACK reason string": lambda bad: wire.ack(Kind.PUBACK, 1, 0, props(reason_string=bad)),
    "PUBREC user property": lambda bad: wire.ack(Kind.PUBREC, 1, 0, props(user=("k", bad))),
    "SUBSCRIBE user property": lambda bad: wire.subscribe(1, ("a", 0), properties=props(user=(bad, bad))),
    "UNSUBSCRIBE user property": lambda bad: wire.unsubscribe(1, "a", properties=props(user=(bad, "v"))),
    "DISCONNECT reason string": lambda bad: wire.disconnect(0, props(reason_string=bad)),
}
with_ill_formed = pytest.mark.parametrize("bad", ILL_FORMED.values(), ids=ILL_FORMED.keys())


@pytest.mark.statement(
    "3.1.1:MQTT-1.5.3-1",
    "3.1.1:MQTT-1.5.3-2",
    "5.0:MQTT-1.5.4-1",
    "5.0:MQTT-1.5.4-2",
    "3.1.1:MQTT-3.1.3-4",
    "3.1.1:MQTT-3.1.3-10",
    "3.1.1:MQTT-3.1.3-11",
    "5.0:MQTT-3.1.3-4",
    "5.0:MQTT-3.1.3-11",
    "5.0:MQTT-3.1.3-12",
)
@pytest.mark.parametrize("where", IN_CONNECT)
@with_ill_formed
def test_strings_of_connect(world: World, version: int, where: str, bad: bytes) -> None:
    peer = world.peer(version)
    peer.send(IN_CONNECT[where](bad, version))
    peer.expect_refused(0x81)


@pytest.mark.statement("5.0:MQTT-1.5.4-1", "5.0:MQTT-1.5.4-2", "5.0:MQTT-1.5.7-1")
@pytest.mark.parametrize("where", IN_CONNECT_5)
@with_ill_formed
def test_strings_of_connects_properties(world: World, where: str, bad: bytes) -> None:
    peer = world.peer()
    peer.send(IN_CONNECT_5[where](bad))
    peer.expect_refused(0x81)


@pytest.mark.statement(
    "3.1.1:MQTT-1.5.3-1",
    "3.1.1:MQTT-1.5.3-2",
    "5.0:MQTT-1.5.4-1",
    "5.0:MQTT-1.5.4-2",
    "3.1.1:MQTT-3.3.2-1",
    "3.1.1:MQTT-3.8.3-1",
    "3.1.1:MQTT-3.10.3-1",
    "3.1.1:MQTT-4.7.3-2",
    "5.0:MQTT-3.3.2-1",
    "5.0:MQTT-3.8.3-1",
    "5.0:MQTT-3.10.3-1",
    "5.0:MQTT-4.7.3-2",
)
@pytest.mark.parametrize("where", AFTER)
@with_ill_formed
def test_topic_names_and_filters(world: World, version: int, where: str, bad: bytes) -> None:
    peer = world.client("c", version)
    peer.send(AFTER[where](bad, version))
    peer.expect_closed(0x81)


@pytest.mark.statement(
    "5.0:MQTT-1.5.4-1", "5.0:MQTT-1.5.4-2", "5.0:MQTT-1.5.7-1", "5.0:MQTT-3.3.2-13", "5.0:MQTT-3.3.2-19"
)
@pytest.mark.parametrize("where", AFTER_5)
@with_ill_formed
def test_strings_of_properties(world: World, where: str, bad: bytes) -> None:
    peer = world.client("c")
    peer.send(AFTER_5[where](bad))
    peer.expect_closed(0x81)


@pytest.mark.statement("3.1.1:MQTT-1.5.3-1", "5.0:MQTT-1.5.4-1", "3.1.1:MQTT-3.3.2-1", "5.0:MQTT-3.3.2-1")
@with_ill_formed
def test_a_bad_topic_behind_good_ones(world: World, version: int, bad: bytes) -> None:
    """A run of publications in one read: the bad one is not carried along, by no path through the broker."""
    watcher = world.client("w", version)
    watcher.subscribe("#")
    peer = world.client("c", version)
    good = wire.publish("t", b"good", version=version)
    peer.send(good, good, wire.publish(bad, b"bad", version=version), good)
    peer.expect_closed(0x81)
    watcher.expect_payloads(b"good", b"good")


@pytest.mark.statement("3.1.1:MQTT-1.5.3-2")
def test_binary_fields_may_hold_anything(world: World, version: int) -> None:
    watcher = world.client("w", version)
    watcher.subscribe("#")
    for number, raw in enumerate(ILL_FORMED.values()):
        peer = world.client("c", version, will=Will("w", raw), username="u", password=raw)
        peer.drop()
        watcher.expect_publish("w", raw)
        if version == V5:
            world.client("p").publish(f"t/{number}", raw, properties=props(correlation_data=raw))
            assert watcher.expect_publish(f"t/{number}", raw).properties["correlation_data"] == raw


@pytest.mark.statement("3.1.1:MQTT-1.5.3-3", "5.0:MQTT-1.5.4-3")
@pytest.mark.parametrize("topic", ["\ufeff", "\ufefft", "t\ufeff", "a/\ufeff/b"])
def test_a_byte_order_mark_is_a_character(world: World, version: int, topic: str) -> None:
    subscriber = world.client("\ufeffc", version)
    subscriber.subscribe(topic)
    stripped = world.client("c", version)
    stripped.subscribe(topic.replace("\ufeff", "") or "x")
    world.client("p", version).publish(topic, b"x")
    subscriber.expect_publish(topic, b"x")
    stripped.expect_open()


@pytest.mark.statement("3.1.1:MQTT-4.7.3-4", "5.0:MQTT-4.7.3-4", "3.1.1:MQTT-3.3.2-3", "5.0:MQTT-3.3.2-3")
@pytest.mark.parametrize("topic", ["é", "e\u0301", "Å", "\u212b", "ß", "SS", "ﬁ", "𠜎/😀", " ", " a", "ACCOUNTS", "İ"])
def test_nothing_is_normalized(world: World, version: int, topic: str) -> None:
    others = [
        "é",
        "e\u0301",
        "Å",
        "\u212b",
        "ß",
        "SS",
        "ss",
        "ﬁ",
        "fi",
        "𠜎/😀",
        " ",
        " a",
        "a",
        "Accounts",
        "ACCOUNTS",
        "İ",
        "i",
    ]
    subscriber = world.client("s", version)
    for other in others:
        if other != topic:
            subscriber.subscribe(other)
    publisher = world.client("p", version)
    publisher.publish(topic, b"x")
    subscriber.expect_nothing()
    subscriber.subscribe(topic)
    publisher.publish(topic, b"x")
    subscriber.expect_publish(topic, b"x")


@pytest.mark.statement("3.1.1:MQTT-3.3.2-2", "3.1.1:MQTT-4.7.1-1", "5.0:MQTT-3.3.2-2", "5.0:MQTT-4.7.0-1")
@pytest.mark.parametrize("topic", ["+", "#", "a/+", "a/#", "a+", "a#b", "/+", "+/a", "a/+/b"])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("retain", [False, True])
def test_wildcards_in_a_topic_name(world: World, version: int, topic: str, qos: int, retain: bool) -> None:
    peer = world.client("c", version)
    peer.send(wire.publish(topic, b"x", version=version, qos=qos, retain=retain, packet_id=1 if qos else None))
    peer.expect_closed(0x81, 0x82, 0x90)


@pytest.mark.statement(
    "3.1.1:MQTT-4.7.1-2",
    "3.1.1:MQTT-4.7.1-3",
    "3.1.1:MQTT-4.7.3-1",
    "5.0:MQTT-4.7.1-1",
    "5.0:MQTT-4.7.1-2",
    "5.0:MQTT-4.7.3-1",
)
@pytest.mark.parametrize(
    "bad", ["", "a#", "#a", "a/#/b", "#/a", "a+", "+a", "a/+b", "a/b+/c", "##", "a/##", "++", "a/#/"]
)
def test_filters_that_are_none(world: World, version: int, bad: str) -> None:
    """Refused in the SUBACK or with the connection, and never granted."""
    peer = world.client("c", version)
    peer.send(wire.subscribe(1, (bad, 0), ("good", 0), version=version))
    if peer.link.closed:
        peer.expect_closed(0x81, 0x82, 0x8F)
    else:
        peer.expect(Type.SUBACK, reasons=[0x80 if version == V3 else 0x8F, 0])


MATCHES = {
    "sport/tennis/player1/#": ["sport/tennis/player1", "sport/tennis/player1/ranking", "sport/tennis/player1/a/b"],
    "sport/#": ["sport", "sport/", "sport/a", "sport/a/b"],
    "#": ["sport", "/", "a/b/c", "/a", "a/"],
    "sport/tennis/+": ["sport/tennis/player1", "sport/tennis/"],
    "sport/+": ["sport/", "sport/a"],
    "+": ["sport", "a"],
    "+/+": ["/finance", "a/b", "/", "a/"],
    "/+": ["/finance", "/"],
    "+/tennis/#": ["a/tennis", "/tennis", "a/tennis/b/c"],
    "+/b/+": ["a/b/c", "/b/"],
    "a//b": ["a//b"],
    "a/+/b": ["a//b", "a/x/b"],
    "/": ["/"],
    "//": ["//"],
    "$x/#": ["$x/y", "$x"],
    "$x/+": ["$x/y"],
    "$a": ["$a"],
    "a/$b/#": ["a/$b/c"],
    "+/$b": ["a/$b"],
}
DIFFERS = {
    "sport/tennis/player1/#": ["sport/tennis/player2", "sport/tennis", "sport/tennis/player11"],
    "sport/#": ["sports", "Sport/a", "/sport", "$sport/a"],
    "#": ["$SYS/x", "$x", "$"],
    "sport/tennis/+": ["sport/tennis/player1/ranking", "sport/tennis"],
    "sport/+": ["sport", "sport/a/b"],
    "+": ["/finance", "a/b", "a/", "/", "$SYS", "$"],
    "+/+": ["a", "a/b/c", "$SYS/x", "//"],
    "/+": ["finance", "/a/b"],
    "+/monitor/x": ["$SYS/monitor/x"],
    "+/tennis/#": ["tennis", "a/b/tennis"],
    "a": ["A", "a/", "/a", "a ", "b"],
    "a/b": ["a/b/", "a//b", "/a/b"],
    "a//b": ["a/b", "a/x/b"],
    "+/#": ["$x", "$x/y"],
}


def _pairs(table: dict[str, list[str]]) -> list[tuple[str, str]]:
    return [(topic_filter, topic) for topic_filter, topics in table.items() for topic in topics]


@pytest.mark.statement(
    "3.1.1:MQTT-3.3.2-3",
    "3.1.1:MQTT-4.7.2-1",
    "3.1.1:MQTT-4.7.1-2",
    "3.1.1:MQTT-4.7.1-3",
    "5.0:MQTT-3.3.2-3",
    "5.0:MQTT-4.7.2-1",
    "5.0:MQTT-4.7.1-1",
    "5.0:MQTT-4.7.1-2",
)
@pytest.mark.parametrize("retained", [False, True], ids=["live", "retained"])
@pytest.mark.parametrize(
    ("topic_filter", "topic", "wanted"),
    [(*pair, True) for pair in _pairs(MATCHES)] + [(*pair, False) for pair in _pairs(DIFFERS)],
)
def test_which_filter_matches_which_topic(
    world: World, topic_filter: str, topic: str, wanted: bool, retained: bool
) -> None:
    subscriber, publisher = world.client("s", V3), world.client("p", V5)
    if retained:
        publisher.publish(topic, b"x", retain=True)
    subscriber.subscribe(topic_filter)
    if not retained:
        publisher.publish(topic, b"x")
    assert [one.topic for one in subscriber.take()] == ([topic] if wanted else [])


@pytest.mark.statement("3.1.1:MQTT-4.7.3-3", "5.0:MQTT-4.7.3-3")
def test_the_longest_topic(world: World, version: int) -> None:
    longest = "é" * 32_767 + "x"
    assert len(longest.encode()) == 65_535
    peer = world.client("c", version)
    assert peer.subscribe(longest) == 0
    peer.publish(longest, b"x")
    peer.expect_publish(longest, b"x")


@pytest.mark.statement("3.1.1:MQTT-4.8.0-1", "5.0:MQTT-4.13.1-1")
def test_a_string_that_reaches_past_its_packet(world: World, version: int) -> None:
    for raw in (
        packet(Kind.PUBLISH, b"\x00\x05abc", 0),
        packet(Kind.SUBSCRIBE, b"\x00\x01" + wire.block(version, b"") + b"\xff\xffa\x00"),
        packet(Kind.UNSUBSCRIBE, b"\x00\x01" + wire.block(version, b"") + b"\x00\x02a"),
    ):
        peer = world.client("c", version)
        peer.send(raw)
        peer.expect_closed(0x81)


@pytest.mark.parametrize("levels", [129, 60_000])
def test_more_levels_than_the_bound(world: World, version: int, levels: int) -> None:
    deep = "/" * (levels - 1)
    watcher = world.client("w", version)
    watcher.subscribe("#")
    peer = world.client("c", version)
    peer.send(wire.publish(deep, b"x", version=version))
    watcher.expect_nothing()
    peer = world.client("d", version)
    peer.send(wire.subscribe(1, (deep, 0), version=version))
    granted = [one.reasons for one in peer.take() if one.type is Type.SUBACK]
    assert peer.link.closed or granted == [[0x80 if version == V3 else 0x8F]]
