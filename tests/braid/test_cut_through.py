"""The cut-through: publications that come one at a time take a short way between brokers; only the clock can tell.

Real brokers over loopback, all in the test's own loop, with clients on real sockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import cast

import msgspec
import pytest

from braidmq.braid.transfer.batch import PublicationBatch, pack
from braidmq.braid.transfer.carrier_template import TELL_BYTES, Carrier, field_bytes, head_of, tell_of, template_of
from braidmq.braid.transfer.cut_through import CutThrough
from braidmq.braid.transfer.cut_through_receivers import CutThroughReceiver
from braidmq.host import Message
from braidmq.mqtt.packets import V3, V5
from braidmq.net.frames import Codec, Tell
from braidmq.overlay.ranges import Deliver, Plan
from braidmq.pubsub.covers.multicast_messages import MulticastCopy
from braidmq.pubsub.registry import MethodName
from braidmq.pubsub.relay_free.signals import MESSAGE
from tests.braid.linked_sites import BRAID_KEY, MANY, TOPIC, WAIT_S, Client, StartSite, is_silent, linked_sites


def plain(payload: bytes, topic: bytes = TOPIC) -> bytes:
    """A PUBLISH of QoS 0, as MQTT 3.1.1 writes it."""
    return bytes([0x30, 2 + len(topic) + len(payload), 0, len(topic)]) + topic + payload


@pytest.fixture(params=["adaptive", "covers"])
def method(request: pytest.FixtureRequest) -> MethodName:
    return cast(MethodName, request.param)


@pytest.fixture(params=["open", "sealed"])
async def start(request: pytest.FixtureRequest, tmp_path: Path, method: MethodName) -> AsyncIterator[StartSite]:
    """Starts a broker that joins those that are there."""
    async with linked_sites(tmp_path, method, BRAID_KEY if request.param == "sealed" else None) as start_one:
        yield start_one


async def one_by_one(
    publisher: Client, receivers: list[Client], count: int, begin: int = 0, topic: bytes = TOPIC
) -> None:
    """Publishes with one in flight; each comes once and in its order to all."""
    for number in range(begin, begin + count):
        payload = b"%06d" % number
        publisher.writer.write(plain(payload, topic))
        for receiver in receivers:
            assert await receiver.payload() == payload


async def test_a_stream_takes_the_short_way_and_is_counted_as_on_the_long_one(start: StartSite) -> None:
    a, b = await start(), await start()
    subscriber, publisher = await Client.connect(b.server, b"s"), await Client.connect(a.server, b"p")
    await subscriber.subscribe()
    await one_by_one(publisher, [subscriber], 2)
    before = b.long_ways
    counted = [
        (b.server.broker.metrics, "messages_received", b.server.broker.metrics.messages_received),
        (b.server.broker.metrics, "messages_sent", b.server.broker.metrics.messages_sent),
        (a.server.broker.metrics, "messages_received", a.server.broker.metrics.messages_received),
    ]
    hops, out, into = b.cut_through.hops.total, a.cut_through.host.counters(), b.cut_through.host.counters()
    await one_by_one(publisher, [subscriber], MANY, 2)
    assert b.long_ways - before < MANY / 2
    assert [getattr(metrics, name) - value for metrics, name, value in counted] == [MANY] * 3
    assert b.cut_through.hops.total - hops == MANY
    sent, heard = a.cut_through.host.counters(), b.cut_through.host.counters()
    assert sent.publications_out - out.publications_out == MANY
    assert heard.publications_in - into.publications_in == MANY
    assert (
        sent.publication_bytes_out - out.publication_bytes_out == heard.publication_bytes_in - into.publication_bytes_in
    )
    assert await is_silent(subscriber)


async def test_numbers_grow_over_the_sizes_in_which_they_are_written(start: StartSite) -> None:
    a, b = await start(), await start()
    subscriber, publisher = await Client.connect(b.server, b"s"), await Client.connect(a.server, b"p")
    await subscriber.subscribe()
    await one_by_one(publisher, [subscriber], 300)
    outbound_topic = a.transfer.outbound.get(TOPIC.decode())
    assert outbound_topic is not None
    assert outbound_topic.number == 300


async def test_a_subscriber_that_comes_meanwhile_misses_nothing(start: StartSite) -> None:
    a, b, c = await start(), await start(), await start()
    first, publisher = await Client.connect(b.server, b"s"), await Client.connect(a.server, b"p")
    await first.subscribe()
    await one_by_one(publisher, [first], MANY)
    second, here = await Client.connect(c.server, b"t"), await Client.connect(a.server, b"u")
    await second.subscribe()
    await one_by_one(publisher, [first, second], MANY, MANY)
    await here.subscribe()
    await one_by_one(publisher, [first, second, here], MANY, 2 * MANY)
    for client in (first, second, here):
        assert await is_silent(client)


@pytest.mark.parametrize("method", ["covers"], indirect=True)
async def test_a_stream_crosses_into_a_cluster_once_on_the_short_way(start: StartSite) -> None:
    a, b, c = await start("here"), await start("there"), await start("there")
    receivers = [await Client.connect(b.server, b"s"), await Client.connect(c.server, b"t")]
    publisher = await Client.connect(a.server, b"p")
    for receiver in receivers:
        await receiver.subscribe()
    await one_by_one(publisher, receivers, 2)
    out = a.cut_through.host.counters().publications_out
    passed_on = sum(site.cut_through.host.counters().publications_out for site in (b, c))
    await one_by_one(publisher, receivers, MANY, 2)
    assert a.cut_through.host.counters().publications_out - out == MANY
    assert sum(site.cut_through.host.counters().publications_out for site in (b, c)) - passed_on == MANY
    outbound_topic = a.transfer.outbound.get(TOPIC.decode())
    assert outbound_topic is not None
    assert outbound_topic.cut_through is not None


async def test_overlapping_filters_make_one_copy(start: StartSite) -> None:
    a, b = await start(), await start()
    subscriber, other = await Client.connect(b.server, b"s"), await Client.connect(b.server, b"t")
    publisher = await Client.connect(a.server, b"p")
    await subscriber.subscribe()
    await subscriber.subscribe(b"solo/+")
    await other.subscribe(b"#")
    await one_by_one(publisher, [subscriber, other], MANY)
    assert await is_silent(subscriber)
    assert await is_silent(other)


@pytest.mark.parametrize("topic", [b"a", b"x" * 100])
async def test_topics_of_all_lengths_take_the_short_way(start: StartSite, topic: bytes) -> None:
    a, b = await start(), await start()
    subscriber, publisher = await Client.connect(b.server, b"s"), await Client.connect(a.server, b"p")
    await subscriber.subscribe(b"#")
    await one_by_one(publisher, [subscriber], 2, topic=topic)
    before = b.long_ways
    await one_by_one(publisher, [subscriber], MANY, 2, topic)
    assert b.long_ways - before < MANY / 2


async def test_topics_that_begin_alike_are_not_taken_for_a_stream(
    start: StartSite, method: MethodName, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = await start(), await start()
    subscriber, publisher = await Client.connect(b.server, b"s"), await Client.connect(a.server, b"p")
    await subscriber.subscribe(b"#")
    made: list[str] = []
    make = CutThrough._make_receiver

    def note(
        self: CutThrough, frame: bytes, told: Tell[Message], batch: PublicationBatch, hops: int
    ) -> CutThroughReceiver | None:
        made.append(batch.topic)
        return make(self, frame, told, batch, hops)

    monkeypatch.setattr(CutThrough, "_make_receiver", note)
    for number in range(MANY):
        payload = b"%06d" % number
        publisher.writer.write(plain(payload, b"%s/%02d" % (TELL_BYTES * b"x", number % 20)))
        assert await subscriber.payload() == payload
    if method == "covers":  # a copy is known by its whole topic, so each topic may have a short way of its own
        assert len(made) < MANY / 4
    else:
        assert made == []


async def test_what_only_clients_here_want_is_told_to_nobody(start: StartSite) -> None:
    a, b = await start(), await start()
    subscriber, publisher = await Client.connect(a.server, b"s"), await Client.connect(a.server, b"p")
    await subscriber.subscribe()
    await one_by_one(publisher, [subscriber], MANY)
    assert a.long_ways < MANY / 2
    assert a.cut_through.host.counters().publications_out == 0
    assert b.cut_through.host.counters().publications_in == 0


async def test_who_unsubscribes_gets_nothing_more(start: StartSite) -> None:
    a, b = await start(), await start()
    subscriber, stays = await Client.connect(b.server, b"s"), await Client.connect(b.server, b"t")
    publisher = await Client.connect(a.server, b"p")
    await subscriber.subscribe()
    await stays.subscribe()
    await one_by_one(publisher, [subscriber, stays], MANY)
    subscriber.writer.write(bytes([0xA2, 4 + len(TOPIC), 0, 2, 0, len(TOPIC)]) + TOPIC)
    assert await subscriber.read() == (0xB0, b"\0\2")
    await one_by_one(publisher, [stays], MANY, MANY)
    assert await is_silent(subscriber)


async def test_a_broker_where_nobody_is_left_gets_nothing_more(start: StartSite) -> None:
    a, b, c = await start(), await start(), await start()
    stays, leaves = await Client.connect(b.server, b"s"), await Client.connect(c.server, b"t")
    publisher = await Client.connect(a.server, b"p")
    await stays.subscribe()
    await leaves.subscribe()
    await one_by_one(publisher, [stays, leaves], MANY)
    leaves.writer.write(bytes([0xA2, 4 + len(TOPIC), 0, 2, 0, len(TOPIC)]) + TOPIC)
    assert await leaves.read() == (0xB0, b"\0\2")
    number = MANY
    async with asyncio.timeout(WAIT_S):
        while True:
            heard = c.cut_through.host.counters().publications_in
            await one_by_one(publisher, [stays], 1, number)
            number += 1
            await asyncio.sleep(0.3)
            if c.cut_through.host.counters().publications_in == heard:
                break
    await one_by_one(publisher, [stays], MANY, number)
    assert c.cut_through.host.counters().publications_in == heard
    assert await is_silent(leaves)


async def test_other_publications_keep_their_place_among_those_that_cut_through(start: StartSite) -> None:
    a, b = await start(), await start()
    subscriber, publisher = await Client.connect(b.server, b"s"), await Client.connect(a.server, b"p")
    await subscriber.subscribe(qos=1)
    await one_by_one(publisher, [subscriber], 20)
    expected = []
    for number in range(20, 20 + MANY):
        payload = b"%06d" % number
        expected.append(payload)
        if number % 7 == 0:  # QoS 1, and a larger one, and then three in one write
            packet = bytes([0x32, 4 + len(TOPIC) + len(payload), 0, len(TOPIC)]) + TOPIC
            publisher.writer.write(packet + (number % 60_000 + 1).to_bytes(2) + payload)
        elif number % 7 == 1:
            expected[-1] = payload + b" and more"
            publisher.writer.write(plain(payload + b" and more"))
        elif number % 7 == 2:
            expected += [payload, payload]
            publisher.writer.write(3 * plain(payload))
        else:
            publisher.writer.write(plain(payload))
        await asyncio.sleep(0)
    assert [await subscriber.payload() for _ in expected] == expected
    assert await is_silent(subscriber)


async def test_what_is_acknowledged_makes_no_short_way_for_what_is_not(start: StartSite) -> None:
    """Publications of QoS 1 that come alone, and then some of QoS 0 that are as long."""
    a, b = await start(), await start()
    subscriber, publisher = await Client.connect(b.server, b"s"), await Client.connect(a.server, b"p")
    await subscriber.subscribe()
    for number in range(1, 9):
        payload = b"%06d" % number
        packet_id = number.to_bytes(2)
        length = 4 + len(TOPIC) + len(payload)
        publisher.writer.write(bytes([0x32, length, 0, len(TOPIC)]) + TOPIC + packet_id + payload)
        assert await subscriber.payload() == payload
        assert await publisher.read() == (0x40, packet_id)
    for number in range(20):
        payload = b"%08d" % number
        publisher.writer.write(plain(payload))
        assert await subscriber.payload() == payload
    assert await is_silent(subscriber)


async def test_a_link_that_is_cut_costs_at_most_what_was_on_its_way(start: StartSite) -> None:
    a, b = await start(), await start()
    subscriber, publisher = await Client.connect(b.server, b"s"), await Client.connect(a.server, b"p")
    await subscriber.subscribe()
    await one_by_one(publisher, [subscriber], 50)
    peer = a.cut_through.host.peer(b.cut_through.host.address)
    assert peer is not None
    assert peer.link is not None
    peer.link.abort("cut by the test")
    await one_by_one(publisher, [subscriber], 50, 50)
    assert await is_silent(subscriber)


# The frames themselves


def by_range(body: bytes) -> Carrier:
    return Deliver("h:1", 5, 0, ((b"low", b"high"),), 1, MESSAGE + body, Plan(), (b"key",))


def by_multicast(body: bytes) -> Carrier:
    return MulticastCopy("h:1", 5, "a/topic", 1, (), False, body)


def by_multicast_into_a_cluster(body: bytes) -> Carrier:
    return MulticastCopy("h:1", 5, "a/topic", 1, (("h:2", "eu"), ("h:3", "eu/fr")), False, body)


CARRIERS = pytest.mark.parametrize("carrier_of", [by_range, by_multicast, by_multicast_into_a_cluster])
CODEC = Codec((Deliver, MulticastCopy), 10)


@CARRIERS
@pytest.mark.parametrize("first", [1, 127, 128, 255, 256, 65_535, 65_536, 2**32 - 1])
@pytest.mark.parametrize("version", [V3, V5])
def test_a_filled_frame_is_the_one_that_would_have_been_encoded(
    first: int, version: int, carrier_of: Callable[[bytes], Carrier]
) -> None:
    topic = "a/topic"
    begin = b"\x30" + bytes([2 + len(topic) + (version == V5) + 5, 0, len(topic)]) + topic.encode()
    begin += b"\0" if version == V5 else b""
    batch = PublicationBatch("site#1", 77, topic, first, 1, version, begin + b"first", ())
    told: Tell[Message] = Tell(1, carrier_of(pack(batch)))
    assert head_of(batch.run, topic, version) == begin
    for head in (b"", begin):
        template = template_of(CODEC.frame, told, batch, head)
        assert template is not None
        run = begin + b"other"
        number = 2**61 + 3
        filled = template.fill((number.to_bytes(8), first.to_bytes(8)[-field_bytes(first) :], run[len(head) :]))
        like = msgspec.structs.replace(batch, run=run)
        body = msgspec.structs.replace(carrier_of(pack(like)), number=number)
        assert filled == CODEC.frame(Tell(1, body))
        assert template.fits(filled)


@pytest.mark.parametrize("length", [0, 1, 31, 32, 255, 256, 1000])
def test_a_copy_is_known_by_its_topic(length: int) -> None:
    topic = "t" * length
    frame = CODEC.frame(Tell(1, MulticastCopy("h:1", 1 << 60, topic, 1, (), False, b"body" * 20)))
    at = frame.index((1 << 60).to_bytes(8)) + 8
    told = msgspec.msgpack.encode(topic)
    assert tell_of(frame, at) == (told if length < 256 else told[:TELL_BYTES])
    for end in range(at + 2):
        assert tell_of(frame[:end], at) == b""


def test_a_range_delivery_is_known_by_the_begin_of_its_range() -> None:
    frame = CODEC.frame(Tell(1, Deliver("h:1", 1 << 60, 0, ((b"low" * 20, b"high"),), 1, b"body", Plan())))
    at = frame.index((1 << 60).to_bytes(8)) + 8
    assert tell_of(frame, at) == frame[at : at + TELL_BYTES]
    assert b"low" * 13 in tell_of(frame, at)


@CARRIERS
def test_what_does_not_carry_the_batch_has_no_template(carrier_of: Callable[[bytes], Carrier]) -> None:
    batch = PublicationBatch("site#1", 77, "t", 1, 1, V3, b"\x30\x04\0\1tx", ())
    assert template_of(CODEC.frame, Tell(1, carrier_of(pack(batch))), batch, b"") is not None
    assert template_of(CODEC.frame, Tell(1, carrier_of(b"something else")), batch, b"") is None
    large = msgspec.structs.replace(batch, first=2**32)
    assert template_of(CODEC.frame, Tell(1, carrier_of(pack(large))), large, b"") is None
