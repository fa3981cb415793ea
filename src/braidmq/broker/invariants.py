"""What always holds of a session, asserted where it changes hands: when it is attached, detached, restored or ends."""

from __future__ import annotations

from braidmq.broker.packet_ids import PACKET_ID_MAX
from braidmq.broker.session import Session


def check_session(session: Session) -> None:
    """The client's window, the packet ids in use and the counters of the backlog agree with what they count."""
    check_exchanges(session)
    if session.backlog is not None:
        assert len(session.backlog) > 0, "an empty backlog is none"
        session.backlog.check()


def check_exchanges(session: Session) -> None:
    """The same without the backlog, whose counters have just been counted."""
    inflight, released = session.inflight, session.released
    assert inflight.keys().isdisjoint(released), "a packet id is in flight and released"
    assert not inflight or 0 < min(inflight) <= max(inflight) <= PACKET_ID_MAX, "a packet id that cannot be"
    assert not released or 0 < min(released) <= max(released) <= PACKET_ID_MAX, "a packet id that cannot be"
    if session.connection is None:
        assert session.free == 0, "a window without a connection"
    else:
        under_way = sum(one.under_way for one in inflight.values()) + sum(one.under_way for one in released.values())
        under_way += 0 if session.runs is None else session.runs.under_way
        assert session.free == session.window - under_way, "the window does not fit what is under way"
