"""A trial without topics: every node of an overlay looks up a key, and ends at its owner."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial

from braidmq.keys import Key
from braidmq.overlay.overlay import Overlay
from braidmq.sim.engine import Simulator
from braidmq.sim.meter import Complaints, Tally

LOOK_EVERY_S = 0.00001
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

    async def one(overlay: Overlay, key: Key) -> None:
        found = await overlay.lookup(key)
        owner = members[bisect_right(members, key) - 1]
        if found is None or found.owner.key != owner:
            tally.missed += 1
            ended = "nowhere" if found is None else f"at {found.owner.key!r}"
            complaints.add([f"{overlay.host.address} looked for {key!r} and ended {ended}, not at {owner!r}"])
            return
        tally.deliveries += 1
        tally.hops[found.hops] += 1

    def begin(overlay: Overlay) -> None:
        tally.publications += 1
        on_progress(tally.publications / count)
        overlay.host.spawn(one(overlay, key_at(sim.chance.randrange(KEYS))))

    begun_at = sim.now
    for number in range(count):
        sim.at(begun_at + number * LOOK_EVERY_S, partial(begin, overlays[number % len(overlays)]))
    sim.run(begun_at + count * LOOK_EVERY_S + OVER_S)
    if tally.deliveries + tally.missed < count:
        complaints.add([f"{count - tally.deliveries - tally.missed} lookups did not end"])
    tally.expected = count
    tally.messages = sim.messages - before
