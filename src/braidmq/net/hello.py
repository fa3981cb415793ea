"""How two hosts begin: who I am, in which version, how secured, before anything else.

    preamble  "BRAIDMQ", then one byte each: the version, the kind of security
    hello     a frame with [address, nonce, to, name, is_question]

The one who dials speaks first; the other answers in kind once it agrees to the link, so an answer is an acceptance.
With a braid key there is a challenge and a proof around the hellos (braid_key). The first eight bytes never change:
hosts of any two versions can tell each other so. The nonce is drawn once in a host's life: the same address with
another nonce is a host that was restarted, or one that is wrong about its address; my own nonce is myself.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from braidmq.net.addresses import parse_address
from braidmq.net.faults import Fault, LinkError
from braidmq.net.security import KIND_NAMES, Kind

MAGIC = b"BRAIDMQ"
VERSION = 1
PREAMBLE_BYTES = len(MAGIC) + 2

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

    is_question: bool = False
    """Whether the sender only asks who is there: it wants a hello and no link."""


def preamble(kind: Kind) -> bytes:
    return MAGIC + bytes((VERSION, kind))


def check_preamble(beginning: bytes, kind: Kind) -> None:
    """Looks at the first bytes of a link, as many of the preamble as there are."""
    if beginning[: len(MAGIC)] != MAGIC[: len(beginning)]:
        raise LinkError(Fault.GARBAGE, f"it does not speak this protocol: it began with {beginning!r}")
    version, theirs = beginning[len(MAGIC) : len(MAGIC) + 1], beginning[len(MAGIC) + 1 :]
    if version and version[0] != VERSION:
        text = f"it speaks version {version[0]} and this host version {VERSION}: update the older of the two"
        raise LinkError(Fault.VERSION, text)
    if theirs and theirs[0] != kind:
        has = KIND_NAMES[Kind(theirs[0])] if theirs[0] in KIND_NAMES else f"security of the unknown kind {theirs[0]}"
        text = f"it has {has} and this host has {KIND_NAMES[kind]}: all hosts of a braid must have the same"
        raise LinkError(Fault.SECURITY, text)


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
