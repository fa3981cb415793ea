"""How two hosts begin: who I am, in which version, before anything else.

    preamble  "BRAIDMQ", then one byte: the version
    hello     a frame with [address, nonce, to, name]

The one who dials speaks first; the other answers in kind once it agrees to the link, so an answer is an acceptance. The
preamble never changes: hosts of any two versions can tell each other so. The nonce is drawn once in a host's life: the
same address with another nonce is a host that was restarted, and my own nonce is myself.

A proof that the peer belongs here (a shared key, over both nonces) has its place behind the hello: a further field of
`Hello`, which older hosts skip, and a check in `Links.on_hello`, before a link is opened.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from braidmq.net.addresses import parse_address
from braidmq.net.faults import Fault, LinkError
from braidmq.net.frames import framed

MAGIC = b"BRAIDMQ"
VERSION = 1
PREAMBLE = MAGIC + bytes((VERSION,))

HELLO_BYTES_MAX = 4096
NONCE_BYTES = 16
NAME_LENGTH_MAX = 200


class Hello(msgspec.Struct, frozen=True, array_like=True):
    address: str
    """Where the sender can be reached."""

    nonce: Annotated[bytes, msgspec.Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
    to: str
    """Under which name the sender knows whom it greets: not always the one that they give themselves."""

    name: Annotated[str, msgspec.Meta(max_length=NAME_LENGTH_MAX)] = ""
    """For people who read logs."""


def hello_bytes(hello: Hello) -> bytes:
    """What a host says first."""
    return PREAMBLE + framed(msgspec.msgpack.encode(hello))


def check_preamble(beginning: bytes) -> None:
    """Looks at the first bytes of a link, as many of the preamble as there are."""
    if beginning[: len(MAGIC)] != MAGIC[: len(beginning)]:
        raise LinkError(Fault.GARBAGE, f"it does not speak this protocol: it began with {beginning!r}")
    if len(beginning) > len(MAGIC) and beginning[len(MAGIC)] != VERSION:
        text = f"it speaks version {beginning[len(MAGIC)]} and this host version {VERSION}: update the older of the two"
        raise LinkError(Fault.VERSION, text)


def read_hello(frame: bytes) -> Hello:
    try:
        hello = msgspec.msgpack.decode(frame, type=Hello)
    except (ValueError, RecursionError) as error:
        raise LinkError(Fault.GARBAGE, f"a hello that cannot be read: {error}") from None
    try:
        parse_address(hello.address)
    except ValueError as error:
        raise LinkError(Fault.ADDRESS, f"its hello gives no address to reach it at: {error}") from None
    return hello
