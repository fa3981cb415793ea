"""What brokers tell each other about shared subscriptions: who has members, and which of them has which message.

A message is known everywhere by its number, which is one of a kind. `Assign` lends messages to the members of another
broker; `Assigned` says what has become of them, as often as there is something to say. Both may be lost: so a broker
asks now and then about what it has lent (`AskLoans`).
"""

from __future__ import annotations

import msgspec

from braidmq.braid.transfer.batch import BatchItem
from braidmq.host import Address, Message


class GroupRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The members of one group at one broker, as it says itself."""

    identity: str
    full_filter: str
    """As `$share/name/filter`."""
    address: Address
    cluster: str
    at: float
    """When it was said (Unix time): of two, the later one counts."""
    members: int
    """How many are connected."""
    is_kept: bool = False
    """Whether there is a session that outlives its connection, connected or not."""
    room: int | None = None
    """How many messages its members can have at a time, if all of them say so."""
    idle: float = 1.0
    """The part of their processors that is left, as far as they say."""

    @property
    def has_anybody(self) -> bool:
        return self.members > 0 or self.is_kept


class CompareGroups(Message, frozen=True, array_like=True, gc=False):
    """I know what this digest names; what do you know?"""

    digest: bytes


class GroupsKnown(Message, frozen=True, array_like=True, gc=False):
    """All that is known here; nothing if it is the same."""

    digest: bytes
    records: tuple[GroupRecord, ...] = ()


class LentMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message for one member; its number is 0 if nobody waits for what becomes of it (QoS 0)."""

    number: int
    topic: str
    item: BatchItem
    attempt: int = 0
    """How often it was lent before: one that comes late is not to be taken, once it was asked for."""


class Assign(Message, frozen=True, array_like=True, gc=False):
    """For members of a group at the other broker. Batches are numbered, group by group."""

    full_filter: str
    batch: int
    jobs: tuple[LentMessage, ...]


class Assigned(Message, frozen=True, array_like=True, gc=False):
    """What has become of messages."""

    identity: str
    full_filter: str
    batch: int
    """The last one that has come."""
    free: int
    """How many more members here could take now."""
    settled: tuple[int, ...] = ()
    """Acknowledged by a member, or taken into its session for good (QoS 2)."""
    returned: tuple[int, ...] = ()
    """No member has them: none was free, or the one that was is gone."""


class AskLoans(Message, frozen=True, array_like=True, gc=False):
    """What has become of these? Each with the number of the attempt."""

    loans: tuple[tuple[int, int], ...]


class LoansKnown(Message, frozen=True, array_like=True, gc=False):
    """What is neither held nor settled is not here, and will not be taken any more if it comes."""

    identity: str
    held: tuple[int, ...]
    settled: tuple[int, ...]


class TakeQueue(Message, frozen=True, array_like=True, gc=False):
    """I am leaving: go on with what waits for a group here. Some of it may be lent."""

    full_filter: str
    messages: tuple[LentMessage, ...]


class QueueTaken(Message, frozen=True, array_like=True, gc=False):
    """It is in the store."""


class ForgetTaken(Message, frozen=True, array_like=True, gc=False):
    """These are not kept anywhere else any more: it need not be remembered that they were taken."""

    numbers: tuple[int, ...]
