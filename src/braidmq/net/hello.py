"""How two hosts begin: who I am, in which version, how secured, before anything else.

    preamble  "BRAIDMQ", then one byte each: the version, the kind of security
    hello     a frame with [address, nonce, to, name, is_question, identity, terms, is_member, refusal]

The one that dials speaks first; the other answers in kind once it agrees to the link, so an answer is an acceptance,
unless it says why not (`refusal`). A hello may be shorter or longer than this one: what is not known is not looked at,
among the terms, too.
With a braid key there is a challenge and a proof around the hellos (braid_key). The first eight bytes never change:
hosts of any two versions can tell each other so. The nonce is drawn at each start of a host: the same address with
another nonce is a host that was restarted, or one that is wrong about its address; my own nonce is myself.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from braidmq.net.addresses import parse_address
from braidmq.net.faults import TEXT_LENGTH_MAX, Fault, LinkError
from braidmq.net.security import KIND_NAMES, SecurityKind

MAGIC = b"BRAIDMQ"
VERSION = 2
PREAMBLE_BYTES = len(MAGIC) + 2

HELLO_BYTES_MAX = 4096
NONCE_BYTES = 16
NAME_LENGTH_MAX = 200
IDENTITY_LENGTH_MAX = NAME_LENGTH_MAX + 20
"""A name as it once was, and a number."""

TERMS_MAX = 16
TERM_LENGTH_MAX = 40
"""What hosts must agree on: so many, each a name and a value of so many characters."""

Term = Annotated[str, msgspec.Meta(max_length=TERM_LENGTH_MAX)]


class Hello(msgspec.Struct, frozen=True, array_like=True):
    address: str
    """Where the sender can be reached."""

    nonce: Annotated[bytes, msgspec.Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
    to: str
    """Under which name the sender knows the host that it greets: not always the one that host gives itself."""

    name: Annotated[str, msgspec.Meta(max_length=NAME_LENGTH_MAX)] = ""
    """What the host is called; among hosts that have an identity no two may be called the same."""

    is_question: bool = False
    """Whether the sender only asks who is there: it wants a hello and no link."""

    identity: Annotated[str, msgspec.Meta(max_length=IDENTITY_LENGTH_MAX)] = ""
    """Who the sender is, at whichever address and under whichever name; empty if it is another one at each start."""

    terms: Annotated[dict[Term, Term], msgspec.Meta(max_length=TERMS_MAX)] = {}
    """What must be the same in all hosts of a braid, by name; what only one of two hosts names is not compared."""

    is_member: bool = True
    """Whether the sender is in its braid already: of two with the same name, that one is right."""

    refusal: Annotated[str, msgspec.Meta(max_length=TEXT_LENGTH_MAX)] = ""
    """Why there will be no link."""

    def is_namesake_of(self, other: Hello) -> bool:
        """Whether two processes claim to be the same host, or have the same name."""
        if not self.identity or not other.identity or self.nonce == other.nonce:
            return False
        return self.identity == other.identity or self.name == other.name


def disagreement(ours: Hello, theirs: Hello) -> str:
    """What must be the same in two hosts and is not, for people at both ends; empty if there is nothing."""
    differing = [
        f"{name} is {value!r} at {ours.address} and {theirs.terms[name]!r} at {theirs.address}"
        for name, value in ours.terms.items()
        if theirs.terms.get(name, value) != value
    ]
    return f"{', '.join(differing)}: all brokers of a braid need the same" if differing else ""


def clash(here: Hello, claimant: Hello) -> str:
    """Why two hosts that are namesakes cannot both be in a braid, for people at both ends."""
    if here.identity == claimant.identity:
        return (
            f"the brokers at {here.address} and {claimant.address} are one and the same by their stores: is one a copy "
            "of the other? Stop one of them, or let it begin with an empty folder (--data)"
        )
    return (
        f"the brokers at {here.address} and {claimant.address} are both called {here.name!r}: "
        "give one of them another name (braid.name)"
    )


def preamble(kind: SecurityKind) -> bytes:
    return MAGIC + bytes((VERSION, kind))


def check_preamble(beginning: bytes, kind: SecurityKind) -> None:
    """Looks at the first bytes of a link, as many of the preamble as there are."""
    if beginning[: len(MAGIC)] != MAGIC[: len(beginning)]:
        raise LinkError(Fault.GARBAGE, f"it does not speak this protocol: it began with {beginning!r}")
    version, theirs = beginning[len(MAGIC) : len(MAGIC) + 1], beginning[len(MAGIC) + 1 :]
    if version and version[0] != VERSION:
        text = f"it speaks version {version[0]} and this host version {VERSION}: update the older of the two"
        raise LinkError(Fault.VERSION, text)
    if theirs and theirs[0] != kind:
        has = (
            KIND_NAMES[SecurityKind(theirs[0])]
            if theirs[0] in KIND_NAMES
            else f"security of the unknown kind {theirs[0]}"
        )
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
