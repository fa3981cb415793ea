"""What clients here want, as the other brokers come to know it: the parts of it, put together."""

from __future__ import annotations

from braidmq.braid.interest.agreement import ShapeAgreement
from braidmq.braid.interest.announcing import Announcer, FilterAnnouncer
from braidmq.braid.interest.client_filters import ClientFilters
from braidmq.braid.interest.clusters import Clusters
from braidmq.braid.interest.key_announcing import KeyAnnouncer
from braidmq.braid.interest.scope import Scopes
from braidmq.braid.interest.shapes import Shapes
from braidmq.braid.membership.presence import Presence
from braidmq.braid.task_limiter import TaskLimiter
from braidmq.broker.broker import Broker
from braidmq.broker.local_topics import LOCAL_PREFIXES
from braidmq.host import Host
from braidmq.overlay import Overlay
from braidmq.pubsub.method import Method, ScopedMethod, WildcardMethod


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
        """Of the filters in use anywhere; none where the method knows wildcards."""
        self.filters = ClientFilters()
        self.clusters = Clusters(cluster, broker.store, broker.saved_cursors)
        self.scopes = Scopes(self.clusters, isinstance(method, ScopedMethod))
        self.agreement = ShapeAgreement(host, overlay, method, self.shapes)
        self.announcer: Announcer
        if isinstance(method, WildcardMethod):
            self.announcer = FilterAnnouncer(host, method, presence, self.filters)
        else:
            self.announcer = KeyAnnouncer(host, method, presence, self.agreement, limiter)
        self._needs_shapes = not isinstance(method, WildcardMethod)
        self._broker = broker
        for topic_filter in broker.router.filters():  # of sessions from before
            self._change(topic_filter, True, 0.0)

    @property
    def own_shapes(self) -> list[str]:
        """The shapes of filters here that other brokers must know of."""
        return self.filters.shapes if self._needs_shapes else []

    def on_filter(self, topic_filter: str, wanted: bool) -> None:
        """A filter has its first subscription here, or has lost its last."""
        self._change(topic_filter, wanted, self._broker.now())

    def _change(self, topic_filter: str, wanted: bool, now: float) -> None:
        if topic_filter.startswith(LOCAL_PREFIXES):
            return
        if wanted:
            self.filters.add(topic_filter, now)
        else:
            self.filters.discard(topic_filter)
        self.announcer.on_filter(topic_filter, wanted)
