"""Links: made on demand, one a pair, made again, bounded, batched."""

from __future__ import annotations

import asyncio
import socket

import pytest

from braidmq.host import CallRefused, CallTimeout
from braidmq.net import Bounds, Fault, Security
from braidmq.net.links import HURRY_S, SILENT_S
from tests.net.conftest import Large, Note, Ping, Pong, StartHost, Wire, until
from tests.patience import PATIENCE_S


@pytest.fixture(params=["none", "key"])
def security(request: pytest.FixtureRequest) -> Security:
    return Security.none() if request.param == "none" else Security.key(bytes(range(32)))


async def test_a_tick_is_one_frame(start_host: StartHost) -> None:
    (a, _), (b, told) = await start_host(), await start_host()
    for linked in (False, True):
        frames_before = a.counters().frames_out
        told.heard.clear()
        for n in range(1000):
            a.send(b.address, Note(str(n)))
        await until(lambda: len(told.heard) == 1000)
        assert [message for _, message in told.heard] == [Note(str(n)) for n in range(1000)], f"linked: {linked}"
        assert a.counters().frames_out == frames_before + 1
    assert b.counters(a.address).messages_in == 2000
    assert b.counters(a.address).frames_in == 2


async def test_a_batch_that_does_not_fit_one_frame_is_several(start_host: StartHost) -> None:
    bounds = Bounds(frame_bytes_max=1024, frame_messages_max=100)
    (a, _), (b, told) = await start_host(bounds=bounds), await start_host(bounds=bounds)
    sent: list[Note | Large] = [Note("") for _ in range(250)]
    sent += [Large(b"x" * (n % 1000)) for n in range(0, 3000, 7)]
    for message in sent:
        a.send(b.address, message)
    await until(lambda: len(told.heard) == len(sent))
    assert [message for _, message in told.heard] == sent
    assert not b.faults


async def test_a_message_larger_than_a_frame_is_not_sent(start_host: StartHost) -> None:
    bounds = Bounds(frame_bytes_max=1024)
    (a, _), (b, told) = await start_host(bounds=bounds), await start_host(bounds=bounds)
    a.send(b.address, Note("before"))
    a.send(b.address, Large(bytes(1024)))
    with pytest.raises(CallRefused, match="larger than the 1024 bytes of a frame"):
        await a.call(b.address, Large(bytes(1024)), PATIENCE_S)
    a.send(b.address, Note("after"))
    await until(lambda: len(told.heard) == 2)
    assert a.counters(b.address).dropped == 2


async def test_both_dial_and_one_link_stays(start_host: StartHost) -> None:
    for _ in range(10):
        (a, told_a), (b, told_b) = await start_host(), await start_host()
        for n in range(3):
            a.send(b.address, Note(f"a{n}"))
            b.send(a.address, Note(f"b{n}"))
            await asyncio.sleep(0)
        await until(lambda: len(told_a.heard) == len(told_b.heard) == 3)  # noqa: B023 - awaited at once
        await until(lambda: len(a._links._links) == len(b._links._links) == 1)  # noqa: B023 - awaited at once
        assert a.linked == [b.address]
        assert b.linked == [a.address]
        assert not a.faults
        assert not b.faults


async def test_a_mesh_that_dials_at_once_has_one_link_a_pair(start_host: StartHost) -> None:
    hosts = [await start_host() for _ in range(6)]
    for a, _ in hosts:
        for b, _ in hosts:
            if a is not b:
                a.send(b.address, Note(a.address))
    await until(lambda: all(len(told.heard) == 5 for _, told in hosts))
    await until(lambda: all(len(host._links._links) == 5 for host, _ in hosts))
    for host, told in hosts:
        assert sorted(host.linked) == sorted(other.address for other, _ in hosts if other is not host)
        assert all(Note(str(origin)) == message for origin, message in told.heard)


async def test_a_peer_that_restarts_is_linked_again(start_host: StartHost) -> None:
    (a, _), (b, _) = await start_host(), await start_host()
    assert await a.call(b.address, Ping(1), PATIENCE_S) == Pong(2)
    await b.stop()
    await until(lambda: a.linked == [])
    answer = asyncio.ensure_future(a.call(b.address, Ping(2), PATIENCE_S))
    await asyncio.sleep(0.2)
    assert not answer.done(), "it waits for the peer to come back"
    again, _ = await start_host(b.address)
    assert await answer == Pong(3)
    assert again.address == b.address
    assert a.counters(b.address).reconnects == 1


async def test_a_peer_that_lost_its_end_takes_the_place_of_its_old_link(start_host: StartHost) -> None:
    (a, _), (b, told) = await start_host(), await start_host()
    await a.call(b.address, Ping(1), PATIENCE_S)
    for link in list(a._links._links):
        link.abort("as if the machine had been reset")
    a.send(b.address, Note("again"))
    await until(lambda: bool(told.heard))
    await until(lambda: len(b._links._links) == 1)
    assert b.counters(a.address).reconnects == 1
    assert b.linked == [a.address]


async def test_back_off_grows_to_its_bound_and_what_waits_too_long_is_dropped(start_host: StartHost) -> None:
    a, _ = await start_host(bounds=Bounds(backoff_s_min=0.01, backoff_s_max=0.04, wait_s_max=0.3))
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{closed.getsockname()[1]}"
        a.send(nobody, Note("lost"))
        with pytest.raises(CallTimeout):
            await a.call(nobody, Ping(1), 0.1)
        peer = a._links.peers.by_name[nobody]
        assert peer._backoff_s == 0.04
        await until(lambda: a.counters(nobody).dropped == 2)
        await until(lambda: peer.dial is None)
        assert peer.is_forgettable


async def test_what_waits_for_a_peer_that_does_not_read_is_bounded(start_host: StartHost) -> None:
    a, _ = await start_host(bounds=Bounds(queue_bytes_max=100_000, stall_s_max=0.4))
    b, told = await start_host()
    await a.call(b.address, Ping(1), PATIENCE_S)
    (link,) = b._links._links
    assert link._transport is not None
    link._transport.pause_reading()
    data = Large(bytes(10_000))
    sent = 0
    while a.counters(b.address).dropped == 0:
        a.send(b.address, data)
        await asyncio.sleep(0)
        sent += 1
        assert sent < 10_000, "the socket's buffers are not that large"
    with pytest.raises(CallRefused, match=f"100000 bytes wait for {b.address} already"):
        await a.call(b.address, Ping(1), PATIENCE_S)
    (stuck,) = a._links._links
    assert stuck.unsent_bytes <= 100_000 + 10_100
    await until(lambda: a.faults[Fault.STALL] == 1)
    assert a.linked == []
    assert await a.call(b.address, Ping(1), PATIENCE_S) == Pong(2), "a new link, and room again"
    assert len(told.heard) < sent


async def test_what_waits_for_a_peer_without_a_link_is_bounded(start_host: StartHost) -> None:
    a, _ = await start_host(bounds=Bounds(queue_bytes_max=50_000))
    for _ in range(20):
        a.send("127.0.0.1:9", Large(bytes(10_000)))
        await asyncio.sleep(0)
    assert a.counters("127.0.0.1:9").dropped == 15


async def test_a_link_that_is_not_used_is_closed_and_opened_again(start_host: StartHost) -> None:
    (a, _), (b, _) = await start_host(bounds=Bounds(idle_s_max=0.1)), await start_host()
    await a.call(b.address, Ping(1), PATIENCE_S)
    await until(lambda: not a.linked and not b.linked)
    await until(lambda: a.counters(b.address).messages_out == 0)
    assert a.counters().messages_out == 1, "the peer is forgotten, what it cost is not"
    assert await a.call(b.address, Ping(1), PATIENCE_S) == Pong(2)
    assert not a.faults
    assert not b.faults


async def test_peers_are_bounded(start_host: StartHost) -> None:
    a, _ = await start_host(bounds=Bounds(links_max=2))
    others = [await start_host() for _ in range(3)]
    for b, _ in others[:2]:
        await a.call(b.address, Ping(1), PATIENCE_S)
    third = others[2][0]
    with pytest.raises(CallRefused, match="links_max"):
        await a.call(third.address, Ping(1), PATIENCE_S)
    with pytest.raises(CallTimeout):
        await third.call(a.address, Ping(1), 0.2)
    assert a.faults[Fault.CROWD] >= 1
    gone = others[0][0]
    await gone.stop()
    await until(lambda: gone.address not in a.linked)
    assert await a.call(third.address, Ping(1), PATIENCE_S) == Pong(2), "there is room again"


async def test_a_peer_is_known_by_the_address_that_it_gives(start_host: StartHost) -> None:
    (a, _), (b, told) = await start_host(), await start_host()
    name = b.address.replace("127.0.0.1", "localhost")
    assert await a.call(name, Ping(1), PATIENCE_S) == Pong(2)
    assert a.linked == [b.address]
    a.send(b.address, Note("one link"))
    a.send(name, Note("for both names"))
    await until(lambda: len(told.heard) == 2)
    assert len(a._links._links) == len(b._links._links) == 1
    assert a.counters(name) is a.counters(b.address)


async def test_a_peer_that_is_linked_is_found_under_another_name(start_host: StartHost) -> None:
    (a, _), (b, told) = await start_host(), await start_host()
    await b.call(a.address, Ping(1), PATIENCE_S)
    name = b.address.replace("127.0.0.1", "localhost")
    a.send(name, Note("x"))
    await until(lambda: told.heard == [(a.address, Note("x"))])
    await until(lambda: len(a._links._links) == len(b._links._links) == 1)
    assert a.linked == [b.address]
    assert await b.call(a.address, Ping(1), PATIENCE_S) == Pong(2)


async def test_a_host_does_not_link_to_itself(start_host: StartHost, caplog: pytest.LogCaptureFixture) -> None:
    a, told = await start_host(bounds=Bounds(wait_s_max=0.1))
    name = a.address.replace("127.0.0.1", "localhost")
    a.send(name, Note("x"))
    await until(lambda: a.faults[Fault.SELF] >= 1)
    assert "it is this host itself, under another name" in caplog.text
    await until(lambda: a.counters(name).dropped == 1)
    assert not told.heard


SELDOM = Bounds(backoff_s_min=3600.0, backoff_s_max=3600.0)


async def test_a_peer_that_could_not_be_reached_is_tried_at_once_if_that_is_asked_for(start_host: StartHost) -> None:
    (address,) = await unused_addresses(1)
    a, _ = await start_host(bounds=SELDOM)
    a.send(address, Note("waits"))
    await until(lambda: a._peers.get(address).dial_at > 0)  # type: ignore[union-attr]
    _, told = await start_host(address)
    a.ways.hurry()
    await until(lambda: bool(told.heard))


async def test_where_one_peer_is_reached_again_others_are_tried(start_host: StartHost) -> None:
    one, other = await unused_addresses(2)
    a, _ = await start_host(bounds=SELDOM)
    for address in (one, other):
        a.send(address, Note("waits"))
    await until(lambda: all(a._peers.get(each).dial_at > 0 for each in (one, other)))  # type: ignore[union-attr]
    _, told = await start_host(other)
    b, _ = await start_host(one)
    b.send(a.address, Note("back"))
    await until(lambda: bool(told.heard))


async def test_a_link_that_is_silent_is_not_waited_for(start_host: StartHost, wire: Wire) -> None:
    """As after a cut: TCP waits longer and longer before it sends again what was not acknowledged."""
    b, told = await start_host(advertise=wire.address)
    wire.target = f"127.0.0.1:{b._links._acceptor._listener.getsockname()[1]}"  # type: ignore[union-attr]
    a, _ = await start_host()
    assert await a.call(wire.address, Ping(1), PATIENCE_S) == Pong(2)
    peer = a._peers.get(wire.address)
    assert peer is not None
    silent = peer.link
    assert silent is not None
    is_cut = True
    wire.alter = lambda _is_back, data: b"" if is_cut else data
    for _ in range(3):
        a.ways.unanswered()
        a.send(wire.address, Note("lost"))
        await asyncio.sleep(0.01)
    a.ways.hurry()
    assert peer.dial is None, "it may just have been sent"
    peer.silent_since -= 2 * SILENT_S
    is_cut = False
    await asyncio.sleep(2 * HURRY_S)
    a.ways.hurry()
    await until(lambda: peer.link is not None and peer.link is not silent)
    a.send(wire.address, Note("comes"))
    await until(lambda: (a.address, Note("comes")) in told.heard)


async def unused_addresses(count: int) -> list[str]:
    """Where nobody listens."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    return addresses
