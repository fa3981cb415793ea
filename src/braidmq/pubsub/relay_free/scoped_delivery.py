"""Publications that stay inside a part of a topic's segment: the subscribers of a cluster and those below it.

Range delivery to such a part may lead over subscribers that are before it, in other clusters. So it begins at the first
subscriber inside, the entrance, which is looked up; brokers on the way see the question and nothing else. From there it
goes to subscribers inside only (`Plan.within`).

    p p p │ a/x  a/y │ b/u  b/v  b/w │ …         a publisher, to b:
    └───── lookup ─────▲                         which is the first from here on? b/u
    └───────────────────▶ b/u ──▶ b/v …          the publication

A lookup begins after the publication that it is for, so every broker that subscribed before is reached, whether it is
the first or not. What is published while a lookup is under way waits for the next one; so the order is kept, and a
stream takes one lookup at a time, not one for each message. A proof is one of the entrance's part, as no subscriber is
before the entrance; if the entrance is silent, another one is looked up.
"""

from __future__ import annotations

import msgspec

from braidmq.bounded import BoundedDict
from braidmq.host import Host
from braidmq.overlay import Overlay, Peer
from braidmq.overlay.key_ranges import KeyRange
from braidmq.overlay.ranges import PROVEN, Cut, OnOutcome, Outcome, RangeDelivery

WAITING_MAX = 8192
"""Publications that wait for a lookup, of all parts together."""

FIND_TRIES = 3
FIND_PAUSE_S = 0.5
"""The pause after a lookup that nobody answered."""

ATTEMPT_S = 5.0
"""How long a proof stays with one entrance."""

EMPTY_S = 30.0
"""How long a part counts as empty after nobody was found in it."""

EMPTY_MAX = 4096
"""Parts that are remembered as empty; the one that was looked at longest ago goes."""


class _ScopedPublication(msgspec.Struct):
    """A publication, and the part in which it has to be proven, if there is an `on_outcome`, that all have it."""

    body: bytes
    part: KeyRange
    ends_at: float = 0.0
    on_outcome: OnOutcome | None = None


class ScopedDelivery:
    """One broker's publications to parts of segments."""

    def __init__(self, overlay: Overlay, ranges: RangeDelivery, cut: Cut) -> None:
        self.given_up = 0
        """Publications that nobody got, as the entrance could not be found or there was no room to wait."""
        self._overlay = overlay
        self._host: Host = overlay.host
        self._ranges = ranges
        self._cut = cut
        self._waiting: dict[KeyRange, list[_ScopedPublication]] = {}
        """By part: what waits for the next lookup, while one is under way."""
        self._count = 0
        self._empty: BoundedDict[KeyRange, float] = BoundedDict(EMPTY_MAX)
        """Parts in which the last lookup has found nobody, and when."""

    def send(self, part: KeyRange, body: bytes) -> None:
        """Tells all in a part."""
        self._put(part, _ScopedPublication(body, part))

    def deliver(self, part: KeyRange, body: bytes, timeout_s: float, on_outcome: OnOutcome) -> None:
        """As `send`, and says when all are proven to have it, or who may be missing when time is over."""
        self._put(part, _ScopedPublication(body, part, self._host.now() + timeout_s, on_outcome))

    def is_empty(self, part: KeyRange) -> bool:
        """Whether nobody was in a part when something was last sent there, a short while ago."""
        return self._host.now() - self._empty.get(part, -EMPTY_S) < EMPTY_S

    # Looking for the entrance

    def _put(self, part: KeyRange, publication: _ScopedPublication) -> None:
        waiting = self._waiting.get(part)
        if self._count >= WAITING_MAX:
            self._give_up(publication)
        elif waiting is not None:
            self._count += 1
            waiting.append(publication)
        else:
            self._count += 1
            self._waiting[part] = [publication]
            self._host.spawn(self._find_and_send(part))

    async def _find_and_send(self, part: KeyRange) -> None:
        while publications := self._waiting[part]:
            self._waiting[part] = []
            entrances = await self._find_entrance(part)
            self._count -= len(publications)
            for publication in publications:
                if entrances is None:
                    self._give_up(publication)
                elif not entrances:
                    _conclude(publication, ())
                else:
                    self._enter(part, publication, entrances[0])
        del self._waiting[part]

    async def _find_entrance(self, part: KeyRange) -> list[Peer] | None:
        """The first node in a part, if there is one; None if nobody answered."""
        low, high = part
        for attempt in range(FIND_TRIES):
            if attempt:
                await self._host.sleep(FIND_PAUSE_S)
            found = await self._overlay.lookup(low)
            if found is not None:
                entrances = [peer for peer in (found.owner, found.right) if low <= peer.key < high]
                self._remember(part, is_empty=not entrances)
                return entrances
        return None

    def _remember(self, part: KeyRange, *, is_empty: bool) -> None:
        if is_empty:
            self._empty.renew(part, self._host.now())
        else:
            self._empty.pop(part, None)

    def _give_up(self, publication: _ScopedPublication) -> None:
        self.given_up += 1
        _conclude(publication, (publication.part,))

    # Sending

    def _enter(self, part: KeyRange, publication: _ScopedPublication, entrance: Peer) -> None:
        if publication.on_outcome is None:
            self._ranges.send_within(*part, publication.body, self._cut, entrance)
            return
        low, high = max(publication.part[0], entrance.key), publication.part[1]
        left_s = min(ATTEMPT_S, publication.ends_at - self._host.now())
        if low >= high or left_s <= 0:
            _conclude(publication, () if low >= high else (publication.part,))
            return
        plan = msgspec.structs.replace(PROVEN, within=part)

        def on_outcome(outcome: Outcome) -> None:
            if outcome.gaps and self._host.now() < publication.ends_at:
                publication.part = (outcome.gaps[0][0], outcome.gaps[-1][1])
                self._put(part, publication)
            else:
                _conclude(publication, outcome.gaps)

        try:
            self._ranges.deliver(low, high, publication.body, left_s, on_outcome, plan, entrance)
        except RuntimeError:  # too many are under way
            self._give_up(publication)


def _conclude(publication: _ScopedPublication, gaps: tuple[KeyRange, ...]) -> None:
    if publication.on_outcome is not None:
        publication.on_outcome(Outcome(gaps, (), 0.0, {}))
