"""How what was missed is fetched: the parts of it, put together."""

from __future__ import annotations

import msgspec

from braidmq.braid.catch_up.cursors import Cursors
from braidmq.braid.catch_up.heads import HistoryHeads
from braidmq.braid.catch_up.history import History, Sent
from braidmq.braid.catch_up.left_history import LeftHistories
from braidmq.braid.catch_up.missed_fetching import MissedFetcher
from braidmq.braid.catch_up.reconcile import Reconciler
from braidmq.braid.identity import IDENTITY_ROW
from braidmq.braid.interest.client_filters import ClientFilters
from braidmq.braid.membership.introducers import Introducers
from braidmq.braid.transfer.inbound import InboundStreams
from braidmq.broker.broker import Broker
from braidmq.host import Host
from braidmq.pubsub.method import Method, WildcardMethod


class CatchUpParts:
    def __init__(
        self,
        broker: Broker,
        host: Host,
        origin: str,
        since: float,
        introducers: Introducers,
        filters: ClientFilters,
        inbound: InboundStreams,
        cluster: str,
        method: Method,
    ) -> None:
        """`origin` names the history of this broker. What was published before `since` is not missed here."""
        self.history = History(broker.store, [msgspec.msgpack.decode(row, type=Sent) for row in broker.saved_history])
        self.cursors = Cursors(broker.store, [row for row in broker.saved_cursors if _is_cursor(row[0])])
        self.heads = HistoryHeads(host, origin, since, self.history, self.cursors, introducers)
        self.missed_fetcher = MissedFetcher(host, origin, self.history, self.cursors, cluster, broker.now)
        self.reconciler = Reconciler(
            host,
            origin,
            self.history,
            self.cursors,
            filters,
            broker.now,
            inbound.receive_fetched,
            inbound.on_fetched,
            inbound.is_holding,
            cluster,
            introducers.has_parted,
            isinstance(method, WildcardMethod),
            inbound.predecessors.is_awaited,
        )
        self.left = LeftHistories(broker, host, origin, self.history, self.cursors, self.heads, self.reconciler)


def _is_cursor(key: str) -> bool:
    """Other rows stand among the store's cursors: their keys begin with `$`, which no broker's identity does."""
    return key != IDENTITY_ROW and not key.startswith("$")
