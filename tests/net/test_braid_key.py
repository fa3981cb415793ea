"""Links with a braid key, over real sockets: who is let in, what an eavesdropper has, what a meddler can do."""

from __future__ import annotations

import asyncio
import struct

import msgspec
import pytest

from braidmq.host import CallTimeout
from braidmq.net import Bounds, Fault, NetHost, Security
from braidmq.net.braid_key import BraidKey, Proof
from braidmq.net.frames import framed
from braidmq.net.hello import PREAMBLE_BYTES, Hello, preamble
from braidmq.net.security import SecurityKind
from tests.net.conftest import Answerer, Large, Note, Ping, Pong, StartHost, Wire, say_to, until
from tests.patience import PATIENCE_S

SECRET = bytes(range(32))
OURS = Security.key(SECRET)
OTHERS = Security.key(bytes(32))
PREAMBLE = preamble(SecurityKind.KEY)
BRISK = Bounds(connect_timeout_s=2.0, backoff_s_min=0.02, backoff_s_max=0.1, strangers_max=4)


@pytest.fixture
def security() -> Security:
    return OURS


class Visitor:
    """The dialling side by hand: with the key or without, and as well-behaved as the test wants."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: BraidKey) -> None:
        self.reader = reader
        self.writer = writer
        self.proof: Proof = key.begin(PREAMBLE, is_dialler=True)

    @classmethod
    async def at(cls, host: NetHost, secret: bytes = SECRET) -> Visitor:
        name, port = host.address.split(":")
        visitor = cls(*await asyncio.open_connection(name, int(port)), BraidKey(secret))
        visitor.writer.write(PREAMBLE)
        assert await visitor.reader.readexactly(PREAMBLE_BYTES) == PREAMBLE
        visitor.proof.on_challenge(await visitor.frame())
        return visitor

    async def frame(self) -> bytes:
        return await self.reader.readexactly(struct.unpack(">I", await self.reader.readexactly(4))[0])

    def greet(self, address: str) -> None:
        self.writer.write(framed(self.proof.say(msgspec.msgpack.encode(Hello(address, bytes(16), "")))))

    async def rest(self) -> bytes:
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await self.reader.read()
        except ConnectionError:
            return b""
        finally:
            self.writer.close()


def note(text: str) -> bytes:
    return framed(struct.pack(">BI", 0xDD, 1) + msgspec.msgpack.encode([0, 1, ["Note", text]]))


async def meet(start_host: StartHost, wire: Wire) -> tuple[NetHost, Answerer, NetHost, Answerer]:
    """Two hosts, the second of which can be reached over the wire alone."""
    (a, told_a), (b, told_b) = await start_host(bounds=BRISK), await start_host(advertise=wire.address, bounds=BRISK)
    wire.target = f"127.0.0.1:{b._links._acceptor._listener.getsockname()[1]}"  # type: ignore[union-attr]
    return a, told_a, b, told_b


# With the key


async def test_hosts_with_the_same_key_talk_and_nobody_can_read_it(start_host: StartHost, wire: Wire) -> None:
    a, told_a, b, told_b = await meet(start_host, wire)
    a.send(b.address, Note("a secret of a"))
    await until(lambda: bool(told_b.heard))
    b.send(a.address, Note("a secret of b"))
    assert await b.call(a.address, Ping(1), PATIENCE_S) == Pong(2)
    assert told_b.heard == [(a.address, Note("a secret of a"))]
    assert told_a.heard == [(b.address, Note("a secret of b"))]
    assert len(wire.there) == 1
    assert not any(word in wire.there[0] + wire.back[0] for word in (b"secret", b"Note", b"Ping", b"Pong"))
    assert not a.faults
    assert not b.faults


@pytest.mark.parametrize("security", [None])
async def test_without_a_key_it_could_be_read(start_host: StartHost, wire: Wire) -> None:
    a, _, b, told = await meet(start_host, wire)
    a.send(b.address, Note("a secret of a"))
    await until(lambda: bool(told.heard))
    assert b"a secret of a" in wire.there[0]


async def test_large_and_many_frames_both_ways(start_host: StartHost) -> None:
    bounds = Bounds(frame_bytes_max=150_000)
    (a, told_a), (b, told_b) = await start_host(bounds=bounds), await start_host(bounds=bounds)
    sent = [Large(bytes([n]) * (n * 1_000)) for n in range(149)]
    for message in sent:
        a.send(b.address, message)
        b.send(a.address, message)
        if message.data[:1] in b"\x10\x20\x30":
            await asyncio.sleep(0)
    await until(lambda: len(told_a.heard) == len(told_b.heard) == len(sent))
    assert [message for _, message in told_a.heard] == [message for _, message in told_b.heard] == sent
    assert b.counters(a.address).bytes_in == a.counters(b.address).bytes_out


async def test_a_passphrase_is_a_key_too(start_host: StartHost) -> None:
    a, _ = await start_host(security=Security.key("correct horse battery"))
    b, _ = await start_host(security=Security.key(" correct horse battery\n"))
    assert await a.call(b.address, Ping(1), PATIENCE_S) == Pong(2)


# Without it


@pytest.mark.parametrize("stranger", ["another key", "no security"])
@pytest.mark.parametrize("who_dials", ["the stranger", "ours"])
async def test_who_has_not_the_key_is_refused_and_both_say_so(
    start_host: StartHost, stranger: str, who_dials: str, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = OTHERS if stranger == "another key" else Security.none()
    (a, told_a), (b, told_b) = await start_host(bounds=BRISK), await start_host(bounds=BRISK, security=theirs)
    dials, hears = (b, a) if who_dials == "the stranger" else (a, b)
    dials.send(hears.address, Note("let me in"))
    with pytest.raises(CallTimeout):
        await dials.call(hears.address, Ping(1), 0.3)
    await until(lambda: a.faults[Fault.SECURITY] > 0 and b.faults[Fault.SECURITY] > 0)
    assert set(a.faults) == set(b.faults) == {Fault.SECURITY}
    assert not told_a.heard
    assert not told_b.heard
    assert a.linked == b.linked == []
    lines = [line for line in caplog.messages if line.startswith(hears.address)]
    assert "another braid key, or none: its proof is wrong" in lines[0] or "this host has " in lines[0]
    lines = [line for line in caplog.messages if line.startswith(f"{dials.address} closed the link to {hears.address}")]
    assert "it refuses this host's braid key" in lines[0] or "all hosts of a braid must have the same" in lines[0]


async def test_a_claim_without_proof_changes_nothing(start_host: StartHost) -> None:
    (a, told), (b, _) = await start_host(), await start_host()
    assert await b.call(a.address, Ping(1), PATIENCE_S) == Pong(2)
    for address in (b.address, "127.0.0.1:1"):
        visitor = await Visitor.at(a, secret=bytes(32))
        visitor.greet(address)
        visitor.writer.write(note("injected"))
        assert await visitor.rest() == framed(b"")
    assert a.faults == {Fault.SECURITY: 2}
    assert await b.call(a.address, Ping(1), PATIENCE_S) == Pong(2)
    assert b.counters(a.address).reconnects == 0
    assert list(a._links.peers.by_name) == [b.address]
    assert not told.heard


async def test_frames_that_are_not_sealed_are_not_heard(
    start_host: StartHost, caplog: pytest.LogCaptureFixture
) -> None:
    """The proof was right, but what follows comes from one who took the connection over."""
    a, told = await start_host()
    visitor = await Visitor.at(a)
    visitor.greet("127.0.0.1:1")
    visitor.proof.hear(await visitor.frame())
    visitor.writer.write(visitor.proof.seals()[0].seal(note("mine")) + note("injected"))
    await visitor.rest()
    assert told.heard == [("127.0.0.1:1", Note("mine"))]
    assert a.faults == {Fault.SEAL: 1}
    assert "closed the link to 127.0.0.1:1: frame 1 was changed on its way, or is not the next" in caplog.text


# What was recorded


async def test_recorded_bytes_are_refused_by_the_one_who_is_dialled(start_host: StartHost, wire: Wire) -> None:
    a, _, b, told = await meet(start_host, wire)
    a.send(b.address, Note("once"))
    await until(lambda: bool(told.heard))
    await a.stop()
    await until(lambda: b.linked == [])
    for _ in range(3):
        await say_to(wire.target, wire.there[0])
    assert b.faults == {Fault.SECURITY: 3}
    assert told.heard == [(a.address, Note("once"))]
    assert b.linked == []


async def test_recorded_bytes_are_refused_by_the_one_who_dials(start_host: StartHost, wire: Wire) -> None:
    a, told, b, _ = await meet(start_host, wire)
    await a.call(b.address, Ping(1), PATIENCE_S)
    b.send(a.address, Note("once"))
    await until(lambda: bool(told.heard))
    await b.stop()

    async def replay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(wire.back[0])
        await reader.read(-1)
        writer.close()

    async with await asyncio.start_server(replay, "127.0.0.1", 0) as server:
        wire.target = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(CallTimeout):
            await a.call(b.address, Ping(1), 0.3)
    assert a.faults[Fault.SECURITY] >= 1
    assert set(a.faults) == {Fault.SECURITY}
    assert told.heard == [(b.address, Note("once"))]


async def test_what_a_host_says_thrown_back_at_it_is_refused(start_host: StartHost) -> None:
    a, _ = await start_host(bounds=BRISK)

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(await reader.readexactly(PREAMBLE_BYTES))
            writer.write(framed(BraidKey(bytes(32)).begin(PREAMBLE, is_dialler=False).challenge))
            while data := await reader.read(1 << 16):
                writer.write(data[:2] + (len(data) - 36).to_bytes(2, "big") + data[36:])  # without D
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        with pytest.raises(CallTimeout):
            await a.call(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", Ping(1), 0.3)
    assert set(a.faults) == {Fault.SECURITY}


# What was changed


@pytest.mark.parametrize("is_back", [False, True], ids=["there", "back"])
@pytest.mark.parametrize("change", ["flip", "repeat", "leave out"])
async def test_a_changed_frame_closes_the_link(start_host: StartHost, wire: Wire, is_back: bool, change: str) -> None:
    a, told_a, b, told_b = await meet(start_host, wire)
    await a.call(b.address, Ping(1), PATIENCE_S)
    sender, receiver, told = (b, a, told_a) if is_back else (a, b, told_b)
    changed: list[bytes] = []

    def alter(goes_back: bool, data: bytes) -> bytes:
        if goes_back != is_back or changed:
            return data
        changed.append(data)
        if change == "flip":
            return data[:-20] + bytes((data[-20] ^ 1,)) + data[-19:]
        return data * 2 if change == "repeat" else b""

    wire.alter = alter
    for n in range(3):
        sender.send(receiver.address, Note(f"{n}"))
        await until(lambda: len(changed) > 0)
        await asyncio.sleep(0.02)
    await until(lambda: receiver.faults[Fault.SEAL] == 1)
    assert set(receiver.faults) == {Fault.SEAL}
    heard = [message for _, message in told.heard]
    assert len(heard) == len(set(heard)), "nothing twice"
    assert set(heard) <= {Note("0"), Note("1"), Note("2")}, "nothing that was not said"
    assert await a.call(b.address, Ping(5), PATIENCE_S) == Pong(6), "a new link"


async def test_a_byte_changed_anywhere_in_the_hellos_is_refused(start_host: StartHost, wire: Wire) -> None:
    a, _, b, told = await meet(start_host, wire)
    await a.call(b.address, Ping(1), PATIENCE_S)
    await until(lambda: len(wire.back[0]) > 0)
    sizes = (PREAMBLE_BYTES + _hello_bytes(wire.there[0]), PREAMBLE_BYTES + 36 + _hello_bytes(wire.back[0][36:]))
    for link in list(a._links._links):
        link.abort("enough")
    await until(lambda: b.linked == [])
    position = [0, 0]
    wire.alter = lambda is_back, data: _flipped(data, position, target, is_back)
    for target in [(False, n) for n in range(0, sizes[0], 9)] + [(True, n) for n in range(0, sizes[1], 9)]:
        position[:] = [0, 0]
        once = Bounds(connect_timeout_s=0.3, backoff_s_min=5.0)
        host = NetHost("127.0.0.1:0", [Note, Ping, Pong], security=OURS, bounds=once)
        await host.start()
        host.send(b.address, Note(f"{target}"))
        await until(lambda: host._links.peers.by_name[b.address].dial_at > 0 or bool(host.linked))  # noqa: B023
        assert host.linked == [], target
        await host.stop()
    assert not told.heard


def _hello_bytes(stream: bytes) -> int:
    """The frame behind the preamble."""
    return 4 + int.from_bytes(stream[PREAMBLE_BYTES : PREAMBLE_BYTES + 4], "big")


def _flipped(data: bytes, position: list[int], target: tuple[bool, int], is_back: bool) -> bytes:
    start = position[is_back]
    position[is_back] += len(data)
    at = target[1] - start
    if target[0] != is_back or not 0 <= at < len(data):
        return data
    return data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :]


# Bounds

LOW_ORDER = bytes(32)
BAD = {
    "nothing": (b"", Fault.TIMEOUT, "no hello within 2.0 s"),
    "garbage": (b"\x16\x03\x01\x02\x00\x01", Fault.GARBAGE, "it does not speak this protocol"),
    "only a preamble": (PREAMBLE, Fault.TIMEOUT, "no hello within 2.0 s"),
    "no proof": (PREAMBLE + framed(b"short"), Fault.GARBAGE, "too short for a proof"),
    "an empty proof": (PREAMBLE + framed(b""), Fault.GARBAGE, "too short for a proof"),
    "no hello": (PREAMBLE + framed(b"x" * 64), Fault.SECURITY, "its proof is wrong"),
    "half a proof": (PREAMBLE + framed(b"x" * 40), Fault.SECURITY, "its proof is wrong"),
    "a point of low order": (PREAMBLE + framed(LOW_ORDER + bytes(80)), Fault.GARBAGE, "no X25519 key"),
    "a large hello": (PREAMBLE + struct.pack(">I", 4097), Fault.OVERSIZE, "a frame of 4097 bytes; at most 4096"),
    "an unfinished hello": (PREAMBLE + struct.pack(">I", 4096), Fault.TIMEOUT, "no hello within 2.0 s"),
}


@pytest.mark.parametrize("case", BAD)
async def test_bad_beginnings(start_host: StartHost, case: str, caplog: pytest.LogCaptureFixture) -> None:
    data, fault, text = BAD[case]
    (a, told), (b, _) = await start_host(bounds=BRISK), await start_host()
    await b.call(a.address, Ping(1), PATIENCE_S)
    await say_to(a.address, data)
    assert a.faults == {fault: 1}
    assert text in caplog.text
    assert await b.call(a.address, Ping(1), PATIENCE_S) == Pong(2)
    assert b.counters(a.address).reconnects == 0
    assert not told.heard
    assert not a._links._acceptor.strangers


async def test_a_hello_drop_by_drop_is_cut_in_time(start_host: StartHost) -> None:
    """Whoever sends a byte now and then gains no time by it."""
    a, _ = await start_host(bounds=BRISK)
    visitor = await Visitor.at(a)

    async def drip() -> None:
        for byte in framed(bytes(4096)):
            visitor.writer.write(bytes((byte,)))
            await asyncio.sleep(0.1)

    dripping = asyncio.ensure_future(drip())
    await visitor.rest()
    dripping.cancel()
    assert a.faults == {Fault.TIMEOUT: 1}


async def test_sitting_in_the_door_keeps_nobody_out(start_host: StartHost) -> None:
    a, _ = await start_host(bounds=Bounds(strangers_max=4, connect_timeout_s=60.0))
    visitors = [await Visitor.at(a) for _ in range(10)]
    b, _ = await start_host()
    assert await b.call(a.address, Ping(1), PATIENCE_S) == Pong(2)
    assert len(a._links._acceptor.strangers) <= 4
    assert a.faults[Fault.CROWD] >= 6
    assert len(a._links._links) <= 5
    for visitor in visitors:
        visitor.writer.close()


async def test_a_sealed_frame_is_bounded(start_host: StartHost) -> None:
    a, _ = await start_host(bounds=Bounds(frame_bytes_max=2048))
    visitor = await Visitor.at(a)
    visitor.greet("127.0.0.1:1")
    visitor.proof.hear(await visitor.frame())
    visitor.writer.write(struct.pack(">I", 2048 + 17))
    await visitor.rest()
    assert a.faults == {Fault.OVERSIZE: 1}
