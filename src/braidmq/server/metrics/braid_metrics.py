"""The braid's numbers for Prometheus.

The peer of a link is a label, for PEERS_MAX of them; the rest are counted together. Topics are no labels: there may be
hundreds of thousands. `braidmq topics` shows the busiest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from braidmq.braid.transfer.accounting import HOPS_MAX, HopCounts
from braidmq.net.counters import Counters
from braidmq.server.metrics.selection_metrics import collect_selection

if TYPE_CHECKING:
    from braidmq.admin.contract import CoversStatus
    from braidmq.braid.braid import Braid
    from braidmq.braid.node import BraidNode
    from braidmq.net.host import NetHost

PREFIX: Final = "braidmq_braid_"
PEERS_MAX: Final = 64
"""Peers that have a label of their own: the first that were linked."""

OTHERS: Final = "others"


class BraidCollector(Collector):
    def __init__(self, node: BraidNode) -> None:
        self._node = node
        self._links = LinkTotals(node.host)

    def collect(self) -> Iterable[Metric]:
        braid = self._node.braid
        if braid is not None:
            yield from _collect_state(braid)
            yield from _collect_history(braid)
            yield _hops(braid.transfer.hops)
            yield from _collect_copies(braid)
            yield from _collect_shares(braid)
            yield from _collect_homes(braid)
            yield from collect_selection(braid.selection)
            yield from self._collect_links()

    def _collect_links(self) -> Iterator[Metric]:
        labels = ["peer", "direction", "kind"]
        messages = CounterMetricFamily(
            f"{PREFIX}link_messages",
            "Messages between this broker and another: publications and upkeep.",
            labels=labels,
        )
        sizes = CounterMetricFamily(f"{PREFIX}link_bytes", "Bytes between this broker and another.", labels=labels)
        dropped = CounterMetricFamily(
            f"{PREFIX}link_dropped", "Messages for another broker that were not sent.", labels=["peer"]
        )
        for peer, counts in self._links.read():
            dropped.add_metric([peer], counts.dropped)
            for direction in ("in", "out"):
                for family, all_, some in (
                    (messages, f"messages_{direction}", f"publications_{direction}"),
                    (sizes, f"bytes_{direction}", f"publication_bytes_{direction}"),
                ):
                    publications = getattr(counts, some)
                    family.add_metric([peer, direction, "publications"], publications)
                    family.add_metric([peer, direction, "upkeep"], getattr(counts, all_) - publications)
        yield messages
        yield sizes
        yield dropped
        linked = len(self._node.host.linked)
        yield GaugeMetricFamily(f"{PREFIX}links", "Other brokers that this one is linked to now.", value=linked)


class LinkTotals:
    """Counts by peer that only grow, also when a peer was forgotten and has come back."""

    def __init__(self, host: NetHost) -> None:
        self._host = host
        self._current: dict[str, Counters] = {}
        self._before: dict[str, Counters] = {}

    def read(self) -> Iterator[tuple[str, Counters]]:
        for peer in self._host.linked:
            if len(self._current) < PEERS_MAX:
                self._current.setdefault(peer, self._host.counters(peer))
        shown = Counters()
        for peer, counters in list(self._current.items()):
            now = self._host.counters(peer)
            if now is not counters:
                self._before.setdefault(peer, Counters()).add(counters)
                self._current[peer] = now
            total = Counters()
            total.add(self._before.get(peer, Counters()))
            total.add(now)
            shown.add(total)
            yield peer, total
        rest = self._host.counters()
        rest.subtract(shown)
        yield OTHERS, rest


def _collect_state(braid: Braid) -> Iterator[Metric]:
    status = braid.status
    keys = GaugeMetricFamily(f"{PREFIX}keys", "Keys that this broker stands for.", labels=["kind"])
    for kind, count in status.keys_by_kind().items():
        keys.add_metric([kind], count)
    yield keys
    for name, text, value in (
        ("in", "1 while this broker is in the braid, else 0.", int(braid.presence.is_in)),
        ("routing_entries", "Nodes of other brokers in the routing table.", len(braid.overlay.view.entries)),
        ("shapes", "Shapes of wildcard filters that are in use anywhere.", len(braid.interest.shapes)),
        ("filters", "Different filters of clients here.", len(braid.interest.filters)),
        ("topics", "Topics that are published here.", len(braid.transfer.outbound)),
        ("topics_suspended", "Of these, topics that nobody wants anywhere.", status.suspended),
        ("history_messages", "Publications of QoS 1 and 2 that are kept for others.", len(braid.catch_up.history)),
        ("history_bytes", "What these take, as their bound counts it.", braid.catch_up.history.bytes),
    ):
        yield GaugeMetricFamily(PREFIX + name, text, value=value)
    covers = status.covers
    if covers is not None:
        yield from _collect_covers(covers)


def _collect_covers(covers: CoversStatus) -> Iterator[Metric]:
    family = GaugeMetricFamily(f"{PREFIX}covers", "Broad filters by which this broker meets others.", labels=["of"])
    family.add_metric(["publications"], len(covers.publications))
    family.add_metric(["wants"], len(covers.wants))
    yield family
    for name, text, value in (
        ("watchers", "Brokers that are told what clients here subscribe to.", covers.watchers),
        ("subscribers", "Brokers that have told what their clients subscribe to.", covers.subscribers),
        ("wants_known", "Filters of other brokers that are known here.", covers.wants_known),
    ):
        yield GaugeMetricFamily(PREFIX + name, text, value=value)


def _collect_history(braid: Braid) -> Iterator[Metric]:
    history, inbound = braid.catch_up.history, braid.transfer.inbound
    for name, text, value in (
        ("ring_repairs", "Repairs of the link from the left neighbour.", braid.status.repairs),
        ("history_forgotten", "Publications that went from the history before their time.", history.forgotten),
        ("publications_unproven", "QoS 1 and 2 of which no proof came in time.", braid.transfer.sender.unproven),
        ("publications_fetched", "Publications that were missed, and fetched.", braid.catch_up.reconciler.fetched),
        ("publications_duplicate", "Publications that came again and were dropped.", inbound.duplicates),
        ("publications_given_up", "Publications that did not come in time.", inbound.given_up),
        ("publications_dropped", "QoS 0 that had no room until its demand was known.", braid.transfer.outbound.dropped),
    ):
        yield CounterMetricFamily(PREFIX + name, text, value=value)


def _collect_copies(braid: Braid) -> Iterator[Metric]:
    own, held = braid.mirrors.own, braid.mirrors.held
    for name, text, value in (
        (
            "copies_wanted",
            "Copies of this broker's store that are wanted, its own included.",
            1 if own is None else own.settings.copies,
        ),
        ("copies", "Copies of this broker's store that are there, its own included.", 1 if own is None else own.count),
        ("copies_held", "Other brokers of whose stores copies are here.", len(held)),
        ("copies_held_bytes", "What these take up on the disk, about.", held.size),
    ):
        yield GaugeMetricFamily(PREFIX + name, text, value=value)
    sent = 0 if own is None else own.bytes_sent
    yield CounterMetricFamily(
        f"{PREFIX}mirror_bytes", "Bytes of this broker's store that mirrors were sent.", value=sent
    )
    delayed = braid.broker.tick.delayed
    text = "How long commits waited until the copies had them, where anything waited."
    yield SummaryMetricFamily(
        f"{PREFIX}copies_wait_seconds", text, count_value=delayed.waits, sum_value=delayed.waited_s
    )


def _collect_homes(braid: Braid) -> Iterator[Metric]:
    homes = braid.homes
    for name, words, value in (
        ("homes", "Clients of which a plan says where they are at home.", len(homes)),
        ("homes_staying", "Clients that were told to go home, came back, and are served here.", homes.staying),
        ("homes_sent", "Clients that were told to go home, by the plan that holds.", homes.sent),
        ("homes_refused", "Sessions that their home could not take, by the plan that holds.", homes.refused),
    ):
        yield GaugeMetricFamily(f"{PREFIX}{name}", words, value=value)


def _collect_shares(braid: Braid) -> Iterator[Metric]:
    lender = braid.shares.lender
    for name, text, value in (
        ("share_waiting", "Messages that wait for a member of a group, here.", braid.broker.sessions.shares.waiting),
        ("share_lent", "Messages published here that members at other brokers have.", len(lender.loans)),
    ):
        yield GaugeMetricFamily(PREFIX + name, text, value=value)
    for name, text, value in (
        ("share_assigned", "Messages that were given to members at other brokers.", lender.assigned),
        ("share_returned", "Of these, messages that came back.", lender.returned),
        ("share_adopted", "Messages taken up from queues of brokers that are gone.", braid.shares.adoption.adopted),
    ):
        yield CounterMetricFamily(PREFIX + name, text, value=value)


def _hops(counts: HopCounts) -> Metric:
    """Cumulative, as histograms are."""
    buckets: list[tuple[str, float]] = []
    count = 0
    for hops, received in enumerate(counts.by_hops):
        count += received
        buckets.append(("+Inf" if hops == HOPS_MAX else str(hops), count))
    text = "Hops of the batches of publications that have come from other brokers."
    return HistogramMetricFamily(f"{PREFIX}hops", text, buckets=buckets, sum_value=counts.total)
