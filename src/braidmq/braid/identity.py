"""Which broker this is, from one start to the next: made once, and kept in its store.

The identity names the broker's history and stands in the directory for the sessions that it has, so it must outlive
whatever else may change: the address, the ports, the name. It is the name that the broker had when its store was made,
and a random number: `s2#8a9a1fe6d415`. With another store it is another broker; on a copy of a store it is the same one
twice, which other brokers do not let in.

The name is for people, and for the order of keys. It is what the configuration says or, if that says nothing, what it
was before. A store of an earlier version has kept no name: its broker was called by its address.
"""

from __future__ import annotations

import logging

import msgspec

from braidmq.broker.broker import Broker
from braidmq.host import Chance

_log = logging.getLogger("braidmq.braid")

IDENTITY_ROW = ""
"""The key of the store's row for it, among the cursors."""

AWAY_SLACK_S = 30.0
"""How far clocks may differ when a broker that was away asks for what it has missed."""

NUMBER_BITS = 48
NAME_DIGITS = 8
"""Of the number, in the name of a broker that was given none."""


class BrokerIdentity(msgspec.Struct, frozen=True, array_like=True):
    """What a broker knows of itself from before."""

    history: int
    """The number of its history, which is another one if its store was lost."""
    alive_at: float
    identity: str = ""
    name: str = ""

    @property
    def is_kept(self) -> bool:
        """Whether it was made by this version, or has been completed by it."""
        return bool(self.identity)


def identity_of(
    broker: Broker, chance: Chance, name: str | None = None, earlier_name: str | None = None
) -> BrokerIdentity:
    """What the store says, or what is made up now; that is written with the next commit.

    `name` is what the broker is to be called now; `earlier_name` how an earlier version would have called it.
    """
    row = dict(broker.saved_cursors).get(IDENTITY_ROW)
    was = (
        msgspec.msgpack.decode(row, type=BrokerIdentity)
        if row
        else BrokerIdentity(chance.getrandbits(NUMBER_BITS), broker.now())
    )
    if was.is_kept:
        if name and name != was.name:
            _log.info("this broker is called %r from now on, and was called %r", name, was.name)
        made = msgspec.structs.replace(was, name=name or was.name)
    else:
        given = name or (earlier_name if row else None) or f"broker-{was.history:012x}"[: len("broker-") + NAME_DIGITS]
        made = msgspec.structs.replace(was, identity=f"{given}#{was.history:x}", name=given)
    if made != was or not row:
        broker.store.save_cursor(IDENTITY_ROW, msgspec.msgpack.encode(made))
        broker.request_flush()
    return made


def save_alive(broker: Broker, identity: BrokerIdentity) -> BrokerIdentity:
    """Notes that the broker is alive now; that is written with the next commit."""
    alive = msgspec.structs.replace(identity, alive_at=broker.now())
    broker.store.save_cursor(IDENTITY_ROW, msgspec.msgpack.encode(alive))
    broker.request_flush()
    return alive


def missed_since(broker: Broker) -> float:
    """What was published before this time is not missed by any client here."""
    row = dict(broker.saved_cursors).get(IDENTITY_ROW)
    return broker.now() if row is None else msgspec.msgpack.decode(row, type=BrokerIdentity).alive_at - AWAY_SLACK_S
