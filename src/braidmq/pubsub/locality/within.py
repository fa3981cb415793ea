"""Publications that stay inside a part of a topic's segment: the subscribers of a cluster and those below it.

Range delivery to such a part may lead over subscribers that stand before it, in other clusters. So it begins at the
first subscriber inside, which is looked up; those on the way see the question and nothing else. From there it goes to
others inside only (`Plan.within`).

    p p p │ a/x  a/y │ b/u  b/v  b/w │ …         a publisher, to b:
    └───── lookup ─────▲                         who is the first from here on? b/u
    └───────────────────▶ b/u ──▶ b/v …          the publication

A lookup begins after the publication that it is for, so whoever subscribed before is found, whether it is the first now
or not. What is published while one is under way waits for the next one; so the order is kept, and a stream takes one
lookup at a time, not one for each message. A proof is one of the entrance's part, as nobody stands before the entrance;
if the entrance is silent, another one is looked up.
"""

from __future__ import annotations

import msgspec

from braidmq.host import Host
from braidmq.overlay import Overlay, Peer
from braidmq.overlay.key_ranges import KeyRange
from braidmq.overlay.ranges import PROVEN, Cut, OnOutcome, Outcome, RangeDelivery

WAITING_MAX = 8192
"""Publications that wait for a lookup, of all parts together."""

LOOK_TRIES = 3
LOOK_WAIT_S = 0.5
"""The pause after a lookup that nobody answered."""

ATTEMPT_S = 5.0
"""How long a proof stays with one entrance."""

EMPTY_S = 30.0
"""How long a part counts as empty after nobody was found in it."""

EMPTY_MAX = 4096
"""Parts that are remembered as empty; the one that was looked at longest ago goes."""


class _Parcel(msgspec.Struct):
    """A publication, and of whom it has to be proven that they have it; without `on_outcome` of nobody."""

    body: bytes
    part: KeyRange
    ends_at: float = 0.0
    on_outcome: OnOutcome | None = None


class Within:
    """One broker's publications to parts of segments."""

    def __init__(self, overlay: Overlay, ranges: RangeDelivery, cut: Cut) -> None:
        self.given_up = 0
        """Publications that nobody got, as the entrance could not be found or there was no room to wait."""
        self._overlay = overlay
        self._host: Host = overlay.host
        self._ranges = ranges
        self._cut = cut
        self._waiting: dict[KeyRange, list[_Parcel]] = {}
        """By part: what waits for the next lookup, while one is under way."""
        self._count = 0
        self._empty: dict[KeyRange, float] = {}
        """Parts in which the last lookup has found nobody, and when."""

    def send(self, part: KeyRange, body: bytes) -> None:
        """Tells all in a part."""
        self._put(part, _Parcel(body, part))

    def deliver(self, part: KeyRange, body: bytes, timeout_s: float, on_outcome: OnOutcome) -> None:
        """As `send`, and says when all are proven to have it, or who may be missing when time is over."""
        self._put(part, _Parcel(body, part, self._host.now() + timeout_s, on_outcome))

    def is_empty(self, part: KeyRange) -> bool:
        """Whether nobody was in a part when something was last sent there, a short while ago."""
        return self._host.now() - self._empty.get(part, -EMPTY_S) < EMPTY_S

    # Looking for the entrance

    def _put(self, part: KeyRange, parcel: _Parcel) -> None:
        waiting = self._waiting.get(part)
        if self._count >= WAITING_MAX:
            self._give_up(parcel)
        elif waiting is not None:
            self._count += 1
            waiting.append(parcel)
        else:
            self._count += 1
            self._waiting[part] = [parcel]
            self._host.spawn(self._look_and_send(part))

    async def _look_and_send(self, part: KeyRange) -> None:
        while parcels := self._waiting[part]:
            self._waiting[part] = []
            entrances = await self._look(part)
            self._count -= len(parcels)
            for parcel in parcels:
                if entrances is None:
                    self._give_up(parcel)
                elif not entrances:
                    _conclude(parcel, ())
                else:
                    self._enter(part, parcel, entrances[0])
        del self._waiting[part]

    async def _look(self, part: KeyRange) -> list[Peer] | None:
        """The first node in a part, if there is one; None if nobody answered."""
        low, high = part
        for attempt in range(LOOK_TRIES):
            if attempt:
                await self._host.sleep(LOOK_WAIT_S)
            found = await self._overlay.lookup(low)
            if found is not None:
                entrances = [peer for peer in (found.owner, found.right) if low <= peer.key < high]
                self._note(part, is_empty=not entrances)
                return entrances
        return None

    def _note(self, part: KeyRange, *, is_empty: bool) -> None:
        self._empty.pop(part, None)
        if is_empty:
            self._empty[part] = self._host.now()
            if len(self._empty) > EMPTY_MAX:
                self._empty.pop(next(iter(self._empty)))

    def _give_up(self, parcel: _Parcel) -> None:
        self.given_up += 1
        _conclude(parcel, (parcel.part,))

    # Sending

    def _enter(self, part: KeyRange, parcel: _Parcel, entrance: Peer) -> None:
        if parcel.on_outcome is None:
            self._ranges.send_within(*part, parcel.body, self._cut, entrance)
            return
        low, high = max(parcel.part[0], entrance.key), parcel.part[1]
        left_s = min(ATTEMPT_S, parcel.ends_at - self._host.now())
        if low >= high or left_s <= 0:
            _conclude(parcel, () if low >= high else (parcel.part,))
            return
        plan = msgspec.structs.replace(PROVEN, within=part)

        def on_outcome(outcome: Outcome) -> None:
            if outcome.gaps and self._host.now() < parcel.ends_at:
                parcel.part = (outcome.gaps[0][0], outcome.gaps[-1][1])
                self._put(part, parcel)
            else:
                _conclude(parcel, outcome.gaps)

        try:
            self._ranges.deliver(low, high, parcel.body, left_s, on_outcome, plan, entrance)
        except RuntimeError:  # too many are under way
            self._give_up(parcel)


def _conclude(parcel: _Parcel, gaps: tuple[KeyRange, ...]) -> None:
    if parcel.on_outcome is not None:
        parcel.on_outcome(Outcome(gaps, (), 0.0, {}))
