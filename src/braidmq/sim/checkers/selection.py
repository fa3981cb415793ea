"""Reservations that must hold: no slot is anybody's twice, and none is lost that its holder counts on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from braidmq.keys import Key
from braidmq.select.holder import Holder
from braidmq.select.member import Member


def no_slot_is_reserved_twice(holders: Iterable[Holder], slots: Mapping[tuple[Key, str], int]) -> list[str]:
    """Of each component, named by its member's key and its own name, at most as many holders as it has slots."""
    held: Counter[tuple[Key, str]] = Counter()
    for holder in holders:
        if holder.is_valid:
            held[holder.reservation.member.key, holder.reservation.component] += 1
    return [
        f"{component} of {key!r} has {slots.get((key, component), 0)} slots, and {count} holders"
        for (key, component), count in held.items()
        if count > slots.get((key, component), 0)
    ]


def no_reservation_is_lost(holders: Iterable[Holder], members: Mapping[Key, Member]) -> list[str]:
    """What a holder counts on is reserved at the member; one that has crashed since took its components with it."""
    return [
        f"{holder.reservation.request} counts on {holder.reservation.component}, which its member does not hold for it"
        for holder in holders
        if holder.is_valid
        and (member := members.get(holder.reservation.member.key)) is not None
        and member.version[0] == holder.reservation.fence[0]
        and member.holds(holder.reservation.request) != holder.reservation.fence
    ]
