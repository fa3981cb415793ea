"""The process of the demonstration: lets buses drive, Spark do its half and the control room listen; then sums up.

Its standard input is a socket to the process with the brokers: the order comes first, and when it is closed, this
process ends with all that it has started.
"""

from __future__ import annotations

import itertools
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from braidmq.admin.client import AdminClient
from braidmq.admin.contract import AssignedTopic, Move
from braidmq.cli import output
from braidmq.cli.admin_port import BrokerAdmin
from braidmq.cli.demo.buses import FRAME_S, Alert, BrokerGone, Bus, ControlRoom, topic_of
from braidmq.cli.demo.plan import BUSES_A_SITE, COMPUTE_MAX, NAME, PROCESSOR, ROOM_WORD, DemoPlan, DemoSite
from braidmq.cli.demo.spark_half import START_MAX_S, SparkHalf
from braidmq.cli.demo.summary import Summary, counts_of
from braidmq.cli.errors import CliError
from braidmq.cli.up import ENDS
from braidmq.processors.loading import load_processor

ORDER_BYTES_MAX: Final = 1 << 20
ALERTS_S: Final = 20.0
"""How long it is waited for an alert that is missing in the end."""
SHOWN_MAX: Final = 2
"""Alerts of a bus that are shown as they come, and as many of those that had to wait; all of them are counted."""
ROOM_S: Final = 10.0
RETURN_S: Final = 30.0
POLL_S: Final = 0.1
END_S: Final = 15.0
"""How long an end may take before it is a hard one."""
GRACE_S: Final = 10.0
"""Between the end of a connection and the word that the brokers end."""


class BrokersEnded(Exception):
    """The brokers end."""


class Demonstration:
    def __init__(self, order: DemoPlan, channel: socket.socket, ending: threading.Event) -> None:
        self._order = order
        self._channel = channel
        self._ending = ending
        self._trip = secrets.token_hex(4)
        self._admins = {site.name: BrokerAdmin(site.admin, order.token) for site in order.sites}
        self._buses: list[Bus] = []
        self._spark = SparkHalf(order) if not order.no_spark else None
        self._shown: dict[tuple[int, bool], int] = {}
        """Alerts by bus, and by whether they had to wait for Spark."""
        self._told = ""
        """The state of Spark that was told last."""

    def run(self) -> Summary:
        order = self._order
        before = {site.name: counts_of(self._admins[site.name]) for site in order.sites}
        began = time.monotonic()
        processor = load_processor(PROCESSOR)
        assert processor.output is not None
        numbers = self._free_numbers()
        self._buses = [
            Bus(next(numbers), site, self._trip, processor) for site in order.bus_sites for _ in range(BUSES_A_SITE)
        ]
        room = ControlRoom(order.control_site, processor.output, self._trip, {bus.topic: bus for bus in self._buses})
        room.begin()
        self._say_beginning()
        if self._spark is not None:
            self._spark.begin()
        for bus in self._buses:
            bus.begin()
        self._find_places()
        self._drive(room)
        took_s = time.monotonic() - began
        self._wait_for_alerts(room)
        self._find_places()
        counts = {site.name: counts_of(self._admins[site.name]).since(before[site.name]) for site in order.sites}
        for bus in self._buses:
            bus.end()
        room.end()
        returned, stayed = self._bring_home()
        if self._spark is not None:
            self._spark.end()
        state, words, ran_at = self._spark_words()
        control = order.control_site.name
        return Summary(
            self._buses, order.sites, counts, control, took_s, state, words, ran_at, room.earlier, returned, stayed
        )

    def end(self) -> None:
        if self._spark is not None:
            self._spark.end()

    # Before

    def _free_numbers(self) -> Iterator[int]:
        """Of buses. One whose topic an earlier trip has left to Spark does not drive until that is back."""
        busy = {one.topic for _, one in self._topics() if one.place != "edge"}
        return (number for number in itertools.count(1) if topic_of(number) not in busy)

    def _topics(self) -> Iterator[tuple[DemoSite, AssignedTopic]]:
        """What the brokers say of topics: (site, where it is processed)."""
        for site in self._order.bus_sites:
            for one in self._admins[site.name].ask(lambda client: client.assigned_topics(processor=NAME)):
                yield site, one

    def _say_beginning(self) -> None:
        order = self._order
        if order.json_lines:
            return
        sites = " and ".join(site.name for site in order.bus_sites)
        output.say("")
        output.say(
            f"A demonstration: {len(self._buses)} buses at {sites}, a control room at {order.control_site.name}.",
            "bold",
        )
        output.say(f"They publish on {self._buses[0].topic} and so on; the processor is {PROCESSOR}.")
        if self._spark is None:
            output.say(f"Without Spark: {order.no_spark}", "yellow")
        else:
            output.say("Spark starts, which takes some seconds; frames that are its to process wait in the log.")
        output.say("The first alerts of each bus, as they come to the control room:")

    # On the way

    def _drive(self, room: ControlRoom) -> None:
        next_at = time.monotonic()
        ready_at = None if self._spark is not None else next_at
        began = next_at
        while ready_at is None or time.monotonic() - ready_at < self._order.seconds:
            self._listen(room, next_at)
            next_at += FRAME_S
            for bus in self._buses:
                bus.listen()
                bus.tell()
            self._tell_spark()
            if ready_at is None and self._spark is not None and self._spark.state != "starting":
                ready_at = time.monotonic()
                self._find_places()
            if ready_at is None and self._spark is not None and time.monotonic() - began > START_MAX_S:
                self._spark.give_up()

    def _listen(self, room: ControlRoom, until: float) -> None:
        """Takes alerts until it is time for the next frame."""
        while True:
            self._check()
            alert = room.next_alert(min(POLL_S, max(0.0, until - time.monotonic())))
            if alert is not None:
                self._show(alert)
            elif time.monotonic() >= until:
                return

    def _wait_for_alerts(self, room: ControlRoom) -> None:
        """Of all buses that are processed at all."""
        lost = self._spark is not None and self._spark.state == "failed"
        buses = [bus for bus in self._buses if not (lost and bus.place == "spark")]
        ends_at = time.monotonic() + ALERTS_S
        while time.monotonic() < ends_at and any(bus.missing or bus.acknowledged < bus.frames for bus in buses):
            for bus in self._buses:
                bus.listen()
            missing = sum(bus.missing for bus in buses)
            self._listen(room, time.monotonic() + POLL_S)
            if sum(bus.missing for bus in buses) < missing:
                ends_at = time.monotonic() + ALERTS_S
            self._tell_spark()

    def _check(self) -> None:
        if self._ending.is_set():
            raise BrokersEnded

    def _find_places(self) -> None:
        places = {(site, one.topic): one.place for site, one in self._topics()}
        for bus in self._buses:
            place = places.get((bus.site, bus.topic), "")
            bus.place = "spark" if place == "returning" else place

    def _show(self, alert: Alert) -> None:
        bus, spark = alert.bus, self._spark
        has_waited = bus.place == "spark" and spark is not None and bus.sent_at[alert.frame] < spark.ran_at
        if self._order.json_lines:
            content = {"event": "alert", "topic": bus.topic, "place": bus.place, "frame": alert.frame}
            output.print_json(content | {"took_ms": round(1000 * alert.took_s, 1), "has_waited": has_waited})
            return
        kind = (bus.number, has_waited)
        self._shown[kind] = self._shown.get(kind, 0) + 1
        if self._shown[kind] > SHOWN_MAX:
            return
        place = f"at the edge of {bus.site.name}" if bus.place == "edge" else f"on Spark, for {bus.site.name}"
        took = f"{alert.took_s:.1f} s, since it waited for Spark" if has_waited else f"{1000 * alert.took_s:.1f} ms"
        output.say(f"  bus {bus.number} is crowded: {alert.passengers} passengers  ({place}; {took})")

    def _tell_spark(self) -> None:
        spark = self._spark
        if spark is None or spark.state == self._told:
            return
        self._told = spark.state
        if self._order.json_lines:
            output.print_json({"event": "spark", "state": spark.state, "took_s": round(spark.took_s, 1)})
        elif spark.state == "running":
            output.say(f"Spark is there, after {spark.took_s:.1f} s.", "green")
        elif spark.state == "failed":
            output.say(f"Spark failed: {spark.why}", "red")

    # Behind

    def _bring_home(self) -> tuple[list[str], list[str]]:
        """The edges get room for all, and take back what is Spark's, so that nothing depends on Spark any more."""
        delegated = self._delegated()
        if self._spark is None:
            return [], [topic for _, topic in delegated]
        self._channel.sendall(ROOM_WORD)
        if not delegated or self._spark.state != "running":
            return [], [topic for _, topic in delegated]
        site = self._order.bus_sites[0]
        self._wait(lambda: self._compute_max(site) > COMPUTE_MAX, ROOM_S)
        for name, topic in delegated:
            try:
                self._admins[name].ask(_take_back(topic))
            except CliError:
                continue  # it is about to change hands already
        self._wait(lambda: not self._delegated(), RETURN_S)
        left = self._delegated()
        return [topic for name, topic in delegated if (name, topic) not in left], [topic for _, topic in left]

    def _compute_max(self, site: DemoSite) -> float:
        return self._admins[site.name].ask(lambda client: client.processing()).compute.max

    def _delegated(self) -> list[tuple[str, str]]:
        """(site, topic) of all that is Spark's."""
        return [(site.name, one.topic) for site, one in self._topics() if one.place in ("spark", "returning")]

    def _wait(self, is_so: Callable[[], bool], timeout_s: float) -> None:
        ends_at = time.monotonic() + timeout_s
        while not is_so() and time.monotonic() < ends_at:
            self._check()
            time.sleep(POLL_S)

    def _spark_words(self) -> tuple[str, str, float]:
        spark = self._spark
        if spark is None:
            return "off", f"took no part: {self._order.no_spark}", 0.0
        if spark.state == "failed":
            return "failed", spark.why, spark.ran_at
        return "ended", f"was there after {spark.took_s:.1f} s, and processed {spark.processed:,} frames.", spark.ran_at


def _take_back(topic: str) -> Callable[[AdminClient], AssignedTopic]:
    return lambda client: client.move(Move(NAME, topic, "edge"))


def _hints(order: DemoPlan) -> None:
    topic = topic_of(BUSES_A_SITE)
    output.say("Look further, while the brokers run:")
    for words in (
        f"process list --data {order.data}",
        f"process where {topic} --data {order.data}",
        f"log read --topic bus/alerts --data {order.data}",
        f"ring --data {order.data}",
    ):
        output.say(f"  {order.program} {words}", "bold")
    output.say(ENDS, "dim")


def _read_order(channel: socket.socket) -> DemoPlan:
    text = b""
    while not text.endswith(b"\n"):
        piece = channel.recv(65536)
        if not piece or len(text) > ORDER_BYTES_MAX:
            raise BrokersEnded
        text += piece
    return msgspec.json.decode(text, type=DemoPlan)


def _watch(channel: socket.socket, ending: threading.Event) -> None:
    """Until the other end is closed; if this process has not ended a while later, it is ended."""
    try:
        while channel.recv(4096):
            pass
    except OSError:
        pass
    ending.set()
    time.sleep(END_S)
    os._exit(1)


def main() -> int:
    channel = socket.socket(fileno=os.dup(sys.stdin.fileno()))
    ending = threading.Event()
    try:
        order = _read_order(channel)
    except BrokersEnded:
        return 0
    threading.Thread(target=_watch, args=(channel, ending), daemon=True).start()
    conductor = Demonstration(order, channel, ending)
    try:
        summary = conductor.run()
    except BrokersEnded:
        conductor.end()
        return 0
    except (CliError, BrokerGone) as error:
        conductor.end()
        if ending.wait(GRACE_S):
            return 0
        output.show_error(str(error), getattr(error, "hint", ""))
        if not order.once:
            output.note("The demonstration has ended; the brokers go on. Ctrl-C ends them.")
        return 1
    if order.json_lines:
        output.print_json(summary.as_json())
    else:
        summary.show()
        if not order.once:
            _hints(order)
    return 0 if summary.is_well else 1


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # threads may still be in Java, which ends with this process
