"""The states of a handover: the table is whole, and the picture in the module is drawn from it."""

from __future__ import annotations

from braidmq.braid.roaming import handover_state
from braidmq.braid.roaming.handover_state import TRANSITIONS, HandoverEvent, HandoverState


def drawn() -> list[str]:
    """One line for each way from a state to the next."""
    states = max(len(state.name) for state, ways in TRANSITIONS.items() if ways)
    events = max(len(event.name) for event in HandoverEvent)
    return [
        f"{state.name:{states}} ── {event.name} {'─' * (events + 2 - len(event.name))}▶ {after.name}"
        for state, ways in TRANSITIONS.items()
        for event, after in ways.items()
    ]


def test_the_picture_is_drawn_from_the_table() -> None:
    told = [line.strip() for line in (handover_state.__doc__ or "").splitlines() if "▶" in line]
    assert told == drawn()


def test_every_state_is_in_the_table_and_can_be_reached() -> None:
    assert list(TRANSITIONS) == list(HandoverState)
    reached = {HandoverState.GIVEN}
    todo = [HandoverState.GIVEN]
    while todo:
        new = set(TRANSITIONS[todo.pop()].values()) - reached
        reached |= new
        todo += new
    assert reached == set(HandoverState)


def test_every_handover_comes_to_its_end() -> None:
    for state, ways in TRANSITIONS.items():
        assert state is HandoverState.OVER or HandoverState.OVER in ways.values()
    assert not TRANSITIONS[HandoverState.OVER]


def test_every_event_leads_somewhere() -> None:
    assert {event for ways in TRANSITIONS.values() for event in ways} == set(HandoverEvent)
