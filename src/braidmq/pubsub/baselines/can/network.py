"""A content-addressable network: a torus of d dimensions, cut into zones, each of which some member holds.

Zones come about by halving, one dimension after the other, so a zone is written as the digits of its halvings: "" is
the whole torus, "0" its lower half in dimension 0, "01" the upper half of that in dimension 1, and so on. Two zones
overlap when one begins with the other.

`Can` is what one member knows: the zones it holds, those of its neighbours, and the version of each claim. What is
taken over gets a higher version than any that was seen; where two claims overlap, the higher one holds (of equal ones,
that of the higher address) and the other member yields. So everything can be told again, late, or by several at once.

A part of the torus next to a member's zones that nobody is known to hold is a hole; a member beside it claims it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from braidmq.bounded import BoundedDict
from braidmq.host import Address, Chance
from braidmq.pubsub.method import ignore

Zone = str
Point = tuple[int, ...]
Claim = tuple[Zone, int]
"""A zone and the version of the claim to it."""

SIDE_BITS = 32
SIDE = 1 << SIDE_BITS
"""How long the torus is in each dimension."""


LOST_MAX = 64
"""Zones of members that fell silent, which are remembered until they are held again."""


class ZoneHolder(NamedTuple):
    """A neighbour: what it claims, when it was heard of last, and which neighbours it has itself."""

    claims: tuple[Claim, ...]
    heard_at: float
    neighbours: tuple[Address, ...]


class Space:
    """The geometry of a torus."""

    __slots__ = ("dimensions",)

    def __init__(self, dimensions: int) -> None:
        if dimensions < 1:
            raise ValueError(f"a space of {dimensions} dimensions: it must be 1 or more")
        self.dimensions = dimensions

    def any_point(self, chance: Chance, zone: Zone = "") -> Point:
        """Some point in a zone."""
        bounds = [self.interval(zone, dimension) for dimension in range(self.dimensions)]
        return tuple([low + chance.randrange(high - low) for low, high in bounds])

    def interval(self, zone: Zone, dimension: int) -> tuple[int, int]:
        """From where up to, not including, where a zone reaches in a dimension."""
        digits = zone[dimension :: self.dimensions]
        size = SIDE >> len(digits)
        low = int(digits, 2) * size if digits else 0
        return low, low + size

    def centre(self, zone: Zone) -> Point:
        return tuple([sum(self.interval(zone, dimension)) // 2 for dimension in range(self.dimensions)])

    def zone_at(self, point: Point, digits: int) -> Zone:
        """The zone of so many halvings that a point is in."""
        count = self.dimensions
        return "".join(["1" if point[i % count] >> (SIDE_BITS - 1 - i // count) & 1 else "0" for i in range(digits)])

    def has(self, zone: Zone, point: Point) -> bool:
        return self.zone_at(point, len(zone)) == zone

    def distance(self, zone: Zone, point: Point) -> int:
        """How far a point is from a zone, added up over the dimensions."""
        total = 0
        for dimension, at in enumerate(point):
            low, high = self.interval(zone, dimension)
            if not low <= at < high:
                total += min((low - at) % SIDE, (at - high + 1) % SIDE)
        return total

    def touches(self, zone: Zone, other: Zone, dimension: int, sign: int) -> bool:
        """Whether another zone lies across the face of a zone in a direction."""
        low, high = self.interval(zone, dimension)
        other_low, other_high = self.interval(other, dimension)
        if high - low == SIDE or (high % SIDE != other_low if sign > 0 else other_high % SIDE != low):
            return False
        return all(self._shares(zone, other, across) for across in range(self.dimensions) if across != dimension)

    def _shares(self, zone: Zone, other: Zone, dimension: int) -> bool:
        low, high = self.interval(zone, dimension)
        other_low, other_high = self.interval(other, dimension)
        return max(low, other_low) < min(high, other_high)

    def are_near(self, zone: Zone, other: Zone) -> bool:
        """Whether two zones have a face in common, or overlap."""
        is_across = False
        for dimension in range(self.dimensions):
            low, high = self.interval(zone, dimension)
            other_low, other_high = self.interval(other, dimension)
            if low < other_high and other_low < high:
                continue
            if is_across or (high % SIDE != other_low and other_high % SIDE != low):
                return False
            is_across = True
        return True

    def directions(self) -> list[tuple[int, int]]:
        return [(dimension, sign) for dimension in range(self.dimensions) for sign in (1, -1)]

    def across(self, zone: Zone, dimension: int, sign: int) -> Zone | None:
        """The zone of the same size across a face; None if the zone goes all the way round."""
        digits = zone[dimension :: self.dimensions]
        if not digits:
            return None
        moved = (int(digits, 2) + sign) % (1 << len(digits))
        found = list(zone)
        found[dimension :: self.dimensions] = f"{moved:0{len(digits)}b}"
        return "".join(found)

    def has_come_half_way(self, zone: Zone, start: int, dimension: int, sign: int) -> bool:
        """Whether the far end of a zone is half the torus away from a coordinate, in a direction."""
        low, high = self.interval(zone, dimension)
        way = (high - start - 1) % SIDE + 1 if sign > 0 else (start - low) % SIDE
        return way >= SIDE // 2


def overlap(one: Zone, other: Zone) -> bool:
    return one.startswith(other) or other.startswith(one)


def volume(zone: Zone) -> float:
    """The share of the torus."""
    return float(0.5 ** len(zone))


def sibling(zone: Zone) -> Zone:
    """The other half of what a zone is a half of."""
    return zone[:-1] + ("1" if zone[-1] == "0" else "0")


def _beats(claim: Claim, older: Claim) -> bool:
    return claim[1] > older[1] and overlap(claim[0], older[0])


class Can:
    """One member's part. `name` tells this network from another one for the same purpose."""

    __slots__ = ("_clock", "_holes", "_near", "holders", "lost", "me", "name", "on_change", "space", "zones")

    def __init__(self, space: Space, me: Address, name: int) -> None:
        self.space = space
        self.me = me
        self.name = name
        self.zones: dict[Zone, int] = {}
        """The own zones, with the versions of their claims."""
        self.holders: dict[Address, ZoneHolder] = {}
        """The neighbours. Their number depends on the zones' shapes alone: about 2 d of them if those are alike."""
        self.lost: BoundedDict[Zone, tuple[Address, ...]] = BoundedDict(LOST_MAX)
        """Zones of members that fell silent, and the neighbours that they had."""
        self.on_change: Callable[[], None] = ignore
        """Called when the own zones or those of neighbours are about to be others."""
        self._clock = 0
        self._near: dict[tuple[Zone, int, int], list[tuple[Address, Zone]]] = {}
        self._holes: list[Zone] | None = None

    @property
    def claims(self) -> tuple[Claim, ...]:
        return tuple(self.zones.items())

    @property
    def volume(self) -> float:
        return sum(map(volume, self.zones))

    def zone_of(self, point: Point) -> Zone | None:
        """The own zone that a point is in."""
        return next((zone for zone in self.zones if self.space.has(zone, point)), None)

    # Zones that come and go

    def claim(self, zones: Iterable[Zone]) -> None:
        """Takes what nobody holds, under a version above all that were seen."""
        self._clock += 1
        for zone in zones:
            if not any(zone.startswith(mine) for mine in self.zones):
                for part in [mine for mine in self.zones if mine.startswith(zone)]:
                    del self.zones[part]
                self.zones[zone] = self._clock
        self._merge()
        self._moved()

    def split(self, point: Point) -> Claim | None:
        """Gives away the half with a point in it, of the zone that has it; None if it is too small."""
        zone = self.zone_of(point)
        if zone is None or len(zone) >= SIDE_BITS * self.space.dimensions:
            return None
        self._clock += 1
        given = self.space.zone_at(point, len(zone) + 1)
        del self.zones[zone]
        self.zones[sibling(given)] = self._clock
        self._moved()
        return given, self._clock

    def accept(self, claim: Claim) -> None:
        """Holds what was given away."""
        self.zones[claim[0]] = claim[1]
        self._clock = max(self._clock, claim[1])
        self._moved()

    def _moved(self) -> None:
        """The own zones have changed: so have the neighbours."""
        self._forget_view()
        for address in [a for a, holder in self.holders.items() if not self.is_near(holder.claims)]:
            del self.holders[address]

    def _forget_view(self) -> None:
        self._near = {}
        self._holes = None
        self.on_change()

    def _merge(self) -> None:
        """Two halves of a zone are that zone."""
        halves = [zone for zone in self.zones if zone]
        while halves:
            zone = halves.pop()
            other = sibling(zone)
            if zone in self.zones and other in self.zones:
                self.zones[zone[:-1]] = max(self.zones.pop(zone), self.zones.pop(other))
                if zone[:-1]:
                    halves.append(zone[:-1])

    def _yield(self, mine: Zone, theirs: Zone) -> None:
        """Keeps of an own zone what another claim leaves."""
        version = self.zones.pop(mine)
        for digits in range(len(mine), len(theirs)):
            self.zones[sibling(theirs[: digits + 1])] = version

    # What others say

    def hear(
        self, address: Address, claims: tuple[Claim, ...], now: float, neighbours: tuple[Address, ...] = ()
    ) -> None:
        """A member told what it holds; none, if it is gone."""
        has_yielded = False
        for zone, version in claims:
            self._clock = max(self._clock, version)
            for mine in [mine for mine in self.zones if overlap(mine, zone)]:
                if (version, str(address)) > (self.zones[mine], str(self.me)):
                    self._yield(mine, zone)
                    has_yielded = True
        known = self.holders.get(address)
        if known is None or known.claims != claims:
            self._forget_view()
            self._correct(address, claims)
        if self.is_near(claims):
            self.holders[address] = ZoneHolder(claims, now, neighbours)
        else:
            self.holders.pop(address, None)
        if has_yielded:
            self._moved()

    def _correct(self, address: Address, claims: tuple[Claim, ...]) -> None:
        """What a member claims, those that claimed it before do not hold any more."""
        for other, holder in list(self.holders.items()):
            left = tuple([mine for mine in holder.claims if not any(_beats(claim, mine) for claim in claims)])
            if other != address and left != holder.claims:
                self.holders[other] = ZoneHolder(left, holder.heard_at, holder.neighbours)

    def is_near(self, claims: tuple[Claim, ...]) -> bool:
        return any(self.space.are_near(mine, zone) for zone, _ in claims for mine in self.zones)

    def forget_silent(self, since: float) -> float | None:
        """Members not heard since then are gone; when the last of them was heard, if there were any."""
        silent = {address: holder for address, holder in self.holders.items() if holder.heard_at < since}
        for address, holder in silent.items():
            del self.holders[address]
            self._forget_view()
            for zone, _ in holder.claims:
                self.lost[zone] = holder.neighbours
        return max([holder.heard_at for holder in silent.values()], default=None)

    def vacancies(self) -> dict[Zone, tuple[Address, ...]]:
        """What is to be taken over, and which members should hear of it: lost zones in holes, or the holes."""
        holes = self.holes()
        if not holes:
            self.lost.clear()
        found: dict[Zone, tuple[Address, ...]] = {}
        for hole in holes:
            lost = [zone for zone in self.lost if overlap(zone, hole)]
            found.update({zone: self.lost[zone] for zone in lost} if lost else {hole: ()})
        return found

    # Neighbours

    def neighbours(self, zone: Zone, dimension: int, sign: int) -> list[tuple[Address, Zone]]:
        """The members across a face of an own zone, this one included, with their zones."""
        found = self._near.get((zone, dimension, sign))
        if found is None:
            known = [(self.me, mine) for mine in self.zones]
            known += [(address, theirs) for address, holder in self.holders.items() for theirs, _ in holder.claims]
            found = [(holder, other) for holder, other in known if self.space.touches(zone, other, dimension, sign)]
            self._near[zone, dimension, sign] = found
        return found

    def nearest(self, point: Point, aside: Address) -> tuple[int, Address] | None:
        """The neighbour that is nearest to a point, one aside, and how far it is from it."""
        found: tuple[int, Address] | None = None
        for address, holder in self.holders.items():
            for zone, _ in holder.claims if address != aside else ():
                distance = self.space.distance(zone, point)
                if found is None or distance < found[0]:
                    found = distance, address
        return found

    def larger(self, zone: Zone) -> tuple[Address, Zone] | None:
        """The neighbour with the largest zone, if that is larger than this one."""
        known = [(len(at), address, at) for address, holder in self.holders.items() for at, _ in holder.claims]
        digits, address, at = min(known, key=lambda one: (one[0], one[2]), default=(len(zone), self.me, zone))
        return (address, at) if digits < len(zone) else None

    def heir(self, zone: Zone) -> Address | None:
        """The member that should take an own zone over: the holder of its other half, else the one that holds least."""
        held = {address: sum(volume(at) for at, _ in holder.claims) for address, holder in self.holders.items()}
        halves = [
            a for a, holder in self.holders.items() if zone and any(at == sibling(zone) for at, _ in holder.claims)
        ]
        return halves[0] if halves else min(held, key=lambda address: held[address], default=None)

    def holes(self) -> list[Zone]:
        """What borders on own zones and nobody is known to hold."""
        if self._holes is None:
            self._holes = self._find_holes()
        return self._holes

    def _find_holes(self) -> list[Zone]:
        known = [zone for holder in self.holders.values() for zone, _ in holder.claims] + list(self.zones)
        found: dict[Zone, None] = {}
        for zone in self.zones:
            for dimension, sign in self.space.directions():
                beyond = self.space.across(zone, dimension, sign)
                if beyond is not None:
                    self._add_holes(zone, beyond, (dimension, sign), known, found)
        return list(found)

    def _add_holes(
        self, zone: Zone, beyond: Zone, way: tuple[int, int], known: list[Zone], found: dict[Zone, None]
    ) -> None:
        if any(beyond.startswith(at) for at in known) or not self.space.touches(zone, beyond, *way):
            return
        if not any(at.startswith(beyond) for at in known):
            found[beyond] = None
            return
        for half in ("0", "1"):
            self._add_holes(zone, beyond + half, way, known, found)
