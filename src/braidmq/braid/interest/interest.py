"""What clients here want, as the other brokers come to know it: the parts of it, put together."""

from __future__ import annotations

from braidmq.braid.interest.agreement import ShapeAgreement
from braidmq.braid.interest.announcing import InterestAnnouncer
from braidmq.braid.interest.clusters import Clusters
from braidmq.braid.interest.covering import CoveringFilters
from braidmq.braid.interest.scope import Scopes
from braidmq.braid.interest.shapes import Shapes
from braidmq.braid.membership.presence import Presence
from braidmq.braid.task_limiter import TaskLimiter
from braidmq.broker.broker import Broker
from braidmq.broker.local_topics import LOCAL_PREFIXES
from braidmq.host import Host
from braidmq.overlay import Overlay
from braidmq.pubsub.method import Method, ScopedMethod


class InterestParts:
    def __init__(
        self,
        broker: Broker,
        host: Host,
        overlay: Overlay,
        method: Method,
        presence: Presence,
        limiter: TaskLimiter,
        cluster: str,
    ) -> None:
        """`cluster` is that of this broker."""
        self.shapes = Shapes()
        self.covering = CoveringFilters()
        self.clusters = Clusters(cluster, broker.store, broker.saved_cursors)
        self.scopes = Scopes(self.clusters, isinstance(method, ScopedMethod))
        self.agreement = ShapeAgreement(host, overlay, method, self.shapes)
        self.announcer = InterestAnnouncer(host, method, presence, self.covering, self.agreement, limiter)
        self._broker = broker
        self._presence = presence
        for topic_filter in broker.router.filters():  # of sessions from before
            if not topic_filter.startswith(LOCAL_PREFIXES):
                self.covering.add(topic_filter, 0.0)

    def on_filter(self, topic_filter: str, wanted: bool) -> None:
        """A filter has its first subscription here, or has lost its last."""
        if topic_filter.startswith(LOCAL_PREFIXES):
            return
        if wanted:
            self.covering.add(topic_filter, self._broker.now())
        else:
            self.covering.discard(topic_filter)
        if self._presence.is_in:
            self.announcer.update()
