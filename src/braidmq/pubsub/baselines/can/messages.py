"""What the members of a mini CAN say to each other (`multicast`)."""

from __future__ import annotations

from braidmq.host import Address, Message
from braidmq.pubsub.baselines.can.network import SIDE, Claim, Point, Zone

DETOURS_MAX = 4
"""How often a message for a point may come to a member that is no nearer to it than the last one was taken for."""

Members = tuple[tuple[Address, tuple[Claim, ...]], ...]
"""Some members, and what each of them holds."""

Way = tuple[Zone, int, int]
"""A zone that a publication comes to, along which dimension, and whether up (1) or down (-1)."""


class Course(Message, frozen=True, array_like=True, gc=False):
    """Where a message goes in a CAN, how far that is from where it was sent to last, and the detours it may take."""

    point: Point
    distance: int = SIDE * 8
    detours: int = DETOURS_MAX


class CanJoin(Message, frozen=True, array_like=True, gc=False):
    """A newcomer's wish on its way to the holder of a point; `number` tells a repetition from a new wish."""

    topic: str
    can: int
    newcomer: Address
    number: int
    course: Course
    is_last: bool = False


class CanGranted(Message, frozen=True, array_like=True, gc=False):
    claim: Claim
    members: Members


class CanNoZone(Message, tag="CanNowhere", frozen=True, array_like=True, gc=False):
    """There was no zone; `is_member` is False if the sender has no part in the network."""

    is_member: bool


class CanUpdate(Message, tag="CanKeep", frozen=True, array_like=True, gc=False):
    """What the sender holds, nothing if it is gone, and what its neighbours are."""

    topic: str
    can: int
    claims: tuple[Claim, ...]
    members: Members


class CanProbe(Message, frozen=True, array_like=True, gc=False):
    """A question for the holder of a point, as far as members know it, which answers the member."""

    topic: str
    can: int
    member: Address
    claims: tuple[Claim, ...]
    course: Course


class CanTakeOver(Message, tag="CanTake", frozen=True, array_like=True, gc=False):
    """The sender leaves: the receiver is to hold its zones."""

    topic: str
    can: int
    claims: tuple[Claim, ...]
    members: Members


class CanTakenOver(Message, tag="CanTaken", frozen=True, array_like=True, gc=False):
    pass


class CanFlood(Message, frozen=True, array_like=True, gc=False):
    """A publication, and by which ways it comes to the receiver; `start` is where the publisher is."""

    topic: str
    can: int
    origin: Address
    number: int
    hops: int
    body: bytes
    start: Point
    ways: tuple[Way, ...]
