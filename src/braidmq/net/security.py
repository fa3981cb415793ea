"""How links between hosts are secured: by the braid's key, by mutual TLS, or, on loopback alone, not at all.

| | who is let in | what a peer's address is worth |
|---|---|---|
| key | a host that proves that it has the key (braid_key) | a host with the key is trusted; no other can change it |
| TLS | a host with a certificate of the braid's authority | its host must be among the names of the certificate |
| none | every host that can connect | nothing |

All hosts of a braid use the same kind. It is in the preamble, so that two that differ can say so.
"""

from __future__ import annotations

import ipaddress
import logging
import ssl
import stat
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

from braidmq.net.addresses import is_loopback, parse_address
from braidmq.net.braid_key import BraidKey, key_of_file
from braidmq.net.faults import Fault, LinkError

_log = logging.getLogger("braidmq.net")


class SecurityKind(IntEnum):
    """As it stands in the preamble."""

    NONE = 0
    KEY = 1
    TLS = 2


KIND_NAMES = {SecurityKind.NONE: "no security", SecurityKind.KEY: "a braid key", SecurityKind.TLS: "TLS"}


class SecurityError(ValueError):
    """A key or a certificate that cannot be used; the text names the file and what is wrong."""


@dataclass(frozen=True, slots=True)
class Tls:
    """The contexts for the links that others dial and for those that this host dials."""

    server: ssl.SSLContext
    client: ssl.SSLContext


@dataclass(frozen=True, slots=True)
class Security:
    """Made by `none`, `key`, `key_file` or `tls`."""

    kind: SecurityKind
    insecure: bool = False
    braid_key: BraidKey | None = field(default=None, repr=False)
    contexts: Tls | None = field(default=None, repr=False)

    @staticmethod
    def none(insecure: bool = False) -> Security:
        """For loopback; for other addresses, too, if `insecure` is said."""
        return Security(SecurityKind.NONE, insecure)

    @staticmethod
    def key(secret: bytes | str) -> Security:
        """32 random bytes, those as 64 hexadecimal digits, or a passphrase. A passphrase takes a while, once."""
        try:
            return Security(SecurityKind.KEY, braid_key=BraidKey(secret))
        except ValueError as error:
            raise SecurityError(str(error)) from None

    @staticmethod
    def key_file(path: str | Path) -> Security:
        """A key that is all that a file has in it."""
        content = _read("braid key", path)
        if Path(path).stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            _log.warning("the braid key %s can be read by others than its owner: chmod 600 is better", path)
        try:
            return Security(SecurityKind.KEY, braid_key=key_of_file(content))
        except ValueError as error:
            raise SecurityError(f"the braid key {path}: {error}") from None

    @staticmethod
    def tls(certificate: str | Path, key: str | Path, authority: str | Path) -> Security:
        """Files in PEM: this host's certificate (for server and client) and its key, and the braid's authority."""
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        server.verify_mode = ssl.CERT_REQUIRED
        for context in (server, client):
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            _load_chain(context, certificate, key)
            _load_authority(context, authority)
        return Security(SecurityKind.TLS, contexts=Tls(server, client))

    def allows(self, host: str) -> bool:
        """Whether there may be links over this IP address."""
        return self.kind is not SecurityKind.NONE or self.insecure or is_loopback(host)

    def check_name(self, address: str, certificate: dict[str, Any] | None) -> None:
        """With TLS: whether a peer is the one that it says it is; `certificate` is as `getpeercert()` gives it."""
        if self.kind is not SecurityKind.TLS:
            return
        names = [(kind, str(name)) for kind, name in (certificate or {}).get("subjectAltName", ())]
        host = parse_address(address)[0]
        if not any(_is_name_of(kind, name, host) for kind, name in names):
            listed = ", ".join(name for _, name in names) or "nobody"
            raise LinkError(Fault.ADDRESS, f"it says that it is {address}, but its certificate is for {listed}")


def _is_name_of(kind: str, name: str, host: str) -> bool:
    """RFC 6125: an IP address is itself; in a name, `*` may stand for the whole first label."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        host, name = host.rstrip(".").lower(), name.rstrip(".").lower()
        rest = host.partition(".")[2]
        return kind == "DNS" and (name == host or ("." in rest and name == f"*.{rest}"))
    try:
        return kind == "IP Address" and ipaddress.ip_address(name.strip()) == address
    except ValueError:
        return False


def _load_chain(context: ssl.SSLContext, certificate: str | Path, key: str | Path) -> None:
    def no_password() -> bytes:
        raise SecurityError(f"TLS key {key} is encrypted; give one without a passphrase, readable by few")

    _read("TLS certificate", certificate)
    _read("TLS key", key)
    try:
        context.load_cert_chain(certificate, key, password=no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise SecurityError(f"TLS key {key} does not belong to certificate {certificate}") from None
        text = f"TLS certificate {certificate} and key {key} cannot be used ({error.reason or error})"
        raise SecurityError(text) from None


def _load_authority(context: ssl.SSLContext, path: str | Path) -> None:
    _read("TLS authority", path)
    try:
        context.load_verify_locations(cafile=path)
    except ssl.SSLError as error:
        raise SecurityError(f"TLS authority {path} is not a PEM certificate ({error.reason or error})") from None


def _read(role: str, path: str | Path) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise SecurityError(f"the {role} {path} cannot be read ({error.strerror})") from None
