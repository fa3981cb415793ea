"""What `Security` is made of, where it may be left out, and who has an address that two processes claim."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from pathlib import Path

import msgspec
import pytest

from braidmq.host import CallTimeout
from braidmq.net import Bounds, Fault, NetHost, Security, SecurityError
from braidmq.net.addresses import is_loopback
from braidmq.net.frames import framed
from braidmq.net.hello import Hello, preamble
from braidmq.net.security import SecurityKind
from tests.net.conftest import Note, Ping, Pong, StartHost, until
from tests.patience import PATIENCE_S

KEY = Security.key(bytes(range(32)))
BRISK = Bounds(connect_timeout_s=2.0, backoff_s_min=0.02, backoff_s_max=0.1)


# Keys


async def talk(start_host: StartHost, one: Security, other: Security) -> bool:
    (a, _), (b, _) = await start_host(security=one, bounds=BRISK), await start_host(security=other, bounds=BRISK)
    try:
        return bool(await a.call(b.address, Ping(1), 0.5) == Pong(2))
    except CallTimeout:
        return False


async def test_a_key_comes_from_a_file(start_host: StartHost, tmp_path: Path) -> None:
    path = tmp_path / "braid.key"
    raw = os.urandom(32)
    for content, same in ((raw, raw), (raw.hex().encode() + b"\n", raw), ("ein Schlüssel\n".encode(), "ein Schlüssel")):
        path.write_bytes(content)
        path.chmod(0o600)
        assert await talk(start_host, Security.key_file(path), Security.key(same))
    path.write_bytes(os.urandom(32))
    assert not await talk(start_host, Security.key_file(path), Security.key(raw))


def test_a_key_that_others_can_read_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "braid.key"
    path.write_text("a passphrase of some length")
    path.chmod(0o644)
    Security.key_file(path)
    assert "can be read by others" in caplog.text


def test_a_bad_key_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(SecurityError, match="at least 12 characters; this one has 5"):
        Security.key("short")
    with pytest.raises(SecurityError, match="32 random bytes; this one has 31"):
        Security.key(bytes(31))
    with pytest.raises(SecurityError, match=r"no\.key cannot be read \(No such file or directory\)"):
        Security.key_file(tmp_path / "no.key")
    path = tmp_path / "braid.key"
    for content, text in ((b"", "this one has 0"), (b"\xff" * 40, "this one has 40"), (b"abc\ndef", "this one has 7")):
        path.write_bytes(content)
        with pytest.raises(SecurityError, match=f"braid.key: .*{text}"):
            Security.key_file(path)


def test_a_key_is_not_shown() -> None:
    assert repr(Security.key("a passphrase of some length")) == "Security(kind=<SecurityKind.KEY: 1>, insecure=False)"


# None


@pytest.mark.parametrize(
    ("host", "is_local"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("fe80::1%eth0", False),
        ("localhost", False),
    ],
)
def test_what_is_loopback(host: str, is_local: bool) -> None:
    assert is_loopback(host) == is_local


async def test_no_security_is_for_loopback() -> None:
    for security in (None, Security.none()):
        host = NetHost("0.0.0.0:0", [Note], advertise="broker.example:7883", security=security)
        with pytest.raises(ValueError, match="other machines: peers are heard there only with a braid key or TLS"):
            await host.start()
    for security in (KEY, Security.none(insecure=True)):
        host = NetHost("0.0.0.0:0", [Note], advertise="broker.example:7883", security=security)
        await host.start()
        await host.stop()
    host = NetHost("localhost:0", [Note])
    await host.start()
    await host.stop()


async def test_no_security_does_not_leave_the_machine(start_host: StartHost, caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent
        except OSError:
            pytest.skip("this machine has loopback alone")
        own = probe.getsockname()[0]
    open_host, told = await start_host(f"{own}:0", security=Security.none(insecure=True))
    plain, _ = await start_host(bounds=BRISK)
    plain.send(open_host.address, Note("in the clear"))
    await until(lambda: plain.faults[Fault.SECURITY] >= 1)
    assert f"{own} is another machine: links need a braid key or TLS" in caplog.text
    daring, _ = await start_host(security=Security.none(insecure=True))
    daring.send(open_host.address, Note("in the clear, as I was told"))
    await until(lambda: bool(told.heard))
    assert told.heard == [(daring.address, Note("in the clear, as I was told"))]


# One address, two processes


@pytest.mark.parametrize("security", [None, KEY], ids=["none", "key"])
async def test_who_is_wrong_about_its_address_is_turned_away(
    start_host: StartHost, security: Security | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The one that can be reached there stays linked, and is not disturbed."""
    (a, told), (right, _) = await start_host(bounds=BRISK), await start_host()
    await right.call(a.address, Ping(1), PATIENCE_S)
    wrong, _ = await start_host(advertise=right.address, bounds=BRISK)
    wrong.send(a.address, Note("from the wrong one"))
    await until(lambda: a.faults[Fault.ADDRESS] >= 2)
    assert f"it says that it is {right.address}, but there another process answers" in caplog.text
    assert a.linked == [right.address]
    assert await right.call(a.address, Ping(1), PATIENCE_S) == Pong(2)
    assert right.counters(a.address).reconnects == a.counters(right.address).reconnects == 0
    assert not told.heard
    assert wrong.linked == []


async def test_a_restart_that_was_not_noticed_is_believed_once_it_answers(
    start_host: StartHost, caplog: pytest.LogCaptureFixture
) -> None:
    """The old link seems alive, as after a power cut; the new process is asked at its address, and let in."""
    caplog.set_level(logging.INFO, "braidmq.net")
    a, told = await start_host()
    new, _ = await start_host(bounds=BRISK)
    old = await connect_as(a, new.address)
    await until(lambda: a.linked == [new.address])
    new.send(a.address, Note("I am back"))
    await until(lambda: told.heard == [(new.address, Note("I am back"))])
    assert "another process has its address now" in caplog.text
    assert a.linked == [new.address]
    assert not a.faults
    assert not new.faults
    old.close()


async def test_where_nobody_answers_the_one_who_is_linked_stays(
    start_host: StartHost, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "braidmq.net")
    a, _ = await start_host(bounds=BRISK)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nowhere = f"127.0.0.1:{closed.getsockname()[1]}"
        first = await connect_as(a, nowhere)
        await until(lambda: a.linked == [nowhere])
        (link,) = a._links._links
        second = await connect_as(a, nowhere, nonce=bytes(15) + b"2")
        await until(lambda: f"asked at {nowhere} who is there, for nothing" in caplog.text)
        await until(lambda: list(a._links._links) == [link])
        assert a.linked == [nowhere]
        first.close()
        second.close()


async def test_nobody_else_has_this_hosts_address(start_host: StartHost, caplog: pytest.LogCaptureFixture) -> None:
    a, _ = await start_host()
    writer = await connect_as(a, a.address)
    await until(lambda: a.faults == {Fault.ADDRESS: 1})
    assert "it says that it has the address of this host" in caplog.text
    assert a.linked == []
    writer.close()


async def connect_as(host: NetHost, address: str, nonce: bytes = bytes(16)) -> asyncio.StreamWriter:
    """A link by hand that says no more than hello."""
    name, port = host.address.split(":")
    _, writer = await asyncio.open_connection(name, int(port))
    writer.write(preamble(SecurityKind.NONE) + framed(msgspec.msgpack.encode(Hello(address, nonce, host.address))))
    return writer
