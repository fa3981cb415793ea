"""A trial without topics: every node of an overlay looks up a key, and ends at its owner."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from braidmq.keys import Key, in_arc
from braidmq.overlay import Overlay
from braidmq.sim.checkers.complaints import Complaints
from braidmq.sim.engine import Simulator
from braidmq.sim.trials.meter import Tally

BATCH = 100
LOOK_EVERY_S = 0.01
"""So many lookups begin at a time, and so often."""

OVER_S = 30.0

KEYS = 10**9
"""The keys are numbers below this."""


def keys_of(sim: Simulator, nodes: int) -> list[Key]:
    """A key for each node."""
    return [key_at(number) for number in sim.chance.sample(range(KEYS), nodes)]


def key_at(number: int) -> Key:
    return b"%09d" % number


def look_up(
    sim: Simulator,
    overlays: Sequence[Overlay],
    members: Sequence[Key],
    count: int,
    tally: Tally,
    complaints: Complaints,
    on_progress: Callable[[float], None],
) -> None:
    """So many lookups, of all nodes in turn; a lookup counts as a publication, its end as a delivery.

    `members` are the keys of all nodes, in order.
    """
    before = sim.messages
    right_of = dict(zip(members, (*members[1:], members[0]), strict=True))

    def owns(owner: Key, key: Key) -> bool:
        return owner in right_of and in_arc(owner, key, right_of[owner])

    async def one(overlay: Overlay, key: Key) -> None:
        found = await overlay.lookup(key)
        if found is None or not owns(found.owner.key, key):
            tally.missed += 1
            ended = "nowhere" if found is None else f"at {found.owner.key!r}"
            complaints.add([f"{overlay.host.address} looked for {key!r} and ended {ended}, which does not own it"])
            return
        tally.deliveries += 1
        tally.hops[found.hops] += 1

    def begin() -> None:
        first = tally.publications
        tally.publications = min(count, first + BATCH)
        for number in range(first, tally.publications):
            overlay = overlays[number % len(overlays)]
            overlay.host.spawn(one(overlay, key_at(sim.chance.randrange(KEYS))))
        on_progress(tally.publications / count)
        if tally.publications < count:
            sim.at(sim.now + LOOK_EVERY_S, begin)

    begin()
    sim.run(sim.now + count / BATCH * LOOK_EVERY_S + OVER_S)
    if tally.deliveries + tally.missed < count:
        complaints.add([f"{count - tally.deliveries - tally.missed} lookups did not end"])
    tally.expected = count
    tally.messages = sim.messages - before
