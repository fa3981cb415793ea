"""The ways of messages through the source, traced: which files must be read to follow one?

    .venv/bin/python -m tests.walks

Real brokers, clients in memory, and virtual time between the brokers. Each walk is traced from the bytes of a client's
packet to the last answer that it causes. On one broker nothing is remembered from an earlier message of the topic;
across brokers the topic has been published before, for how it becomes known to them is the third walk. A walk begins at
a moment at which nothing else is going on.

What counts is every file that lies on the way: whose code is on the stack where the message is handed over to a socket,
to another broker, to a procedure of its own, or to the end of the tick. A file that is only asked something on the way
(a table, a codec, a counter) is not on it: a reader takes its answer for granted. The seam (`host.py`) and the
simulator do not count: they stand for the network, as sockets do. Beside it stands in how many files any code ran.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import braidmq
from braidmq.pubsub.registry import METHOD_DEFAULT
from braidmq.sim.network import Constant
from tests.braid.sites import Sites
from tests.conformance import wire
from tests.conformance.pair import Peer, World
from tests.conformance.wire import Type

ROOT = Path(braidmq.__file__).parent
METHOD = METHOD_DEFAULT
"""What brokers use unless told otherwise."""
STEP_S = 0.001
QUIET_S = 0.2
WALK_S = 10.0
"""How long a walk may take, of virtual time."""


HAND_OVERS = {
    *("SimHost.send", "SimHost.call", "SimHost.spawn"),
    *("Tick.touch", "Tick.request_flush", "Link.write"),
}
"""Where a message leaves the chain of calls that it came by: to a host or a procedure, a tick's end, a socket."""


class Trace:
    """The files on the way, in the order in which they were reached, and all whose code has run."""

    def __init__(self) -> None:
        self.files: dict[str, dict[str, None]] = {}
        """And the functions of each, likewise."""
        self.touched: dict[str, None] = {}

    @property
    def by_layer(self) -> Counter[str]:
        """How many files of each layer."""
        return Counter(file.partition("/")[0].removesuffix(".py") for file in self.files)

    @contextmanager
    def on(self) -> Iterator[None]:
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call":
            return
        if (file := _file_of(frame)) is not None:
            self.touched[file] = None
        if frame.f_code.co_qualname in HAND_OVERS:
            stack = []
            while frame.f_back is not None:
                frame = frame.f_back
                stack.append(frame)
            for each in reversed(stack):
                if (file := _file_of(each)) is not None:
                    self.files.setdefault(file, {})[each.f_code.co_qualname] = None


def _file_of(frame: FrameType) -> str | None:
    """The file of a function, if it is the project's and does not stand for the network."""
    name = frame.f_code.co_filename
    if not name.startswith(f"{ROOT}/") or name.startswith((f"{ROOT}/sim/", f"{ROOT}/host.py")):
        return None
    return name.removeprefix(f"{ROOT}/")


def braided() -> Sites:
    """Two brokers that have found each other."""
    sites = Sites(2, method=METHOD, network=Constant(STEP_S))
    sites.sim.on_message = lambda *_: None
    return sites


def send(sites: Sites, trace: Trace, peer: Peer, packet: bytes, is_done: Callable[[], bool]) -> None:
    """A client sends a packet, and time goes by until what comes of it has come."""
    with trace.on():
        peer.connection.receive(packet)
    end = sites.sim.now + WALK_S
    while not is_done():
        assert sites.sim.now < end, "the walk has no end"
        with trace.on():
            sites.sim.run(sites.sim.now + STEP_S)


def wait_for_quiet(sites: Sites) -> None:
    """Goes on to a moment after which no broker does anything of its own for a while."""
    for _ in range(1000):
        idle = Trace()
        with idle.on():
            sites.sim.run(sites.sim.now + QUIET_S)
        if not idle.touched:
            return
    raise AssertionError("it is never quiet")


def come(peer: Peer, kind: Type, packet_id: int | None = None, topic: str | None = None) -> Callable[[], bool]:
    """Whether such a packet has reached the client."""

    def has_come() -> bool:
        peer._read()
        return any(
            each.type is kind and (packet_id is None or each.packet_id == packet_id) and topic in (None, each.topic)
            for each in peer._seen
        )

    return has_come


def qos_0_on_one_broker() -> Trace:
    """A publication of QoS 0, from a client to another at the same broker."""
    world = World()
    subscriber, publisher = world.client("subscriber"), world.client("publisher")
    subscriber.subscribe("tide/high")
    trace = Trace()
    with trace.on():
        publisher.connection.receive(wire.publish("tide/high", b"1"))
        world.broker.flush()
    subscriber.expect_publish("tide/high", b"1")
    return trace


def qos_1_across_two_brokers() -> Trace:
    """A publication of QoS 1, from a client of one broker to a client of another, with both acknowledgements."""
    sites = braided()
    subscriber, publisher = sites.client(1, "subscriber"), sites.client(0, "publisher")
    assert subscriber.subscribe("tide/high", 1) == 1
    publisher.publish("tide/high", b"0", 1)
    sites.run(5.0)
    subscriber.expect_publish("tide/high", b"0", qos=1)
    wait_for_quiet(sites)
    trace = Trace()
    has_arrived, is_acknowledged = come(subscriber, Type.PUBLISH), come(publisher, Type.PUBACK)
    packet = wire.publish("tide/high", b"1", qos=1, packet_id=7)
    send(sites, trace, publisher, packet, lambda: has_arrived() and is_acknowledged())
    got = subscriber.expect_publish("tide/high", b"1", qos=1)
    assert got.packet_id
    send(sites, trace, subscriber, wire.ack(Type.PUBACK, got.packet_id), lambda: True)
    return trace


def subscribe_demand_resume() -> Trace:
    """A subscription at one broker; a device at another, whose publications had no subscriber, is told to go on.

    A client has subscribed before: the two brokers have met.
    """
    sites = braided()
    device, subscriber = sites.client(0, "device"), sites.client(1, "subscriber")
    device.publish("tide/high", b"nobody wants this", 0)
    subscriber.subscribe("tide/high", 1)
    subscriber.unsubscribe("tide/high")
    device.subscribe("$demand/tide/high", 1)
    sites.run(5.0)
    device.expect_publish("$demand/tide/high", b"0")
    wait_for_quiet(sites)
    trace = Trace()
    is_answered, is_told = come(subscriber, Type.SUBACK), come(device, Type.PUBLISH, topic="$demand/tide/high")
    packet = wire.subscribe(7, ("tide/high", 1))
    send(sites, trace, subscriber, packet, lambda: is_answered() and is_told())
    device.expect_publish("$demand/tide/high", b"1")
    return trace


WALKS = {
    "QoS 0 on one broker": (qos_0_on_one_broker, 10),
    "QoS 1 across two brokers": (qos_1_across_two_brokers, 25),
    "subscribe, demand, resume": (subscribe_demand_resume, 30),
}
"""By name: the walk, and how many files it may lead through."""


def main() -> None:
    for name, (walk, files_max) in WALKS.items():
        trace = walk()
        layers = ", ".join(f"{layer} {count}" for layer, count in trace.by_layer.most_common())
        print(f"{name}: {len(trace.files)} files, of at most {files_max} ({layers}); code ran in {len(trace.touched)}")
        for file, functions in trace.files.items():
            print(f"  {file:40} {', '.join(functions)}")


if __name__ == "__main__":
    main()
