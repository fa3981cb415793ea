"""What the brokers of a flexible graph say to each other, besides what its ring says.

The paper's queries (Banno and Shudo 2019, table 1) in other words: REXP and EEXP are `ExchangeTables`, which carries
the known entries as they do and asks for better ones; NEW is `Candidates` and `Greet`; UNSUB is `NodeGone`.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from braidmq.host import Message
from braidmq.keys import Key
from braidmq.overlay.flexible.table import Contact
from braidmq.overlay.peers import Peer

SIZE_MAX = 1024
"""The largest table that a node may show or ask for."""

CANDIDATES_MAX = 32
"""Contacts that are named in one answer."""


class ExchangeTables(Message, frozen=True, array_like=True, tag="Exchange", gc=False):
    """This is me, and this is my table, of at most `size` entries: what do you know that would make it better?

    At most `others_max` of them need not be subscribers of the own topic. `to` is None when only the host is known: any
    of its nodes will do.
    """

    to: Key | None
    me: Contact
    size: Annotated[int, Meta(ge=0, le=SIZE_MAX)]
    others_max: Annotated[int, Meta(ge=0, le=SIZE_MAX)]
    table: Annotated[tuple[Contact, ...], Meta(max_length=SIZE_MAX)]


class Candidates(Message, frozen=True, array_like=True, gc=False):
    """This is me, and these would make your table better."""

    me: Contact
    better: Annotated[tuple[Contact, ...], Meta(max_length=CANDIDATES_MAX)]


class Greet(Message, frozen=True, array_like=True, gc=False):
    """I have heard of you, or have you in my table: are you there?"""

    to: Key
    me: Contact


class Greeting(Message, frozen=True, array_like=True, gc=False):
    """I am, and this is me now."""

    me: Contact


class NodeGone(Message, frozen=True, array_like=True, tag="Gone", gc=False):
    """This node is no more, nor any earlier incarnation of it: the answer to a question for it, and its farewell."""

    peer: Peer
