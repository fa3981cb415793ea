"""Which publications of a client are its last ones: from a history, and from what came with its session."""

from __future__ import annotations

import msgspec
import pytest

from braidmq.braid.catch_up import last_sent
from braidmq.braid.catch_up.history import History, Sent
from braidmq.braid.catch_up.last_sent import TOPICS_MAX, LastSent
from braidmq.braid.transfer.batch import BatchItem, Predecessor, run_of
from braidmq.braid.transfer.predecessors import Predecessors
from braidmq.broker.store import MemoryStore
from braidmq.mqtt.packets import V3
from braidmq.sim.engine import Simulator
from braidmq.sim.network import Constant
from tests.conformance import wire


def item(sender: str) -> BatchItem:
    return BatchItem(b"x", 1, False, sender, b"", None)


def test_the_last_of_each_topic_in_a_history() -> None:
    history = History(MemoryStore(), [])
    last = LastSent(history)
    assert last.of("ada") == {}
    history.append("tide", 1, 1, item("ada"), 0.0)
    history.append("wind", 1, 1, item("ada"), 0.0)
    history.append("tide", 1, 2, item("bob"), 0.0)
    assert last.of("ada") == {"tide": 1, "wind": 2}
    packets = b"".join(wire.publish("tide", b"x", version=V3, qos=1, packet_id=one) for one in (1, 2, 3))
    history.append_run("tide", 1, 3, run_of("tide", packets, 3, V3), "ada", 0.0)
    assert last.of("ada") == {"tide": 6, "wind": 2}
    assert last.of("bob") == {"tide": 3}


def test_so_many_clients_and_topics_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_sent, "SENDERS_MAX", 2)
    history = History(MemoryStore(), [])
    last = LastSent(history)
    for number in range(TOPICS_MAX + 1):
        history.append(f"t{number}", 1, 1, item("ada"), 0.0)
    found = last.of("ada")
    assert len(found) == TOPICS_MAX
    assert "t0" not in found
    for sender in ("bob", "ada", "eve"):
        history.append("tide", 1, 1, item(sender), 0.0)
    assert last.of("bob") == {}
    assert last.of("ada")
    assert last.of("eve")


def test_what_came_with_a_session_counts_until_it_publishes_again() -> None:
    history = History(MemoryStore(), [])
    host = Simulator(1, Constant(0.01)).host(4)
    predecessors = Predecessors(host, "here", LastSent(history))
    taken: list[str] = []
    predecessors.on_taken = taken.append
    history.append("tide", 1, 1, item("ada"), 0.0)  # when it was here before
    there = Predecessor("there", 9, 5)
    predecessors.set("ada", (("tide", there), ("wind", there)))
    assert dict(predecessors.last("ada")) == {"tide": there, "wind": there}
    assert predecessors.take("ada", "tide") == there
    assert predecessors.take("ada", "tide") is None
    assert taken == ["ada"]
    history.append("tide", 1, 2, item("ada"), 0.0)
    assert dict(predecessors.last("ada")) == {"tide": Predecessor("here", 2, 4), "wind": there}
    assert predecessors.left("ada") == (("wind", there),)
    predecessors.take("ada", "wind")
    assert not predecessors


def test_the_first_of_a_run_follows_what_the_run_does() -> None:
    packets = b"".join(wire.publish("tide", b"x", version=V3, qos=1, packet_id=one) for one in (1, 2))
    history = History(MemoryStore(), [])
    before = Predecessor("there", 9, 5)
    history.append_run("tide", 1, 1, run_of("tide", packets, 2, V3), "ada", 0.0, before)
    row = msgspec.msgpack.decode(msgspec.msgpack.encode(next(history.behind(0))), type=Sent)
    assert [one.follows for one in row.singly()] == [before, None]
