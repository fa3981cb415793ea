"""Links over TLS, with real certificates: who is let in, and what is said of who is not."""

from __future__ import annotations

import asyncio
import ssl

import pytest
import trustme

from braidmq.host import CallTimeout
from braidmq.net import Bounds, Fault, Tls
from tests.net.conftest import Large, Note, Ping, Pong, StartHost, until


def mutual(authority: trustme.CA, *, certified: bool = True, trusted: trustme.CA | None = None) -> Tls:
    """Both sides show a certificate and look at the other's."""
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    client = ssl.create_default_context()
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    certificate.configure_cert(server)
    server.verify_mode = ssl.CERT_REQUIRED
    if certified:
        certificate.configure_cert(client)
    for context in (server, client):
        (trusted or authority).configure_trust(context)
    return Tls(server, client)


async def test_hosts_talk_over_tls(start_host: StartHost) -> None:
    authority = trustme.CA()
    (a, told_a), (b, told) = await start_host(tls=mutual(authority)), await start_host(tls=mutual(authority))
    assert await a.call(b.address, Ping(1), 5.0) == Pong(2)
    assert await b.call(a.address, Ping(1), 5.0) == Pong(2)
    for n in range(20):
        a.send(b.address, Large(bytes([n]) * 100_000))
        b.send(a.address, Large(bytes([n]) * 100_000))
    await until(lambda: len(told.heard) == len(told_a.heard) == 20)
    assert len(a._links._links) == len(b._links._links) == 1
    assert not a.faults
    assert not b.faults
    await b.stop()
    await until(lambda: a.linked == [])
    again, _ = await start_host(b.address, tls=mutual(authority))
    assert await a.call(again.address, Ping(1), 5.0) == Pong(2)


async def test_both_dial_over_tls_and_one_link_stays(start_host: StartHost) -> None:
    tls = mutual(trustme.CA())
    (a, told_a), (b, told_b) = await start_host(tls=tls), await start_host(tls=tls)
    a.send(b.address, Note("a"))
    b.send(a.address, Note("b"))
    await until(lambda: len(told_a.heard) == len(told_b.heard) == 1)
    await until(lambda: len(a._links._links) == len(b._links._links) == 1)


async def test_a_plain_host_and_a_tls_host_do_not_link(start_host: StartHost, caplog: pytest.LogCaptureFixture) -> None:
    bounds = Bounds(connect_timeout_s=0.5)
    (plain, _), (secure, told) = await start_host(bounds=bounds), await start_host(tls=mutual(trustme.CA()))
    with pytest.raises(CallTimeout):
        await plain.call(secure.address, Ping(1), 0.3)
    await until(lambda: secure.faults[Fault.TLS] >= 1)
    assert "the TLS handshake failed" in caplog.text
    with pytest.raises(CallTimeout):
        await secure.call(plain.address, Ping(1), 0.3)
    await until(lambda: plain.faults[Fault.GARBAGE] >= 1)
    assert not told.heard
    assert not secure._links._strangers


@pytest.mark.parametrize("flaw", ["no certificate", "another authority"])
async def test_who_has_no_certificate_of_ours_is_not_let_in(start_host: StartHost, flaw: str) -> None:
    ours, theirs = trustme.CA(), trustme.CA()
    stranger = mutual(ours, certified=False) if flaw == "no certificate" else mutual(theirs, trusted=ours)
    (a, told), (b, _) = await start_host(tls=mutual(ours)), await start_host(tls=stranger)
    b.send(a.address, Note("let me in"))
    with pytest.raises(CallTimeout):
        await b.call(a.address, Ping(1), 0.3)
    await until(lambda: a.faults[Fault.TLS] >= 1)
    assert not told.heard
    assert a.linked == []


async def test_a_handshake_that_never_ends_is_cut(start_host: StartHost) -> None:
    a, _ = await start_host(tls=mutual(trustme.CA()), bounds=Bounds(connect_timeout_s=0.3))
    host, port = a.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    async with asyncio.timeout(5):
        assert await reader.read() == b""
    writer.close()
    assert a.faults.total() == 1
    await until(lambda: not a._links._links)


async def test_stop_does_not_wait_for_a_handshake(start_host: StartHost) -> None:
    a, _ = await start_host(tls=mutual(trustme.CA()))
    host, port = a.address.split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    await until(lambda: bool(a._links._strangers))
    async with asyncio.timeout(1):
        await a.stop()
    writer.close()
