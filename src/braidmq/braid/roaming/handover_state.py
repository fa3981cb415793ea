"""The states of a session that is given up to another broker, and what leads from one to the next.

    GIVEN  ── STATE_FETCHED ──▶ FROZEN
    GIVEN  ── STORED ─────────▶ GONE
    GIVEN  ── PUT_BACK ───────▶ OVER
    GIVEN  ── CLIENT_BACK ────▶ OVER
    FROZEN ── STATE_FETCHED ──▶ FROZEN
    FROZEN ── STORED ─────────▶ GONE
    FROZEN ── PUT_BACK ───────▶ OVER
    FROZEN ── CLIENT_BACK ────▶ OVER
    GONE   ── STATE_FETCHED ──▶ GONE
    GONE   ── STORED ─────────▶ GONE
    GONE   ── PUT_BACK ───────▶ OVER
    GONE   ── CLIENT_BACK ────▶ OVER
    GONE   ── TAIL_ENDED ─────▶ OVER

The table below has it; `tests/braid/test_handover_states.py` draws this picture from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from types import MappingProxyType
from typing import Final

from braidmq.braid.roaming.directory_messages import SessionHolder
from braidmq.braid.roaming.marks import Row
from braidmq.braid.roaming.messages import GiveUp
from braidmq.braid.roaming.moved import Absence, MovedDelivery
from braidmq.braid.roaming.sessions import SessionRelay
from braidmq.braid.transfer.predecessors import ByTopic
from braidmq.broker.session import Session
from braidmq.host import Address


class HandoverState(Enum):
    GIVEN = auto()
    """Its connection is closed, and it goes on gathering what comes for it."""
    FROZEN = auto()
    """A relay has taken its part among the subscriptions: its state is the same however often it is asked for."""
    GONE = auto()
    """The other broker has it in its store; the relay passes on what was still on its way here."""
    OVER = auto()
    """It is put back as it was, or nothing is passed on any more."""


class HandoverEvent(Enum):
    STATE_FETCHED = auto()
    STORED = auto()
    PUT_BACK = auto()
    """The other broker is silent, or the session stays here for another reason."""
    CLIENT_BACK = auto()
    """The client has come here again, with a session that is newer."""
    TAIL_ENDED = auto()
    """Nothing can be on its way here any more, or there are too many relays."""


_S, _E = HandoverState, HandoverEvent
TRANSITIONS: Final[Mapping[HandoverState, Mapping[HandoverEvent, HandoverState]]] = MappingProxyType(
    {
        _S.GIVEN: {
            _E.STATE_FETCHED: _S.FROZEN,
            _E.STORED: _S.GONE,
            _E.PUT_BACK: _S.OVER,
            _E.CLIENT_BACK: _S.OVER,
        },
        _S.FROZEN: {
            _E.STATE_FETCHED: _S.FROZEN,
            _E.STORED: _S.GONE,
            _E.PUT_BACK: _S.OVER,
            _E.CLIENT_BACK: _S.OVER,
        },
        _S.GONE: {
            _E.STATE_FETCHED: _S.GONE,
            _E.STORED: _S.GONE,
            _E.PUT_BACK: _S.OVER,
            _E.CLIENT_BACK: _S.OVER,
            _E.TAIL_ENDED: _S.OVER,
        },
        _S.OVER: {},
    }
)


class Handover:
    """One session that is given up."""

    def __init__(self, move: GiveUp, to: Address, session: Session, heard_at: float) -> None:
        self.state = HandoverState.GIVEN
        self.move = move.move
        self.cluster = move.cluster
        self.holder = SessionHolder(move.client_id, to, move.name, move.epoch)
        self.session = session
        """Not of this broker any more once it is gone."""
        self.is_pushed = move.is_pushed
        """Whether this broker wanted to give it away: its client is not back."""
        self.expiry_s = session.expiry_s
        self.begun = 0
        """The epoch in which the session was begun."""
        self.ends_at: float | None = None
        """When the session ends if its client does not come back (Unix time)."""
        self.will_at: float | None = None
        """When its will is due."""
        self.subscriptions = dict(session.subscriptions)
        self.relay: SessionRelay | None = None
        self.deliveries: list[MovedDelivery] = []
        """What it has not brought to its end, once it is frozen; with what else its state is."""
        self.horizon: tuple[Row, ...] = ()
        self.received: tuple[int, ...] = ()
        self.absence: Absence | None = None
        self.published: ByTopic = ()
        self.instances = b""
        self.heard_at = heard_at
        self.is_relaying = False
        self.is_held = False
        """Whether something in its state must not leave this broker before the copies of its store have it."""

    @property
    def is_here(self) -> bool:
        """Whether the session is still this broker's."""
        return self.state in (HandoverState.GIVEN, HandoverState.FROZEN)

    def let_go(self) -> None:
        self.is_held = False

    def advance(self, event: HandoverEvent) -> None:
        self.state = TRANSITIONS[self.state][event]
