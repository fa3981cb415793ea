"""Mirrors of real brokers: what was acknowledged is on another broker's disk when its own is killed."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from braidmq.admin.client import AdminClient
from braidmq.broker.journal_store import read_copy
from braidmq.journal import journal_writer
from tests.cli.commands import in_process
from tests.conformance import wire
from tests.conformance.wire import V5, Type
from tests.raw import Client, metrics, opened, persistent, readiness, wait_until

if TYPE_CHECKING:
    from tests.conftest import Broker, StartBroker

COUNT = 300


def braid_of(start_broker: StartBroker, folder: Path, count: int) -> list[Broker]:
    """Brokers of one braid, each with a copy of its store at another."""
    brokers: list[Broker] = []
    for number in range(count):
        join = f'join = ["{brokers[0].address("braid").removeprefix("braid://")}"]' if brokers else ""
        config = f'[admin]\nport = 0\n[braid]\nlisten = "127.0.0.1:0"\ncopies = 2\nname = "b{number}"\n{join}\n'
        brokers.append(start_broker(config, data=folder / f"b{number}"))
    return brokers


def copies_of(broker: Broker) -> float:
    return metrics(broker).get("braid_copies", 0)


def test_what_was_acknowledged_survives_kill_9_and_the_loss_of_the_disk(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    brokers = braid_of(start_broker, tmp_path, 3)
    wait_until(lambda: all(copies_of(broker) == 2 for broker in brokers), "each has a mirror")
    owner = brokers[1]
    with opened(owner, "reader", **persistent(V5)) as reader:
        reader.subscribe("a", 2)
    with Client(owner, "publisher", V5, **persistent(V5)) as publisher:
        for number in range(1, COUNT + 1):
            qos = 1 + number % 2
            publisher.send(wire.publish("a", b"%d" % number, version=V5, qos=qos, packet_id=number))
        acknowledged = [acknowledged_id(publisher) for _ in range(COUNT // 2)]
        owner.kill9()
        shutil.rmtree(owner.data)
    (copy,) = tmp_path.glob("b*/mirrors/b1#*")
    (session,) = [one for one in read_copy(copy).sessions if one.client_id == "reader"]
    found = [int(one.delivery.message.payload) for one in session.deliveries]
    assert set(acknowledged) <= set(found)
    assert len(found) == len(set(found))
    for broker in brokers[::2]:
        wait_until(lambda broker=broker: copies_of(broker) == 2, "it finds another mirror")  # type: ignore[misc]


def acknowledged_id(publisher: Client) -> int:
    """The packet id of the next acknowledgement."""
    received = publisher.receive()
    assert received is not None
    assert received.type in (Type.PUBACK, Type.PUBREC)
    assert received.packet_id is not None
    return received.packet_id


def test_fewer_copies_than_wanted_are_told(start_broker: StartBroker, tmp_path: Path) -> None:
    first, second = braid_of(start_broker, tmp_path, 2)
    wait_until(lambda: copies_of(first) == 2, "it has a mirror")
    assert readiness(first) == (200, {"status": "ready"})
    second.kill9()
    wait_until(lambda: copies_of(first) == 1, "it is given up")
    status, told = readiness(first)
    assert status == 200
    assert told["remarks"] == {"copies": "1 of 2 copies of this broker's store are there"}
    with opened(first, "watcher") as watcher:
        watcher.subscribe("$SYS/broker/copies", 0)
        assert watcher.next_message().payload == b"1 of 2 copies"
        second.restart()
        assert watcher.next_message().payload == b"2 of 2 copies"


def told_copies(broker: Broker) -> dict[str, tuple[object, ...]]:
    """What the ring says of the copies of each broker."""
    with AdminClient(broker.address("http")) as admin:
        return {one.name: (one.copies, one.copies_wanted, one.copies_at) for one in admin.ring().brokers}


def test_the_ring_tells_where_copies_are_and_a_planned_end_is_no_incident(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    brokers = braid_of(start_broker, tmp_path, 3)
    wait_until(lambda: all(copies_of(broker) == 2 for broker in brokers), "each has a mirror")
    told = told_copies(brokers[0])
    assert sorted(told) == ["b0", "b1", "b2"]
    for name, (count, wanted, where) in told.items():
        assert (count, wanted) == (2, 2)
        assert isinstance(where, list)
        (mirror,) = where
        assert list((tmp_path / mirror / "mirrors").glob(f"{name}#*")), "it has a copy on its disk"
    with opened(brokers[0], "watcher") as watcher:
        watcher.subscribe("$SYS/broker/copies", 0)
        assert watcher.next_message().payload == b"2 of 2 copies"
    shown = in_process("ring", "--admin", brokers[0].address("http"))
    assert f"b0 has 2 of 2 copies of its store: its own, one at {told['b0'][2][0]}" in shown.stdout  # type: ignore[index]
    ending = next(number for number in (1, 2) if told["b0"][2] == [f"b{number}"])
    assert brokers[ending].terminate() == 0
    other = brokers[3 - ending]
    wait_until(lambda: told_copies(other).get("b0") == (2, 2, [f"b{3 - ending}"]), "it finds another mirror")
    assert other.terminate() == 0
    wait_until(lambda: copies_of(brokers[0]) == 1, "its mirror has said good-bye")
    assert readiness(brokers[0])[1]["remarks"] == {"copies": "1 of 2 copies of this broker's store are there"}
    assert told_copies(brokers[0]) == {"b0": (1, 2, [])}
    assert brokers[0].terminate() == 0
    assert all("WARNING" not in broker.log for broker in brokers), brokers[0].log


def test_a_copy_is_compacted_by_the_broker_that_holds_it(start_broker: StartBroker, tmp_path: Path) -> None:
    """A retained message that is replaced again and again takes up the room of a few, also in the copy."""
    owner, holder = braid_of(start_broker, tmp_path, 2)
    wait_until(lambda: copies_of(owner) == 2, "it has a mirror")
    with opened(owner, "writer") as writer:
        for number in range(70):
            writer.publish("kept", b"%d." % number + bytes(1_000_000), 0, retain=True)  # QoS 1 would be in the history
            writer.publish("other", b"", 1)
    (copy,) = (tmp_path / "b1" / "mirrors").glob("b0#*")

    def size() -> int:
        with contextlib.suppress(FileNotFoundError):  # one of the files has just been compacted
            return sum(path.stat().st_size for path in copy.iterdir())
        return journal_writer.COMPACT_BYTES

    wait_until(lambda: bool(list(copy.glob("*.snapshot"))) and size() < journal_writer.COMPACT_BYTES / 2, "compacted")
    with opened(owner, "writer") as writer:
        writer.publish("kept", b"last", 1, retain=True)
    assert copies_of(owner) == 2, "it goes on"
    owner.kill9()
    assert [one.payload for one in read_copy(copy).retained if one.topic == "kept"] == [b"last"]
    assert "Traceback" not in holder.log
