"""Acknowledgements that wait until it is known whether anybody wants what they acknowledge (MQTT 5 §3.4.2.1).

The first publication on a topic makes a broker of a braid find out whether anybody elsewhere subscribes to it. A client
of MQTT 5 is told what comes of that: its PUBACK or PUBREC waits, for a short time and no longer; then it says 0, which
claims nothing. What was published is kept and on its way all the same, and the connection is read on. Acknowledgements
leave in the order of what they acknowledge [MQTT-4.6.0-2], [MQTT-4.6.0-3], so those behind such a one wait with it.
They are no more than the client may have unacknowledged, this broker's Receive Maximum.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from braidmq.mqtt.packets import Puback, Pubrec
from braidmq.mqtt.reasons import Reason

if TYPE_CHECKING:
    from braidmq.broker.connection import Connection
    from braidmq.broker.timers import Timer

DEMAND_WAIT_S = 1.0
"""How long an acknowledgement waits until it is known whether anybody wants the topic."""


class HeldAcknowledgement:
    """One acknowledgement; what it says is certain, or waits."""

    __slots__ = ("due_at", "packet")

    def __init__(self, packet: Puback | Pubrec, due_at: float) -> None:
        self.packet = packet
        self.due_at = due_at
        """When it leaves at the latest; 0 if it waits only for those before it."""


class HeldAcknowledgements:
    """Those that a connection owes its client, in their order; it has none of these while it owes nothing."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._debts: deque[HeldAcknowledgement] = deque()
        self._timer: Timer | None = None
        self.qos1 = 0
        """Publications of QoS 1 among them: of QoS 2 the session knows."""

    def add(self, packet: Puback | Pubrec) -> None:
        """One more that waits for those before it."""
        self._put(HeldAcknowledgement(packet, 0.0))

    def add_doubtful(self, packet: Puback | Pubrec) -> Callable[[bool], None]:
        """One that waits until it is known whether the publication reaches anybody: then the function is called."""
        now = self._connection.broker.now()
        debt = HeldAcknowledgement(packet, now + DEMAND_WAIT_S)
        self._put(debt)
        if self._timer is None:
            self._set_timer(debt.due_at)

        def settle(reached: bool) -> None:
            if not reached:
                packet.reason = Reason.NO_MATCHING_SUBSCRIBERS
            debt.due_at = 0.0
            self._pay()

        return settle

    def _put(self, debt: HeldAcknowledgement) -> None:
        self._debts.append(debt)
        self.qos1 += type(debt.packet) is Puback

    def _set_timer(self, at: float) -> None:
        self._timer = self._connection.broker.timers.at(at, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        broker = self._connection.broker
        if self._debts and 0 < self._debts[0].due_at <= broker.now():
            broker.federation.on_demand_late()
        self._pay()

    def _pay(self) -> None:
        """Sends what need not wait any longer."""
        connection = self._connection
        if connection.owed is not self:
            return
        now = connection.broker.now()
        while self._debts and self._debts[0].due_at <= now:
            self._send(self._debts.popleft())
        if not self._debts:
            self.drop()
        elif self._timer is None:
            self._set_timer(self._debts[0].due_at)

    def _send(self, debt: HeldAcknowledgement) -> None:
        connection, broker = self._connection, self._connection.broker
        self.qos1 -= type(debt.packet) is Puback
        connection.send_packet(debt.packet)
        connection.awaits_commit = connection.awaits_commit or broker.store.dirty or broker.recorder.dirty

    def pay_all(self) -> None:
        """The connection ends: what is not known is not claimed."""
        while self._debts:
            self._send(self._debts.popleft())
        self.drop()

    def drop(self) -> None:
        """Nothing is owed any more."""
        self._debts.clear()
        self._connection.owed = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
