"""Publications under way: sent, at most so many at once, and the broker's answers to them collected and told."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from paho.mqtt.packettypes import PacketTypes

from braidmq.cli import output
from braidmq.cli.errors import CliError, ExitCode
from braidmq.cli.mqtt_client.client import (
    INFLIGHT_MAX,
    Connected,
    Disconnected,
    MqttClient,
    PublishAnswered,
    StreamBroken,
    new_properties,
)
from braidmq.mqtt.reasons import Reason

LINE_BYTES_MAX: Final = 16 * 1024 * 1024
"""The longest line of standard input that becomes a message."""


@dataclass(frozen=True, slots=True)
class PublishResult:
    """How one publication went."""

    topic: str
    qos: int
    retain: bool
    size: int
    reason: int
    words: str
    took_s: float

    @property
    def refused(self) -> bool:
        return self.reason >= 0x80

    @property
    def unheard(self) -> bool:
        """Nobody subscribes to it, and the broker said so."""
        return self.reason == Reason.NO_MATCHING_SUBSCRIBERS

    def as_json(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "qos": self.qos,
            "retain": self.retain,
            "bytes": self.size,
            "acknowledged": self.qos > 0 and not self.refused,
            "reason_code": self.reason,
            "reason": self.words,
            "took_ms": round(self.took_s * 1000, 3),
        }


@dataclass(frozen=True, slots=True)
class _InputLine:
    payload: bytes


@dataclass(frozen=True, slots=True)
class _InputEnd:
    """Standard input has ended; `error` says so if it did in a bad way."""

    error: str = ""


class OutgoingMessages:
    """Publications under way: hands them to the client, a window of them at once, and collects the answers."""

    def __init__(
        self,
        client: MqttClient,
        topic: str,
        qos: int,
        retain: bool,
        properties: dict[str, Any],
        *,
        version_5: bool,
        timeout_s: float,
        each: Callable[[PublishResult], None] | None = None,
    ) -> None:
        self._client = client
        self._topic = topic
        self._qos = qos
        self._retain = retain
        self._properties = properties
        self._version_5 = version_5
        self._timeout_s = timeout_s
        self._each = each
        self._waiting: dict[int, tuple[float, int]] = {}
        """Publications without an answer, by number, oldest first: when they were sent, and their size."""
        self._window = INFLIGHT_MAX
        self._room = threading.Semaphore(0)
        """Lines that may be read before more of them are answered."""
        self._alias_set = False
        self._last: PublishResult | None = None
        self._done = self._unheard = self._refused = 0

    def check(self, welcome: Connected) -> None:
        """Raises a CliError for what the broker said in its CONNACK that it will not take."""
        self._window = min(INFLIGHT_MAX, welcome.property("ReceiveMaximum", 65535))  # [MQTT-3.3.4-7]
        if self._qos > welcome.property("MaximumQoS", 2):
            raise CliError(f"the broker does not take QoS {self._qos}", hint="Try a lower --qos.")
        if self._retain and not welcome.property("RetainAvailable", 1):
            raise CliError("the broker keeps no retained messages", hint="Leave --retain out.")
        alias = self._properties.get("TopicAlias", 0)
        if alias > (alias_max := welcome.property("TopicAliasMaximum", 0)):
            raise CliError(f"--topic-alias {alias}, but the broker takes aliases up to {alias_max}")

    def publish(self, payload: bytes, repeat: int, interval_s: float) -> None:
        due = time.monotonic()
        for number in range(repeat):
            if number:
                due += interval_s
                while (left_s := due - time.monotonic()) > 0:
                    self._next_event(min(left_s, self._patience_s()))
            while len(self._waiting) >= self._window:
                self._next_event(self._patience_s())
            self._send(payload)

    def publish_lines(self, descriptor: int) -> None:
        """A thread reads; its lines come through the same queue as the answers, so that neither waits for the other."""
        self._room.release(self._window)
        threading.Thread(target=self._read_lines, args=(descriptor,), daemon=True).start()
        while True:
            event = self._next_event(self._patience_s() if self._waiting else None)
            if isinstance(event, _InputLine):
                self._send(event.payload)
            elif isinstance(event, _InputEnd):
                if event.error:
                    raise CliError(event.error)
                return

    def finish(self) -> None:
        """Waits until all publications are answered."""
        while self._waiting:
            self._next_event(self._patience_s())

    def report(self, *, quiet: bool) -> None:
        """Tells what happened; a CliError if the broker refused any of it."""
        if self._refused and self._last is not None:
            count = "" if self._done == 1 else f"{self._refused} of {self._done} messages, the last: "
            raise CliError(f"the broker refused {count or 'the message: '}{self._last.words}")
        if quiet or self._last is None:
            return
        what = output.counted(self._last.size, "byte") if self._done == 1 else output.counted(self._done, "message")
        how = "sent at QoS 0, without acknowledgement" if self._qos == 0 else f"acknowledged at QoS {self._qos}"
        if self._done == 1 and self._qos:
            how += f" in {self._last.took_s * 1000:.1f} ms"
        output.say(f"Published {what} to {self._topic}: {how}.", "green")
        if self._unheard:
            count = "" if self._unheard == self._done else f" for {self._unheard} of them"
            output.say(f"Nobody was subscribed to {self._topic}{count}.", "yellow")

    def _send(self, payload: bytes) -> None:
        properties = None
        topic = self._topic
        if self._version_5:
            properties = new_properties(PacketTypes.PUBLISH)
            for name, value in self._properties.items():
                setattr(properties, name, value)
            if self._alias_set:
                topic = ""  # MQTT 5 §3.3.2.3.4: the alias alone, once the broker knows it
            self._alias_set = "TopicAlias" in self._properties
        mid = self._client.publish(topic, payload, self._qos, self._retain, properties)
        self._waiting[mid] = (time.monotonic(), len(payload))

    def _patience_s(self) -> float:
        """Seconds until the oldest unanswered publication has waited too long."""
        if not self._waiting:
            return self._timeout_s
        sent_at, _ = next(iter(self._waiting.values()))
        return max(0.0, sent_at + self._timeout_s - time.monotonic())

    def _next_event(self, timeout_s: float | None) -> Any:
        """Takes the next event, or none in this time. Answers are dealt with here; lines are the caller's."""
        event = self._client.next_event(timeout_s)
        match event:
            case PublishAnswered():
                self._on_published(event)
            case Disconnected() | StreamBroken():
                lost = (
                    f" with {output.counted(len(self._waiting), 'message')} unacknowledged"
                    if self._waiting and self._qos
                    else ""
                )
                raise CliError(f"{self._client.address} ended the connection{lost}: {event.words}")
            case None if self._waiting and self._patience_s() <= 0:
                raise CliError(
                    f"no acknowledgement for {output.counted(len(self._waiting), 'message')} in {self._timeout_s:g} s",
                    ExitCode.TIMEOUT,
                    "The broker may have received them all the same.",
                )
        return event

    def _on_published(self, event: PublishAnswered) -> None:
        sent_at, size = self._waiting.pop(event.mid, (time.monotonic(), 0))
        took_s = time.monotonic() - sent_at
        result = PublishResult(self._topic, self._qos, self._retain, size, event.reason, event.words, took_s)
        self._done += 1
        self._unheard += result.unheard
        self._refused += result.refused
        if result.refused or self._last is None or not self._last.refused:
            self._last = result
        self._room.release()
        if self._each is not None:
            self._each(result)

    def _read_lines(self, descriptor: int) -> None:
        try:
            for line in _lines(descriptor):
                self._room.acquire()
                self._client.post(_InputLine(line))
        except (OSError, ValueError) as error:
            self._client.post(_InputEnd(f"standard input: {error}"))
        else:
            self._client.post(_InputEnd())


def _lines(descriptor: int) -> Iterator[bytes]:
    """Lines without their ends, from the descriptor itself: a thread that waits in sys.stdin would block the exit."""
    rest = b""
    while data := os.read(descriptor, 65536):
        *whole, rest = (rest + data).split(b"\n")
        if len(rest) > LINE_BYTES_MAX:
            raise ValueError(f"a line of more than {LINE_BYTES_MAX} bytes")
        for line in whole:
            yield line.removesuffix(b"\r")
    if rest:
        yield rest
