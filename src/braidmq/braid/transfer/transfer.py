"""Publications between brokers, out of this one and into it: the parts of it, put together."""

from __future__ import annotations

from braidmq.braid.catch_up.catch_up import CatchUpParts
from braidmq.braid.membership.presence import Presence
from braidmq.braid.retained.retained import RetainedParts
from braidmq.braid.roaming.marks import Marks
from braidmq.braid.transfer.accounting import HopCounts
from braidmq.braid.transfer.cut_through import CutThrough
from braidmq.braid.transfer.delivering import PublicationReceiver
from braidmq.braid.transfer.inbound import InboundStreams
from braidmq.braid.transfer.outbound import OutboundTopics
from braidmq.braid.transfer.sending import PublicationSender
from braidmq.broker.broker import Broker
from braidmq.host import Host
from braidmq.net.host import NetHost
from braidmq.overlay import Overlay
from braidmq.pubsub.method import Method


class TransferParts:
    def __init__(
        self,
        broker: Broker,
        host: Host,
        method: Method,
        presence: Presence,
        origin: str,
        since: float,
        inbound: InboundStreams,
        outbound: OutboundTopics,
        catch_up: CatchUpParts,
        retained: RetainedParts,
        marks: Marks,
    ) -> None:
        """`origin` names the history of this broker. What was published before `since` is not missed here."""
        self._broker = broker
        self._method = method
        history, cursors = catch_up.history, catch_up.cursors
        self.hops = HopCounts()
        self.inbound = inbound
        self.outbound = outbound
        self.sender = PublicationSender(broker, host, method, presence, outbound, history, origin, marks)
        self.receiver = PublicationReceiver(
            broker,
            origin,
            since,
            cursors,
            inbound,
            catch_up.reconciler,
            marks,
            retained.replication,
            retained.queries,
        )
        self.cut_through: CutThrough | None = None
        """The short way for publications that come alone, where links are real."""

    def use_links(self, host: NetHost, overlay: Overlay) -> None:
        """Links are real: what leaves at once is written at once, and publications that come alone take a short way."""
        self.sender.cork, self.sender.uncork = host.cork, host.uncork
        host.on_read = self._broker.tick.begin_read
        if CutThrough.can_serve(self._method):
            self.cut_through = CutThrough(
                self._broker, host, overlay, self._method, self.sender, self.receiver, self.inbound, self.hops
            )
            self.sender.publisher = self.cut_through
            host.take_shortcut(self.cut_through)
