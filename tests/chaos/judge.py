"""What every subscriber must have, and what it has.

- Every publication that was acknowledged to its publisher (PUBACK, PUBCOMP) reaches every subscriber whose SUBACK came
  before the publication.
- Of QoS 2 from end to end, nothing comes twice.
- What one publisher sends on one topic comes in its order, at first arrival; violations are counted apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from braidmq.mqtt.topics import matches
from tests.chaos.load import Name, Publisher, Sent, Subscriber

SHOWN_MAX = 40


@dataclass(frozen=True)
class Missing:
    sent: Sent
    subscriber: Subscriber

    def describe(self, began_at: float) -> str:
        sent, to = self.sent, self.subscriber
        assert sent.acknowledged_at is not None
        return (
            f"{sent.topic} #{sent.number} (QoS {sent.qos}) of {sent.publisher} at b{sent.broker}, published "
            f"{sent.begun_at - began_at:.2f} s, acknowledged {sent.acknowledged_at - began_at:.2f} s, sent "
            f"{sent.times_sent} times: not at {to.name} at b{to.broker} ({', '.join(to.filters)}, QoS {to.qos})"
        )


@dataclass(frozen=True)
class Verdict:
    began_at: float
    published: int
    acknowledged: int
    refused: int
    deliveries: int
    again: int
    missing: list[Missing]
    twice: list[tuple[Subscriber, Name]]
    late: list[tuple[Subscriber, Name, int]]
    sessions_lost: list[str]

    @property
    def is_good(self) -> bool:
        return not (self.missing or self.twice or self.sessions_lost)

    def lines(self) -> list[str]:
        """For people."""
        found = [
            f"{self.published} published, {self.acknowledged} acknowledged, {self.refused} refused; "
            f"{self.deliveries} deliveries, {self.again} again at QoS 1",
            f"missing: {len(self.missing)}, twice at QoS 2: {len(self.twice)}, out of order: {len(self.late)}, "
            f"sessions lost: {len(self.sessions_lost)}",
        ]
        ways = Counter((one.sent.broker, one.subscriber.broker) for one in self.missing)
        found += [f"missing from b{origin} at b{at}: {count}" for (origin, at), count in sorted(ways.items())]
        found += [one.describe(self.began_at) for one in self.missing[:SHOWN_MAX]]
        found += [f"twice at {to.name} at b{to.broker}: {name}" for to, name in self.twice[:SHOWN_MAX]]
        found += [
            f"late at {to.name} at b{to.broker}: {name} behind {last}, at {to.got.first_at[name] - self.began_at:.2f} s"
            for to, name, last in self.late[:SHOWN_MAX]
        ]
        found += [f"a session was lost: {name}" for name in self.sessions_lost]
        return found


def missing(publishers: Iterable[Publisher], subscribers: Iterable[Subscriber]) -> list[Missing]:
    """What was acknowledged and has not arrived, of all that must."""
    found = []
    acknowledged = [one for publisher in publishers for one in publisher.sent if one.acknowledged_at is not None]
    for subscriber in subscribers:
        since = subscriber.subscribed_at
        assert since is not None, f"{subscriber.name} was never subscribed"
        wanted: dict[str, bool] = {}
        for one in acknowledged:
            if one.topic not in wanted:
                wanted[one.topic] = any(matches(topic_filter, one.topic) for topic_filter in subscriber.filters)
            if wanted[one.topic] and one.begun_at > since and one.name not in subscriber.got.first_at:
                found.append(Missing(one, subscriber))
    return found


def judge(publishers: list[Publisher], subscribers: list[Subscriber], began_at: float) -> Verdict:
    qos = {one.name: one.qos for publisher in publishers for one in publisher.sent}
    return Verdict(
        began_at,
        published=len(qos),
        acknowledged=sum(one.acknowledged_at is not None for publisher in publishers for one in publisher.sent),
        refused=sum(len(publisher.refused) for publisher in publishers),
        deliveries=sum(len(one.got.first_at) for one in subscribers),
        again=sum(one.got.again for one in subscribers),
        missing=missing(publishers, subscribers),
        twice=[(one, name) for one in subscribers for name in one.got.twice if qos[name] == 2],
        late=[(one, name, last) for one in subscribers for name, last in one.got.late],
        sessions_lost=[one.name for one in (*publishers, *subscribers) if one.sessions_lost],
    )
