"""The state of a session as it travels from one broker to another: its deliveries, and its subscriptions."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from braidmq.braid.roaming.marks import Mark, MarkedDelivery
from braidmq.braid.transfer.batch import BatchItem, item_of, message_of
from braidmq.broker.backlog import NOTHING
from braidmq.broker.broker import Broker
from braidmq.broker.message import Delivery
from braidmq.broker.session import Session
from braidmq.broker.subscription import Subscribed
from braidmq.mqtt.packets import Will


class MovedDelivery(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A delivery that has not come to its end, as it travels. One that is released has no message any more."""

    topic: str
    item: BatchItem
    qos: int
    retain: bool
    ids: tuple[int, ...]
    group: str
    packet_id: int
    released: bool = False
    mark: Mark | None = None
    follows: Mark | None = None
    """What its publisher has published elsewhere just before, if it is not known to have come."""

    @property
    def size(self) -> int:
        return len(self.topic) + len(self.item.payload) + len(self.item.forward) + len(self.group) + 64


class Absence(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What runs out in a session whose client is away, as it travels."""

    ends_in_s: float | None
    """None if it never ends."""
    will: Will | None = None
    """One that waits for its delay."""
    will_in_s: float = 0.0

    def ends_at(self, now: float) -> float | None:
        return None if self.ends_in_s is None else now + self.ends_in_s


def delivery_of(moved: MovedDelivery, now: float) -> Delivery:
    return Delivery(message_of(moved.item, moved.topic, now), moved.qos, moved.retain, moved.ids, moved.group)


def moved_of(delivery: Delivery, now: float, released: bool = False) -> MovedDelivery:
    d = delivery
    return MovedDelivery(
        d.message.topic, item_of(d.message, now), d.qos, d.retain, d.ids, d.group, d.packet_id, released
    )


def moved_late(one: MarkedDelivery, now: float) -> MovedDelivery:
    """Of one that comes behind its session."""
    return msgspec.structs.replace(moved_of(one.delivery, now), mark=one.mark, follows=one.follows)


def state_of(session: Session, now: float) -> list[MovedDelivery]:
    """What a session that is not connected has not brought to its end, in the order in which it is sent."""
    waiting = session.backlog.waiting if session.backlog is not None else ()
    return [
        *(moved_of(one, now, released=True) for one in session.released.values()),
        *(moved_of(one, now) for one in session.inflight.values() if one.message is not NOTHING),
        *(moved_of(one, now) for one in waiting if not one.packet_id and not one.message.expired(now)),
    ]


def subscribe_all(broker: Broker, session: Session, subscriptions: dict[str, Subscribed]) -> None:
    for full_filter, subscribed in subscriptions.items():
        broker.router.subscribe(session, full_filter, subscribed)


def unsubscribe_all(broker: Broker, session: Session, subscriptions: Iterable[str]) -> None:
    for full_filter in subscriptions:
        broker.router.unsubscribe(session, full_filter)
