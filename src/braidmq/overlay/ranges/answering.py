"""Where the answers to a delivery go: to the sender, which accounts for them, or up the tree.

Up the tree, each host on the way waits for the answers from below it, puts them together with its own, and passes them
on as one (`Answers.collect`). What comes after it has passed them on goes to the sender directly.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from braidmq.bounded import BoundedDict
from braidmq.host import Address, Host
from braidmq.keys import Key
from braidmq.overlay.key_ranges import KeyRange, without
from braidmq.overlay.ranges.messages import Covered, Deliver, ProbeRange

BRANCHES_MAX = 4096
"""Deliveries of other hosts for which a host collects answers at a time."""

BRANCH_S = 3.0
"""How long a host waits for those below it, when answers are put together up the tree."""

Attempt = tuple[Address, int, int]
"""Names one attempt at a delivery: its sender, its number, and which attempt."""


class _Branch(msgspec.Struct):
    """Another host's delivery, of which this host collects the answers from below."""

    parent: Address
    missing: tuple[KeyRange, ...]
    ranges: list[KeyRange] = msgspec.field(default_factory=list)
    ruled_out: list[KeyRange] = msgspec.field(default_factory=list)
    age_s: float = 0.0
    answers: list[tuple[Key, bytes]] = msgspec.field(default_factory=list)


class Answers:
    """The answers that this host gives, collects and passes on."""

    def __init__(self, host: Host, account: Callable[[Covered], None]) -> None:
        """`account` is called with what is answered to a delivery of this host's own."""
        self._host = host
        self._account = account
        self._branches: BoundedDict[Attempt, _Branch] = BoundedDict(BRANCHES_MAX)

    def collect(self, message: Deliver, parent: Address, ranges: tuple[KeyRange, ...]) -> None:
        """From now on this host waits for all answers for these ranges, for its parent in the tree."""
        name = (message.root, message.number, message.attempt)
        if name in self._branches:
            return
        self._branches[name] = _Branch(parent, ranges)
        self._host.spawn(self._end_branch(name))

    async def _end_branch(self, name: Attempt) -> None:
        """Passes on what has come, when the rest takes too long; what comes later goes to the root directly."""
        await self._host.sleep(BRANCH_S)
        branch = self._branches.pop(name, None)
        if branch is not None and branch.ranges:
            self._host.send(branch.parent, _collected(name, branch))

    def give(self, answer: Covered, to: Address) -> None:
        """An answer, of this host or from below it, is for that host, unless it is collected or accounted for here."""
        name = (answer.root, answer.number, answer.attempt)
        branch = self._branches.get(name)
        if branch is not None:
            branch.missing = without(branch.missing, answer.ranges)
            branch.ranges += answer.ranges
            branch.ruled_out += answer.ruled_out
            branch.age_s = max(branch.age_s, answer.age_s)
            branch.answers += answer.answers
            if not branch.missing:
                del self._branches[name]
                self._host.send(branch.parent, _collected(name, branch))
        elif answer.root == self._host.address:
            self._account(answer)
        else:
            self._host.send(to, answer)


def covered_by(
    message: Deliver | ProbeRange, ranges: list[KeyRange], answers: tuple[tuple[Key, bytes], ...]
) -> Covered:
    """The answer for ranges of a message, of which nothing was ruled out."""
    return Covered(message.root, message.number, message.attempt, tuple(ranges), (), 0.0, answers)


def _collected(name: Attempt, branch: _Branch) -> Covered:
    return Covered(*name, tuple(branch.ranges), tuple(branch.ruled_out), branch.age_s, tuple(branch.answers))
