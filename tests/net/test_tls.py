"""Links over TLS, with real certificates: who is let in, and what is said of who is not."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
import trustme

from braidmq.host import CallTimeout
from braidmq.net import Bounds, Fault, Security, SecurityError
from braidmq.net.faults import LinkError
from braidmq.net.security import SecurityKind, Tls
from tests.net.conftest import Large, Note, Ping, Pong, StartHost, until
from tests.patience import PATIENCE_S


class Braid:
    """An authority, and what it certifies, as files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = trustme.CA()
        self.count = 0

    def security(self, *names: str, trusted: trustme.CA | None = None) -> Security:
        """With a certificate for these names, and trust in another authority if that is given."""
        self.count += 1
        certificate = self.authority.issue_cert(*(names or ("127.0.0.1", "localhost")))
        paths = [self.directory / f"{id(self)}-{self.count}.{kind}" for kind in ("crt", "key", "ca")]
        certificate.cert_chain_pems[0].write_to_path(str(paths[0]))
        certificate.private_key_pem.write_to_path(str(paths[1]))
        (trusted or self.authority).cert_pem.write_to_path(str(paths[2]))
        return Security.tls(*paths)

    def anonymous(self) -> Security:
        """Without a certificate where it dials."""
        made = self.security()
        assert made.contexts is not None
        client = ssl.create_default_context()
        self.authority.configure_trust(client)
        return Security(SecurityKind.TLS, contexts=Tls(made.contexts.server, client))


@pytest.fixture
def braid(tmp_path: Path) -> Braid:
    return Braid(tmp_path)


async def test_hosts_talk_over_tls(start_host: StartHost, braid: Braid) -> None:
    (a, told_a), (b, told) = await start_host(security=braid.security()), await start_host(security=braid.security())
    assert await a.call(b.address, Ping(1), PATIENCE_S) == Pong(2)
    assert await b.call(a.address, Ping(1), PATIENCE_S) == Pong(2)
    for n in range(20):
        a.send(b.address, Large(bytes([n]) * 100_000))
        b.send(a.address, Large(bytes([n]) * 100_000))
    await until(lambda: len(told.heard) == len(told_a.heard) == 20)
    assert len(a._links._links) == len(b._links._links) == 1
    assert not a.faults
    assert not b.faults
    await b.stop()
    await until(lambda: a.linked == [])
    again, _ = await start_host(b.address, security=braid.security())
    assert await a.call(again.address, Ping(1), PATIENCE_S) == Pong(2)


async def test_both_dial_over_tls_and_one_link_stays(start_host: StartHost, braid: Braid) -> None:
    security = braid.security()
    (a, told_a), (b, told_b) = await start_host(security=security), await start_host(security=security)
    a.send(b.address, Note("a"))
    b.send(a.address, Note("b"))
    await until(lambda: len(told_a.heard) == len(told_b.heard) == 1)
    await until(lambda: len(a._links._links) == len(b._links._links) == 1)


async def test_a_plain_host_and_a_tls_host_do_not_link(
    start_host: StartHost, braid: Braid, caplog: pytest.LogCaptureFixture
) -> None:
    bounds = Bounds(connect_timeout_s=0.5)
    (plain, _), (secure, told) = await start_host(bounds=bounds), await start_host(security=braid.security())
    with pytest.raises(CallTimeout):
        await plain.call(secure.address, Ping(1), 0.3)
    await until(lambda: secure.faults[Fault.TLS] >= 1)
    assert "the TLS handshake failed" in caplog.text
    with pytest.raises(CallTimeout):
        await secure.call(plain.address, Ping(1), 0.3)
    await until(lambda: plain.faults[Fault.GARBAGE] >= 1)
    assert not told.heard
    assert not secure._links._acceptor.strangers


@pytest.mark.parametrize("flaw", ["no certificate", "another authority"])
async def test_who_has_no_certificate_of_ours_is_not_let_in(
    start_host: StartHost, braid: Braid, tmp_path: Path, flaw: str, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = braid.anonymous() if flaw == "no certificate" else Braid(tmp_path).security(trusted=braid.authority)
    (a, told), (b, _) = await start_host(security=braid.security()), await start_host(security=stranger)
    b.send(a.address, Note("let me in"))
    with pytest.raises(CallTimeout):
        await b.call(a.address, Ping(1), 0.3)
    await until(lambda: a.faults[Fault.TLS] >= 1)
    await until(lambda: b.faults[Fault.TLS] >= 1)
    assert f"{b.address} closed the link to {a.address}: it left after the TLS handshake" in caplog.text, "both say so"
    assert not told.heard
    assert a.linked == b.linked == []


@pytest.mark.parametrize("flaw", ["another authority", "another name"])
async def test_who_cannot_show_who_it_is_is_told_nothing(
    start_host: StartHost, braid: Braid, tmp_path: Path, flaw: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The one who dials looks, too: at the authority, and for the name that it dialled."""
    if flaw == "another authority":
        impostor = Braid(tmp_path).security(trusted=braid.authority)
    else:
        impostor = braid.security("other.example")
    (a, _), (b, told) = await start_host(security=braid.security()), await start_host(security=impostor)
    a.send(b.address, Note("a secret"))
    await until(lambda: a.faults[Fault.TLS] >= 1)
    assert f"{a.address} closed the link to {b.address}: the TLS handshake failed" in caplog.text
    assert "certificate verify failed" in caplog.text
    assert not told.heard
    assert a.linked == b.linked == []


@pytest.mark.parametrize("claim", ["another host", "another host's name"])
async def test_who_says_that_it_is_another_is_not_let_in(
    start_host: StartHost, braid: Braid, claim: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A certificate of the braid, but not for the address that its hello gives: neither where it dials nor where it is
    dialled."""
    a, told = await start_host(security=braid.security())
    claimed = "10.0.0.7:7883" if claim == "another host" else "edge7.example:7883"
    liar, told_liar = await start_host(security=braid.security(), advertise=claimed)
    liar.send(a.address, Note("I am edge 7"))
    await until(lambda: a.faults[Fault.ADDRESS] >= 1)
    assert f"it says that it is {claimed}, but its certificate is for 127.0.0.1, localhost" in caplog.text
    before = a.faults[Fault.ADDRESS]
    listener = liar._links._acceptor._listener
    assert listener is not None
    a.send(f"127.0.0.1:{listener.getsockname()[1]}", Note("who are you?"))
    await until(lambda: a.faults[Fault.ADDRESS] > before)
    assert not told.heard
    assert not told_liar.heard
    assert a.linked == []


@pytest.mark.parametrize(
    ("address", "names", "is_right"),
    [
        ("edge1.example:1", ["DNS:edge1.example"], True),
        ("EDGE1.example.:1", ["DNS:x", "DNS:Edge1.Example"], True),
        ("edge1.example:1", ["DNS:*.example"], False),
        ("edge1.braid.example:1", ["DNS:*.braid.example"], True),
        ("a.edge1.braid.example:1", ["DNS:*.braid.example"], False),
        ("braid.example:1", ["DNS:*.braid.example"], False),
        ("edge1.braid.example:1", ["DNS:edge*.braid.example"], False),
        ("10.0.0.1:1", ["IP Address:10.0.0.1"], True),
        ("10.0.0.1:1", ["DNS:10.0.0.1"], False),
        ("10.0.0.1:1", ["IP Address:10.0.0.2"], False),
        ("[2001:db8::1]:1", ["IP Address:2001:DB8:0:0:0:0:0:1"], True),
        ("edge1.example:1", ["email:edge1.example", "URI:edge1.example"], False),
        ("edge1.example:1", [], False),
    ],
)
def test_a_name_in_a_certificate(braid: Braid, address: str, names: list[str], is_right: bool) -> None:
    certificate = {"subjectAltName": tuple(tuple(name.split(":", 1)) for name in names)}
    with nullcontext() if is_right else pytest.raises(LinkError, match="but its certificate is for"):
        braid.security().check_name(address, certificate)


def test_files_that_do_not_work_are_told_so(braid: Braid, tmp_path: Path) -> None:
    braid.security()
    braid.security()
    (crt, key, authority), (_, other_key, _) = (
        [tmp_path / f"{id(braid)}-{n}.{kind}" for kind in ("crt", "key", "ca")] for n in (1, 2)
    )
    no_pem = tmp_path / "no.pem"
    no_pem.write_text("nothing")
    for files, text in (
        ((tmp_path / "no.crt", key, authority), r"TLS certificate .*no\.crt cannot be read"),
        ((crt, other_key, authority), r"does not belong to certificate"),
        ((no_pem, key, authority), r"cannot be used"),
        ((crt, key, no_pem), r"TLS authority .*no\.pem is not a PEM certificate"),
    ):
        with pytest.raises(SecurityError, match=text):
            Security.tls(*files)


async def test_handshakes_that_sit_in_the_door_keep_nobody_out(start_host: StartHost, braid: Braid) -> None:
    a, _ = await start_host(security=braid.security(), bounds=Bounds(strangers_max=3, connect_timeout_s=60.0))
    host, port = a.address.split(":")
    sitting = [await asyncio.open_connection(host, int(port)) for _ in range(8)]
    await until(lambda: a.faults[Fault.CROWD] >= 5)
    async with asyncio.timeout(PATIENCE_S):
        for reader, _ in sitting[:5]:
            with suppress(ConnectionError):
                assert await reader.read() == b"", "it is really gone, not only forgotten"
    b, _ = await start_host(security=braid.security())
    assert await b.call(a.address, Ping(1), PATIENCE_S) == Pong(2)
    assert len(a._links._acceptor.strangers) <= 3
    for _, writer in sitting:
        writer.close()


async def test_a_handshake_that_never_ends_is_cut(start_host: StartHost, braid: Braid) -> None:
    a, _ = await start_host(security=braid.security(), bounds=Bounds(connect_timeout_s=0.3))
    host, port = a.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    async with asyncio.timeout(PATIENCE_S):
        assert await reader.read() == b""
    writer.close()
    assert a.faults.total() == 1
    await until(lambda: not a._links._links)


async def test_stop_does_not_wait_for_a_handshake(start_host: StartHost, braid: Braid) -> None:
    a, _ = await start_host(security=braid.security(), bounds=Bounds(connect_timeout_s=10 * PATIENCE_S))
    host, port = a.address.split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    await until(lambda: bool(a._links._acceptor.strangers))
    async with asyncio.timeout(PATIENCE_S / 2):
        await a.stop()
    writer.close()
