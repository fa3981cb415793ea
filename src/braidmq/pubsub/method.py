"""What every publish/subscribe method offers to a broker.

A broker says which topics its clients want and which they will publish. The method brings each publication to every
broker that subscribes, once, and tells the publishing broker when demand for what it has advertised begins and ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol, runtime_checkable

from braidmq.host import Address
from braidmq.overlay.ranges import OnOutcome

HOME: Final = ""
"""The topic of all brokers: no client can name it."""

INTERNAL: Final = "$braid/"
"""What all other topics of the braid itself begin with."""


class Publication(NamedTuple):
    """A message as it arrives at a subscribing broker. (origin, number) names it."""

    topic: str
    body: bytes
    origin: Address
    number: int
    hops: int


OnMessage = Callable[[Publication], None]
"""Called once for each publication on a topic that this broker subscribes to, its own included."""

OnDemand = Callable[[str, bool], None]
"""Called with a topic that this broker advertises, when it begins to be wanted, or nobody wants it any more.

A topic that has just been advertised counts as unwanted until this is called.
"""


OnQuestion = Callable[[str, bytes], bytes | None]
"""Called with a topic that this broker subscribes to and a question; the answer goes back."""


class Method(Protocol):
    """One broker's part. Subscribing and advertising return when they have taken effect."""

    on_message: OnMessage
    on_demand: OnDemand

    async def subscribe(self, topic: str) -> None: ...

    async def unsubscribe(self, topic: str) -> None: ...

    async def advertise(self, topic: str) -> None: ...

    async def withdraw(self, topic: str) -> None: ...

    def publish(self, topic: str, body: bytes) -> bool:
        """Sends to all subscribers of an advertised topic; False if it is known that there are none: nothing is sent.

        Methods that cannot know send anyway, and say True.
        """
        ...


@runtime_checkable
class ProvenMethod(Method, Protocol):
    """A method that can prove that every subscriber has a publication."""

    on_question: OnQuestion

    def publish_surely(self, topic: str, body: bytes, timeout_s: float, on_outcome: OnOutcome) -> bool:
        """As `publish`, repeated until every subscriber is proven to have it, or time is over; says which."""
        ...

    def ask(self, topic: str, body: bytes, timeout_s: float, on_outcome: OnOutcome) -> None:
        """Puts a question to all subscribers of a topic, which need not be advertised; `answers` has what they say."""
        ...


@runtime_checkable
class ScopedMethod(ProvenMethod, Protocol):
    """A method that can keep a publication inside a cluster: no broker outside it gets to see it."""

    def publish_within(self, topic: str, body: bytes, cluster: str) -> bool:
        """As `publish`, to the subscribers in a cluster and below it: this broker's or another."""
        ...

    def publish_surely(
        self, topic: str, body: bytes, timeout_s: float, on_outcome: OnOutcome, cluster: str | None = None
    ) -> bool:
        """As that of a `ProvenMethod`, within a cluster if one is named."""
        ...

    def may_be_wanted(self, topic: str, cluster: str) -> bool:
        """False if nobody in a cluster subscribes to an advertised topic, as was known a moment ago."""
        ...


@runtime_checkable
class LeavingMethod(Method, Protocol):
    """A method that can give up everything at once."""

    async def leave(self) -> None:
        """Gives up all filters and topics of clients, as a broker does that ends."""
        ...


@runtime_checkable
class WildcardMethod(ScopedMethod, LeavingMethod, Protocol):
    """A method that is given filters with wildcards, and topics, as they are, and knows itself which of them match.

    What it knows of other brokers' wants it knows here: whether a topic is wanted is looked up, not found out. It does
    not count this broker's own subscriptions, and brings it none of its own publications.
    """

    on_wants: Callable[[str], None]
    """Called with a filter that another broker begins or ceases to want, or that may no longer be reached for it: then
    it may have changed whether topics that it matches are wanted, and by whom. `#` is said of all topics, also of those
    that begin with `$`, which as a filter it does not match."""

    def publish_many(self, publications: Sequence[tuple[str, bytes]]) -> None:
        """As `publish`, for topics and what is published to them: those for the same brokers go together."""
        ...

    def publish_many_surely(
        self, publications: Sequence[tuple[str, bytes]], timeout_s: float, on_outcome: OnOutcome
    ) -> None:
        """As `publish_surely`, with an outcome for each of the messages that it takes."""
        ...

    def knows(self, topic: str) -> bool:
        """Whether it is known which other brokers want a topic; if not, `advertise` finds it out."""
        ...

    def is_wanted(self, topic: str) -> bool:
        """Whether another broker wants a topic, as far as is known."""
        ...

    def was_wanted(self, topic: str) -> bool:
        """Whether a broker wants a topic that has fallen silent, not too long ago."""
        ...

    def on_reached(self, address: Address) -> None:
        """A broker that could not be reached can be again."""
        ...


def ignore(*_: object) -> None:
    """Nobody listens."""


def no_answer(*_: object) -> None:
    """Nobody knows."""
