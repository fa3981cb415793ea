"""Runs of QoS 1 and 2: that they are taken as runs, and what clients do with them.

That every client is sent the same as without the fast path is shown in test_fast_path.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from braidmq.broker import acknowledged_path
from braidmq.broker.invariants import check_session
from braidmq.broker.journal_store import JournalStore
from braidmq.broker.limits import Limits
from braidmq.broker.packet_ids import PACKET_ID_MAX
from braidmq.broker.router import KEPT_AT_ONCE
from tests.conformance import wire
from tests.conformance.pair import V3, V5, Peer, Type, World, persistent

VERSIONS = pytest.mark.parametrize("version", [V3, V5])


def run(version: int, qos: int, count: int, first: int = 1, topic: str = "t") -> bytes:
    return b"".join(
        wire.publish(topic, b"%05d" % number, version=version, qos=qos, packet_id=number)
        for number in range(first, first + count)
    )


def acks(first_byte: int, ids: list[int]) -> list[bytes]:
    return [bytes((first_byte, 2)) + one.to_bytes(2) for one in ids]


def pair(world: World, version: int, qos: int) -> tuple[Peer, Peer]:
    subscriber = world.client("s", version)
    subscriber.subscribe("t", qos)
    return world.client("p", version), subscriber


def sent_ids(subscriber: Peer) -> list[int]:
    return [one.packet_id or 0 for one in subscriber.take() if one.type is Type.PUBLISH]


@VERSIONS
def test_a_run_is_forwarded_under_ids_of_the_receiver_and_acknowledged_under_its_own(version: int) -> None:
    world = World()
    publisher, subscriber = pair(world, version, 1)
    publisher.send(run(version, 1, 50, first=300))
    world.settle()
    got = subscriber.take()
    assert [one.payload for one in got] == [b"%05d" % number for number in range(300, 350)]
    assert [one.packet_id for one in got] == list(range(1, 51))
    assert [(one.type, one.packet_id) for one in publisher.take()] == [(Type.PUBACK, n) for n in range(300, 350)]
    session = world.broker.sessions["s"]
    assert session.runs is not None
    assert session.runs.sent1.count == 50
    assert not session.inflight
    check_session(session)
    subscriber.send(*acks(0x40, list(range(1, 51))))
    assert session.runs.under_way == 0
    assert session.free == session.window


@VERSIONS
def test_acknowledgements_in_any_order_are_taken(version: int) -> None:
    world = World()
    publisher, subscriber = pair(world, version, 1)
    publisher.send(run(version, 1, 5))
    ids = sent_ids(subscriber)
    session = world.broker.sessions["s"]
    subscriber.send(*acks(0x40, [ids[0], ids[3], ids[4], ids[1]]))
    check_session(session)
    assert session.window - session.free == 1
    publisher.send(run(version, 1, 5))
    check_session(session)
    subscriber.send(*acks(0x40, [ids[2], *sent_ids(subscriber)]))
    check_session(session)
    assert session.free == session.window


@VERSIONS
def test_qos_2_goes_through_all_its_steps_as_runs(version: int) -> None:
    world = World()
    publisher, subscriber = pair(world, version, 2)
    publisher.send(run(version, 2, 20))
    ids = sent_ids(subscriber)
    assert [one.type for one in publisher.take()] == [Type.PUBREC] * 20
    publisher.send(*acks(0x62, list(range(1, 21))))
    assert [(one.type, one.packet_id) for one in publisher.take()] == [(Type.PUBCOMP, n) for n in range(1, 21)]
    assert not world.broker.sessions["p"].received
    session = world.broker.sessions["s"]
    subscriber.send(*acks(0x50, ids[:12]))
    assert [(one.type, one.packet_id) for one in subscriber.take()] == [(Type.PUBREL, one) for one in ids[:12]]
    check_session(session)
    subscriber.send(*acks(0x70, ids[:12]), *acks(0x50, ids[12:]))
    subscriber.take()
    check_session(session)
    subscriber.send(*acks(0x70, ids[12:]))
    assert session.free == session.window
    assert not session.released


@VERSIONS
def test_a_second_copy_of_qos_2_within_a_run_is_forwarded_once(version: int) -> None:
    world = World()
    publisher, subscriber = pair(world, version, 2)
    publisher.send(run(version, 2, 3) + run(version, 2, 4, first=2))
    assert [one.payload for one in subscriber.take()] == [b"00001", b"00002", b"00003", b"00004", b"00005"]
    assert [one.packet_id for one in publisher.take()] == [1, 2, 3, 2, 3, 4, 5]


@VERSIONS
def test_what_does_not_fit_the_window_waits_its_turn(version: int) -> None:
    world = World(limits=Limits(inflight_max=8))
    publisher, subscriber = pair(world, version, 1)
    publisher.send(run(version, 1, 20))
    got: list[bytes] = []
    while waiting := [one for one in subscriber.take() if one.type is Type.PUBLISH]:
        assert len(waiting) <= 8
        got += [one.payload for one in waiting]
        subscriber.send(*acks(0x40, [one.packet_id or 0 for one in waiting]))
        world.settle()
    assert got == [b"%05d" % number for number in range(1, 21)]
    check_session(world.broker.sessions["s"])


@VERSIONS
def test_ids_come_round_and_an_open_one_is_passed_by(version: int) -> None:
    """A client that never completes an exchange keeps its id; later ones get others [MQTT-2.2.1-4]."""
    world = World()
    publisher, subscriber = pair(world, version, 2)
    publisher.send(run(version, 2, 3))
    ids = sent_ids(subscriber)
    publisher.send(*acks(0x62, [1, 2, 3]))
    subscriber.send(*acks(0x50, ids))
    subscriber.send(*acks(0x70, [ids[0], ids[2]]))
    session = world.broker.sessions["s"]
    assert list(session.released) == [ids[1]]
    sent = 3
    while sent < PACKET_ID_MAX + 500:
        publisher.send(run(version, 1, 1000))
        ids = sent_ids(subscriber)
        assert len(set(ids)) == 1000
        assert 2 not in ids
        assert 0 not in ids
        subscriber.send(*acks(0x40, ids))
        sent += 1000
        check_session(session)
    assert list(session.released) == [2]
    assert session.free == session.window - 1


@VERSIONS
@pytest.mark.parametrize("count", [1, 50])
def test_between_sessions_that_end_with_their_connections_nothing_is_written(
    version: int, count: int, tmp_path: Path
) -> None:
    store = JournalStore(tmp_path)
    world = World(store=store)
    publisher, subscriber = pair(world, version, 1)
    world.settle()
    before = store.journal.position
    publisher.send(run(version, 1, count))
    subscriber.send(*acks(0x40, sent_ids(subscriber)))
    world.settle()
    assert [one.type for one in publisher.take()] == [Type.PUBACK] * count
    assert store.journal.position == before
    store.close()


def taken_as_runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many publications each run has that is forwarded from now on."""
    counts: list[int] = []
    forward = acknowledged_path._forward_run

    def noted(*arguments: Any) -> int:
        counts.append(forward(*arguments))
        return counts[-1]

    monkeypatch.setattr(acknowledged_path, "_forward_run", noted)
    return counts


@VERSIONS
@pytest.mark.parametrize("qos", [1, 2])
def test_sessions_that_stay_are_given_runs_and_keep_each_for_itself(
    version: int, qos: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash what was not acknowledged is sent again, under the same ids and in the same order."""
    counts = taken_as_runs(monkeypatch)
    store = JournalStore(tmp_path)
    world = World(store=store)
    one, other = [world.client(name, version, **persistent(version)) for name in ("s", "t")]
    one.subscribe("t", qos)
    other.subscribe("t", qos)
    world.client("u", version).subscribe("t", 1)
    world.client("p", version).send(run(version, qos, 60))
    world.settle()
    assert counts == [KEPT_AT_ONCE // 3] * 2 + [60 - KEPT_AT_ONCE // 3 * 2]
    ids = sent_ids(one)
    assert ids == sent_ids(other) == list(range(1, 61))
    one.send(*acks(0x40 if qos == 1 else 0x50, ids[:25]))
    world.settle()
    for name in ("s", "t", "u"):
        check_session(world.broker.sessions[name])
    store.close()

    store = JournalStore(tmp_path)
    world = World(store=store)
    for name, acknowledged in (("s", 25), ("t", 0)):
        again = world.client(name, version, **persistent(version))
        got = [each for each in again.take() if each.type is Type.PUBLISH]
        assert [(each.packet_id, each.payload) for each in got] == [
            (n, b"%05d" % n) for n in range(acknowledged + 1, 61)
        ]
        assert all(each.dup for each in got)
        session = world.broker.sessions[name]
        assert list(session.released) == (list(range(1, acknowledged + 1)) if qos == 2 else [])
        check_session(session)
    store.close()


def test_a_second_pubrel_in_a_run_is_for_nothing() -> None:
    world = World()
    publisher, _ = pair(world, V5, 2)
    publisher.send(run(V5, 2, 2))
    publisher.take()
    publisher.send(*acks(0x62, [1, 2, 1]))
    assert [(one.packet_id, one.reason) for one in publisher.take()] == [(1, 0), (2, 0), (1, 0x92)]


def test_receivers_of_another_version_and_of_less_qos_get_it_in_their_own_words() -> None:
    world = World()
    plain, modern = world.client("v3", V3), world.client("v5", V5)
    plain.subscribe("t", 1)
    modern.subscribe("t", 2)
    publisher = world.client("p", V5)
    publisher.send(run(V5, 2, 10))
    for peer, qos in ((plain, 1), (modern, 2)):
        assert [(one.payload, one.qos) for one in peer.take()] == [(b"%05d" % n, qos) for n in range(1, 11)]


def test_what_reaches_nobody_is_said_of_each() -> None:
    world = World()
    publisher = world.client("p", V5)
    publisher.send(run(V5, 1, 3) + run(V5, 2, 2, first=4))
    assert [(one.type, one.packet_id, one.reason) for one in publisher.take()] == [
        *((Type.PUBACK, n, 0x10) for n in (1, 2, 3)),
        *((Type.PUBREC, n, 0x10) for n in (4, 5)),
    ]


@VERSIONS
def test_a_packet_id_of_zero_in_a_run_ends_the_connection_behind_what_came_before(version: int) -> None:
    world = World()
    publisher, subscriber = pair(world, version, 1)
    zero = wire.publish("t", b"00000", version=version, qos=1, packet_id=0)
    publisher.send(run(version, 1, 2) + zero + run(version, 1, 2, first=3))
    assert [one.payload for one in subscriber.take()] == [b"00001", b"00002"]
    assert publisher.link.closed
