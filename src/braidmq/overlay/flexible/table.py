"""A flexible routing table: of all nodes that were ever met, the L that serve one virtual node best.

A table is filled without conditions and then filtered: whenever it holds more than L entries, one is dropped, the one
without which the table is best (FRT, Nagao and Shudo 2011). What is best is said by an order on tables, `is_better`;
everything else follows from it. This order (Banno and Shudo 2019, §3.4) wants, in turn:

1. an entry on every level, up to the highest; the level of an entry is the number of first digits that its membership
   vector shares with the own one, so that lookups take O(log N) hops as in a Skip Graph;
2. the subscribers of the own topic, so that a publication reaches them in one hop while they fit into the table;
3. as many entries on one level as on another;
4. where that cannot be, more of them on higher levels;
5. near keys, on the right first and then on the left: lookups and deliveries travel to the right.

The level-0 neighbours are *sticky*: they are never dropped. The nodes of the own broker are no entries: what they know
is shared anyway.

The paper leaves some points open. Decided here:

- "As many on one level as on another": the sizes of the levels are compared from the fullest on: smaller is better,
  then fewer levels of that size, then higher ones; then the next smaller size. The paper's formula counts the fullest
  levels and nothing else, so it would like a table with one huge level; and where the fullest level is full of
  subscribers, it would let all others become uneven.
- Right and left are those of the order of keys, not of the circle: what is left of the smallest key is nothing.
- On the left, too, the nearest key is compared first. Where one list of keys ends before the other, the longer one is
  better. So of entries that are alike otherwise, the farthest on the left is dropped first, the nearest on the right
  last.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, KeysView, Sequence
from typing import Annotated

from msgspec import Meta

from braidmq.host import Message
from braidmq.keys import SEPARATOR, Key, Role, segment
from braidmq.overlay.key_ranges import KeyRange
from braidmq.overlay.peers import Peer
from braidmq.overlay.vectors import DIGITS_MAX, Vector, common_digits


class Contact(Message, frozen=True, array_like=True, gc=False):
    """A node and the membership vector of its broker: all that a table needs to judge it. Tables share them."""

    peer: Peer
    vector: Annotated[Vector, Meta(ge=0, lt=1 << DIGITS_MAX)]


def key_of_contact(contact: Contact) -> Key:
    return contact.peer.key


NO_LEVEL = -1


def subscribers_of(key: Key) -> KeyRange:
    """The subscribers of the topic that a key stands for, as publisher or as subscriber; none if it names no topic."""
    try:
        return segment(key.partition(SEPARATOR)[0].decode(), Role.SUBSCRIBER)
    except UnicodeDecodeError:
        return key, key


class FlexibleTable:
    """The entries of one virtual node, in the order of keys, at most `size` of them and those that are sticky.

    `others_max` of them may be no subscribers of the own topic, apart from those that are alone on their level.
    """

    __slots__ = ("_bar", "contacts", "key", "others_max", "size", "sticky", "subscribers", "vector")

    def __init__(self, key: Key, vector: Vector, size: int, others_max: int) -> None:
        self.key = key
        self.vector = vector
        self.size = size
        self.others_max = others_max
        self.subscribers = subscribers_of(key)
        self.sticky: tuple[Key, ...] = ()
        self.contacts: tuple[Contact, ...] = ()
        self._bar: _Bar | None = None

    def __len__(self) -> int:
        return len(self.contacts)

    def level_of(self, contact: Contact) -> int:
        return common_digits(self.vector, contact.vector)

    def is_subscriber(self, key: Key) -> bool:
        """Whether a key stands for a subscriber of the own topic."""
        return self.subscribers[0] <= key < self.subscribers[1]

    def get(self, key: Key) -> Contact | None:
        return self._entries().get(key)

    def keys(self) -> KeysView[Key]:
        return self._entries().keys()

    def _entries(self) -> dict[Key, Contact]:
        bar = self._bar
        return bar.entries if bar is not None and bar.contacts is self.contacts else self._stand().entries

    def levels(self) -> dict[int, list[Contact]]:
        """The entries of each level that has some, in the order of keys; the lowest level first."""
        found: dict[int, list[Contact]] = {}
        for contact in self.contacts:
            found.setdefault(DIGITS_MAX - (contact.vector ^ self.vector).bit_length(), []).append(contact)
        return {level: found[level] for level in sorted(found)}

    def own_subscribers(self) -> tuple[Contact, ...]:
        """The entries that are subscribers of the own topic, in the order of keys."""
        return self.contacts[self._subscribers_among(self.contacts)]

    def _subscribers_among(self, contacts: Sequence[Contact]) -> slice:
        """Where the subscribers stand among contacts in the order of keys."""
        low, high = self.subscribers
        return slice(bisect_left(contacts, low, key=key_of_contact), bisect_left(contacts, high, key=key_of_contact))

    # Learning and filtering

    def learn(self, contacts: Iterable[Contact]) -> bool:
        """Takes contacts in, and drops what is too much then; True if the table has changed."""
        news = self.news(contacts)
        kept = self._with(news) if news else self.contacts
        if kept == self.contacts:
            return False
        self.contacts, self._bar = kept, None
        return True

    def preview(self, contacts: Iterable[Contact]) -> list[Contact]:
        """Those among the contacts that the table would take and keep, if it learnt them all now."""
        news = self.news(contacts)
        if not news:
            return []
        mine = self._stand().entries
        return [contact for contact in self._with(news) if mine.get(contact.peer.key) is not contact]

    def best_news(self, contacts: Iterable[Contact], count_max: int) -> tuple[Contact, ...]:
        """As `preview`; only the best, if there are too many."""
        better = self.preview(contacts)
        if len(better) <= count_max:
            return tuple(better)
        best = FlexibleTable(self.key, self.vector, count_max, count_max)
        best.learn(better)
        return best.contacts

    def news(self, contacts: Iterable[Contact]) -> list[Contact]:
        """Those that may be worth learning: the others are known, or would be the first to be dropped again.

        What would be dropped again if it came alone is dropped also if it comes with more. It may not be if an entry is
        replaced, or if subscribers come and push no other out: then another level may become the fullest.
        """
        bar = self._stand()
        entries, vector, own, (low, high) = bar.entries, self.vector, self.key, self.subscribers
        others, subscribers = bar.floors(self)
        news: list[Contact] = []
        hopeless: list[Contact] = []
        has_room, has_hope = len(self.contacts) < self.size, False
        for contact in contacts:
            key = contact.peer.key
            known = entries.get(key)
            if known is not None:
                if known.peer.incarnation < contact.peer.incarnation:
                    news.append(contact)
                    has_hope = True
            elif contact.vector != vector and key != own:
                level = DIGITS_MAX - (contact.vector ^ vector).bit_length()
                is_subscriber = low <= key < high
                first = (subscribers if is_subscriber else others).get(level)
                if first is None or not (key < first if key < own else own < first < key) or key in self.sticky:
                    news.append(contact)
                    has_hope = has_hope or (is_subscriber and has_room)
                else:
                    hopeless.append(contact)
        return news + hopeless if has_hope else news

    def trim(self) -> bool:
        """Drops what is too much since a bound has become smaller; True if something was."""
        kept = self._filtered(self.contacts)
        if len(kept) == len(self.contacts):
            return False
        self.contacts, self._bar = kept, None
        return True

    def drop(self, key: Key) -> bool:
        """Takes an entry out, whatever it is worth."""
        contact = self.get(key)
        if contact is None:
            return False
        self.contacts, self._bar = tuple([other for other in self.contacts if other is not contact]), None
        return True

    def _stand(self) -> _Bar:
        """What decides about newcomers, for the table as it is now."""
        bar = self._bar
        if bar is None or bar.contacts is not self.contacts or bar.bounds != self.bounds:
            bar = self._bar = _Bar(self)
        return bar

    @property
    def bounds(self) -> tuple[int, int, tuple[Key, ...]]:
        """What says, besides the order, what a table keeps."""
        return self.size, self.others_max, self.sticky

    def _with(self, news: list[Contact]) -> tuple[Contact, ...]:
        """The entries and the news, without what is too much; of two lives of one node the later one."""
        known = dict(self._stand().entries)
        for contact in news:
            mine = known.get(contact.peer.key)
            if mine is None or mine.peer.incarnation < contact.peer.incarnation:
                known[contact.peer.key] = contact
        return self._filtered([known[key] for key in sorted(known)])

    def _filtered(self, contacts: Sequence[Contact]) -> tuple[Contact, ...]:
        """Contacts in the order of keys, without what is too much."""
        excess = len(contacts) - self.size
        excess_others = len(contacts) - self.others_max
        if excess_others > max(excess, 0):
            excess_others -= len(contacts[self._subscribers_among(contacts)])
        if excess <= 0 and excess_others <= 0:
            return tuple(contacts)
        dropped = frozenset(self.filter(contacts, excess, excess_others))
        return tuple([contact for contact in contacts if contact.peer.key not in dropped])

    def filter(self, contacts: Sequence[Contact], excess: int, excess_others: int = 0) -> list[Key]:
        """What is dropped of contacts in the order of keys, one after the other: each time what leaves the best table.

        That is an entry whose level is not empty then, rather no subscriber, from the fullest level, of these the
        lowest, and there the farthest on the left or, if there is none, on the right. Where only the others are too
        many, no level becomes empty.
        """
        vector = self.vector
        keys = [contact.peer.key for contact in contacts]
        levels = [DIGITS_MAX - (contact.vector ^ vector).bit_length() for contact in contacts]
        sizes = [0] * (max(levels, default=-1) + 1)
        for level in levels:
            sizes[level] += 1
        index = bisect_left(keys, self.key)
        low, high = (bisect_left(keys, end) for end in self.subscribers)
        subscribers = _Droppable(sizes, self.sticky)
        subscribers.add(keys[low : min(high, index)], levels[low : min(high, index)])
        subscribers.add(keys[max(low, index) : high][::-1], levels[max(low, index) : high][::-1])
        others = _Droppable(sizes, self.sticky)
        others.add(keys[: min(low, index)], levels[: min(low, index)])
        others.add(keys[high:index], levels[high:index])
        others.add(keys[max(high, index) :][::-1], levels[max(high, index) :][::-1])
        others.add(keys[index:low][::-1], levels[index:low][::-1])
        dropped: list[Key] = []
        while len(dropped) < max(excess, excess_others):
            level = others.fullest()
            if level >= 0:
                dropped.append(others.drop(level))
                continue
            if len(dropped) >= excess:
                break
            kind, level = subscribers, subscribers.fullest()
            if level < 0:  # one must become empty, but rather not the highest
                while sizes and not sizes[-1]:
                    sizes.pop()
                top = len(sizes) - 1
                kind = others if others.lowest(top) >= 0 else subscribers
                level = kind.lowest(top)
            if level < 0:
                kind = others if others.lowest() >= 0 else subscribers
                level = kind.lowest()
            if level < 0:
                break  # all that is left is sticky
            dropped.append(kind.drop(level))
        return dropped


class _Bar:
    """What a newcomer has to beat in a table as it stands: most do not, and need no more than a look."""

    __slots__ = ("_floors", "bounds", "contacts", "entries")

    def __init__(self, table: FlexibleTable) -> None:
        self.contacts = table.contacts
        self.bounds = table.bounds
        self.entries: dict[Key, Contact] = {contact.peer.key: contact for contact in table.contacts}
        self._floors: tuple[Floor, Floor] | None = None

    def floors(self, table: FlexibleTable) -> tuple[Floor, Floor]:
        """For newcomers that are no subscribers, and for those that are. They follow from `FlexibleTable.filter`."""
        if len(self.contacts) < min(table.size, table.others_max):
            return {}, {}
        if self._floors is None:
            self._floors = self._measure(table)
        return self._floors

    def _measure(self, table: FlexibleTable) -> tuple[Floor, Floor]:
        own, vector, sticky, (low, high) = table.key, table.vector, table.sticky, table.subscribers
        sizes = [0] * (DIGITS_MAX + 1)
        count = 0
        others: Floor = {}
        subscribers: Floor = {}
        for key, contact in self.entries.items():
            level = DIGITS_MAX - (contact.vector ^ vector).bit_length()
            sizes[level] += 1
            if low <= key < high:
                firsts = subscribers
            else:
                firsts = others
                count += 1
            first = firsts.get(level)
            if (first is None or (key < first if key < own else own < first < key)) and key not in sticky:
                firsts[level] = key
        is_full = len(self.contacts) >= table.size
        if not is_full or any(sizes[level] > 1 for level in others):
            subscribers = {}  # they find room
        if not is_full and count < table.others_max:
            others = {}
        return _of_the_fullest(others, sizes), _of_the_fullest(
            {level: first for level, first in subscribers.items() if level not in others}, sizes
        )


Floor = dict[int, Key]
"""By level, the entry that is the first to be dropped, if that level is the one that would be too full.

A newcomer that would go before it is hopeless. Of entries alike the farthest on the left goes first, and the nearest on
the right last.
"""


def _of_the_fullest(firsts: Floor, sizes: list[int]) -> Floor:
    """Those levels that would be the fullest, with one more, of those from which something can be dropped."""
    most = max([(sizes[level], -level) for level in firsts if sizes[level] > 1], default=(0, 0))
    return {level: first for level, first in firsts.items() if (sizes[level] + 1, -level) >= most}


class _Droppable:
    """Entries of one kind, in the order in which those of one level are dropped."""

    __slots__ = ("_counts", "_keys", "_levels", "_sizes", "_sticky")

    def __init__(self, sizes: list[int], sticky: tuple[Key, ...]) -> None:
        self._sizes = sizes
        """How many entries of any kind each level has."""
        self._sticky = sticky
        self._counts = [0] * len(sizes)
        self._keys: list[Key] = []
        self._levels: list[int] = []

    def add(self, keys: list[Key], levels: list[int]) -> None:
        for sticky in self._sticky:
            if sticky in keys:
                levels[keys.index(sticky)] = NO_LEVEL
        for level in levels:
            if level >= 0:
                self._counts[level] += 1
        self._keys += keys
        self._levels += levels

    def fullest(self) -> int:
        """The level with the most entries, the lowest of those, which will not be empty; NO_LEVEL if there is none."""
        best, most = NO_LEVEL, 1
        for level, size in enumerate(self._sizes):
            if size > most and self._counts[level]:
                best, most = level, size
        return best

    def lowest(self, top: int = DIGITS_MAX + 1) -> int:
        """The lowest level below the top that has something to drop; NO_LEVEL if none has."""
        return next((level for level, count in enumerate(self._counts[:top]) if count), NO_LEVEL)

    def drop(self, level: int) -> Key:
        index = self._levels.index(level)
        self._levels[index] = NO_LEVEL
        self._counts[level] -= 1
        self._sizes[level] -= 1
        return self._keys[index]


# The order on tables: what `filter` must agree with


def is_better(table: FlexibleTable, one: Collection[Contact], other: Collection[Contact]) -> bool:
    """Whether one set of entries serves a table's owner better than another: the order, in words that can be read."""
    mine, its = _Merits(table, one), _Merits(table, other)
    if mine.top != its.top:
        return mine.top > its.top
    if mine.empty != its.empty:
        return mine.empty < its.empty
    if mine.subscribers != its.subscribers:
        return mine.subscribers > its.subscribers
    for (size, levels), (its_size, its_levels) in zip(mine.sizes, its.sizes, strict=True):
        if size != its_size:
            return size < its_size
        if len(levels) != len(its_levels):
            return len(levels) < len(its_levels)
        if levels != its_levels:
            return levels > its_levels
    return _is_nearer(mine.right, its.right) or (mine.right == its.right and _is_nearer(mine.left, its.left, -1))


class _Merits:
    """What the order looks at."""

    def __init__(self, table: FlexibleTable, contacts: Collection[Contact]) -> None:
        size_of = Counter(table.level_of(contact) for contact in contacts)
        self.top = max(size_of, default=-1)
        self.empty = sum(level not in size_of for level in range(self.top))
        self.subscribers = sum(table.is_subscriber(contact.peer.key) for contact in contacts)
        self.sizes = [
            (size, sorted(level for level in size_of if size_of[level] == size))
            for size in sorted(set(size_of.values()), reverse=True)
        ]
        """The sizes of levels, the largest first, and which levels have them."""
        keys = sorted(contact.peer.key for contact in contacts)
        self.right = [key for key in keys if key > table.key]
        self.left = [key for key in reversed(keys) if key < table.key]


def _is_nearer(keys: list[Key], others: list[Key], sign: int = 1) -> bool:
    """Whether keys, the nearest first, are nearer at the first difference, or go on where the others end."""
    for key, other in zip(keys, others, strict=False):
        if key != other:
            return (key < other) == (sign > 0)
    return len(keys) > len(others)
