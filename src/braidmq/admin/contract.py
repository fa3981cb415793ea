"""Every question and answer of the admin port that is JSON; `drain_contract` and `ring_contract` have some of them.

Names of fields are keys of the JSON, and scripts rely on them. A field that was added later has a default, so that the
answer of an older broker can still be read; unknown keys are ignored, so that the answer of a newer one can.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from braidmq.admin.share_contract import GroupChoice, GroupStatus

JSON: Final = "application/json"
SPOOL: Final = "application/msgpack"
"""The content type of a spool that changes hands: `SpoolState.encode()`."""
SPOOL_BYTES_MAX: Final = 256 << 20
"""The largest spool that changes hands."""
ROWS: Final = "application/vnd.apache.arrow.stream"
"""The content type of the log's rows."""

Number = int | float
"""Stays as it was written: 5 is not read as 5.0."""


ADMIN_FILE: Final = "admin.json"
"""In the data folder of a site that runs beside others: an AdminFile. Commands with --data find it there."""


class AdminFile(msgspec.Struct, frozen=True):
    """Where a site's admin port is."""

    name: str
    url: str
    pid: int = 0


class ErrorAnswer(msgspec.Struct, frozen=True):
    """The body of every answer that is a no."""

    error: str


# The process: /health and /ready


class Health(msgspec.Struct, frozen=True):
    status: str
    version: str


class Readiness(msgspec.Struct, frozen=True):
    status: Literal["ready", "not ready"]
    reasons: dict[str, str] | UnsetType = UNSET
    """By what was checked: why it is not ready."""
    remarks: dict[str, str] | UnsetType = UNSET
    """What is wrong and does not keep clients from being served."""


# The braid: /braid, /braid/ring, /braid/topics, /braid/demand, /braid/trace


class Neighbour(msgspec.Struct, frozen=True):
    """The broker beside this one on the ring, by its key."""

    name: str
    cluster: str
    address: str
    topic: str
    role: str


class KeyCounts(msgspec.Struct, frozen=True):
    home: int
    internal: int
    publisher: int
    subscriber: int


class TopicCounts(msgspec.Struct, frozen=True):
    published: int
    suspended: int
    """Of these, topics that nobody wants."""
    dropped: int


class HistoryStatus(msgspec.Struct, frozen=True):
    """What is kept of QoS 1 and 2 for brokers that were away."""

    origin: str
    head: int
    length: int
    bytes: int
    forgotten: int


class CursorStatus(msgspec.Struct, frozen=True):
    """How far this broker has got in the history of another one."""

    origin: str
    address: str
    floor: int
    seen: int
    head: int


class InboundCounts(msgspec.Struct, frozen=True):
    duplicates: int
    given_up: int


class HopTotals(msgspec.Struct, frozen=True):
    publications: int
    total: int


class LinkStatus(msgspec.Struct, frozen=True):
    """What has passed on the link to another broker, and how much of it was publications."""

    peer: str
    messages_in: int
    messages_out: int
    bytes_in: int
    bytes_out: int
    publications_in: int
    publications_out: int
    publication_bytes_in: int
    publication_bytes_out: int
    dropped: int
    reconnects: int


class CoversStatus(msgspec.Struct, frozen=True):
    """The few broad filters by which brokers meet, and what those that have met know of each other."""

    publications: list[str]
    """Covers of what clients here publish."""
    wants: list[str]
    """Covers of what they subscribe to."""
    watchers: int
    """Brokers that are told what clients here subscribe to."""
    subscribers: int
    """Brokers that have told what their clients subscribe to."""
    wants_known: int
    """Filters of theirs that are known here."""


class BraidStatus(msgspec.Struct, frozen=True):
    """One broker's part of the braid."""

    name: str
    identity: str
    address: str
    cluster: str
    method: str
    is_in: bool
    trouble: str | None
    age_s: float
    left: Neighbour | None
    right: Neighbour | None
    repairs: int
    keys: KeyCounts
    routing_entries: int
    introducers: list[str]
    shapes: list[str]
    filters: int
    topics: TopicCounts
    history: HistoryStatus
    cursors: list[CursorStatus]
    inbound: InboundCounts = msgspec.field(name="inlets")
    unproven: int
    fetched: int
    hops: HopTotals
    links: list[LinkStatus] = []
    covers: CoversStatus | None = None
    """Only with a method that has covers."""


class PublishedTopic(msgspec.Struct, frozen=True):
    topic: str
    publications: int
    filters: list[str]
    """Those in use that could match it."""
    wanted: list[str]
    """Those of them that clients subscribe to."""
    is_settled: bool
    """Whether that is known."""
    idle_s: float
    groups: list[str] = []
    """The shared subscriptions that want it."""


class FilterInterest(msgspec.Struct, frozen=True):
    """A filter that clients of a broker subscribe to."""

    filter: str
    stands: bool
    """Whether it is announced itself; else a broader one covers it."""
    is_effective: bool


class TopicsAnswer(msgspec.Struct, frozen=True):
    broker: str
    published: list[PublishedTopic]
    published_in_all: int
    interest: list[FilterInterest]
    interest_in_all: int
    covers: CoversStatus | None = None
    groups: list[GroupStatus] = []
    groups_in_all: int = 0


class InterestedBroker(msgspec.Struct, frozen=True):
    name: str
    cluster: str
    filters: list[str]


class DemandAnswer(msgspec.Struct, frozen=True):
    """The brokers whose clients want a topic."""

    topic: str
    could_match: list[str]
    brokers: list[InterestedBroker]
    is_complete: bool
    """Whether all could be asked."""


class TraceHop(msgspec.Struct, frozen=True):
    filter: str
    hop: int
    sender: str | None = msgspec.field(name="from")
    """None if it is not known."""
    to: str
    cluster: str
    receives: bool
    at_ms: float


class TraceAnswer(msgspec.Struct, frozen=True):
    """The way of a probe through the braid."""

    topic: str
    origin: str = msgspec.field(name="from")
    cluster: str
    method: str
    surely: bool
    filters: list[str]
    is_settled: bool
    receivers: int
    hops: list[TraceHop]
    groups: list[GroupChoice] = []
    """Where it would go for each shared subscription: there, and to no other member."""


# The log: /log, /log/offsets


class LogStatus(msgspec.Struct, frozen=True):
    """Where a log begins and ends, and what it takes."""

    broker: str
    id: str
    partitions: int
    first_offset: int
    next_offset: int
    format: int
    bytes: int = 0
    rows: int = 0


class LogOffset(msgspec.Struct, frozen=True):
    offset: int


# Message processors: /processing and below


class ResourceUse(msgspec.Struct, frozen=True):
    used: Number
    max: Number


class ProcessorStatus(msgspec.Struct, frozen=True):
    name: str
    file: str
    where: str
    topic: str | None
    spool: int | None
    output: str | None
    time_limit_s: Number | None
    state: str
    problem: str | None
    pid: int | None
    queue: int
    topics: dict[str, int]
    """How many topics are processed where."""
    processed: int
    notified: int
    errors: int
    dropped: int
    delegated: int
    restarts: int
    busy_s: Number
    spool_scope: str
    homes: int
    """Topics whose spools this broker shares with others, or would."""
    copies_out: int
    copies_in: int
    """Messages for spools of other brokers, and from them."""


class ProcessingStatus(msgspec.Struct, frozen=True):
    processors: list[ProcessorStatus]
    storage: ResourceUse
    compute: ResourceUse
    local_share: Number


class AssignedTopic(msgspec.Struct, frozen=True):
    """Where a topic of a processor is processed."""

    processor: str
    topic: str
    place: str
    """`edge`, `spark`, `returning`, or another word if it is processed nowhere."""
    is_logged: bool
    turns: list[tuple[int, str]]
    """From which offset on it was whose turn."""
    returns_at: int | None
    last_offset: int
    publishers: int
    is_home: bool
    """Whether this broker shares its spool with others that have publishers of it, or would."""


class AssignedTopics(msgspec.Struct, frozen=True):
    topics: list[AssignedTopic]
    in_all: int


class Move(msgspec.Struct, frozen=True):
    """The wish that a topic be processed elsewhere."""

    processor: str
    topic: str
    place: str


class DelegatedTopic(msgspec.Struct, frozen=True, array_like=True):
    topic: str
    first: int
    """Where Spark's turn began."""
    has_spool: bool
    """Whether it began with a spool."""
    returns_at: int | None
    """From where on the edge asks for it back."""


class Delegation(msgspec.Struct, frozen=True):
    """What of a processor is Spark's."""

    version: str
    settled: int
    """No turn below this offset will change any more."""
    topics: list[DelegatedTopic] | UnsetType = UNSET
    """Unset if nothing has changed since the version that the question named."""


ERRORS_MAX: Final = 1_000
"""Errors of one report."""


class ProcessorFailure(msgspec.Struct, frozen=True):
    what: str
    message: str
    topic: str | None = None
    offset: int | None = None


class FailureReport(msgspec.Struct, frozen=True):
    """What went wrong on Spark."""

    processor: str
    errors: Annotated[list[ProcessorFailure], Meta(max_length=ERRORS_MAX)]


class FailuresTold(msgspec.Struct, frozen=True):
    told: int


# Transactions: /publish

PART_ROWS_MAX: Final = 10_000
"""Rows of one part."""
PARTS_MAX: Final = 10_000
"""Parts of one batch."""
WRITER_NAME_MAX: Final = 256


class BatchRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One publication."""

    topic: str
    payload: bytes
    qos: Annotated[int, Meta(ge=0, le=2)] = 1
    retain: bool = False
    properties: tuple[tuple[str, str], ...] = ()


class BatchPart(msgspec.Struct, frozen=True):
    """A piece of a writer's batch; they are counted from 0."""

    writer: Annotated[str, Meta(min_length=1, max_length=WRITER_NAME_MAX)]
    batch: Annotated[int, Meta(ge=0)]
    part: Annotated[int, Meta(ge=0, lt=PARTS_MAX)]
    is_last: bool
    rows: Annotated[tuple[BatchRow, ...], Meta(max_length=PART_ROWS_MAX)]


class Receipt(Enum):
    PUBLISHED = "published"
    REPEATED = "repeated"
    KEPT = "kept"
    """A part of a batch, or all of it: then it will be published."""


class PartReceipt(msgspec.Struct, frozen=True):
    receipt: Receipt
    rows: int
