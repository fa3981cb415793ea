"""A session (MQTT §4.1): what the broker knows of a client whether or not it is connected.

Outbound QoS 1 and 2 messages are in one of three collections: `backlog` (waiting), `inflight` (sent, by packet id, not
acknowledged) and `released` (QoS 2: the client has it, PUBREL sent). They move only in that direction:

    backlog ──transmit──▶ inflight ──PUBACK──▶ done
                             └──PUBREC──▶ released ──PUBCOMP──▶ done

On a new connection what is in flight is put before the backlog and sent again, with DUP and its old packet id
[MQTT-4.4.0-1]; `free` counts the publications that the client's Receive Maximum still allows [MQTT-3.3.4-9].
"""

from __future__ import annotations

from typing import Protocol

from braidmq.broker.backlog import NOTHING, Backlog
from braidmq.broker.client import ConnectedClient
from braidmq.broker.flow import Flow
from braidmq.broker.limits import FOREVER, Limits
from braidmq.broker.message import Delivery, Message
from braidmq.broker.metrics import Metrics
from braidmq.broker.packet_ids import IdRange, following
from braidmq.broker.runs_in_flight import PUBREC, RunsInFlight
from braidmq.broker.store import Store
from braidmq.broker.subscription import Subscribed
from braidmq.broker.tick import Tick
from braidmq.broker.timers import Timer
from braidmq.mqtt.errors import PacketError, malformed, violation
from braidmq.mqtt.packets import Will
from braidmq.mqtt.reasons import Reason
from braidmq.security.identity import Identity, is_foreign

DUP = 0x08


class SessionBroker(Protocol):
    """What a session needs of its broker."""

    limits: Limits
    tick: Tick
    store: Store
    metrics: Metrics

    def order_changed(self, session: Session) -> None:
        """QoS 0 waits for this session, or no longer does."""
        ...

    def on_free(self, session: Session) -> None:
        """A member of a shared subscription may be able to take more."""
        ...


class Session:
    __slots__ = (
        "_last_id",
        "backlog",
        "broker",
        "client_id",
        "connection",
        "expiry_s",
        "expiry_timer",
        "filter_bytes",
        "free",
        "inflight",
        "owner",
        "pump_budget",
        "pump_tick",
        "received",
        "released",
        "row",
        "runs",
        "shares",
        "stored",
        "subscriptions",
        "tick",
        "was_in_order",
        "will",
        "will_timer",
        "window",
    )

    def __init__(self, broker: SessionBroker, client_id: str, row: int) -> None:
        self.broker = broker
        self.tick = broker.tick
        self.client_id = client_id
        self.row = row
        self.stored = False
        """Whether the store knows this session."""
        self.was_in_order = True
        self.connection: ConnectedClient | None = None
        self.expiry_s = 0
        self.owner: str | None = None
        """The user whose it is, "" if an anonymous client's; None if an earlier version did not write it down."""
        self.subscriptions: dict[str, Subscribed] = {}
        self.filter_bytes = 0
        self.shares = False
        """Whether it is, or was, a member of a shared subscription."""
        self.inflight: dict[int, Delivery] = {}
        self.released: dict[int, Delivery] = {}
        self.runs: RunsInFlight | None = None
        """What was sent in runs and waits for answers; `inflight` and `released` have the rest."""
        self.received: set[int] = set()
        self.backlog: Backlog | None = None
        self.pump_tick = -1
        self.pump_budget = 0
        """Bytes that may still leave the backlog in this tick."""
        self.window = 0
        self.free = 0
        self.will: Will | None = None
        self.will_timer: Timer | None = None
        self.expiry_timer: Timer | None = None
        self._last_id = 0

    @property
    def durable(self) -> bool:
        """Whether the session outlives its connection, and so must outlive the process."""
        return self.expiry_s > 0

    @property
    def last_identity(self) -> Identity | None:
        """Of the client that has it, or had it last; None if that is not known."""
        if self.connection is not None:
            return self.connection.identity
        return None if self.owner is None else Identity(self.owner or None)

    def is_foreign(self, user: str) -> bool:
        """Whether it belongs to another user than this one."""
        return is_foreign(self.owner, user)

    @property
    def never_ends(self) -> bool:
        return self.expiry_s == FOREVER

    @property
    def ready(self) -> bool:
        """Whether a message would leave for the client at once."""
        return self.free > 0 and self.backlog is None and self.connection is not None and self.connection.writable

    @property
    def in_order(self) -> bool:
        """Whether a QoS 0 message may leave at once: nothing of QoS 0 waits before it."""
        return self.backlog is None or not self.backlog.qos0_count

    @property
    def takes_plain(self) -> bool:
        """Whether QoS 0 publications may reach the client past this session, as plain bytes."""
        return self.connection is not None and self.connection.takes_plain and self.in_order

    @property
    def burden(self) -> int:
        in_runs = 0 if self.runs is None else self.runs.sent_count
        return len(self.inflight) + in_runs + len(self.backlog or ())

    # Sending

    def deliver(
        self,
        message: Message,
        qos: int,
        retain: bool = False,
        ids: tuple[int, ...] = (),
        group: str = "",
        publisher: Flow | None = None,
    ) -> None:
        """Gives the client its copy, now or when it can take it; a `publisher` can be made to wait for that."""
        connection = self.connection
        if qos == 0:
            if connection is not None and self.in_order:
                connection.send_publish(message, 0x31 if retain else 0x30, 0, ids, publisher)
            elif connection is not None or self.broker.limits.queue_qos0:
                self._hold(Delivery(message, 0, retain, ids))
            return
        delivery = Delivery(message, qos, retain, ids, group)
        if self.free > 0 and self.backlog is None and connection is not None and connection.writable:
            self._transmit(connection, delivery)
        else:
            self._hold(delivery)

    @property
    def bulk_count(self) -> int:
        return self.backlog.bulk_count if self.backlog is not None else 0

    def deliver_retained(self, messages: list[tuple[Message, Subscribed]]) -> None:
        """Gives the client what a new subscription asks for, however much that is, as fast as it takes it."""
        self.backlog = self.backlog or Backlog(self.broker.metrics)
        self.backlog.add_bulk(
            Delivery(message, min(message.qos, one.qos), True, (one.identifier,) if one.identifier else ())
            for message, one in messages
        )
        self.pump()

    def _transmit(self, connection: ConnectedClient, delivery: Delivery) -> None:
        """Sends a delivery for the first time, under a packet id of its own.

        To a durable session nothing leaves under an id that the store does not know: after a crash the id would be
        given to another message while the client still has this one open.
        """
        is_kept = self.expiry_s > 0 and delivery.loan is None
        if is_kept:
            if self.tick.degraded:
                self._hold(delivery)
                return
            connection.awaits_commit = True
        packet_id = self.put_in_flight(delivery)
        first_byte = 0x30 | delivery.qos << 1 | delivery.retain
        if not connection.send_publish(delivery.message, first_byte, packet_id, delivery.ids):
            del self.inflight[packet_id]  # too large for this client: as if it had been sent [MQTT-3.1.2-25]
            self.free += 1
            self.discard(delivery)
            if delivery.loan is not None:
                delivery.loan.settle()
            return
        delivery.packet_id = packet_id
        delivery.under_way = True
        if is_kept:
            self.broker.store.save_delivery(self.row, delivery)

    def borrow(self, delivery: Delivery) -> None:
        """Sends what is lent to this session, which is ready: it is kept elsewhere until it is acknowledged."""
        assert self.connection is not None
        self._transmit(self.connection, delivery)

    def put_in_flight(self, delivery: Delivery) -> int:
        """Puts a delivery in flight under a packet id that is free [MQTT-2.2.1-4]."""
        packet_id = following(self._last_id)
        while packet_id in self.inflight or packet_id in self.released or packet_id in (self.runs or ()):
            packet_id = following(packet_id)
        self._last_id = packet_id
        self.inflight[packet_id] = delivery
        self.free -= 1
        return packet_id

    def put_run_in_flight(self, qos: int, count: int) -> IdRange | None:
        """Puts so many publications in flight that will never be sent again, and that the window allows; their packet
        ids, None if so many in a row are not free."""
        if self.runs is None:
            self.runs = RunsInFlight(self.inflight, self.released)
        ids = self.runs.put(qos, self._last_id, count)
        if ids is not None:
            self._last_id = ids.last
            self.free -= count
        return ids

    def has_room(self, size: int) -> bool:
        return self.backlog is None or not self.backlog.full(size, self.broker.limits)

    def _hold(self, delivery: Delivery) -> None:
        """Adds a delivery behind those that wait, within the bounds of the queue."""
        metrics = self.broker.metrics
        while not self.has_room(delivery.message.size):
            if self.connection is not None and delivery.qos:
                metrics.slow_readers += 1
                text = f"{len(self.backlog or ())} messages wait for this client, and it does not take them"
                self.connection.fail(PacketError(Reason.QUOTA_EXCEEDED, text))
                continue
            metrics.messages_dropped += 1
            if self.broker.limits.queue_full == "drop_newest" or not delivery.qos:
                return
            assert self.backlog is not None
            self.discard(self.backlog.pop())
        if self.connection is None and not self.durable:
            metrics.messages_dropped += 1  # the session has just ended
            return
        self.backlog = self.backlog or Backlog(metrics)
        self.backlog.push(delivery)
        if self.expiry_s and delivery.qos:
            self.broker.store.save_delivery(self.row, delivery)
        self.broker.order_changed(self)

    def discard(self, delivery: Delivery) -> None:
        """A delivery comes to its end without having been acknowledged."""
        if delivery.row:
            self.broker.store.drop_delivery(delivery)

    def pump(self) -> None:
        """Sends what waits, as far as the client's window and its socket allow."""
        connection = self.connection
        backlog = self.backlog
        if self.expiry_s and self.tick.degraded:
            return
        if self.pump_tick != self.tick.number:
            self.pump_tick = self.tick.number
            self.pump_budget = self.broker.limits.outbound_bytes_max
        now = self.tick.now()
        while backlog and self.free > 0 and connection is not None and connection.writable:
            if self.pump_budget < 0:
                self.tick.pump_later(self)
                break
            delivery = backlog.pop()
            if delivery.packet_id:
                self._resend(connection, delivery)
            elif delivery.message.expired(now):  # [MQTT-3.3.2-5]
                self.discard(delivery)
            elif delivery.qos == 0:
                connection.send_publish(delivery.message, 0x30 | delivery.retain, 0, delivery.ids)
            else:
                self._transmit(connection, delivery)
            self.pump_budget -= delivery.message.size
        if backlog is not None:
            if not backlog:
                self.backlog = None
            self.broker.order_changed(self)
        if self.shares and self.backlog is None:
            self.broker.on_free(self)

    def _resend(self, connection: ConnectedClient, delivery: Delivery) -> None:
        packet_id = delivery.packet_id
        if self.inflight.get(packet_id) is not delivery:
            return  # acknowledged before its turn came
        first_byte = 0x30 | DUP | delivery.qos << 1 | delivery.retain
        if connection.send_publish(delivery.message, first_byte, packet_id, delivery.ids):
            delivery.under_way = True
            self.free -= 1
        else:
            del self.inflight[packet_id]
            self.discard(delivery)

    # Acknowledgements from the client

    def on_answers(self, header: int, high: bytes, low: bytes) -> bool:
        """A run of PUBACKs, PUBRECs or PUBCOMPs, by the bytes of their packet ids; False if each is to be looked at."""
        runs = self.runs
        if runs is None or not runs.answer(header, high, low):
            return False
        if header != PUBREC:
            self.free += len(high)
            self._on_free()
        return True

    def _look_at(self, packet_id: int) -> None:
        """An answer that is for none, or not for the oldest, of what was sent in runs."""
        if self.runs is not None and packet_id in self.runs:
            self.runs.follow_singly()

    def on_puback(self, packet_id: int) -> None:
        self._look_at(packet_id)
        delivery = self.inflight.pop(packet_id, None)
        if delivery is None:
            if not packet_id:
                raise malformed("packet identifier 0")  # [MQTT-2.2.1-3]
            if packet_id in self.released:
                raise violation(f"PUBACK for packet {packet_id}, which is a QoS 2 publication")
        elif delivery.qos != 1:
            self.inflight[packet_id] = delivery
            raise violation(f"PUBACK for packet {packet_id}, which is a QoS 2 publication")
        else:
            self._done(delivery)

    def on_pubrec(self, packet_id: int, reason: Reason) -> bool:
        """True if a PUBREL is due: the packet id is known [MQTT-4.3.3-4]."""
        self._look_at(packet_id)
        delivery = self.inflight.get(packet_id)
        if delivery is None:
            return packet_id in self.released
        if delivery.qos != 2:
            raise violation(f"PUBREC for packet {packet_id}, which is a QoS 1 publication")
        del self.inflight[packet_id]
        if reason.failed:
            self._done(delivery)
            return False
        self.released[packet_id] = delivery
        if delivery.row:
            self.broker.store.release_delivery(delivery)
        if not delivery.under_way and self.backlog is not None:
            self.backlog.forget_size(delivery)
        delivery.message = NOTHING
        return True

    def on_pubcomp(self, packet_id: int, reason: Reason) -> None:
        """The end of a QoS 2 exchange [MQTT-4.3.3-5]; again, or of one that this session never knew, it says nothing.

        That a client has not found a packet id is legal at any time: both sides may forget (MQTT 5 §3.7.2.1).
        """
        self._look_at(packet_id)
        delivery = self.released.pop(packet_id, None)
        if delivery is not None:
            self._done(delivery)
        elif packet_id in self.inflight and reason is not Reason.PACKET_IDENTIFIER_NOT_FOUND:
            raise violation(f"PUBCOMP for packet {packet_id}, which was not released")

    def _done(self, delivery: Delivery) -> None:
        if delivery.under_way:
            self.free += 1
        if delivery.row:
            self.broker.store.drop_delivery(delivery)
        if delivery.loan is not None:
            delivery.loan.settle()
        if self.backlog is not None or self.shares:
            self._on_free()

    def _on_free(self) -> None:
        if self.backlog is not None:
            self.pump()
        elif self.shares:
            self.broker.on_free(self)

    # Connections come and go

    def attach(self, connection: ConnectedClient, window: int) -> None:
        """A connection gets the session. `resume` sends what was left, once the CONNACK is on its way."""
        self.connection = connection
        self.window = self.free = window

    def resume(self) -> None:
        """Sends again what was not acknowledged: PUBRELs, then publications in their order [MQTT-4.4.0-1]."""
        connection = self.connection
        assert connection is not None
        for packet_id, delivery in self.released.items():
            connection.send(b"\x62\x02" + packet_id.to_bytes(2))
            delivery.under_way = True
            self.free -= 1
        if self.inflight:
            waiting = self.backlog.drain() if self.backlog else []
            self.backlog = Backlog(self.broker.metrics)
            for delivery in self.inflight.values():
                self.backlog.push(delivery)
            for delivery in waiting:
                self.backlog.push(delivery)
        self.pump()

    def detach(self) -> None:
        """The connection is gone. What is in flight no longer waits as well, what was retained now waits for itself."""
        self.connection = None
        self.free = 0
        if self.durable:
            for delivery in (*self.inflight.values(), *self.released.values()):
                delivery.under_way = False
        waiting = self.backlog.drain() if self.backlog else []
        self.backlog = None
        for delivery in waiting:
            if delivery.packet_id or (delivery.qos == 0 and not self.broker.limits.queue_qos0):
                continue
            if delivery.row or delivery.group:
                self.backlog = self.backlog or Backlog(self.broker.metrics)
                self.backlog.push(delivery)
            elif self.durable:
                self._hold(delivery)
        self.was_in_order = self.in_order

    def clear(self) -> None:
        """The session ends: nothing of it stays."""
        waiting = self.backlog.drain() if self.backlog else []
        self.backlog = None
        for delivery in (*waiting, *self.inflight.values(), *self.released.values()):
            self.discard(delivery)
        for timer in (self.expiry_timer, self.will_timer):
            if timer is not None:
                timer.cancel()
