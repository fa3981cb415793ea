"""Addresses on a network: `host:port`, the host a name, an IPv4 address, or an IPv6 address in brackets."""

from __future__ import annotations

import ipaddress
import re

ADDRESS_LENGTH_MAX = 300

_NAME = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9_]([A-Za-z0-9_-]{0,62})(\.[A-Za-z0-9_][A-Za-z0-9_-]{0,62})*\.?\Z")
_DOTTED_DIGITS = re.compile(r"[0-9.]+\Z")


def parse_address(text: object, port_min: int = 1) -> tuple[str, int]:
    """Host (without brackets) and port; a ValueError says what is wrong."""
    if not isinstance(text, str) or len(text) > ADDRESS_LENGTH_MAX:
        raise ValueError(f"{str(text)[:60]!r} is no address: host:port is expected")
    host, colon, digits = text.rpartition(":")
    if not colon or not (digits.isascii() and digits.isdigit()) or not port_min <= int(digits[:6]) <= 65535:
        raise ValueError(f"{text[:60]!r} is no address: host:port with a port from {port_min} to 65535 is expected")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            raise ValueError(f"{text[:60]!r} is no address: what is in brackets must be an IPv6 address") from None
    elif _DOTTED_DIGITS.match(host):
        try:
            ipaddress.IPv4Address(host)
        except ValueError:
            raise ValueError(f"{text[:60]!r} is no address: {host[:60]} is not an IPv4 address") from None
    elif not _NAME.match(host):
        raise ValueError(f"{text[:60]!r} is no address: the host is neither a name nor an IP address")
    return host, int(digits)


def format_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether this IP address stays on this machine. A name does not count, whatever it stands for."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def is_everywhere(host: str) -> bool:
    """Whether this is an address to listen on that nobody can connect to, such as 0.0.0.0."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
