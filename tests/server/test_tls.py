"""TLS listeners with real certificates: which clients are let in, as which users, and reloads of certificates."""

from __future__ import annotations

import signal
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from braidmq.broker.notices import LINES_EACH_MAX
from braidmq.config.settings import Listener
from braidmq.server.listening.sockets import host_and_port
from braidmq.server.listening.tls import TlsError, certified_origin, load_tls
from tests.patience import PATIENCE_S
from tests.raw import metrics, wait_until

if TYPE_CHECKING:
    from tests.conftest import Broker, StartBroker

CONNECT = b"\x10\x0f\x00\x04MQTT\x04\x02\x00\x3c\x00\x03tls"
CONNACK = b"\x20\x02\x00\x00"
NOT_AUTHORIZED = b"\x20\x02\x00\x05"
ADMIN = "[admin]\nport = 0\n"


class Certificates:
    """An authority and the files of one server, which can be replaced as a renewal would."""

    def __init__(self, folder: Path) -> None:
        self.authority = trustme.CA()
        self.certificate, self.key, self.ca = folder / "server.pem", folder / "server.key", folder / "ca.pem"
        self.authority.cert_pem.write_to_path(str(self.ca))
        self.renew()

    def renew(self) -> int:
        """Writes a new certificate and its key; returns the serial number."""
        issued = self.authority.issue_cert("localhost", "127.0.0.1")
        self.certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(str(self.key))
        return self.serial

    @property
    def serial(self) -> int:
        return x509.load_pem_x509_certificate(self.certificate.read_bytes()).serial_number

    def listener(self, kind: str, extra: str = "") -> str:
        return (
            f'[[listeners]]\nkind = "{kind}"\nname = "{kind}"\nport = 0\n'
            f'certificate = "{self.certificate}"\nkey = "{self.key}"\n{extra}\n'
        )

    def client_context(self, issued: trustme.LeafCert | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        if issued is not None:
            issued.configure_cert(context)
        return context


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def tls_socket(broker: Broker, context: ssl.SSLContext, scheme: str = "mqtts") -> ssl.SSLSocket:
    plain = socket.create_connection(("127.0.0.1", broker.port_of(scheme)), timeout=PATIENCE_S)
    return context.wrap_socket(plain, server_hostname="localhost")


def answer(client: ssl.SSLSocket, packet: bytes, size: int) -> bytes:
    client.sendall(packet)
    received = b""
    while len(received) < size and (data := client.recv(size - len(received))):
        received += data
    return received


def serial_served(broker: Broker, context: ssl.SSLContext) -> int:
    with tls_socket(broker, context) as client:
        der = client.getpeercert(binary_form=True)
    assert der is not None
    return x509.load_der_x509_certificate(der).serial_number


def test_a_client_connects_over_tls(start_broker: StartBroker, certificates: Certificates) -> None:
    broker = start_broker(certificates.listener("tls"))
    with tls_socket(broker, certificates.client_context()) as client:
        assert client.version() in ("TLSv1.2", "TLSv1.3")
        assert answer(client, CONNECT, 4) == CONNACK


def test_a_client_connects_over_secure_websocket(start_broker: StartBroker, certificates: Certificates) -> None:
    broker = start_broker(certificates.listener("wss"))
    url = broker.address("wss").replace("127.0.0.1", "localhost")
    with connect(
        url,
        ssl=certificates.client_context(),
        subprotocols=[Subprotocol("mqtt")],
        sock=socket.create_connection(("127.0.0.1", broker.port_of("wss"))),
    ) as client:
        client.send(CONNECT)
        assert client.recv(timeout=PATIENCE_S) == CONNACK


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_versions_before_tls_1_2_are_refused(start_broker: StartBroker, certificates: Certificates) -> None:
    broker = start_broker(certificates.listener("tls"))
    context = certificates.client_context()
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError):
        tls_socket(broker, context)


def test_a_required_certificate_is_required(start_broker: StartBroker, certificates: Certificates) -> None:
    extra = f'client_ca = "{certificates.ca}"\nclient_certificate = "required"'
    broker = start_broker(certificates.listener("tls", extra))
    known = certificates.authority.issue_cert("device-7.example", common_name="device-7")
    with tls_socket(broker, certificates.client_context(known)) as client:
        assert answer(client, CONNECT, 4) == CONNACK
    stranger = trustme.CA().issue_cert("device-7.example", common_name="device-7")
    for context in (certificates.client_context(), certificates.client_context(stranger)):
        assert refused(broker, context)


def refused(broker: Broker, context: ssl.SSLContext) -> bool:
    """True if TLS lets nothing through; with TLS 1.3 a client hears of it only at its first read."""
    try:
        with tls_socket(broker, context) as client:
            return answer(client, CONNECT, 4) == b""
    except (ssl.SSLError, ConnectionError):
        return True


class Stranger(NamedTuple):
    """A client that is not let in: what it shows, what it is told (TLS 1.3 and 1.2), and what the log says of it."""

    certificate: Callable[[Certificates], trustme.LeafCert | None]
    alerts: tuple[str, str]
    line: str


STRANGERS = {
    "no certificate": Stranger(
        lambda certificates: None,
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "SSLV3_ALERT_HANDSHAKE_FAILURE"),
        "peer did not return a certificate",
    ),
    "another authority": Stranger(
        lambda certificates: trustme.CA().issue_cert("device-7.example", common_name="device-7"),
        ("TLSV1_ALERT_UNKNOWN_CA", "TLSV1_ALERT_UNKNOWN_CA"),
        "its certificate is not accepted: unable to get local issuer certificate",
    ),
    "expired": Stranger(
        lambda certificates: certificates.authority.issue_cert(
            "device-7.example", not_after=datetime.now(UTC) - timedelta(days=1)
        ),
        ("SSLV3_ALERT_CERTIFICATE_EXPIRED", "SSLV3_ALERT_CERTIFICATE_EXPIRED"),
        "its certificate is not accepted: certificate has expired",
    ),
}


@pytest.mark.parametrize("name", STRANGERS)
@pytest.mark.parametrize("kind", ["tls", "wss"])
def test_a_refused_client_is_told_by_an_alert(
    start_broker: StartBroker, certificates: Certificates, kind: str, name: str
) -> None:
    """Not by a connection that just ends: with TLS 1.3 the alert follows when the client believes that it is in."""
    extra = f'client_ca = "{certificates.ca}"\nclient_certificate = "required"'
    broker = start_broker(certificates.listener(kind, extra) + ADMIN)
    stranger = STRANGERS[name]
    context = certificates.client_context(stranger.certificate(certificates))
    port = broker.port_of("mqtts" if kind == "tls" else "wss")
    ends = []
    for version, alert in zip((ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_2), stranger.alerts, strict=True):
        context.minimum_version = context.maximum_version = version
        plain = socket.create_connection(("127.0.0.1", port), timeout=30)
        ends.append(host_and_port(*plain.getsockname()))
        with (
            plain,
            pytest.raises(ssl.SSLError) as told,
            context.wrap_socket(plain, server_hostname="localhost") as client,
        ):
            answer(client, CONNECT, 4)
        assert told.value.reason == alert
    wait_until(lambda: metrics(broker)["tls_handshakes_failed_total"] == 2, "both are counted", 30)
    for end in ends:
        line = f"a connection from {end}: the TLS handshake on listener '{kind}' failed: {stranger.line}"
        broker.wait_for_log(line, 30)
    assert "Traceback" not in broker.log


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_other_handshakes_that_fail_are_counted_and_told(start_broker: StartBroker, certificates: Certificates) -> None:
    broker = start_broker(certificates.listener("tls") + ADMIN)
    context = certificates.client_context()
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError) as told:
        tls_socket(broker, context)
    assert told.value.reason == "TLSV1_ALERT_PROTOCOL_VERSION"
    broker.wait_for_log("unsupported protocol", 30)
    with pytest.raises(ssl.SSLCertVerificationError):  # the client does not trust the broker, and says so
        tls_socket(broker, ssl.create_default_context())
    broker.wait_for_log("alert unknown ca", 30)
    with socket.create_connection(("127.0.0.1", broker.port_of("mqtts")), timeout=30) as client:
        client.sendall(CONNECT)
        while client.recv(100):
            pass
    broker.wait_for_log("wrong version number", 30)
    with socket.create_connection(("127.0.0.1", broker.port_of("mqtts")), timeout=30) as client:
        client.sendall(b"\x16\x03\x01")
    broker.wait_for_log("it left", 30)
    assert metrics(broker)["tls_handshakes_failed_total"] == 4
    assert "Traceback" not in broker.log
    assert "WARNING" not in broker.log


def test_a_peer_that_only_looks_for_an_open_port_is_no_failure(
    start_broker: StartBroker, certificates: Certificates
) -> None:
    broker = start_broker(certificates.listener("tls") + ADMIN)
    for _ in range(3):
        socket.create_connection(("127.0.0.1", broker.port_of("mqtts")), timeout=30).close()
    with tls_socket(broker, certificates.client_context()) as client:
        assert answer(client, CONNECT, 4) == CONNACK
        wait_until(lambda: metrics(broker)["listener_sockets"] == 1, "the other peers have left", 30)
    assert metrics(broker)["tls_handshakes_failed_total"] == 0
    assert "handshake" not in broker.log


def test_handshakes_that_fail_fill_no_disk(start_broker: StartBroker, certificates: Certificates) -> None:
    broker = start_broker(certificates.listener("tls") + ADMIN)
    for _ in range(100):
        with socket.create_connection(("127.0.0.1", broker.port_of("mqtts")), timeout=30) as client:
            client.sendall(CONNECT)
            while client.recv(100):
                pass
    wait_until(lambda: metrics(broker)["tls_handshakes_failed_total"] == 100, "all are counted", 30)
    assert 0 < broker.log.count("the TLS handshake") <= 2 * LINES_EACH_MAX  # at most two spans


def test_a_refused_client_that_stays_is_cut_off(start_broker: StartBroker, certificates: Certificates) -> None:
    """Though it goes on sending; and the handshake's own time-out, which is far away, is not waited for."""
    extra = f'client_ca = "{certificates.ca}"\nclient_certificate = "required"\n[limits]\nconnect_timeout_s = 3600.0'
    broker = start_broker(certificates.listener("tls", extra) + ADMIN)
    with tls_socket(broker, certificates.client_context()) as client:
        with pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"):
            answer(client, CONNECT, 4)
        with suppress(OSError):
            while True:
                client.sendall(bytes(1000))
        wait_until(lambda: metrics(broker)["listener_sockets"] == 0, "it is cut off", 60)


def test_a_certificate_names_the_user(start_broker: StartBroker, certificates: Certificates) -> None:
    extra = (
        f'client_ca = "{certificates.ca}"\nclient_certificate = "required"\n'
        'user_from_certificate = "common_name"\nallow_users = ["device-*"]'
    )
    broker = start_broker(certificates.listener("tls", extra))
    for name, expected in (("device-7", CONNACK), ("visitor", NOT_AUTHORIZED)):
        issued = certificates.authority.issue_cert(f"{name}.example", common_name=name)
        with tls_socket(broker, certificates.client_context(issued)) as client:
            assert answer(client, CONNECT, 4) == expected


def test_a_handshake_that_never_ends_is_ended(start_broker: StartBroker, certificates: Certificates) -> None:
    broker = start_broker(certificates.listener("tls") + "[limits]\nconnect_timeout_s = 3.0\n")
    with socket.create_connection(("127.0.0.1", broker.port_of("mqtts")), timeout=PATIENCE_S) as client:
        client.sendall(b"\x16\x03\x01")
        assert client.recv(100) == b""
    with socket.create_connection(("127.0.0.1", broker.port_of("mqtts")), timeout=PATIENCE_S) as client:
        client.sendall(CONNECT)  # plain MQTT is no TLS
        while client.recv(100):  # an alert may come first
            pass
    with tls_socket(broker, certificates.client_context()) as encrypted:
        assert answer(encrypted, CONNECT, 4) == CONNACK


def test_a_renewed_certificate_comes_into_force(start_broker: StartBroker, certificates: Certificates) -> None:
    broker = start_broker(certificates.listener("tls"))
    context = certificates.client_context()
    first = certificates.serial
    with tls_socket(broker, context) as staying:
        assert answer(staying, CONNECT, 4) == CONNACK
        second = certificates.renew()
        assert serial_served(broker, context) == first
        broker.signal(signal.SIGHUP)
        wait_until_served(broker, context, second)
        assert answer(staying, b"\xc0\x00", 2) == b"\xd0\x00"  # a connected client stays


def test_a_broken_certificate_leaves_the_old_one_in_force(
    start_broker: StartBroker, certificates: Certificates
) -> None:
    broker = start_broker(certificates.listener("tls"))
    context = certificates.client_context()
    first = certificates.serial
    certificates.certificate.write_text("this is no certificate")
    broker.signal(signal.SIGHUP)
    assert "certificate" in broker.wait_for_log("not reloaded")
    assert "Traceback" not in broker.log
    assert serial_served(broker, context) == first
    second = certificates.renew()
    broker.signal(signal.SIGHUP)
    wait_until_served(broker, context, second)


def wait_until_served(broker: Broker, context: ssl.SSLContext, serial: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while serial_served(broker, context) != serial:
        assert time.monotonic() < deadline, broker.log
        time.sleep(0.02)


# The module itself, on files.


def tls_listener(certificates: Certificates, **changes: str) -> Listener:
    settings = {"certificate": str(certificates.certificate), "key": str(certificates.key)} | changes
    return Listener(kind="tls", name="door", **settings)  # type: ignore[arg-type]


def test_loading_tells_when_the_certificate_ends(certificates: Certificates) -> None:
    tls = load_tls(tls_listener(certificates))
    end = x509.load_pem_x509_certificate(certificates.certificate.read_bytes()).not_valid_after_utc
    assert tls.expires_at == end.timestamp()
    assert not tls.expired


@pytest.mark.parametrize("role", ["certificate", "key", "client_ca"])
@pytest.mark.parametrize("trouble", ["missing", "garbage"])
def test_a_bad_file_is_named(certificates: Certificates, tmp_path: Path, role: str, trouble: str) -> None:
    path = tmp_path / "bad.pem"
    if trouble == "garbage":
        path.write_text("-----BEGIN CERTIFICATE-----\nno\n-----END CERTIFICATE-----\n")
    changes = {"client_ca": str(certificates.ca), "client_certificate": "required"} | {role: str(path)}
    with pytest.raises(TlsError) as refused:
        load_tls(tls_listener(certificates, **changes))
    assert "'door'" in str(refused.value)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_key_of_another_certificate_is_told(certificates: Certificates, tmp_path: Path) -> None:
    other = tmp_path / "other.key"
    trustme.CA().issue_cert("localhost").private_key_pem.write_to_path(str(other))
    with pytest.raises(TlsError, match="does not belong to certificate"):
        load_tls(tls_listener(certificates, key=str(other)))


def test_an_encrypted_key_is_told_and_nothing_is_asked(certificates: Certificates, tmp_path: Path) -> None:
    key = load_pem_private_key(certificates.key.read_bytes(), None)
    encrypted = tmp_path / "encrypted.key"
    encrypted.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"passphrase")))
    with pytest.raises(TlsError, match="is encrypted"):
        load_tls(tls_listener(certificates, key=str(encrypted)))


def test_the_origin_has_the_names_of_the_certificate() -> None:
    certificate = {
        "subject": ((("organizationName", "Works"),), (("commonName", "device-7"),)),
        "subjectAltName": (("DNS", "device-7.example"), ("URI", "urn:device:7")),
    }
    origin = certified_origin("door", "192.0.2.1:5000", certificate)
    assert (origin.listener, origin.peer) == ("door", "192.0.2.1:5000")
    assert origin.common_name == "device-7"
    assert origin.alternative_names == ("device-7.example", "urn:device:7")


def test_two_common_names_are_none() -> None:
    certificate = {"subject": ((("commonName", "admin"),), (("commonName", "device-7"),))}
    assert certified_origin("door", "", certificate).common_name is None
    assert certified_origin("door", "", None).common_name is None
