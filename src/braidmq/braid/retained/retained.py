"""Retained messages across brokers: the parts of it, put together."""

from __future__ import annotations

from braidmq.braid.retained.handing_over import RetainedHandover
from braidmq.braid.retained.queries import RetainedQueries
from braidmq.braid.retained.replication import RetainedReplication
from braidmq.broker.broker import Broker
from braidmq.host import Host
from braidmq.pubsub.method import Method


class RetainedParts:
    def __init__(self, broker: Broker, host: Host, method: Method, name: str) -> None:
        """`name` is that of this broker."""
        self.replication = RetainedReplication(broker, host, method, name)
        self.queries = RetainedQueries(broker, host, self.replication, name)
        self.handover = RetainedHandover(broker, host, self.replication)
