"""TLS for listeners: contexts from files that are checked before they are used, and names from certificates.

A context is never changed once clients use it. A reload reads the files into a new one, which serves the connections
that come after; so a certificate, its key and the client authority change together or not at all, sessions that were
resumable under the old rules are not under the new ones, and a broken file leaves everything as it was.

When a handshake fails, OpenSSL leaves an alert among the bytes to be sent, and the loop's own TLS cuts the connection
without sending it: a client whose certificate has expired would never hear of it. So the failure of a handshake is kept
from the loop. To the loop it looks like a wait for the peer, for which it sends all that there is to send;
`TlsHandshake` knows better. With TLS 1.3 this is the only word that the client gets: its own handshake is done by then
(RFC 8446 §2).
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from cryptography import x509

from braidmq.security.identity import Origin

if TYPE_CHECKING:
    from braidmq.config.settings import Listener

_VERIFY_MODES = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


ALERT_GRACE_S: Final = 2.0
"""What a peer gets to take the alert of a handshake that failed and to leave; then it is cut off."""


class TlsError(OSError):
    """The files of a TLS listener do not work; the text names the listener, the file and what is wrong."""


@dataclass(frozen=True, slots=True)
class ServerTls:
    """What a TLS listener serves new connections with."""

    context: ssl.SSLContext
    expires_at: float
    """When its certificate ends, in Unix seconds."""

    @property
    def expired(self) -> bool:
        return datetime.now(UTC).timestamp() >= self.expires_at


class TlsHandshake:
    """What becomes of one handshake; `on_failure` is called when the alert that says why is about to be sent."""

    __slots__ = ("error", "heard", "on_failure")

    def __init__(self, on_failure: Callable[[], None]) -> None:
        self.on_failure = on_failure
        self.heard = False
        """Whether the peer has sent anything."""
        self.error: ssl.SSLError | None = None

    def watch(self) -> None:
        """The next handshake that begins in this task is this one."""
        _under_way.set(self)

    def problem(self, error: OSError) -> str:
        """Why there is no connection, for people; `error` is how it ended."""
        failure = self.error or error
        if isinstance(failure, ssl.SSLCertVerificationError):
            return f"its certificate is not accepted: {failure.verify_message}"
        if isinstance(failure, ssl.SSLError):
            return (failure.reason or str(failure)).replace("_", " ").lower()
        return "it left" if isinstance(failure, ConnectionResetError) else "it took too long"


_under_way: ContextVar[TlsHandshake | None] = ContextVar("handshake", default=None)


class _AlertingObject(ssl.SSLObject):
    """The server's side of a connection that tells its peer why a handshake failed."""

    handshake: TlsHandshake | None = None
    incoming: ssl.MemoryBIO | None = None

    def do_handshake(self) -> None:
        handshake, incoming = self.handshake, self.incoming
        if handshake is None or incoming is None:
            super().do_handshake()
            return
        handshake.heard = handshake.heard or incoming.pending > 0
        if handshake.error is None:
            try:
                super().do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except ssl.SSLError as error:
                handshake.error = error
                handshake.on_failure()
            else:
                return
        incoming.read()  # whatever else the peer says before it leaves
        raise ssl.SSLWantReadError


class _AlertingContext(ssl.SSLContext):
    sslobject_class = _AlertingObject

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        made = super().wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        if isinstance(made, _AlertingObject):
            made.handshake, made.incoming = _under_way.get(), incoming
        return made


def load_tls(listener: Listener) -> ServerTls:
    """A context from the listener's files, read now."""
    name, certificate, key = listener.name, listener.certificate, listener.key
    if not certificate or not key:
        raise TlsError(f"listener {name!r} is of kind {listener.kind!r}: it needs a certificate and a key")
    context = _AlertingContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"] if listener.kind == "wss" else ["mqtt"])
    expires_at = _certificate_end(name, str(certificate))
    _load_chain(context, name, str(certificate), str(key))
    mode = _VERIFY_MODES[listener.client_certificate]
    if mode is not ssl.CERT_NONE:
        if not listener.client_ca:
            raise TlsError(f"listener {name!r} asks for client certificates: it needs a client_ca to verify them with")
        _load_authority(context, name, str(listener.client_ca))
        context.verify_mode = mode
    return ServerTls(context, expires_at)


def certified_origin(listener: str, peer: str, certificate: dict[str, Any] | None) -> Origin:
    """The origin of a client with the certificate that TLS verified; `certificate` is as `getpeercert()` gives it.

    A subject with more than one common name has none: which of them an access rule means would be a guess.
    """
    if not certificate:
        return Origin(listener, peer)
    subject = certificate.get("subject", ())
    common_names = [value for part in subject for field, value in part if field == "commonName"]
    alternatives = tuple(value for _, value in certificate.get("subjectAltName", ()) if isinstance(value, str))
    return Origin(listener, peer, common_names[0] if len(common_names) == 1 else None, alternatives)


def _certificate_end(name: str, path: str) -> float:
    pem = _read(name, "certificate", path)
    try:
        return x509.load_pem_x509_certificate(pem).not_valid_after_utc.timestamp()
    except ValueError as error:
        raise TlsError(f"listener {name!r}: certificate {path} is not a PEM certificate ({error})") from None


def _load_chain(context: ssl.SSLContext, name: str, certificate: str, key: str) -> None:
    def no_password() -> bytes:
        raise TlsError(f"listener {name!r}: key {key} is encrypted; give one without a passphrase, readable by few")

    _read(name, "key", key)
    try:
        context.load_cert_chain(certificate, key, password=no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            cause = f"key {key} does not belong to certificate {certificate}"
        else:
            cause = f"certificate {certificate} and key {key} cannot be used ({error.reason or error})"
        raise TlsError(f"listener {name!r}: {cause}") from None


def _load_authority(context: ssl.SSLContext, name: str, path: str) -> None:
    _read(name, "client_ca", path)
    try:
        context.load_verify_locations(cafile=path)
    except ssl.SSLError as error:
        raise TlsError(f"listener {name!r}: client_ca {path} is not a PEM certificate ({error.reason})") from None


def _read(name: str, role: str, path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise TlsError(f"listener {name!r}: {role} {path} cannot be read ({error.strerror})") from None
