"""Two and three hosts over loopback: telling, asking, passing on, and what a host does when something fails."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest

from braidmq.detours.messages import PingDirectly
from braidmq.host import Address, CallRefused, CallTimeout, Host, Message, Service, handles
from braidmq.net import Bounds, Fault, NetHost, Security
from braidmq.net.frames import Reply
from tests.net.conftest import (
    MESSAGES,
    Answerer,
    Arrived,
    Fail,
    Note,
    Ping,
    Pong,
    Silence,
    StartHost,
    Unserved,
    Walk,
    until,
)
from tests.patience import PATIENCE_S


async def test_a_message_is_told_and_says_who_sent_it(start_host: StartHost) -> None:
    (a, _), (b, told) = await start_host(), await start_host()
    a.send(b.address, Note("hello"))
    await until(lambda: bool(told.heard))
    assert told.heard == [(a.address, Note("hello"))]
    assert a.linked == [b.address]
    assert b.linked == [a.address]


async def test_a_call_is_answered_in_both_directions_on_one_link(start_host: StartHost) -> None:
    (a, _), (b, _) = await start_host(), await start_host()
    assert await a.call(b.address, Ping(1), PATIENCE_S) == Pong(2)
    assert await b.call(a.address, Ping(3), PATIENCE_S) == Pong(4)
    assert len(a._links._links) == len(b._links._links) == 1
    assert a.counters(b.address).messages_out == a.counters(b.address).messages_in == 2


async def test_a_host_tells_and_asks_itself(start_host: StartHost) -> None:
    a, told = await start_host()
    a.send(a.address, Note("self"))
    assert not told.heard, "not in the same tick"
    assert await a.call(a.address, Ping(1), PATIENCE_S) == Pong(2)
    assert await a.call(a.address, Walk((a.address, a.address)), PATIENCE_S) == Arrived(a.address, a.address)
    assert told.heard == [(a.address, Note("self"))]
    assert not a.linked


async def test_no_answer_is_a_time_out(start_host: StartHost) -> None:
    (a, _), (b, _) = await start_host(), await start_host()
    begin = time.monotonic()
    with pytest.raises(CallTimeout, match="did not answer Silence"):
        await a.call(b.address, Silence(), 0.05)
    assert time.monotonic() - begin > 0.04
    assert not a._calls


async def test_nobody_there_is_a_time_out(start_host: StartHost) -> None:
    a, _ = await start_host(bounds=Bounds(wait_s_max=0.1))
    b, _ = await start_host()
    await b.stop()
    with pytest.raises(CallTimeout):
        await a.call(b.address, Ping(1), 0.2)
    await until(lambda: a.counters(b.address).dropped == 1)


async def test_a_message_without_a_handler_is_refused(start_host: StartHost) -> None:
    (a, _), (b, _) = await start_host(), await start_host()
    with pytest.raises(CallRefused, match=f"{b.address} has no handler for Unserved"):
        await a.call(b.address, Unserved(), PATIENCE_S)
    assert b.counters(a.address).refused == 1


async def test_a_handler_that_raises_refuses_and_the_link_lives(
    start_host: StartHost, caplog: pytest.LogCaptureFixture
) -> None:
    (a, _), (b, _) = await start_host(), await start_host()
    a.send(b.address, Fail())
    with pytest.raises(CallRefused, match="failed to handle Fail"):
        await a.call(b.address, Fail(), PATIENCE_S)
    assert await a.call(b.address, Ping(1), PATIENCE_S) == Pong(2)
    assert b.faults[Fault.HANDLER] == 2
    assert a.counters(b.address).reconnects == 0
    assert "the handler of Fail failed" in caplog.text


async def test_a_request_that_is_passed_on_is_answered_directly(start_host: StartHost) -> None:
    (a, _), (b, _), (c, _) = await start_host(), await start_host(), await start_host()
    seen: list[tuple[Address, Address, int]] = []

    def note(sender: Address, to: Address, message: Message, hops: int) -> None:
        seen.append((sender, to, hops))

    for host in (a, b, c):
        host.on_message = note
    answer = await a.call(b.address, Walk((c.address,)), PATIENCE_S)
    assert answer == Arrived(c.address, a.address)
    assert seen == [(a.address, b.address, 1), (b.address, c.address, 2), (c.address, a.address, 0)]
    assert b.counters(c.address).messages_in == 0, "the answer did not come back through the middle"
    assert c.counters(a.address).messages_out == 1
    assert a.linked == [b.address, c.address], "who answers dials the first caller"


async def test_a_request_may_be_passed_back_to_its_caller(start_host: StartHost) -> None:
    (a, _), (b, _) = await start_host(), await start_host()
    assert await a.call(b.address, Walk((a.address,)), PATIENCE_S) == Arrived(a.address, a.address)


async def test_a_request_that_goes_round_ends(start_host: StartHost) -> None:
    bounds = Bounds(hops_max=10)
    (a, _), (b, _) = await start_host(bounds=bounds), await start_host(bounds=bounds)
    with pytest.raises(CallRefused, match="was passed on 10 times"):
        await a.call(b.address, Walk((a.address, b.address) * 20), PATIENCE_S)
    with pytest.raises(CallRefused, match="to itself without end"):
        await a.call(b.address, Walk((b.address,) * 20), PATIENCE_S)


async def test_a_forward_to_what_is_no_address_is_refused(start_host: StartHost) -> None:
    (a, _), (b, _) = await start_host(), await start_host()
    with pytest.raises(CallRefused, match="is no address"):
        await a.call(b.address, Walk(("nowhere",)), PATIENCE_S)


@pytest.mark.parametrize("to", ["nowhere", "host:0", "host:65536", "1.2.3:5", "[::g]:1", "a b:1", "-a:1", 7, ""])
async def test_no_address_is_dropped_and_refused(start_host: StartHost, to: Address) -> None:
    a, _ = await start_host()
    a.send(to, Note("lost"))
    with pytest.raises(CallRefused, match="is no address"):
        await a.call(to, Ping(1), PATIENCE_S)
    assert a.counters().dropped == 2


async def test_what_this_host_was_not_made_with_is_the_programmers_error(start_host: StartHost) -> None:
    a, _ = await start_host(messages=[Note])
    with pytest.raises(TypeError, match="Ping is not among the messages"):
        a.send("127.0.0.1:9", Ping(1))
    with pytest.raises(ValueError, match="Answerer handles messages that this host was not made with"):
        a.serve(Answerer(a))
    with pytest.raises(ValueError, match="needs the classes"):
        NetHost("127.0.0.1:0", [])
    other = type("Note", (Message,), {})
    with pytest.raises(ValueError, match="two message classes are called 'Note'"):
        NetHost("127.0.0.1:0", [Note, other])


async def test_an_address_that_peers_cannot_reach_is_not_told() -> None:
    with pytest.raises(ValueError, match="advertise"):
        await NetHost("0.0.0.0:0", [Note]).start()
    with pytest.raises(ValueError, match="is no address"):
        await NetHost("127.0.0.1", [Note]).start()
    host = NetHost("0.0.0.0:0", [Note], advertise="broker.example:7883", security=Security.none(insecure=True))
    await host.start()
    assert host.address == "broker.example:7883"
    await host.stop()


async def test_calls_are_bounded(start_host: StartHost) -> None:
    a, _ = await start_host(bounds=Bounds(calls_max=2))
    b, _ = await start_host()
    waiting = [asyncio.ensure_future(a.call(b.address, Silence(), PATIENCE_S)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(CallRefused, match="calls_max"):
        await a.call(b.address, Ping(1), PATIENCE_S)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert await a.call(b.address, Ping(1), PATIENCE_S) == Pong(2)


async def test_messages_to_oneself_are_bounded(start_host: StartHost) -> None:
    a, told = await start_host(bounds=Bounds(local_max=10))
    for n in range(15):
        a.send(a.address, Note(str(n)))
    await until(lambda: len(told.heard) == 10)
    assert a.counters().dropped == 5


async def test_procedures_run_beside_each_other_and_end_with_the_host(
    start_host: StartHost, caplog: pytest.LogCaptureFixture
) -> None:
    a, _ = await start_host()
    done: list[str] = []

    async def steps(host: Host) -> None:
        before = host.now()
        await host.sleep(0.02)
        done.append("slept" if host.now() - before >= 0.019 else "did not sleep")

    async def forever() -> None:
        try:
            await a.sleep(1000)
        finally:
            done.append("ended")

    async def broken() -> None:
        raise RuntimeError("on purpose")

    a.spawn(forever())
    a.spawn(broken())
    a.spawn(steps(a))
    await until(lambda: done == ["slept"])
    assert a.faults[Fault.PROCEDURE] == 1
    assert "a procedure failed" in caplog.text
    await a.stop()
    assert done == ["slept", "ended"]


async def test_stop_sends_what_was_said_and_ends_what_waits(start_host: StartHost) -> None:
    (a, _), (b, told) = await start_host(), await start_host()
    await a.call(b.address, Ping(1), PATIENCE_S)
    waits = asyncio.ensure_future(a.call(b.address, Silence(), 10 * PATIENCE_S))
    await asyncio.sleep(0.01)
    a.send(b.address, Note("last words"))
    async with asyncio.timeout(PATIENCE_S):
        await a.stop()
    with pytest.raises(CallTimeout, match="this host stopped"):
        await waits
    await until(lambda: told.heard == [(a.address, Note("last words"))])
    await until(lambda: b.linked == [])
    a.send(b.address, Note("too late"))
    with pytest.raises(CallRefused, match="not running"):
        await a.call(b.address, Ping(1), PATIENCE_S)
    await a.stop()
    with pytest.raises(RuntimeError, match="started once"):
        await a.start()


async def test_log_lines_name_the_host(start_host: StartHost, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "braidmq.net")
    (a, _), (b, _) = await start_host(name="osaka"), await start_host(name="kyoto")
    await a.call(b.address, Ping(1), PATIENCE_S)
    assert f"osaka at {a.address} is linked to {b.address} ('kyoto')" in caplog.text


class PingCounter(Service):
    def __init__(self) -> None:
        self.pings = 0

    @handles(PingDirectly)
    def on_ping(self, origin: Address, ping: PingDirectly) -> None:
        self.pings += 1


async def test_a_ping_that_waited_for_a_link_is_not_heard_by_a_detour(start_host: StartHost) -> None:
    messages = (*MESSAGES, PingDirectly)
    (a, _), (b, told) = await start_host(messages=messages), await start_host(messages=messages)
    between, _ = await start_host(messages=messages)
    counter = PingCounter()
    b.serve(counter)
    for host in (a, b):
        assert await host.call(between.address, Ping(1), PATIENCE_S) == Pong(2)
    a.ways.send_directly(b.address, PingDirectly())
    a.send(b.address, Note("waits, too"))
    await asyncio.sleep(0)  # the end of the tick: there is no link yet, and both wait for it
    a.ways.go_round(b.address, between.address)
    await until(lambda: bool(told.heard))
    assert told.heard == [(a.address, Note("waits, too"))]
    assert not counter.pings


async def test_a_reply_goes_the_way_that_its_request_came(start_host: StartHost) -> None:
    (a, _), (b, _), (between, _) = await start_host(), await start_host(), await start_host()
    for host in (a, b):
        assert await host.call(between.address, Ping(1), PATIENCE_S) == Pong(2)
    a.send(b.address, Note("to wait for a link"))
    a.ways.go_round(b.address, between.address)
    assert await a.call(b.address, Ping(1), PATIENCE_S) == Pong(2)
    peer = b._peers.get(a.address)
    assert peer is None or peer.counters.messages_out == 0


async def test_a_reply_goes_so_too_where_there_is_another_detour(start_host: StartHost) -> None:
    """By a host that may be gone."""
    (a, _), (b, _), (between, _), (other, _) = [await start_host() for _ in range(4)]
    b.send(a.address, Note("to wait for a link"))
    b.ways.go_round(a.address, other.address)
    frame = b._codec.frame(Reply(1, Pong(2)))
    assert b.ways.answer_round(a.address, between.address, frame)
    b.send(between.address, Note("to wait for a link"))
    b.ways.go_round(between.address, other.address)
    assert not b.ways.answer_round(a.address, between.address, frame), "that one cannot be reached directly either"


async def test_a_link_is_let_alone_while_a_detour_is_not_sure(start_host: StartHost) -> None:
    """What is under way on it comes, and so does what the other side sends."""
    (a, told_a), (b, told), (between, _) = await start_host(), await start_host(), await start_host()
    for one, other in ((a, b), (a, between), (between, b)):
        assert await one.call(other.address, Ping(1), PATIENCE_S) == Pong(2)
    passed_on = between.counters(b.address).messages_out
    a.ways.go_round(b.address, between.address, is_sure=False)
    a.send(b.address, Note("by another"))
    b.send(a.address, Note("directly"))
    await until(lambda: bool(told.heard) and bool(told_a.heard))
    assert between.counters(b.address).messages_out == passed_on + 1
    assert b.address in a.linked
    assert a.counters(b.address).reconnects == 0
    a.ways.go_round(b.address, between.address)
    assert b.address not in a.linked
