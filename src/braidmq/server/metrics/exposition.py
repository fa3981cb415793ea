"""The broker's numbers and their names outside: one table for Prometheus and for `$SYS`.

The broker counts in plain integers (`Metrics`). They are read only when a scrape asks for them, so counting a message
costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

import braidmq

if TYPE_CHECKING:
    from braidmq.broker.metrics import Metrics
    from braidmq.server.listening.listeners import Listeners

PREFIX: Final = "braidmq_"


@dataclass(frozen=True, slots=True)
class Measure:
    """One number: the attribute of `Metrics` that holds it, and what it is called elsewhere."""

    kind: Literal["counter", "gauge"]
    """A counter only grows, until the broker restarts; a gauge goes up and down."""
    attribute: str
    name: str
    """For Prometheus, behind `braidmq_`; `_total` is added to a counter's."""
    topic: str
    """For $SYS, behind `$SYS/broker/`."""
    text: str


METRICS: Final = (
    Measure("gauge", "connections", "connections", "clients/connected", "Clients that are connected now."),
    Measure("gauge", "sessions", "sessions", "clients/total", "Sessions, connected or not."),
    Measure("gauge", "subscriptions", "subscriptions", "subscriptions/count", "Subscriptions of all sessions."),
    Measure("gauge", "retained_messages", "retained_messages", "retained messages/count", "Retained messages."),
    Measure("gauge", "queued_messages", "queued_messages", "store/messages/count", "Messages that wait for a client."),
    Measure("counter", "connects", "connects", "clients/connects", "Clients that were let in."),
    Measure(
        "counter",
        "connect_refused",
        "connects_refused",
        "clients/refused",
        "Connections that were refused or closed because a bound was reached.",
    ),
    Measure(
        "counter", "auth_failures", "authentication_failures", "clients/authentication failures", "Failed log-ins."
    ),
    Measure(
        "counter",
        "tls_handshakes_failed",
        "tls_handshakes_failed",
        "clients/TLS handshakes failed",
        "TLS handshakes that came to nothing, most often for the client's certificate.",
    ),
    Measure("counter", "messages_received", "messages_received", "messages/received", "Publications from clients."),
    Measure("counter", "messages_sent", "messages_sent", "messages/sent", "Publications to clients."),
    Measure(
        "counter",
        "messages_dropped",
        "messages_dropped",
        "publish/messages/dropped",
        "Publications that a client did not get because a bound was reached.",
    ),
    Measure("counter", "bytes_received", "received_bytes", "bytes/received", "Bytes from clients."),
    Measure("counter", "bytes_sent", "sent_bytes", "bytes/sent", "Bytes to clients."),
    Measure(
        "counter",
        "publish_refused",
        "publications_refused",
        "publish/messages/refused",
        "Publications that were refused.",
    ),
    Measure("counter", "packets_malformed", "packets_malformed", "packets/malformed", "Packets that broke the rules."),
    Measure(
        "counter", "slow_readers", "slow_readers", "clients/slow readers", "Clients that were cut off as too slow."
    ),
    Measure("counter", "store_commits", "store_commits", "store/commits", "Commits to the store."),
    Measure("counter", "store_failures", "store_failures", "store/failures", "Commits that the store refused."),
)


def readings(metrics: Metrics) -> Iterator[tuple[Measure, int]]:
    """Every measure with its value at this moment."""
    for measure in METRICS:
        yield measure, getattr(metrics, measure.attribute)


class BrokerCollector(Collector):
    """Reads the broker's numbers each time Prometheus asks."""

    def __init__(self, metrics: Metrics, listeners: Listeners) -> None:
        self._metrics = metrics
        self._listeners = listeners

    def collect(self) -> Iterable[Metric]:
        yield InfoMetricFamily(f"{PREFIX}build", "The broker's version.", value={"version": braidmq.__version__})
        for measure, value in readings(self._metrics):
            family = CounterMetricFamily if measure.kind == "counter" else GaugeMetricFamily
            yield family(PREFIX + measure.name, measure.text, value=value)
        yield from self._collect_listeners()

    def _collect_listeners(self) -> Iterator[Metric]:
        sockets = GaugeMetricFamily(
            f"{PREFIX}listener_sockets", "Open sockets of a listener, with those in a handshake.", labels=["listener"]
        )
        expiry = GaugeMetricFamily(
            f"{PREFIX}listener_certificate_expiry_timestamp_seconds",
            "When the certificate of a listener ends.",
            labels=["listener"],
        )
        for listener in self._listeners.active:
            sockets.add_metric([listener.settings.name], len(listener.connections))
            if listener.tls is not None:
                expiry.add_metric([listener.settings.name], listener.tls.expires_at)
        yield sockets
        yield expiry


class Exposition:
    """The text that a scrape gets: the broker's numbers and those of its process."""

    def __init__(self, metrics: Metrics, listeners: Listeners, *others: Collector) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(BrokerCollector(metrics, listeners))
        for other in others:
            self._registry.register(other)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def render(self, accept: str) -> tuple[bytes, str]:
        """The body and its content type, in the format that the Accept header prefers."""
        encode: Callable[[CollectorRegistry], bytes]
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type
