"""What answers about the braid have in common."""

from __future__ import annotations

from braidmq.admin.contract import Neighbour
from braidmq.broker.local_topics import LOCAL_PREFIXES
from braidmq.keys import parts_of
from braidmq.mqtt.errors import PacketError
from braidmq.mqtt.topics import check_topic
from braidmq.overlay import Peer

BROKERS_MAX = 4096
"""Brokers that a walk visits, or that are named as subscribers."""


class Unanswerable(Exception):
    """A question that has no answer here; says why."""


def check_passed_on(topic: str) -> None:
    """Raises Unanswerable for a topic that does not leave its broker, or is none."""
    try:
        check_topic(topic)
    except PacketError as error:
        raise Unanswerable(str(error)) from None
    if topic.startswith(LOCAL_PREFIXES):
        raise Unanswerable(f"{topic!r} is each broker's own: topics that begin so are not passed on")


def describe_peer(peer: Peer) -> Neighbour:
    topic, role, cluster, name = parts_of(peer.key)
    return Neighbour(name, cluster, str(peer.address), topic, role.name.lower())
