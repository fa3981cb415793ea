"""Acknowledgements that wait until it is known whether anybody wants what they acknowledge (MQTT 5 §3.4.2.1).

The first publication on a topic makes a federated broker find out whether anybody elsewhere subscribes to it. A client
of MQTT 5 is told what comes of that: its PUBACK or PUBREC waits, for a short time and no longer; then it says 0, which
claims nothing. What was published is kept and on its way all the same, and the connection is read on. Acknowledgements
leave in the order of what they acknowledge [MQTT-4.6.0-2], [MQTT-4.6.0-3], so those behind such a one wait with it.
They are no more than the client may have unacknowledged, this broker's Receive Maximum.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from braidmq.broker.tick import Tick
from braidmq.broker.timers import Timer
from braidmq.mqtt.packets import Puback, Pubrec
from braidmq.mqtt.reasons import Reason

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
    """Those of one connection, in their order; it has none of these while nothing is held back."""

    def __init__(
        self,
        tick: Tick,
        send: Callable[[Puback | Pubrec], object],
        on_late: Callable[[], None],
        on_empty: Callable[[], None],
    ) -> None:
        """`on_late` is called when nothing was known in time, `on_empty` when nothing is held back any more."""
        self._tick = tick
        self._send_packet = send
        self._on_late = on_late
        self._on_empty = on_empty
        self._held: deque[HeldAcknowledgement] = deque()
        self._timer: Timer | None = None
        self.qos1 = 0
        """Publications of QoS 1 among them: of QoS 2 the session knows."""

    def add(self, packet: Puback | Pubrec) -> None:
        """One more that waits for those before it."""
        self._put(HeldAcknowledgement(packet, 0.0))

    def add_doubtful(self, packet: Puback | Pubrec) -> Callable[[bool], None]:
        """One that waits until it is known whether the publication reaches anybody: then the function is called."""
        held = HeldAcknowledgement(packet, self._tick.now() + DEMAND_WAIT_S)
        self._put(held)
        if self._timer is None:
            self._set_timer(held.due_at)

        def on_known(reached: bool) -> None:
            if not reached:
                packet.reason = Reason.NO_MATCHING_SUBSCRIBERS
            held.due_at = 0.0
            self._send_due()

        return on_known

    def _put(self, held: HeldAcknowledgement) -> None:
        self._held.append(held)
        self.qos1 += type(held.packet) is Puback

    def _set_timer(self, at: float) -> None:
        self._timer = self._tick.timers.at(at, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        if self._held and 0 < self._held[0].due_at <= self._tick.now():
            self._on_late()
        self._send_due()

    def _send_due(self) -> None:
        """Sends what need not wait any longer."""
        if not self._held:
            return  # all were sent or dropped before
        now = self._tick.now()
        while self._held and self._held[0].due_at <= now:
            self._send(self._held.popleft())
        if not self._held:
            self.drop()
        elif self._timer is None:
            self._set_timer(self._held[0].due_at)

    def _send(self, held: HeldAcknowledgement) -> None:
        self.qos1 -= type(held.packet) is Puback
        self._send_packet(held.packet)

    def send_all(self) -> None:
        """The connection ends: what is not known is not claimed."""
        while self._held:
            self._send(self._held.popleft())
        self.drop()

    def drop(self) -> None:
        """Nothing is held back any more."""
        self._held.clear()
        self._on_empty()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
