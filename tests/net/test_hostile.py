"""Bad input between hosts: a log line that says what was wrong, a count, a closed link, and nobody else disturbed."""

from __future__ import annotations

import asyncio
import random
import struct

import msgspec
import pytest

from braidmq.net import Bounds, Fault, NetHost
from braidmq.net.frames import framed
from braidmq.net.hello import HELLO_BYTES_MAX, MAGIC, VERSION, Hello, preamble
from braidmq.net.security import SecurityKind
from tests.net.conftest import MESSAGES, Answerer, Note, Ping, Pong, StartHost, until
from tests.patience import PATIENCE_S

BOUNDS = Bounds(connect_timeout_s=2.0, strangers_max=4)
"""Time enough for those who mean well."""
ADDRESS = "127.0.0.1:1"
PREAMBLE = preamble(SecurityKind.NONE)
HELLO = PREAMBLE + framed(msgspec.msgpack.encode(Hello(ADDRESS, bytes(16), "")))


def batch(*envelopes: object) -> bytes:
    return framed(struct.pack(">BI", 0xDD, len(envelopes)) + b"".join(map(msgspec.msgpack.encode, envelopes)))


DEEP = framed(b"\xdd\x00\x00\x00\x01\x9f\x00\x01\x92\xa4Ping\x01" + b"\x91" * 100_000)
"""A good message, and behind it fields of a later version that never end."""


def hello_with(*fields: object) -> bytes:
    return PREAMBLE + framed(msgspec.msgpack.encode(fields))


class Target:
    """A host that is attacked, and another that is linked to it and must not notice."""

    def __init__(self, host: NetHost, told: Answerer, friend: NetHost) -> None:
        self.host = host
        self.told = told
        self.friend = friend

    async def say(self, data: bytes, then_end: bool = False) -> bytes:
        """Connects, says that, and returns all that came back before the host closed the link."""
        host, port = self.host.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(data)
        if then_end:
            writer.write_eof()
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()

    async def check_unharmed(self) -> None:
        assert await self.friend.call(self.host.address, Ping(1), PATIENCE_S) == Pong(2)
        assert self.friend.counters(self.host.address).reconnects == 0
        assert not self.friend.faults
        assert self.host.linked == [self.friend.address]


@pytest.fixture
async def target(start_host: StartHost) -> Target:
    host, told = await start_host(bounds=BOUNDS)
    friend, _ = await start_host()
    await friend.call(host.address, Ping(0), PATIENCE_S)
    return Target(host, told, friend)


BAD = {
    "an HTTP client": (b"GET / HTTP/1.1\r\n\r\n", Fault.GARBAGE, "it does not speak this protocol"),
    "one wrong byte": (b"X", Fault.GARBAGE, "it does not speak this protocol"),
    "unknown version": (MAGIC + b"\x63", Fault.VERSION, f"it speaks version 99 and this host version {VERSION}"),
    "another security": (
        MAGIC + bytes((VERSION, SecurityKind.KEY)),
        Fault.SECURITY,
        "it has a braid key and this host has no",
    ),
    "unknown security": (MAGIC + bytes((VERSION, 77)), Fault.SECURITY, "security of the unknown kind 77"),
    "large hello": (PREAMBLE + struct.pack(">I", HELLO_BYTES_MAX + 1), Fault.OVERSIZE, "a frame of 4097 bytes"),
    "hello of garbage": (PREAMBLE + framed(b"\xc1\xff"), Fault.GARBAGE, "a hello that cannot be read"),
    "empty hello": (PREAMBLE + framed(b""), Fault.GARBAGE, "a hello that cannot be read"),
    "short nonce": (hello_with(ADDRESS, b"abc", ""), Fault.GARBAGE, "a hello that cannot be read"),
    "no address": (hello_with("nowhere", bytes(16), ""), Fault.ADDRESS, "'nowhere' is no address"),
    "no port": (hello_with("127.0.0.1:0", bytes(16), ""), Fault.ADDRESS, "gives no address to reach it at"),
    "address with a line": (hello_with("a\nb:1", bytes(16), ""), Fault.ADDRESS, r"'a\nb:1' is no address"),
    "large address": (hello_with("a" * 2000 + ":1", bytes(16), ""), Fault.ADDRESS, "is no address"),
    "no hello": (b"", Fault.TIMEOUT, "no hello within 2.0 s"),
    "half a hello": (HELLO[:-5], Fault.TIMEOUT, "no hello within 2.0 s"),
    "oversized frame": (HELLO + b"\xff\xff\xff\xff", Fault.OVERSIZE, "a frame of 4294967295 bytes"),
    "too many messages": (HELLO + framed(b"\xdd\x00\x01\x00\x01"), Fault.OVERSIZE, "a frame of 65537 messages"),
    "garbage": (HELLO + framed(b"garbage!"), Fault.GARBAGE, "does not begin with a batch"),
    "empty frame": (HELLO + framed(b""), Fault.GARBAGE, "does not begin with a batch"),
    "truncated batch": (HELLO + framed(b"\xdd\x00\x00\x00\x02\x93"), Fault.GARBAGE, "that is no msgpack"),
    "broken text": (HELLO + batch([3, 1, b"\xff"]).replace(b"\xc4\x01\xff", b"\xa1\xff\xff"), Fault.GARBAGE, "msgpack"),
    "too deep": (HELLO + DEEP, Fault.GARBAGE, "maximum recursion depth"),
    "unknown message": (HELLO + batch([0, 1, ["Nonsense", 1]]), Fault.MESSAGE, "Invalid value 'Nonsense'"),
    "bad name": (HELLO + batch([0, 1, ["x\n" + "y" * 10_000, 1]]), Fault.MESSAGE, "Invalid value 'x?yyy"),
    "long refusal": (HELLO + batch([3, 1, "x" * 201]), Fault.MESSAGE, "length <= 200"),
    "wrong field": (HELLO + batch([0, 1, ["Note", 7]]), Fault.MESSAGE, "Expected `str`, got `int`"),
    "missing field": (HELLO + batch([0, 1, ["Note"]]), Fault.MESSAGE, "a message that this host does not know"),
    "unknown kind": (HELLO + batch([9, 1, ["Note", ""]]), Fault.MESSAGE, "Invalid value 9"),
    "no hops": (HELLO + batch([0, 0, ["Note", ""]]), Fault.MESSAGE, "Expected `int` >= 1"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
async def test_bad_input_closes_that_link_alone(target: Target, case: str, caplog: pytest.LogCaptureFixture) -> None:
    data, fault, text = BAD[case]
    answer = await target.say(data)
    assert target.host.faults == {fault: 1}
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"{target.host.address} closed the link to ")
    assert text in line
    assert len(line) < 500
    assert "\n" not in line
    if fault in (Fault.VERSION, Fault.SECURITY):
        assert answer == PREAMBLE, "so that the other side can say why"
    await target.check_unharmed()
    assert not target.told.heard


async def test_what_came_before_the_bad_frame_was_heard(target: Target) -> None:
    await target.say(HELLO + batch([0, 1, ["Note", "good"]]) + framed(b"bad"))
    assert target.told.heard == [(ADDRESS, Note("good"))]
    await target.check_unharmed()


async def test_answers_that_nobody_asked_for_are_ignored(target: Target) -> None:
    host, port = target.host.address.split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(HELLO + batch([2, 5, ["Pong", 1]], [3, 6, "no"], [0, 1, ["Note", "alive"]]))
    await until(lambda: bool(target.told.heard))
    assert not target.host.faults
    writer.close()
    await until(lambda: len(target.host.linked) == 1)
    await target.check_unharmed()


async def test_a_request_from_nowhere_is_answered_to_nobody(target: Target, caplog: pytest.LogCaptureFixture) -> None:
    host, port = target.host.address.split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(HELLO + batch([1, 5, "nowhere", 1, ["Ping", 1]], [0, 1, ["Note", "alive"]]))
    await until(lambda: bool(target.told.heard))
    assert "sends nothing to 'nowhere'" in caplog.text
    assert not target.host.faults
    writer.close()


async def test_strangers_are_bounded(target: Target) -> None:
    host, port = target.host.address.split(":")
    writers = [(await asyncio.open_connection(host, int(port)))[1] for _ in range(6)]
    await until(lambda: target.host.faults[Fault.CROWD] == 2)
    await target.check_unharmed()
    await until(lambda: target.host.faults[Fault.TIMEOUT] == 4)
    for writer in writers:
        writer.close()
    assert not target.host._links._acceptor.strangers


async def test_noise_of_any_kind_does_no_harm(target: Target) -> None:
    """Frames that were right but for a few bytes."""
    chance = random.Random(7)
    good = batch([0, 1, ["Note", "x" * 20]], [1, 9, "", 1, ["Ping", 3]], [1, 9, "", 2, ["Walk", []]], [3, 1, "no"])
    for _ in range(150):
        data = bytearray(good * 2 + framed(b"end"))
        for _ in range(chance.randrange(1, 5)):
            data[chance.randrange(4, len(data))] = chance.randrange(256)
        await target.say(HELLO + data, then_end=True)
    assert target.host.faults.total() > 100
    assert set(target.host.faults) <= {Fault.GARBAGE, Fault.MESSAGE, Fault.OVERSIZE}
    await until(lambda: len(target.host.linked) == 1)
    await target.check_unharmed()


async def test_the_one_who_dials_says_why_as_well(start_host: StartHost, caplog: pytest.LogCaptureFixture) -> None:
    async def newer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(PREAMBLE))
        writer.write(MAGIC + bytes((VERSION + 1, SecurityKind.NONE)))
        writer.close()

    a, _ = await start_host(bounds=Bounds(wait_s_max=0.2))
    async with await asyncio.start_server(newer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        a.send(f"127.0.0.1:{port}", Note("x"))
        await until(lambda: a.faults[Fault.VERSION] >= 1)
        await until(lambda: a.counters(f"127.0.0.1:{port}").dropped == 1)
    assert a.faults[Fault.VERSION] < 6, "it backs off"
    assert (
        f"closed the link to 127.0.0.1:{port}: it speaks version {VERSION + 1} and this host version {VERSION}"
        in caplog.text
    )


async def test_hosts_that_know_other_messages_part(start_host: StartHost) -> None:
    """The sender of what the other does not know loses its link, and nothing else happens."""
    (a, _), (b, _), (c, _) = await start_host(), await start_host(messages=[Ping, Pong]), await start_host()
    assert len(MESSAGES) > 2
    b.send(c.address, Pong(1))
    a.send(b.address, Note("what?"))
    await until(lambda: b.faults[Fault.MESSAGE] == 1)
    await until(lambda: a.linked == [])
    assert b.linked == [c.address]
