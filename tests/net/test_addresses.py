"""host:port, for IPv4, IPv6 and names."""

from __future__ import annotations

import socket

import pytest

from braidmq.net.addresses import format_address, is_everywhere, parse_address
from tests.net.conftest import Ping, Pong, StartHost
from tests.patience import PATIENCE_S


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("10.0.0.7:7883", "10.0.0.7", 7883),
        ("[::1]:1", "::1", 1),
        ("edge-1.example.org:65535", "edge-1.example.org", 65535),
        ("broker_7:80", "broker_7", 80),
        ("1und1:80", "1und1", 80),
    ],
)
def test_an_address_is_read_and_written(text: str, host: str, port: int) -> None:
    assert parse_address(text) == (host, port)
    assert format_address(host, port) == text


NO_ADDRESSES = (
    *("", ":1", "a", "a:", "a:x", "a:-1", "a:+1", "a:1_0", "a:\u0661", "a:0", "a:65536", "a:" + "9" * 100, "::1:1"),
    *("[a]:1", "256.1.1.1:1", "1.2.3:1", "a..b:1", "a b:1", "a/b:1", "a\n:1", "-a:1", "a" * 64 + ":1"),
    *("a." * 200 + "b:1", 7, None),
)


@pytest.mark.parametrize("text", NO_ADDRESSES)
def test_what_is_no_address_is_told_so(text: object) -> None:
    with pytest.raises(ValueError, match="is no address"):
        parse_address(text)


def test_a_port_of_zero_is_for_listening_only() -> None:
    assert parse_address("127.0.0.1:0", port_min=0) == ("127.0.0.1", 0)


def test_everywhere_is_nowhere_to_connect_to() -> None:
    assert is_everywhere("0.0.0.0")
    assert is_everywhere("::")
    assert not is_everywhere("127.0.0.1")
    assert not is_everywhere("localhost")


async def test_hosts_talk_over_ipv6(start_host: StartHost) -> None:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("no IPv6 here")
    (a, _), (b, _) = await start_host("[::1]:0"), await start_host("[::1]:0")
    assert b.address.startswith("[::1]:")
    assert await a.call(b.address, Ping(1), PATIENCE_S) == Pong(2)


async def test_a_port_that_is_taken_is_a_clear_error(start_host: StartHost) -> None:
    a, _ = await start_host()
    with pytest.raises(OSError, match=f"cannot listen on {a.address}: Address already in use"):
        await start_host(a.address)
