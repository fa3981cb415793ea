"""Where brokers meet that publish and brokers that want what is published: at the literal prefixes of their covers.

Two filters can match one topic only if the levels before the first wildcard of one begin those of the other. So a
broker stands in the overlay at such prefixes, once for what it publishes and once for what it wants, and looks for
brokers of the other kind at every prefix above its own, and at all below it:

    $cover/s/          ◀─┐
    $cover/s/dev/      ◀─┤ a publisher of dev/+/telemetry, at dev: above it, there, and all below
    $cover/s/dev/17/   ◀─┘
    $cover/s/log/

The others are asked by a delivery that is proven, after the own key is inserted: so of two brokers that come at the
same time one finds the other, at least.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable

from braidmq.host import Event, Host
from braidmq.keys import Key, Role, key_of, segment
from braidmq.overlay import Overlay
from braidmq.overlay.key_ranges import KeyRange
from braidmq.overlay.leaving import leave_all
from braidmq.overlay.ranges import RangeDelivery

PREFIX_LEVELS_MAX = 2
"""Levels of a prefix at which brokers stand; what is longer stands above."""

SIBLINGS_MAX = 4
"""Prefixes with the same levels above them at which a broker stands. With more of them it stands above, where it meets
some brokers in vain, but need not go to another place for each device; with half as many, at each of them again."""

KEYS_MAX = 16
"""Keys of a broker in one role; with more prefixes it stands above them."""

MEET_S = 3.0
"""How long the brokers of the other role are waited for."""

LEAVE_AFTER_S = 2 * MEET_S
"""How long a key stays that is not needed any more."""

ROOT = "$cover/"
_SPACES = {Role.PUBLISHER: ROOT + "p/", Role.SUBSCRIBER: ROOT + "s/"}
_END = b"\xff"
"""Behind whatever a key's text goes on with: no UTF-8 has it."""

Prefix = tuple[str, ...]
"""Levels before a wildcard."""


def text_of(role: Role, prefix: Prefix) -> str:
    return _SPACES[role] + "".join([level + "/" for level in prefix])


def ranges_for(role: Role, prefixes: Iterable[Prefix]) -> list[KeyRange]:
    """Where all brokers of a role stand whose covers can overlap one with such a prefix."""
    found: dict[KeyRange, None] = {}
    for prefix in dict.fromkeys(one[:PREFIX_LEVELS_MAX] for one in prefixes):
        for depth in range(len(prefix)):
            found[segment(text_of(role, prefix[:depth]), role)] = None
        low = text_of(role, prefix).encode()
        found[low, low + _END] = None
    return list(found)


def keys_at(role: Role, prefixes: Iterable[Prefix], cluster: str, name: str) -> dict[Key, Prefix]:
    """The keys of a broker that stands for covers with these prefixes, there or above, and for no others yet."""
    few = few_of(prefixes)
    return {key_of(text_of(role, prefix), role, cluster, name): prefix for prefix in few}


def few_of(prefixes: Iterable[Prefix], standing: Iterable[Prefix] = ()) -> list[Prefix]:
    """At most `KEYS_MAX` prefixes, each of those given or above it; above some a broker may stand already."""
    few = dict.fromkeys(prefix[:PREFIX_LEVELS_MAX] for prefix in prefixes)
    siblings = Counter(prefix[:-1] for prefix in few if len(prefix) > 1)
    stands = dict.fromkeys(standing)
    above = {
        parent: None
        for parent, count in siblings.items()
        if count > (SIBLINGS_MAX // 2 if parent in stands else SIBLINGS_MAX)
    }
    few = dict.fromkeys(prefix[:-1] if prefix[:-1] in above else prefix for prefix in few)
    while len(few) > KEYS_MAX:
        depth = max(len(prefix) for prefix in few)
        few = dict.fromkeys(prefix[: depth - 1] for prefix in few)
    return [one for one in few if not any(one[:depth] in few for depth in range(len(one)))]


class Rendezvous:
    """One broker's keys in one role, and its way to brokers of the other role."""

    def __init__(self, overlay: Overlay, ranges: RangeDelivery, name: str, cluster: str, role: Role) -> None:
        self._overlay = overlay
        self._host: Host = overlay.host
        self._ranges = ranges
        self._name = name
        self._cluster = cluster
        self._role = role
        self._other = Role.PUBLISHER if role is Role.SUBSCRIBER else Role.SUBSCRIBER
        self._keys: dict[Key, Prefix] = {}
        """Those that are in the overlay, or on their way in."""
        self._wanted: dict[Key, Prefix] = {}
        """Those that should be."""
        self._changing: Event | None = None
        """The end of the change that is under way."""

    def __contains__(self, key: Key) -> bool:
        return key in self._keys

    @property
    def prefixes(self) -> list[Prefix]:
        """Where this broker stands."""
        return list(self._keys.values())

    async def stand_at(self, prefixes: Iterable[Prefix]) -> None:
        """Stands for covers with these prefixes, there or above, from now on.

        Where it need not stand any more it stays for a while: brokers that ask now may have passed the new keys before
        they were there, and must not find the old ones gone.
        """
        self._wanted = {self._key(prefix): prefix for prefix in few_of(prefixes, self._keys.values())}
        await self._change(self._join)
        if any(key not in self._wanted for key in self._keys):
            self._host.spawn(self._leave_later())

    def adopt(self, prefixes: Iterable[Prefix]) -> None:
        """Stands for covers with these prefixes in a laid-out network, whose keys are in the overlay."""
        self._keys = keys_at(self._role, prefixes, self._cluster, self._name)
        self._wanted = dict(self._keys)

    async def _leave_later(self) -> None:
        await self._host.sleep(LEAVE_AFTER_S)
        await self._change(self._leave)

    async def leave(self) -> None:
        """Stands nowhere any more."""
        self._wanted = {}
        await self._change(self._leave)

    async def _change(self, change: Callable[[], Awaitable[None]]) -> None:
        """One at a time: keys side by side would be in each other's way."""
        while self._changing is not None:
            await self._changing.wait()
        self._changing = self._host.event()
        try:
            await change()
        finally:
            changed, self._changing = self._changing, None
            changed.set()

    async def _join(self) -> None:
        for key in [one for one in self._wanted if one not in self._keys]:
            if key in self._wanted:
                self._keys[key] = self._wanted[key]
                await self._overlay.join(key)

    async def _leave(self) -> None:
        gone = [one for one in self._keys if one not in self._wanted]
        for key in gone:
            del self._keys[key]
        await leave_all(self._overlay, gone)

    def _key(self, prefix: Prefix) -> Key:
        return key_of(text_of(self._role, prefix), self._role, self._cluster, self._name)

    async def ask(self, prefixes: Iterable[Prefix], body: bytes) -> tuple[list[bytes], bool]:
        """Tells all brokers of the other role that may be concerned; what they say, and whether all have said it."""
        outcomes = await self._ranges.deliver_all(ranges_for(self._other, prefixes), body, MEET_S)
        if outcomes is None:
            return [], False
        answers = [answer for outcome in outcomes for answer in outcome.answers.values()]
        return answers, all(outcome.complete for outcome in outcomes)
