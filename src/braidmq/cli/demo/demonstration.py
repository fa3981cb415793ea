"""The process of the demonstration: buses drive, Spark does its half, the control room listens; then it sums up.

Its standard input is a socket to the process with the brokers: the plan comes first, and when the socket is closed,
this process ends with all that it has started.
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

from braidmq.admin.client import AdminClient
from braidmq.admin.contract import AssignedTopic, Move
from braidmq.cli import output
from braidmq.cli.admin_port import BrokerAdmin
from braidmq.cli.demo.buses import FRAME_S, Alert, BrokerGone, Bus, ControlRoom, topic_of
from braidmq.cli.demo.channel import BrokersEnded, open_channel, read_plan, watch
from braidmq.cli.demo.plan import BUSES_A_SITE, COMPUTE_MAX, NAME, PROCESSOR, ROOM_WORD, DemoPlan, DemoSite
from braidmq.cli.demo.spark_half import START_MAX_S, SparkHalf
from braidmq.cli.demo.summary import Summary, counts_of
from braidmq.cli.errors import CliError
from braidmq.cli.up import ENDS
from braidmq.processors.loading import load_processor

ALERTS_S: Final = 20.0
"""How long an alert may be missing in the end."""
SHOWN_MAX: Final = 2
"""Alerts of a bus that are shown as they come, and as many of those that had to wait; all of them are counted."""
ROOM_S: Final = 10.0
RETURN_S: Final = 30.0
POLL_S: Final = 0.1
GRACE_S: Final = 10.0
"""What may pass between the end of a connection and the news that the brokers end."""


class Demonstration:
    def __init__(self, plan: DemoPlan, channel: socket.socket, ending: threading.Event) -> None:
        self._plan = plan
        self._channel = channel
        self._ending = ending
        self._trip = secrets.token_hex(4)
        self._admins = {site.name: BrokerAdmin(site.admin, plan.token) for site in plan.sites}
        self._buses: list[Bus] = []
        self._spark = SparkHalf(plan) if not plan.no_spark else None
        self._shown: dict[tuple[int, bool], int] = {}
        """Alerts by bus, and by whether they had to wait for Spark."""
        self._told = ""
        """The state of Spark that was shown last."""

    def run(self) -> Summary:
        plan = self._plan
        before = {site.name: counts_of(self._admins[site.name]) for site in plan.sites}
        began = time.monotonic()
        processor = load_processor(PROCESSOR)
        assert processor.output is not None
        numbers = self._free_numbers()
        self._buses = [
            Bus(next(numbers), site, self._trip, processor) for site in plan.bus_sites for _ in range(BUSES_A_SITE)
        ]
        room = ControlRoom(plan.control_site, processor.output, self._trip, {bus.topic: bus for bus in self._buses})
        room.begin()
        self._say_beginning()
        if self._spark is not None:
            self._spark.begin()
        for bus in self._buses:
            bus.begin()
        self._find_assignments()
        self._drive(room)
        took_s = time.monotonic() - began
        self._wait_for_alerts(room)
        self._find_assignments()
        counts = {site.name: counts_of(self._admins[site.name]).since(before[site.name]) for site in plan.sites}
        for bus in self._buses:
            bus.end()
        room.end()
        returned, stayed = self._bring_home()
        if self._spark is not None:
            self._spark.end()
        state, words, ran_at = self._spark_words()
        control = plan.control_site.name
        return Summary(
            self._buses, plan.sites, counts, control, took_s, state, words, ran_at, room.earlier, returned, stayed
        )

    def end(self) -> None:
        if self._spark is not None:
            self._spark.end()

    # Before the trip

    def _free_numbers(self) -> Iterator[int]:
        """Numbers of buses, without those whose topic an earlier trip has left to Spark."""
        busy = {one.topic for _, one in self._topics() if one.place != "edge"}
        return (number for number in itertools.count(1) if topic_of(number) not in busy)

    def _topics(self) -> Iterator[tuple[DemoSite, AssignedTopic]]:
        """(site, topic) of all topics, as the brokers have assigned them."""
        for site in self._plan.bus_sites:
            for one in self._admins[site.name].ask(lambda client: client.assigned_topics(processor=NAME)):
                yield site, one

    def _say_beginning(self) -> None:
        plan = self._plan
        if plan.json_lines:
            return
        sites = " and ".join(site.name for site in plan.bus_sites)
        output.say("")
        output.say(
            f"A demonstration: {len(self._buses)} buses at {sites}, a control room at {plan.control_site.name}.",
            "bold",
        )
        output.say(f"They publish on {self._buses[0].topic} and so on; the processor is {PROCESSOR}.")
        if self._spark is None:
            output.say(f"Without Spark: {plan.no_spark}", "yellow")
        else:
            output.say("Spark starts, which takes some seconds; frames that are its to process wait in the log.")
        output.say("The first alerts of each bus, as they come to the control room:")

    # During the trip

    def _drive(self, room: ControlRoom) -> None:
        next_at = time.monotonic()
        ready_at = None if self._spark is not None else next_at
        began = next_at
        while ready_at is None or time.monotonic() - ready_at < self._plan.seconds:
            self._listen(room, next_at)
            next_at += FRAME_S
            for bus in self._buses:
                bus.read_events()
                bus.publish_frame()
            self._tell_spark()
            if ready_at is None and self._spark is not None and self._spark.state != "starting":
                ready_at = time.monotonic()
                self._find_assignments()
            if ready_at is None and self._spark is not None and time.monotonic() - began > START_MAX_S:
                self._spark.give_up()

    def _listen(self, room: ControlRoom, until: float) -> None:
        """Shows alerts until it is time for the next frame."""
        while True:
            self._check()
            alert = room.next_alert(min(POLL_S, max(0.0, until - time.monotonic())))
            if alert is not None:
                self._show(alert)
            elif time.monotonic() >= until:
                return

    def _wait_for_alerts(self, room: ControlRoom) -> None:
        """Waits for the alerts that are missing, of all buses that are processed at all, and for what brokers owe."""
        lost = self._spark is not None and self._spark.state == "failed"
        buses = [bus for bus in self._buses if not (lost and bus.processed_at == "spark")]
        ends_at = time.monotonic() + ALERTS_S
        while time.monotonic() < ends_at and (
            any(bus.missing for bus in buses) or any(bus.acknowledged < bus.frames for bus in self._buses)
        ):
            for bus in self._buses:
                bus.read_events()
            missing = sum(bus.missing for bus in buses)
            self._listen(room, time.monotonic() + POLL_S)
            if sum(bus.missing for bus in buses) < missing:
                ends_at = time.monotonic() + ALERTS_S
            self._tell_spark()

    def _check(self) -> None:
        if self._ending.is_set():
            raise BrokersEnded

    def _find_assignments(self) -> None:
        assigned = {(site, one.topic): one.place for site, one in self._topics()}
        for bus in self._buses:
            where = assigned.get((bus.site, bus.topic), "")
            bus.processed_at = "spark" if where == "returning" else where

    def _show(self, alert: Alert) -> None:
        bus, spark = alert.bus, self._spark
        has_waited = bus.processed_at == "spark" and spark is not None and bus.sent_at[alert.frame] < spark.ran_at
        if self._plan.json_lines:
            content = {"event": "alert", "topic": bus.topic, "place": bus.processed_at, "frame": alert.frame}
            output.print_json(content | {"took_ms": round(1000 * alert.took_s, 1), "has_waited": has_waited})
            return
        kind = (bus.number, has_waited)
        self._shown[kind] = self._shown.get(kind, 0) + 1
        if self._shown[kind] > SHOWN_MAX:
            return
        where = f"at the edge of {bus.site.name}" if bus.processed_at == "edge" else f"on Spark, for {bus.site.name}"
        took = f"{alert.took_s:.1f} s, since it waited for Spark" if has_waited else f"{1000 * alert.took_s:.1f} ms"
        output.say(f"  bus {bus.number} is crowded: {alert.passengers} passengers  ({where}; {took})")

    def _tell_spark(self) -> None:
        spark = self._spark
        if spark is None or spark.state == self._told:
            return
        self._told = spark.state
        if self._plan.json_lines:
            output.print_json({"event": "spark", "state": spark.state, "took_s": round(spark.took_s, 1)})
        elif spark.state == "running":
            output.say(f"Spark is there, after {spark.took_s:.1f} s.", "green")
        elif spark.state == "failed":
            output.say(f"Spark failed: {spark.why}", "red")

    # After the trip

    def _bring_home(self) -> tuple[list[str], list[str]]:
        """Makes room for all topics at the edge, and moves them back from Spark: those that came back, and the rest."""
        delegated = self._delegated()
        if self._spark is None:
            return [], [topic for _, topic in delegated]
        self._channel.sendall(ROOM_WORD)
        if not delegated or self._spark.state != "running":
            return [], [topic for _, topic in delegated]
        site = self._plan.bus_sites[0]
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
            return "off", f"took no part: {self._plan.no_spark}", 0.0
        if spark.state == "failed":
            return "failed", spark.why, spark.ran_at
        return "ended", f"was there after {spark.took_s:.1f} s, and processed {spark.processed:,} frames.", spark.ran_at


def _take_back(topic: str) -> Callable[[AdminClient], AssignedTopic]:
    return lambda client: client.move(Move(NAME, topic, "edge"))


def _hints(plan: DemoPlan) -> None:
    topic = topic_of(BUSES_A_SITE)
    output.say("Look further, while the brokers run:")
    for words in (
        f"process list --data {plan.data}",
        f"process where {topic} --data {plan.data}",
        f"log read --topic bus/alerts --data {plan.data}",
        f"ring --data {plan.data}",
    ):
        output.say(f"  {plan.program} {words}", "bold")
    output.say(ENDS, "dim")


def main() -> int:
    channel = open_channel()
    try:
        plan = read_plan(channel, DemoPlan)
    except BrokersEnded:
        return 0
    ending = watch(channel)
    demonstration = Demonstration(plan, channel, ending)
    try:
        summary = demonstration.run()
    except BrokersEnded:
        demonstration.end()
        return 0
    except (CliError, BrokerGone) as error:
        demonstration.end()
        if ending.wait(GRACE_S):
            return 0
        output.show_error(str(error), getattr(error, "hint", ""))
        if not plan.once:
            output.note("The demonstration has ended; the brokers go on. Ctrl-C ends them.")
        return 1
    if plan.json_lines:
        output.print_json(summary.as_json())
    else:
        summary.show()
        if not plan.once:
            _hints(plan)
    return 0 if summary.is_well else 1


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # threads may still be in Java, which ends with this process
