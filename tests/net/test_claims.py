"""Who may be linked: hosts that agree, each under a name and an identity of its own; and those that come and go."""

from __future__ import annotations

import asyncio
import logging
import socket

import msgspec
import pytest

from braidmq.net import Bounds, Fault, NetHost, Security
from braidmq.net.faults import TEXT_LENGTH_MAX
from braidmq.net.frames import framed
from braidmq.net.hello import HELLO_BYTES_MAX, IDENTITY_LENGTH_MAX, NAME_LENGTH_MAX, Hello, preamble, read_hello
from braidmq.net.security import SecurityKind
from tests.net.conftest import Note, Ping, Pong, StartHost, until

BRISK = Bounds(backoff_s_min=0.01, backoff_s_max=0.05)
TERMS = {"method": "adaptive", "protocol": "1"}
LATER_S = 30.0


@pytest.fixture(params=["none", "key"])
def security(request: pytest.FixtureRequest) -> Security:
    return Security.none() if request.param == "none" else Security.key(bytes(range(32)))


def refusal_of(host: NetHost, by: NetHost) -> str:
    return host.refusals.get(by.address, "")


async def test_hosts_that_differ_in_a_term_part_and_both_say_why(
    start_host: StartHost, caplog: pytest.LogCaptureFixture
) -> None:
    (a, _), (b, told) = await start_host(terms=TERMS), await start_host(terms=TERMS)
    await a.call(b.address, Ping(1), LATER_S)
    other, _ = await start_host(terms={**TERMS, "method": "scribe"}, bounds=BRISK)
    other.send(b.address, Note("in other words"))
    await until(lambda: b.faults[Fault.TERMS] >= 5, LATER_S)
    await until(lambda: bool(refusal_of(other, b)), LATER_S)
    ours = f"method is 'adaptive' at {b.address} and 'scribe' at {other.address}"
    theirs = f"method is 'scribe' at {other.address} and 'adaptive' at {b.address}"
    assert theirs in refusal_of(other, b)
    lines = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert [ours in line or theirs in line for line in lines] == [True, True], "each side once, however often it tries"
    assert not told.heard
    assert b.linked == [a.address]
    assert a.linked == [b.address]
    assert not a.refusals
    assert not b.refusals
    assert a.counters(b.address).reconnects == 0


async def test_what_only_one_host_names_is_not_compared(start_host: StartHost) -> None:
    (a, _), (b, _), (c, _) = (
        await start_host(terms=TERMS),
        await start_host(terms={"method": "adaptive", "colour": "blue"}),
        await start_host(),
    )
    assert await b.call(a.address, Ping(1), LATER_S) == Pong(2)
    assert await c.call(a.address, Ping(1), LATER_S) == Pong(2)
    assert await c.call(b.address, Ping(1), LATER_S) == Pong(2)


@pytest.mark.parametrize("hello", ["shorter", "longer"])
async def test_hellos_of_other_versions_are_understood(start_host: StartHost, hello: str) -> None:
    a, _ = await start_host(security=Security.none(), terms=TERMS, identity="a#1", name="a")
    fields: list[object] = ["127.0.0.1:9", bytes(16), a.address]
    if hello == "longer":
        fields += ["b", False, "b#1", {"method": "adaptive", "new": "x"}, True, "", {"newer": [1, 2]}, "and so on"]
    host, port = a.address.split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(preamble(SecurityKind.NONE) + framed(msgspec.msgpack.encode(fields)))
    await until(lambda: a.linked == ["127.0.0.1:9"], LATER_S)
    assert not a.faults
    writer.close()


def test_the_longest_hello_is_not_too_long() -> None:
    address = "h" * 293 + ":65535"
    terms = {"braid.method": "relayfree", "protocol": "1"}
    hello = Hello(
        *(address, bytes(16), address, "ü" * NAME_LENGTH_MAX, False, "ü" * IDENTITY_LENGTH_MAX),
        *(terms, True, "ü" * TEXT_LENGTH_MAX),
    )
    encoded = msgspec.msgpack.encode(hello)
    assert len(encoded) < HELLO_BYTES_MAX
    with pytest.raises(Exception, match="gives no address"):
        read_hello(encoded)


async def test_a_host_does_not_let_its_namesake_in(start_host: StartHost, caplog: pytest.LogCaptureFixture) -> None:
    a, told = await start_host(name="s2", identity="s2#1")
    other, _ = await start_host(name="s2", identity="s2#2", bounds=BRISK)
    other.send(a.address, Note("it is me"))
    await until(lambda: bool(refusal_of(other, a)), LATER_S)
    for part in (a.address, other.address, "both called 's2'", "braid.name"):
        assert part in refusal_of(other, a)
    assert a.faults[Fault.NAME] >= 1
    assert a.linked == []
    assert not told.heard
    assert caplog.text.count(f"{a.address} and {other.address} are both called 's2'") >= 1


@pytest.mark.parametrize("identity", ["s2#1", "s2#2"], ids=["copy", "namesake"])
async def test_a_name_or_identity_that_another_has_is_refused(
    start_host: StartHost, identity: str, caplog: pytest.LogCaptureFixture
) -> None:
    """By a host that knows both; the one that was there is not disturbed."""
    a, told = await start_host(name="s1", identity="s1#1")
    s2, _ = await start_host(name="s2", identity="s2#1")
    await s2.call(a.address, Ping(1), LATER_S)
    name = "s3" if identity == "s2#1" else "s2"
    other, _ = await start_host(name=name, identity=identity, bounds=BRISK)
    other.send(a.address, Note("let me in"))
    await until(lambda: bool(refusal_of(other, a)), LATER_S)
    reason = refusal_of(other, a)
    assert s2.address in reason
    assert other.address in reason
    assert ("copy" in reason) == (identity == "s2#1")
    assert a.linked == [s2.address]
    assert not told.heard
    assert a.counters(s2.address).reconnects == 0
    await s2.stop()
    assert await other.call(a.address, Ping(1), LATER_S) == Pong(2), "the name is free now"
    assert not other.refusals


async def test_a_host_that_comes_back_elsewhere_is_let_in_and_not_looked_for_where_it_was(
    start_host: StartHost,
) -> None:
    a, _ = await start_host(name="s1", identity="s1#1", bounds=BRISK)
    linked: list[tuple[str, str]] = []
    parted: list[str] = []
    a.watch(lambda identity, address: linked.append((identity, address)), parted.append)
    old, _ = await start_host(name="s2", identity="s2#1")
    await old.call(a.address, Ping(1), LATER_S)
    await old.stop()
    new, told = await start_host(name="s2", identity="s2#1")
    assert await new.call(a.address, Ping(1), LATER_S) == Pong(2)
    assert linked == [("s2#1", old.address), ("s2#1", new.address)]
    assert parted == [old.address]
    a.send(new.address, Note("here"))
    await until(lambda: bool(told.heard), LATER_S)
    assert a.linked == [new.address]


async def test_one_that_took_a_name_by_mistake_does_not_keep_its_owner_out(start_host: StartHost) -> None:
    """A host that did not know the owner has let the other in, which is in no braid."""
    a, _ = await start_host(name="s1", identity="s1#1")
    wrong, _ = await start_host(name="s2", identity="s2#2", bounds=BRISK)
    wrong.is_member = False
    await wrong.call(a.address, Ping(1), LATER_S)
    owner, _ = await start_host(name="s2", identity="s2#1")
    assert await owner.call(a.address, Ping(1), LATER_S) == Pong(2)
    assert a.linked == [owner.address]
    wrong.send(a.address, Note("again"))
    await until(lambda: owner.address in refusal_of(wrong, a), LATER_S)
    assert a.linked == [owner.address]


async def test_one_that_is_slow_to_answer_keeps_its_name(start_host: StartHost) -> None:
    """The rival says nothing at its door, but goes on talking on its link."""
    a, _ = await start_host(security=Security.none(), name="s1", identity="s1#1", bounds=Bounds(connect_timeout_s=0.5))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = f"127.0.0.1:{silent.getsockname()[1]}"
        host, port = a.address.split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        hello = Hello(where, bytes(16), a.address, "s2", identity="s2#1")
        writer.write(preamble(SecurityKind.NONE) + framed(msgspec.msgpack.encode(hello)))
        await until(lambda: a.linked == [where], LATER_S)
        other, _ = await start_host(security=Security.none(), name="s2", identity="s2#2", bounds=BRISK)
        empty = framed(b"\xdd" + bytes(4))

        async def talk() -> None:
            while not refusal_of(other, a):
                other.send(a.address, Note("let me in"))
                writer.write(empty)
                await asyncio.sleep(0.01)

        await asyncio.wait_for(talk(), LATER_S)
        assert where in refusal_of(other, a)
        assert a.linked == [where]
        writer.close()


async def test_other_security_is_a_refusal_until_nobody_is_there_to_refuse(start_host: StartHost) -> None:
    a, _ = await start_host(security=Security.key(bytes(range(32))))
    b, _ = await start_host(security=Security.none(), bounds=BRISK)
    b.send(a.address, Note("in the clear"))
    await until(lambda: "all hosts of a braid must have the same" in refusal_of(b, a), LATER_S)
    assert not a.refusals
    await a.stop()

    async def send() -> None:
        while b.refusals:
            b.send(a.address, Note("anybody?"))
            await asyncio.sleep(0.01)

    await asyncio.wait_for(send(), LATER_S)


# Good-byes


class Port:
    """A port of loopback at which nobody answers, but that counts who connects."""

    def __init__(self, address: str) -> None:
        self.connections = 0
        self._socket = socket.create_server(("127.0.0.1", int(address.split(":")[1])))
        self._socket.setblocking(False)
        self._task = asyncio.ensure_future(self._count())

    async def _count(self) -> None:
        while True:
            connection, _ = await asyncio.get_running_loop().sock_accept(self._socket)
            self.connections += 1
            connection.close()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._socket.close()


async def test_one_that_has_said_good_bye_is_hardly_looked_for(
    start_host: StartHost, caplog: pytest.LogCaptureFixture
) -> None:
    """What is sent to it is dropped, and not more than one connection is tried in `backoff_s_max`."""
    caplog.set_level(logging.INFO, "braidmq.net")
    (a, _), (b, _) = await start_host(bounds=Bounds(backoff_s_max=1000.0, wait_s_max=1000.0)), await start_host()
    parted: list[str] = []
    a.watch(lambda _identity, _address: None, parted.append)
    await b.call(a.address, Ping(1), LATER_S)
    b.say_farewell()
    await b.stop()
    await until(lambda: a.linked == [], LATER_S)
    assert parted == [b.address]
    port = Port(b.address)
    for n in range(50):
        a.send(b.address, Note(str(n)))
        await asyncio.sleep(0)
    await until(lambda: a.counters(b.address).dropped == 50, LATER_S)
    assert port.connections == 0
    await port.close()
    lines = [one.getMessage() for one in caplog.records if one.getMessage().startswith(a.address)]
    assert lines[-2:] == [f"{a.address} is linked to {b.address}", f"{a.address}: {b.address} has left"]
    again, told = await start_host(b.address)
    assert await again.call(a.address, Ping(1), LATER_S) == Pong(2)
    a.send(b.address, Note("welcome"))
    await until(lambda: bool(told.heard), LATER_S)


async def test_one_that_has_said_good_bye_is_found_by_who_hears_of_it_anew(start_host: StartHost) -> None:
    (a, _), (b, _) = await start_host(bounds=BRISK), await start_host()
    await b.call(a.address, Ping(1), LATER_S)
    b.say_farewell()
    await b.stop()
    await until(lambda: a.linked == [], LATER_S)
    _, told = await start_host(b.address)

    async def call() -> None:
        while not told.heard:
            a.send(b.address, Note("are you there?"))
            await asyncio.sleep(0.01)

    await asyncio.wait_for(call(), LATER_S)
    assert a.linked == [b.address]


async def test_one_that_is_lost_is_told_of_once_and_once_when_it_is_back(
    start_host: StartHost, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "braidmq.net")
    (a, _), (b, _) = await start_host(bounds=BRISK), await start_host()
    await a.call(b.address, Ping(1), LATER_S)

    def lines(level: int) -> list[str]:
        told = [one for one in caplog.records if one.levelno >= level]
        return [one.getMessage() for one in told if one.getMessage().startswith(f"{a.address} ")]

    before = len(lines(logging.INFO))
    await b.stop()
    a.send(b.address, Note("where are you?"))
    await until(lambda: sum("cannot reach" in line for line in lines(logging.DEBUG)) > 10, LATER_S)
    assert [line.split(": ")[0] for line in lines(logging.INFO)[before:]] == [
        f"{a.address} has lost its link to {b.address}"
    ]
    again, _ = await start_host(b.address)
    assert await a.call(b.address, Ping(1), LATER_S) == Pong(2)
    assert lines(logging.INFO)[before + 1 :] == [f"{a.address} is linked to {b.address} again"]
    await again.stop()
    await until(lambda: a.linked == [], LATER_S)
    assert len(lines(logging.INFO)) == before + 2, "not again and again, if it comes and goes"
