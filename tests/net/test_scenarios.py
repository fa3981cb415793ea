"""One scenario, two worlds: what happens in virtual time happens on sockets, hop by hop."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Sequence

import pytest

from braidmq.host import Message
from tests import scenarios as s

SCENARIOS: dict[str, tuple[s.Scenario, int, Sequence[type[Message]], object]] = {
    "ping-pong": (
        s.ping_pong,
        2,
        (s.Count, s.Hail),
        (s.Count(50), list(range(2, 21, 2)), list(range(1, 20, 2))),
    ),
    "a ring of five": (s.forwarding_ring, 5, (s.Find, s.Found, s.Ask, s.Told), [(0, 1, 2, 3, 4)] * 5),
    "failures": (
        s.failures,
        2,
        (s.Unheard, s.Hush, s.Round),
        ["Unheard: CallRefused", "Round: CallRefused", "Hush: CallTimeout"],
    ),
    "events": (
        s.events,
        1,
        (s.Unheard,),
        (
            [
                *(("in vain", False), ("not for a moment", False), "set"),
                *(("first", True), ("second", True), ("third", True)),
                *(("later", True), ("later still", True)),
            ],
            True,
            False,
        ),
    ),
    "questions": (
        s.questions,
        2,
        (s.Knock, s.Open, s.Locked, s.Unheard),
        (
            [(s.Open(1), 1), (s.Open(3), 3), (None, 2), (None, 1)],
            *(s.Locked(), s.Locked(), None, s.Open(2), True),
        ),
    ),
}


@pytest.mark.parametrize("name", SCENARIOS)
async def test_both_worlds_agree(name: str) -> None:
    scenario, host_count, messages, expected = SCENARIOS[name]
    simulated = s.simulate(scenario, host_count)
    assert simulated.result == expected
    assert await s.run_on_network(scenario, host_count, messages) == simulated


async def test_hops_are_counted_alike() -> None:
    """Each of five hosts finds each of five keys by asking itself first: 1 to 5 hops, five times each."""
    scenario, host_count, messages, _ = SCENARIOS["a ring of five"]
    for outcome in (s.simulate(scenario, host_count), await s.run_on_network(scenario, host_count, messages)):
        hops = Tally(hops for _, _, kind, hops in outcome.heard if kind == "Find")
        assert hops == {1: 25, 2: 20, 3: 15, 4: 10, 5: 5}
