"""What the broker needs of other brokers, behind a narrow interface.

Publications of clients here leave through a `Federation`, and subscriptions here are made known by it; what other
brokers' clients publish comes back by `Broker.inject` and `Broker.inject_run`. `Alone` is the federation of a broker
that has no others: nothing is wanted elsewhere, and nothing has to be waited for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from braidmq.broker.acknowledged_run import AcknowledgedRun
from braidmq.broker.admission import Arrived
from braidmq.broker.feed import TopicFeed
from braidmq.broker.message import Message, Reached
from braidmq.broker.session import Session
from braidmq.broker.shares import ShareGroup
from braidmq.broker.subscription import Subscribed
from braidmq.broker.tick import Outgoing
from braidmq.mqtt.errors import PacketError
from braidmq.mqtt.packets import Publish, Will
from braidmq.mqtt.reasons import Reason


class ScopeError(PacketError):
    """A publication or a will is to stay among some brokers, and that cannot be kept to; says why."""


class OutboundShortcut(Protocol):
    """The way of publications that come one at a time, always of one topic and size, to other brokers."""

    def send(self, version: int, run: bytes, now: float) -> bool:
        """Sends one plain publication at once; False if it has to go by `Outbound.send_run`."""
        ...


class Outbound(Protocol):
    """Where the publications of one topic leave for other brokers."""

    @property
    def is_open(self) -> bool:
        """Whether plain QoS 0 publications may have to leave."""
        ...

    @property
    def is_kept(self) -> bool:
        """Whether those of QoS 1 and 2 may have to leave, or to be kept for brokers that cannot be reached."""
        ...

    @property
    def cut_through(self) -> OutboundShortcut | None:
        """The short way, while there is one."""
        ...

    @property
    def is_known(self) -> bool:
        """Whether it is known whether anybody wants the topic."""
        ...

    def send_run(self, version: int, run: bytes, count: int) -> None:
        """Plain QoS 0 publications, as they came."""
        ...

    def send_acknowledged_run(self, run: AcknowledgedRun, sender: str, now: float) -> bool:
        """Plain publications of QoS 1 or 2, as they came, of a topic that `is_known`; whether anybody wants them."""
        ...


class RetainedQuery(Protocol):
    """A new subscription's question for retained messages that are not, or not only, kept here."""

    def go(self) -> None:
        """The SUBACK is sent: what is found is given to the session."""
        ...

    def end(self) -> None:
        """Its answer is not needed any more."""
        ...


class _Answered:
    def go(self) -> None: ...
    def end(self) -> None: ...


ANSWERED: Final[RetainedQuery] = _Answered()
"""The question is under way already: its answer serves for this one, too."""


class Federation(Outgoing, Protocol):
    @property
    def is_in(self) -> bool:
        """Whether this broker has joined the others."""
        ...

    @property
    def has_entered(self) -> bool:
        """Whether what is wanted here is known to others, and what they want is known here, as far as they are met."""
        ...

    # Publications of clients here

    def resolve_scope(self, packet: Publish | Will) -> None:
        """Gives a publication or a will for some brokers only its plain topic, or raises a ScopeError."""
        ...

    def is_for_here(self, message: Message) -> bool:
        """Whether clients of this broker may get a publication."""
        ...

    def send(self, message: Message, is_new: bool) -> Reached:
        """Sends a publication of a client here to other brokers; whether anybody there wants it, as far as is known.

        `is_new` if it is retained, and none of its topic was kept here before.
        """
        ...

    @property
    def is_demand_told(self) -> bool:
        """Whether `when_known` is worth waiting for: not for a while after it took too long."""
        ...

    def when_known(self, message: Message, action: Callable[[bool], None]) -> None:
        """Calls `action` when it is known whether anybody elsewhere wants a publication that was just sent."""
        ...

    def on_demand_late(self) -> None:
        """It has taken too long to find out whether anybody wants a publication."""
        ...

    @property
    def keeps_tombstones(self) -> bool:
        """Whether other brokers may have older copies of a retained message that is deleted here."""
        ...

    def request(self, session: Session, packet: Publish) -> tuple[Reason, str]:
        """What a client asks of its broker, by a topic of `REQUEST_PREFIXES` that it may publish to.

        Whether that is taken up, and if not why; an answer follows later.
        """
        ...

    # Routes

    def outbound_for(self, topic: str) -> Outbound | None:
        """Where a topic that is published here now leaves for other brokers, if they may want it.

        What it says holds until it has the topic's route forgotten.
        """
        ...

    def feed_for(self, topic: str) -> TopicFeed | None:
        """Who gets what is published to a topic of the brokers themselves; None of any other."""
        ...

    def deliver_by_index(self, message: Message, group: ShareGroup) -> bool:
        """Gives a publication that names a member of a group by an index to that member; False if it names none."""
        ...

    def on_filter(self, topic_filter: str, wanted: bool) -> None:
        """A filter has its first subscription here, or has lost its last."""
        ...

    # Shared subscriptions

    def on_group(self, group: ShareGroup) -> None:
        """A group has one member more or less here, or one that stays for another time."""
        ...

    def is_for_group(self, message: Message, group: ShareGroup) -> bool:
        """Whether a group has a member elsewhere that may get a publication."""
        ...

    def send_to_group(self, message: Message, group: ShareGroup) -> bool:
        """Gives a message of QoS 0 to a member elsewhere; False if none is thought to be free."""
        ...

    def on_waiting(self, group: ShareGroup) -> None:
        """Something waits here that a member elsewhere may take."""
        ...

    def on_free(self, group: ShareGroup) -> bool:
        """Members here can take more, and nothing waits for them here; whether anybody still wants to know that."""
        ...

    def reserve(self, group: ShareGroup) -> int:
        """How many of the messages that members here could take are now for other brokers, which have waited."""
        ...

    def on_processed(self, topic_filter: str, wanted: bool) -> None:
        """Message processors of this broker begin, or cease, to want what a filter matches."""
        ...

    # Clients and their subscriptions

    def admit(self, client_id: str, user: str, clean_start: bool, done: Callable[[Arrived], bool]) -> None:
        """Brings a client's session here, if another broker has it; calls when it may be opened, or that it may not.

        `done` says whether the client is still there, and served now. Only called while `is_in`.
        """
        ...

    def when_followed(self, client_id: str, go_on: Callable[[], None]) -> None:
        """Calls when a client that was admitted may be read: what it publishes now must not come before what it has
        published elsewhere."""
        ...

    @property
    def is_draining(self) -> bool:
        """Whether clients are to use other brokers, of which at least one can be reached."""
        ...

    def server_reference(self, listener: str) -> str | None:
        """Where clients of a listener of this broker, which is drained, find another one; None if nobody says so."""
        ...

    def home_reference(self, client_id: str, version: int, listener: str) -> str | None:
        """Where a client that connects to a listener is at home, if it is to go there; None if it is served here."""
        ...

    def on_share(self, session: Session) -> None:
        """A session has begun, or ceased, to be a member of a shared subscription."""
        ...

    def on_presence(self, session: Session, is_over: bool = False, moved: bool = False) -> None:
        """A session has got or lost its connection, or has ended here; then it may go on at another broker."""
        ...

    def refusal_of(self, topic_filter: str) -> Reason | None:
        """Why no client may subscribe to a filter here; None if it may."""
        ...

    def query_retained(self, session: Session, topic_filter: str, subscribed: Subscribed) -> RetainedQuery | None:
        """How a subscription that is about to be made gets its retained messages; None if all are kept here.

        The session has a connection. What it is sent from now on is noted, so that nothing older comes behind it.
        """
        ...

    def when_effective(self, filters: list[str], done: Callable[[], None]) -> None:
        """Calls `done` when subscriptions, shared ones among them, have taken effect at other brokers, at the latest
        after a few seconds."""
        ...

    def begin_leaving(self) -> None:
        """The broker is about to end: what it stands for then is not given up piece by piece."""
        ...


class Alone:
    """The federation of a broker without others."""

    is_in = False
    has_entered = False
    is_demand_told = False
    is_draining = False
    keeps_tombstones = False
    has_output = False

    def resolve_scope(self, packet: Publish | Will) -> None: ...

    def is_for_here(self, message: Message) -> bool:
        return True

    def send(self, message: Message, is_new: bool) -> Reached:
        return Reached.NOBODY

    def when_known(self, message: Message, action: Callable[[bool], None]) -> None: ...
    def on_demand_late(self) -> None: ...

    def request(self, session: Session, packet: Publish) -> tuple[Reason, str]:
        return Reason.IMPLEMENTATION_SPECIFIC_ERROR, "this broker is in no braid: components can be reserved in one"

    def outbound_for(self, topic: str) -> Outbound | None:
        return None

    def feed_for(self, topic: str) -> TopicFeed | None:
        return None

    def deliver_by_index(self, message: Message, group: ShareGroup) -> bool:
        return False

    def on_filter(self, topic_filter: str, wanted: bool) -> None: ...
    def on_processed(self, topic_filter: str, wanted: bool) -> None: ...
    def on_group(self, group: ShareGroup) -> None: ...

    def is_for_group(self, message: Message, group: ShareGroup) -> bool:
        return False

    def send_to_group(self, message: Message, group: ShareGroup) -> bool:
        return False

    def on_waiting(self, group: ShareGroup) -> None: ...

    def reserve(self, group: ShareGroup) -> int:
        return 0

    def on_free(self, group: ShareGroup) -> bool:
        return False

    def on_share(self, session: Session) -> None: ...
    def on_presence(self, session: Session, is_over: bool = False, moved: bool = False) -> None: ...

    def admit(self, client_id: str, user: str, clean_start: bool, done: Callable[[Arrived], bool]) -> None:
        done(Arrived.HERE)

    def when_followed(self, client_id: str, go_on: Callable[[], None]) -> None:
        go_on()

    def home_reference(self, client_id: str, version: int, listener: str) -> str | None:
        return None

    def server_reference(self, listener: str) -> str | None:
        return None

    def refusal_of(self, topic_filter: str) -> Reason | None:
        return None

    def query_retained(self, session: Session, topic_filter: str, subscribed: Subscribed) -> RetainedQuery | None:
        return None

    def when_effective(self, filters: list[str], done: Callable[[], None]) -> None:
        done()

    def before_commit(self) -> None: ...
    def flush(self) -> None: ...

    def take(self) -> Callable[[], None]:
        return self.flush

    def begin_leaving(self) -> None: ...
