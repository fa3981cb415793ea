"""Publications of QoS 1 that come one at a time: a short way between brokers, on which every promise holds.

Real brokers over loopback, all in the test's own loop, with clients on real sockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from braidmq.braid.transfer.acknowledged_sender import AcknowledgedSender
from braidmq.braid.transfer.batch import KeptRun, PublicationBatch, pack
from braidmq.braid.transfer.carrier_template import field_bytes, template_of
from braidmq.braid.transfer.cut_through import CUT_THROUGH_S
from braidmq.host import Message
from braidmq.mqtt.packets import V3, V5
from braidmq.net.frames import Codec, Tell
from braidmq.pubsub.covers.multicast_messages import MulticastCopy
from tests.braid.linked_sites import BRAID_KEY, MANY, TOPIC, WAIT_S, Client, Site, StartSite, is_silent, linked_sites


@pytest.fixture(params=["open", "sealed", "copied"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def start(kind: str, tmp_path: Path) -> AsyncIterator[StartSite]:
    """Starts a broker that joins those that are there, with a copy of its journal at another or without."""
    key = BRAID_KEY if kind == "sealed" else None
    async with linked_sites(tmp_path, "covers", key, copies=2 if kind == "copied" else 1) as start_one:
        yield start_one


def acknowledged(payload: bytes, packet_id: int, topic: bytes = TOPIC) -> bytes:
    """A PUBLISH of QoS 1, as MQTT 3.1.1 writes it."""
    return bytes([0x32, 4 + len(topic) + len(payload), 0, len(topic)]) + topic + packet_id.to_bytes(2) + payload


async def take(client: Client) -> tuple[int, bytes]:
    """The next publication of QoS 1, which is acknowledged: its packet id, and what it carries."""
    header, body = await client.read()
    assert header == 0x32
    behind = 2 + body[1]
    client.writer.write(b"\x40\x02" + body[behind : behind + 2])
    return int.from_bytes(body[behind : behind + 2]), body[behind + 2 :]


async def one_by_one(publisher: Client, receivers: list[Client], count: int, begin: int = 0) -> None:
    """Publishes with one in flight; each comes once and in its order to all, and is acknowledged."""
    for number in range(begin, begin + count):
        payload = b"%06d" % number
        publisher.writer.write(acknowledged(payload, number + 1))
        for receiver in receivers:
            _, carried = await take(receiver)
            assert carried == payload
        assert await publisher.read() == (0x40, (number + 1).to_bytes(2))


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not is_so():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.01)


def followed(site: Site, of: Site) -> int:
    """Up to where a broker has followed another one's history."""
    origin = of.transfer.sender._origin
    cursor = site.transfer.receiver._cursors.get(origin)
    return 0 if cursor is None or cursor.seen else cursor.floor


async def test_a_stream_takes_the_short_way_and_is_counted_and_proven_as_on_the_long_one(
    start: StartSite, kind: str
) -> None:
    a, b = await start(), await start()
    subscriber, publisher = await Client.connect(b.server, b"s"), await Client.connect(a.server, b"p")
    await subscriber.subscribe(qos=1)
    await one_by_one(publisher, [subscriber], 2)
    before = b.long_ways
    counted = [
        (b.server.broker.metrics, "messages_received", b.server.broker.metrics.messages_received),
        (b.server.broker.metrics, "messages_sent", b.server.broker.metrics.messages_sent),
        (a.server.broker.metrics, "messages_received", a.server.broker.metrics.messages_received),
    ]
    hops, out, into = b.cut_through.hops.total, a.cut_through.host.counters(), b.cut_through.host.counters()
    await one_by_one(publisher, [subscriber], MANY, 2)
    long_ways = b.long_ways - before
    if kind != "copied":  # what is for the copy goes to the same broker, and both leave in one frame
        assert long_ways < MANY / 2
    assert [getattr(metrics, name) - value for metrics, name, value in counted] == [MANY] * 3
    assert b.cut_through.hops.total - hops == MANY
    sent, heard = a.cut_through.host.counters(), b.cut_through.host.counters()
    assert sent.publications_out - out.publications_out == MANY
    assert heard.publications_in - into.publications_in == MANY
    assert (
        sent.publication_bytes_out - out.publication_bytes_out == heard.publication_bytes_in - into.publication_bytes_in
    )
    assert a.transfer.sender._history.head == followed(b, a) == MANY + 2
    multicast = a.cut_through._multicast
    assert multicast is not None
    await until(lambda: not multicast._open)
    assert a.transfer.sender.unproven == 0
    assert b.long_ways - before == long_ways, "nothing was sent again"
    session = b.server.broker.sessions["s"]
    await until(lambda: session.free == session.window)
    assert await is_silent(subscriber)


async def test_numbers_and_offsets_grow_over_the_sizes_in_which_they_are_written(start: StartSite) -> None:
    a, b = await start(), await start()
    subscriber, publisher = await Client.connect(b.server, b"s"), await Client.connect(a.server, b"p")
    await subscriber.subscribe(qos=1)
    await one_by_one(publisher, [subscriber], 300)
    assert a.transfer.sender._history.head == followed(b, a) == 300


async def test_subscribers_that_come_meanwhile_miss_nothing(start: StartSite) -> None:
    a, b, c = await start(), await start(), await start()
    first, publisher = await Client.connect(b.server, b"s"), await Client.connect(a.server, b"p")
    await first.subscribe(qos=1)
    await one_by_one(publisher, [first], 50)
    second, here = await Client.connect(c.server, b"t"), await Client.connect(a.server, b"u")
    await second.subscribe(qos=1)
    await one_by_one(publisher, [first, second], 50, 50)
    await here.subscribe(qos=1)
    await one_by_one(publisher, [first, second, here], 50, 100)
    for client in (first, second, here):
        assert await is_silent(client)


async def test_who_unsubscribes_gets_nothing_more(start: StartSite) -> None:
    a, b = await start(), await start()
    subscriber, stays = await Client.connect(b.server, b"s"), await Client.connect(b.server, b"t")
    publisher = await Client.connect(a.server, b"p")
    await subscriber.subscribe(qos=1)
    await stays.subscribe(qos=1)
    await one_by_one(publisher, [subscriber, stays], 50)
    subscriber.writer.write(bytes([0xA2, 4 + len(TOPIC), 0, 2, 0, len(TOPIC)]) + TOPIC)
    assert await subscriber.read() == (0xB0, b"\0\2")
    await one_by_one(publisher, [stays], 50, 50)
    assert await is_silent(subscriber)


async def test_a_client_that_does_not_acknowledge_gets_the_rest_when_it_does(start: StartSite) -> None:
    a, b = await start(), await start()
    subscriber, publisher = await Client.connect(b.server, b"s"), await Client.connect(a.server, b"p")
    await subscriber.subscribe(qos=1)
    await one_by_one(publisher, [subscriber], 20)
    session = b.server.broker.sessions["s"]
    await until(lambda: session.free == session.window)
    session.window = session.free = 3
    for number in range(20, 30):
        publisher.writer.write(acknowledged(b"%06d" % number, number + 1))
        assert await publisher.read() == (0x40, (number + 1).to_bytes(2))
    got = [await subscriber.read() for _ in range(3)]
    assert await is_silent(subscriber)
    for _, body in got:
        subscriber.writer.write(b"\x40\x02" + body[2 + len(TOPIC) : 4 + len(TOPIC)])
    rest = [await take(subscriber) for _ in range(7)]
    assert [body[4 + len(TOPIC) :] for _, body in got] + [carried for _, carried in rest] == [
        b"%06d" % number for number in range(20, 30)
    ]
    assert await is_silent(subscriber)


async def test_packets_of_all_kinds_keep_their_order(start: StartSite) -> None:
    a, b = await start(), await start()
    subscriber, publisher = await Client.connect(b.server, b"s"), await Client.connect(a.server, b"p")
    await subscriber.subscribe(qos=1)
    await one_by_one(publisher, [subscriber], 20)
    expected = []
    for number in range(20, 20 + MANY):
        payload = b"%06d" % number
        packet = acknowledged(payload, number + 1)
        expected.append(payload)
        if number % 7 == 0:  # a larger one, and then three in one write, and one of QoS 0
            expected[-1] = payload + b" and more"
            packet = acknowledged(payload + b" and more", number + 1)
        elif number % 7 == 1:
            expected += [payload, payload]
            packet += acknowledged(payload, number + 1001) + acknowledged(payload, number + 2001)
        elif number % 7 == 2:
            packet = bytes([0x30, 2 + len(TOPIC) + len(payload), 0, len(TOPIC)]) + TOPIC + payload
        publisher.writer.write(packet)
        await asyncio.sleep(0.002 if number % 5 == 0 else 0)
    got: list[bytes] = []
    while len(got) < len(expected):
        header, body = await subscriber.read()
        behind = 2 + body[1]
        if header == 0x32:
            subscriber.writer.write(b"\x40\x02" + body[behind : behind + 2])
            behind += 2
        got.append(body[behind:])
    assert got == expected
    assert await is_silent(subscriber)


async def test_a_link_that_is_cut_costs_nothing(start: StartSite) -> None:
    a, b = await start(), await start()
    subscriber, publisher = await Client.connect(b.server, b"s"), await Client.connect(a.server, b"p")
    await subscriber.subscribe(qos=1)
    await one_by_one(publisher, [subscriber], 50)
    for number in range(50, 60):
        publisher.writer.write(acknowledged(b"%06d" % number, number + 1))
        await asyncio.sleep(0)
        peer = a.cut_through.host.peer(b.cut_through.host.address)
        if number % 3 == 0 and peer is not None and peer.link is not None:
            peer.link.abort("cut by the test")
    got = [await take(subscriber) for _ in range(10)]
    assert [carried for _, carried in got] == [b"%06d" % number for number in range(50, 60)]
    assert [await publisher.read() for _ in range(10)] == [(0x40, (n + 1).to_bytes(2)) for n in range(50, 60)]
    assert await is_silent(subscriber)


async def test_nothing_leaves_before_it_is_written(start: StartSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that dies with something unwritten gives its offset to another publication."""
    a, b = await start(), await start()
    subscriber, publisher = await Client.connect(b.server, b"s"), await Client.connect(a.server, b"p")
    await subscriber.subscribe(qos=1)
    await one_by_one(publisher, [subscriber], 50)
    outbound_topic = a.transfer.outbound.get(TOPIC.decode())
    assert outbound_topic is not None
    written: list[int] = []
    publish = AcknowledgedSender.publish

    def note(self: AcknowledgedSender, batch: PublicationBatch) -> bool:
        store = a.server.broker.store
        written.append(-1 if store.dirty else batch.offset)
        return publish(self, batch)

    monkeypatch.setattr(AcknowledgedSender, "publish", note)
    await one_by_one(publisher, [subscriber], 20, 50)
    assert written
    assert all(50 < offset <= 70 for offset in written)


async def test_a_short_way_does_not_last(start: StartSite) -> None:
    a, b = await start(), await start()
    subscriber, publisher = await Client.connect(b.server, b"s"), await Client.connect(a.server, b"p")
    await subscriber.subscribe(qos=1)
    await one_by_one(publisher, [subscriber], 20)
    await asyncio.sleep(1.2 * CUT_THROUGH_S)
    before = b.long_ways
    await one_by_one(publisher, [subscriber], 1, 20)
    assert b.long_ways == before + 1


CODEC = Codec((MulticastCopy,), 10)


@pytest.mark.parametrize("first", [1, 127, 128, 255, 256, 65_536])
@pytest.mark.parametrize("offset", [1, 127, 128, 65_535, 65_536, 2**32 - 1])
@pytest.mark.parametrize("version", [V3, V5])
def test_a_frame_is_known_again(first: int, offset: int, version: int) -> None:
    begin = acknowledged(b"12345", 7, b"a/topic")[:-7]
    behind = b"\0\7" + (b"\0" if version == V5 else b"")
    batch = PublicationBatch("site#1", 77, "a/topic", first, 1, version, begin + behind + b"12345", ())
    batch = msgspec.structs.replace(batch, kept=KeptRun(offset, "p"))

    def told(number: int, some: PublicationBatch) -> Tell[Message]:
        return Tell(1, MulticastCopy("h:1", number, "a/topic", 1, (), True, pack(some)))

    template = template_of(CODEC.frame, told(2**60 + 1, batch), batch, begin)
    assert template is not None
    other = msgspec.structs.replace(batch, run=begin + b"\1\2" + behind[2:] + b"abcde")
    frame = CODEC.frame(told(2**61 + 5, other))
    assert template.fits(frame)
    number_at, first_at, rest_at, offset_at = template.holes
    assert int.from_bytes(frame[slice(*number_at)]) == 2**61 + 5
    assert int.from_bytes(frame[slice(*first_at)]) % 256 ** field_bytes(first) == first
    assert frame[slice(*rest_at)] == other.run[len(begin) :]
    assert int.from_bytes(frame[slice(*offset_at)]) % 256 ** field_bytes(offset) == offset
    unproven: Tell[Message] = Tell(1, MulticastCopy("h:1", 2**61 + 5, "a/topic", 1, (), False, pack(other)))
    assert not template.fits(CODEC.frame(unproven))


def test_offsets_beyond_what_a_template_can_hold_have_none() -> None:
    batch = PublicationBatch("site#1", 77, "t", 1, 1, V3, b"\x32\x05\0\1t\0\1", (), (), KeptRun(2**32, "p"))
    told: Tell[Message] = Tell(1, MulticastCopy("h:1", 2**60, "t", 1, (), True, pack(batch)))
    assert template_of(CODEC.frame, told, batch, b"") is None
