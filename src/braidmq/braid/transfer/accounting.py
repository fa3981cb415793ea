"""What travels between brokers, told apart: publications, and the upkeep of the braid."""

from __future__ import annotations

from braidmq.braid.catch_up.reconcile import Missed
from braidmq.host import Message
from braidmq.keys import SEPARATOR
from braidmq.overlay.ranges import Deliver
from braidmq.pubsub.baselines.can.messages import CanFlood
from braidmq.pubsub.baselines.rendezvous_tree import Submit, TreeDelivery
from braidmq.pubsub.covers.messages import PUBLISHER_MET, SUBSCRIBER_MET
from braidmq.pubsub.covers.multicast_messages import MulticastCopy
from braidmq.pubsub.locality.locality import SUBSCRIBED, HandOver
from braidmq.pubsub.method import INTERNAL
from braidmq.pubsub.relay_free.signals import QUESTION, RESUME, SUSPEND

ENVELOPE_BYTES = 40
"""The least that class name, address and numbers take on the wire beside the keys and the body."""

HOPS_MAX = 16
"""Hops that are counted one by one; what came further counts as so many."""

_NO_PUBLICATIONS = (QUESTION, SUSPEND, RESUME, SUBSCRIBED, PUBLISHER_MET, SUBSCRIBER_MET)
_INTERNAL_KEY = INTERNAL.encode()


def weigh(message: Message) -> int:
    """The bytes that a message takes because of publications in it; 0 if it is upkeep."""
    if isinstance(message, MulticastCopy):
        if not message.topic or message.topic.startswith(INTERNAL):
            return 0
        listed = sum([len(str(address)) + len(cluster) for address, cluster in message.to]) if message.to else 0
        return ENVELOPE_BYTES + len(message.body) + len(message.topic) + listed
    if isinstance(message, Deliver):
        low = message.ranges[0][0] if message.ranges else SEPARATOR
        if low[:1] == SEPARATOR or message.body[:1] in _NO_PUBLICATIONS or low.startswith(_INTERNAL_KEY):
            return 0  # to all brokers, or to publishers, or a question
        keys = sum([len(one) + len(other) for one, other in message.ranges])
        return ENVELOPE_BYTES + len(message.body) + keys + sum(map(len, message.to))
    if isinstance(message, HandOver):
        return ENVELOPE_BYTES + len(message.carried.body) if message.topic else 0
    if isinstance(message, TreeDelivery | Submit | CanFlood):
        return ENVELOPE_BYTES + len(message.body) if message.topic else 0
    if isinstance(message, Missed) and message.sent:
        return ENVELOPE_BYTES + sum(map(len, message.sent))
    return 0


class HopCounts:
    """How far publications came that were received here."""

    __slots__ = ("by_hops", "total")

    def __init__(self) -> None:
        self.by_hops = [0] * (HOPS_MAX + 1)
        self.total = 0
        """The hops of all of them."""

    def add(self, hops: int) -> None:
        self.by_hops[hops if hops < HOPS_MAX else HOPS_MAX] += 1
        self.total += hops
