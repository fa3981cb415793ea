"""The ledger of a group: what its delegate knows of the members, from what they have answered.

A single is a member that has spoken for itself: how much it has free, by its latest word. A window is a part of the
group's keys that nobody there has spoken of: its first member's address, and a count from an aggregate. Nothing
overlaps. A request that goes to a window's first member brings back how that member divides the rest, so windows
become smaller with each answer, and in the end there are singles only.

What is sent for is counted down at once, so that two requests at the same time do not meet. Answers may overtake each
other: a member numbers its states, and an older one does not overwrite a newer one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Final

import msgspec

from braidmq.bounded import BoundedDict
from braidmq.keys import Key
from braidmq.overlay.key_ranges import JUST_AFTER
from braidmq.select.group import ComponentGroup, steps_between
from braidmq.select.member import Report
from braidmq.select.messages import Visit, Window
from braidmq.select.request import SLOTS, SelectionRequest, score_of

SINGLES_MAX: Final = 10_000
"""Members of one group that a delegate knows by themselves."""

SUSPECTED_S: Final = 60.0
"""How long a member that did not answer is passed over."""


class Single(msgspec.Struct):
    """A member that has spoken, what it said, and how many requests are on their way to it."""

    report: Report
    sent: int = 0
    silent_until: float = 0.0
    heard_at: float = 0.0

    @property
    def available(self) -> int:
        return self.report.free - self.sent

    def meets(self, request: SelectionRequest) -> bool:
        told = {**self.report.attributes, SLOTS: float(self.report.free)}
        return all(need.holds(told) for need in request.needs)

    def score(self, request: SelectionRequest) -> float:
        told = {**self.report.attributes, SLOTS: float(self.report.free)}
        return score_of(request, told, steps_between(request.cluster, request.group.cluster))


class Ledger:
    """All that is known of one group."""

    def __init__(self, group: ComponentGroup, windows: Iterable[Window]) -> None:
        self.group = group
        self.singles: BoundedDict[Key, Single] = BoundedDict(SINGLES_MAX)
        """In the order in which they were last heard of: the latest is the last."""
        self._open: dict[Key, Single] = {}
        """Those of them with something free, in the same order."""
        self.windows: dict[Key, Window] = {window.owner.key: window for window in windows}

    @property
    def free(self) -> int:
        """How many are thought to be free."""
        known = sum(single.available for single in self._open.values())
        return known + sum(max(0, window.count) for window in self.windows.values())

    def expected_in_s(self, now: float) -> float | None:
        """When the first lease runs out that is known of."""
        ends = [
            single.heard_at + single.report.ends_in_s - now
            for single in self.singles.values()
            if single.report.ends_in_s is not None
        ]
        return max(0.0, min(ends)) if ends else None

    # What to do next

    def pick(self, request: SelectionRequest, now: float, tried: Collection[Key]) -> Window | None:
        """The single that was heard of last, or is the best by the request's score; else the fullest window."""
        fits = (single for single in self._by_recency(now, tried) if single.meets(request))
        best = min(fits, key=lambda one: one.score(request), default=None) if request.score else next(fits, None)
        if best is not None:
            return as_window(best.report)
        windows = [one for one in self.windows.values() if one.count > 0 and one.owner.key not in tried]
        return max(windows, key=lambda one: one.count, default=None)

    def others(self, request: SelectionRequest, chosen: Window, now: float, count_max: int) -> tuple[Window, ...]:
        """Where the request may go if it finds nothing there: counted as little as can be, as they are not reserved."""
        windows = [one for one in self.windows.values() if one.count > 0 and one.owner.key != chosen.owner.key]
        windows.sort(key=lambda one: one.count, reverse=True)
        singles = [as_window(one.report) for one in self._by_recency(now, (chosen.owner.key,)) if one.meets(request)]
        return tuple((singles[:count_max] + windows)[:count_max])

    def _by_recency(self, now: float, tried: Collection[Key]) -> Iterator[Single]:
        for key in reversed(self._open):
            single = self._open[key]
            if key not in tried and single.silent_until <= now:
                yield single

    def oldest(self, count: int, now: float, tried: Collection[Key]) -> list[Window]:
        """The members that have not been heard of for longest; of windows nobody ever has."""
        found = [one for key, one in self.windows.items() if key not in tried]
        for key, single in self.singles.items():
            if len(found) >= count:
                break
            if key not in tried and single.silent_until <= now:
                found.append(as_window(single.report))
        return found[:count]

    # What happens

    def sent(self, chosen: Window) -> None:
        """A request is on its way there."""
        key = chosen.owner.key
        if key in self.windows:
            window = self.windows[key]
            self.windows[key] = msgspec.structs.replace(window, count=window.count - 1)
        elif key in self.singles:
            self.singles[key].sent += 1
            self._sort(key)

    def returned(self, chosen: Window) -> None:
        """It is no longer on its way, whatever came of it."""
        single = self.singles.get(chosen.owner.key)
        if single is not None and single.sent:
            single.sent -= 1
            self._sort(chosen.owner.key)

    def hear(self, report: Report, now: float) -> None:
        """A member has spoken for itself."""
        key = report.peer.key
        known = self.singles.get(key)
        if known is not None and known.report.version >= report.version:
            known.silent_until = 0.0
            if known.report.version == report.version:
                known.report, known.heard_at = report, now
            self.singles.renew(key, known)
            return
        sent = 0 if known is None else known.sent
        self.singles.renew(key, Single(report, sent, heard_at=now))
        self._open.pop(key, None)
        self._sort(key)

    def learn(self, visits: Iterable[Visit], now: float) -> None:
        """What a request has brought back: a window of which the first member has spoken is what it divides it into."""
        for visit in visits:
            if self.windows.pop(visit.report.peer.key, None) is not None:
                for window in visit.windows:
                    if window.owner.key not in self.singles:
                        self.windows[window.owner.key] = window
            self.hear(visit.report, now)

    def replace_all(self, reports: Iterable[Report], now: float) -> None:
        """All members have spoken: there are no windows any more, and who did not speak is gone."""
        self.windows.clear()
        spoken = {report.peer.key: report for report in reports}
        for key in [key for key in self.singles if key not in spoken]:
            del self.singles[key]
            self._open.pop(key, None)
        for report in spoken.values():
            self.hear(report, now)

    def suspect(self, chosen: Window, now: float) -> None:
        """It has not answered. What a window's first member would have told is not known."""
        self.windows.pop(chosen.owner.key, None)
        single = self.singles.get(chosen.owner.key)
        if single is not None:
            single.silent_until = now + SUSPECTED_S

    def forget(self, key: Key) -> None:
        """It is no member any more."""
        self.windows.pop(key, None)
        self.singles.pop(key, None)
        self._open.pop(key, None)

    def _sort(self, key: Key) -> None:
        """Whether it has something free; its place among those that have is kept."""
        single = self.singles.get(key)
        if single is None or single.available <= 0:
            self._open.pop(key, None)
        else:
            self._open[key] = single


def as_window(report: Report) -> Window:
    """A member alone."""
    return Window(report.peer, report.peer.key + JUST_AFTER, report.free)
