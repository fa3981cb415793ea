"""What always holds of a session is asserted when it changes hands: a session that is not in order is noticed there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from braidmq.broker.backlog import Backlog
from braidmq.broker.invariants import check_session
from braidmq.broker.message import Delivery, Message
from braidmq.broker.metrics import Metrics
from braidmq.broker.session import Session
from tests.conformance import wire
from tests.conformance.pair import V5, Peer, World, persistent


def delivery(qos: int = 1, packet_id: int = 0) -> Delivery:
    return Delivery(Message("t", b"\0\1t", b"payload", qos), qos, packet_id=packet_id)


def take_from_the_window(session: Session) -> None:
    session.free -= 1


def give_an_id_twice(session: Session) -> None:
    session.released[next(iter(session.inflight))] = delivery(2)


def give_an_id_that_cannot_be(session: Session) -> None:
    session.inflight[0] = delivery()


def leave_an_empty_backlog(session: Session) -> None:
    session.backlog = Backlog(Metrics())


def count_bytes_wrong(session: Session) -> None:
    session.backlog = Backlog(Metrics())
    session.backlog.push(delivery())
    session.backlog.bytes += 1


def count_qos0_wrong(session: Session) -> None:
    session.backlog = Backlog(Metrics())
    session.backlog.push(delivery())
    session.backlog.qos0_count += 1


HARM = [
    take_from_the_window,
    give_an_id_twice,
    give_an_id_that_cannot_be,
    leave_an_empty_backlog,
    count_bytes_wrong,
    count_qos0_wrong,
]


def subscriber(world: World) -> tuple[Peer, Session]:
    """A client with a publication under way to it, and its session."""
    peer = world.client("s", V5, **persistent(V5))
    peer.subscribe("t", 1)
    world.client("p").publish("t", b"1", 1)
    session = world.broker.sessions["s"]
    assert len(session.inflight) == 1
    return peer, session


@pytest.mark.parametrize("harm", HARM)
def test_a_session_that_is_not_in_order_is_noticed_when_its_client_leaves(harm: Callable[[Session], None]) -> None:
    world = World()
    peer, session = subscriber(world)
    check_session(session)
    harm(session)
    with pytest.raises(AssertionError):
        peer.connection.lost()


@pytest.mark.parametrize("harm", HARM[:1] + HARM[2:])
def test_a_session_that_is_not_in_order_is_noticed_when_its_client_is_back(harm: Callable[[Session], None]) -> None:
    world = World()
    peer, session = subscriber(world)
    peer.drop()
    check_session(session)
    harm(session)
    back = world.peer()
    with pytest.raises(AssertionError):
        check_session(session)
    if harm is not take_from_the_window:  # a new connection has a new window
        with pytest.raises(AssertionError):
            back.connection.receive(wire.connect("s", version=V5, **persistent(V5)))


def test_a_session_that_is_not_in_order_is_noticed_when_it_ends() -> None:
    world = World()
    peer, session = subscriber(world)
    peer.drop()
    give_an_id_twice(session)
    with pytest.raises(AssertionError, match="in flight and released"):
        world.broker.sessions.end(session)


def test_reading_is_not_released_more_often_than_it_was_held() -> None:
    peer = World().client("c")
    peer.connection.flow.hold_reading()
    peer.connection.flow.release_reading()
    with pytest.raises(AssertionError, match="more often"):
        peer.connection.flow.release_reading()
