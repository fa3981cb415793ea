"""Who wanted what, and when: kept outside of the methods, and compared with where publications arrive.

A `WantLedger` is told what the clients of each broker want, by filters with wildcards, from when until when. An
`ArrivalChecker` listens to the network. It complains of every copy of a publication that arrives at a broker whose
clients do not want it, whatever carried it there and whether or not it was handed to anybody; of a publication that
comes to a broker's clients twice; and of one that did not come though its subscriber had been told that it would.

Knowledge travels no faster than messages: a publication that leaves while the news that nobody wants it any more is
under way arrives in vain. So a broker must have wanted a topic at some moment between `window_s` before the publication
and its arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from braidmq.host import Address, Message
from braidmq.mqtt.topics import has_wildcard, matches
from braidmq.pubsub.method import Publication
from braidmq.sim.checkers.complaints import Complaints

CALM_WINDOW_S = 0.5
"""What it takes at most, in a network without faults, until all that publish know that a filter is wanted no more: a
message with the removal, and what holds it back so that several travel together."""

ARRIVED_S = 5.0
"""What a publication may take to the last of its subscribers, when nothing is lost."""


class Want(msgspec.Struct):
    """A filter that the clients of a broker want, or wanted."""

    topic_filter: str
    since: float
    effective_at: float | None = None
    """When `subscribe` returned: what is published from then on must arrive."""
    until: float | None = None
    """When it ceased to be wanted; None as long as it is."""


class WantLedger:
    """What the clients of each broker want, and what they wanted not long ago."""

    def __init__(self, now: Callable[[], float], kept_s: float) -> None:
        """What has ceased is remembered for `kept_s`: as long as anybody will ask for."""
        self._now = now
        self._kept_s = kept_s
        self._plain: dict[int, dict[str, Want]] = {}
        self._wildcards: dict[int, dict[str, Want]] = {}
        self._past: dict[int, list[Want]] = {}

    def begin(self, broker: int, topic_filter: str) -> Want:
        """The clients of a broker want a filter from now on."""
        wants = self._of(broker, topic_filter)
        if topic_filter not in wants:
            wants[topic_filter] = Want(topic_filter, self._now())
        return wants[topic_filter]

    def end(self, broker: int, topic_filter: str) -> None:
        """They do no longer."""
        want = self._of(broker, topic_filter).pop(topic_filter, None)
        if want is not None:
            want.until = self._now()
            past = self._past.setdefault(broker, [])
            past.append(want)
            if (past[0].until or 0.0) < self._now() - self._kept_s:
                self._past[broker] = [one for one in past if (one.until or 0.0) >= self._now() - self._kept_s]

    def end_all(self, broker: int) -> None:
        """A broker is gone, and its clients with it."""
        for topic_filter in list(self.filters_of(broker)):
            self.end(broker, topic_filter)

    def filters_of(self, broker: int) -> Iterator[str]:
        """What the clients of a broker want now."""
        yield from self._plain.get(broker, ())
        yield from self._wildcards.get(broker, ())

    def matching(self, broker: int, topic: str) -> Iterator[Want]:
        """All that matches a topic of what the clients of a broker want now."""
        plain = self._plain.get(broker, {}).get(topic)
        if plain is not None:
            yield plain
        for topic_filter, want in self._wildcards.get(broker, {}).items():
            if matches(topic_filter, topic):
                yield want

    def wants(self, broker: int, topic: str) -> bool:
        """Whether the clients of a broker want a topic now."""
        return next(self.matching(broker, topic), None) is not None

    def wanted_since(self, broker: int, topic: str, since: float) -> bool:
        """Whether they want a topic, or wanted it at some moment since a time."""
        return self.wants(broker, topic) or any(
            (one.until or 0.0) >= since and matches(one.topic_filter, topic) for one in self._past.get(broker, ())
        )

    def is_promised(self, broker: int, topic: str) -> bool:
        """Whether it was said to clients that what is published on a topic from now on will arrive."""
        return any(want.effective_at is not None for want in self.matching(broker, topic))

    def wanting(self, topic: str) -> list[int]:
        """The brokers whose clients want a topic now."""
        brokers = dict.fromkeys([*self._plain, *self._wildcards])
        return [broker for broker in brokers if self.wants(broker, topic)]

    def _of(self, broker: int, topic_filter: str) -> dict[str, Want]:
        return (self._wildcards if has_wildcard(topic_filter) else self._plain).setdefault(broker, {})


class _UnderWay(msgspec.Struct):
    """A publication that is not over."""

    name: str
    topic: str
    origin: int
    published_at: float
    promised: dict[int, list[Want]]
    """The brokers that must get it, and what they were promised; none where nothing is promised."""
    is_within: Callable[[int], bool] | None
    """Whether a broker is in the scope of the publication, if it has one."""
    arrived: dict[int, None] = msgspec.field(default_factory=dict)
    """Where a copy has arrived."""
    got: dict[tuple[int, int], None] = msgspec.field(default_factory=dict)
    """Whose clients it was handed to: broker and incarnation."""


class ArrivalChecker:
    """Compares where publications arrive with who wants them. `over` must be called now and then."""

    def __init__(self, now: Callable[[], float], ledger: WantLedger, complaints: Complaints) -> None:
        self.window_s = CALM_WINDOW_S
        self.publications = 0
        self.arrivals = 0
        """Copies that arrived at other brokers."""
        self.handed_over = 0
        """Publications that came to clients."""
        self._now = now
        self._ledger = ledger
        self._complaints = complaints
        self._under_way: dict[int, _UnderWay] = {}

    def published(
        self,
        number: int,
        topic: str,
        origin: int,
        promised_to: Iterable[int] = (),
        is_within: Callable[[int], bool] | None = None,
    ) -> None:
        """A publication begins; each broker of `promised_to` must get it, if its clients go on wanting it.

        `is_within` says of a broker whether it may get it at all, where the publication has a scope.
        """
        self.publications += 1
        promised = {
            broker: [want for want in self._ledger.matching(broker, topic) if want.effective_at is not None]
            for broker in promised_to
            if broker != origin and (is_within is None or is_within(broker))
        }
        name = f"publication {number} of broker {origin} on {topic!r} at {self._now():.3f} s"
        self._under_way[number] = _UnderWay(name, topic, origin, self._now(), promised, is_within)

    def on_arrival(self, sender: Address, to: Address, number: int, message: Message) -> None:
        """A copy of a publication has arrived at a host."""
        mine = self._under_way.get(number)
        if sender == to:
            return
        broker = int(to)
        self.arrivals += 1
        if mine is None:
            self._complain(f"publication {number} arrived at broker {broker} long after it was over")
            return
        mine.arrived[broker] = None
        if broker == mine.origin:
            self._complain(f"{mine.name} came back to its publisher, in a {type(message).__name__} of {sender}")
        elif mine.is_within is not None and not mine.is_within(broker):
            self._complain(f"{mine.name} arrived at broker {broker}, outside of its scope")
        elif not self._ledger.wanted_since(broker, mine.topic, mine.published_at - self.window_s):
            self._complain(
                f"{mine.name} arrived at broker {broker}, in a {type(message).__name__} of {sender}: nobody wants it "
                f"there, nor did since {self.window_s:g} s before it was published"
            )

    def on_message(self, broker: int, incarnation: int, number: int, publication: Publication) -> None:
        """A publication was handed to the clients of a broker."""
        mine = self._under_way.get(number)
        if mine is None:
            self._complain(f"publication {number} came to the clients of broker {broker} long after it was over")
            return
        self.handed_over += 1
        if publication.topic != mine.topic:
            self._complain(f"{mine.name} came to the clients of broker {broker} as one on {publication.topic!r}")
        if (broker, incarnation) in mine.got:
            self._complain(f"{mine.name} came more than once to the clients of broker {broker}")
        mine.got[broker, incarnation] = None
        if broker not in mine.arrived:
            self._complain(f"{mine.name} came to the clients of broker {broker}, and no copy of it was seen on its way")

    def over(self, after_s: float = ARRIVED_S) -> None:
        """What was published longer ago than this is over: all who were promised it, and wanted it on, must have it."""
        for number, mine in list(self._under_way.items()):
            if mine.published_at + after_s > self._now():
                continue
            del self._under_way[number]
            got = {broker for broker, _ in mine.got}
            due_at = min(self._now(), mine.published_at + ARRIVED_S)
            for broker, wants in mine.promised.items():
                if broker not in got and any(_held(want, due_at) for want in wants):
                    what = ", ".join(f"{want.topic_filter!r} since {want.effective_at:.3f} s" for want in wants)
                    self._complain(f"{mine.name} did not reach broker {broker}, whose clients want {what}")

    def _complain(self, what: str) -> None:
        self._complaints.add([f"at {self._now():.3f} s: {what}"])


def _held(want: Want, until: float) -> bool:
    return want.until is None or want.until > until
