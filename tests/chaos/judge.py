"""What every subscriber must have, and what it has.

- Every publication that was acknowledged to its publisher (PUBACK, PUBCOMP) reaches every subscriber whose SUBACK came
  before the publication.
- Of QoS 2 from end to end, nothing comes twice.
- What one publisher sends on one topic comes in its order, at first arrival.
- A client finds its session wherever it connects.

What is allowed is what docs/braid.md says, and each case is counted:

- A session begins anew if the broker that had it is out of reach and no copy of it is within reach. Then its client has
  what is published from its next SUBACK on; what was left behind may come later, and what was under way may come again.
  So may what is published until the older session is found (`FOUND_S`).
- A broker that has fewer copies than it wants goes on. What it does then is known to itself alone: if it cannot be
  reached when a client of its has gone elsewhere, what came to that client at that time, or was published by it, may
  come again. It is known to have lost its mirror a moment later than it has (`ALONE_S`).
- A broker that is cut off from all others serves a client with an older session, if it has one. Then what the client
  has had may come again, and what was published since its last session late; and what it had sent elsewhere and sends
  again there may come twice.
- What a publisher has published at one broker may come behind what it has published at another one later: if it began
  anew in between, or one of the two had too few copies; to a subscriber that roams at the same time, or that waited for
  it as long as it has to (`FOLLOW_S`, `FETCH_S`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from braidmq.braid.roaming.directory_entries import REGISTER_S
from braidmq.braid.roaming.displaced import OFFER_S
from braidmq.braid.roaming.published_before import FOLLOW_S
from braidmq.braid.transfer.inbound import FETCH_S
from braidmq.mqtt.topics import matches
from tests.braid.journeys.checking import ALONE_S
from tests.chaos.chronicle import OUT, Chronicle
from tests.chaos.client import Client, Visit
from tests.chaos.load import Again, At, Late, Name, Publisher, Sent, Subscriber

FOUND_S = REGISTER_S + OFFER_S
"""How long after a session has begun anew an older one is found at the latest."""


@dataclass(frozen=True)
class Missing:
    sent: Sent
    subscriber: Subscriber


@dataclass(frozen=True)
class Anew:
    """A session that was not there."""

    client: Client
    visit: Visit
    why_allowed: str | None


@dataclass
class Verdict:
    began_at: float
    chronicle: Chronicle
    publishers: Sequence[Publisher]
    subscribers: Sequence[Subscriber]
    sent: dict[Name, Sent]
    missing: list[Missing] = field(default_factory=list)
    twice: list[tuple[Subscriber, Again]] = field(default_factory=list)
    late: list[tuple[Subscriber, Late]] = field(default_factory=list)
    anew: list[Anew] = field(default_factory=list)
    """Sessions that had to be there."""
    allowed_anew: list[Anew] = field(default_factory=list)
    allowed: dict[str, int] = field(default_factory=dict)
    """How often something was excused."""
    excuses: Counter[str] = field(default_factory=Counter)
    """By what."""
    followed: dict[str, int] = field(default_factory=dict)
    """How often something was wrong since a session had begun anew that had to be there."""
    unanswered: list[Sent] = field(default_factory=list)
    """Publications that are still under way at the end."""

    @property
    def is_good(self) -> bool:
        return not (self.missing or self.twice or self.late or self.anew or self.unanswered)

    @property
    def acknowledged(self) -> int:
        return sum(one.acknowledged is not None for one in self.sent.values())

    @property
    def deliveries(self) -> int:
        return sum(len(one.got.first) for one in self.subscribers)

    @property
    def clients(self) -> list[Client]:
        return [*self.publishers, *self.subscribers]


def missing(publishers: Iterable[Publisher], subscribers: Iterable[Subscriber]) -> list[Missing]:
    """What was acknowledged and has not arrived, of all that must."""
    found = []
    acknowledged = [one for publisher in publishers for one in publisher.sent if one.acknowledged is not None]
    for subscriber in subscribers:
        since = subscriber.subscribed_at
        assert since is not None, f"{subscriber.name} was never subscribed"
        wanted: dict[str, bool] = {}
        for one in acknowledged:
            if one.topic not in wanted:
                wanted[one.topic] = any(matches(topic_filter, one.topic) for topic_filter in subscriber.filters)
            if wanted[one.topic] and one.begun_at > since and one.name not in subscriber.got.first:
                found.append(Missing(one, subscriber))
    return found


def judge(
    publishers: Sequence[Publisher], subscribers: Sequence[Subscriber], chronicle: Chronicle, began_at: float
) -> Verdict:
    sent = {one.name: one for publisher in publishers for one in publisher.sent}
    verdict = Verdict(began_at, chronicle, publishers, subscribers, sent)
    verdict.unanswered = [one for publisher in publishers for one in publisher.under_way]
    for client in verdict.clients:
        for visit in client.visits:
            if visit.is_anew:
                one = Anew(client, visit, why_allowed(visit, chronicle))
                (verdict.anew if one.why_allowed is None else verdict.allowed_anew).append(one)
    _Judging(verdict).run()
    return verdict


def why_allowed(visit: Visit, chronicle: Chronicle) -> str | None:
    """Why a session might begin anew: whoever had it was out of reach, and so were its copies. None if it might not."""
    assert visit.before is not None
    assert visit.answered_at is not None
    since, until = visit.asked_at, visit.answered_at
    if _was_alone(visit, chronicle):
        return f"b{visit.broker} was cut off from all others itself"
    for holder in dict.fromkeys((visit.before, *visit.tried)):
        if not chronicle.is_out(holder, since, until):
            continue
        found = [one.began_at for one in chronicle.during(since, until, [holder]) if one.kind in OUT]
        out_since = min((at for at in found if at >= visit.before_at), default=visit.before_at)
        copies = chronicle.copies(holder, out_since)
        if not copies.is_complete:
            return f"b{holder} was out of reach, and had too few copies"
        gone = [mirror for mirror in copies.mirrors if chronicle.is_out(mirror, since, until)]
        if len(gone) == len(copies.mirrors):
            return f"b{holder} was out of reach, and so was b{', b'.join(map(str, gone))} with its copy"
    return None


def _was_alone(visit: Visit, chronicle: Chronicle) -> bool:
    """Whether a client that was elsewhere came to a broker that could ask nobody."""
    until = visit.answered_at or visit.asked_at
    return visit.before not in (None, visit.broker) and chronicle.is_cut_off(visit.broker, visit.asked_at, until)


class _Judging:
    def __init__(self, verdict: Verdict) -> None:
        self._verdict = verdict
        self._chronicle = verdict.chronicle
        self._causes = (
            (_by_client(verdict.allowed_anew), verdict.allowed),
            (_by_client(verdict.anew), verdict.followed),
        )

    def run(self) -> None:
        verdict = self._verdict
        for one in missing(verdict.publishers, verdict.subscribers):
            if not self._is_explained("missing", partial(_is_left_behind, subscriber=one.subscriber, sent=one.sent)):
                verdict.missing.append(one)
        for subscriber in verdict.subscribers:
            for again in subscriber.got.twice:
                self._judge_again(subscriber, again)
            for late in subscriber.got.late:
                sent = verdict.sent[late.name]
                excuse = self._excuse_of_late(subscriber, sent, late)
                if excuse is not None:
                    self._excuse("late", excuse)
                elif not self._is_explained("late", partial(_is_left_behind, subscriber=subscriber, sent=sent)):
                    verdict.late.append((subscriber, late))

    def _judge_again(self, subscriber: Subscriber, again: Again) -> None:
        verdict = self._verdict
        sent = verdict.sent[again.name]
        if sent.qos < 2:
            return
        excuse = self._excuse_of(subscriber, sent, again)
        if excuse is not None:
            self._excuse("twice", excuse)
        elif not self._is_explained("twice", lambda anew: _is_begun_anew(anew, subscriber, sent, again)):
            verdict.twice.append((subscriber, again))

    def _excuse(self, what: str, why: str) -> None:
        self._verdict.allowed[what] = self._verdict.allowed.get(what, 0) + 1
        self._verdict.excuses[f"{what}: {why}"] += 1

    def _is_explained(self, what: str, is_explained: Callable[[BegunAnew], bool]) -> bool:
        for anew, counts in self._causes:
            if is_explained(anew):
                counts[what] = counts.get(what, 0) + 1
                return True
        return False

    def _excuse_of(self, subscriber: Subscriber, sent: Sent, again: Again) -> str | None:
        """Why it may come again; None if it may not."""
        if self._was_known_to_one(subscriber, again.first, again.then):
            return "it came at a broker with too few copies"
        if self._was_served_alone(subscriber, again.first.time, again.then.time):
            return "the subscriber's broker was cut off when it came"
        for first, then in zip(sent.sends, sent.sends[1:], strict=False):
            if self._was_known_to_one(self._publisher(sent), first, then):
                return "it was sent to a broker with too few copies"
            if first.broker != then.broker and any(
                self._chronicle.is_cut_off(one.broker, one.time, one.time) for one in (first, then)
            ):
                return "it was sent to a broker that was cut off"
        return None

    def _excuse_of_late(self, subscriber: Subscriber, sent: Sent, late: Late) -> str | None:
        """Why it may come behind a later one; None if it may not."""
        if self._was_served_alone(subscriber, sent.begun_at, late.at.time):
            return "the subscriber's broker was cut off when it came"
        behind = self._verdict.sent[late.name[0], late.name[1], late.behind]
        came = subscriber.got.first[behind.name]
        waited_s = came.time - behind.begun_at
        if waited_s >= FETCH_S:
            return f"it was waited for, for {FETCH_S:g} s"
        if {one.broker for one in sent.sends} == {one.broker for one in behind.sends}:
            return None
        if waited_s >= FOLLOW_S and came.broker in [one.broker for one in behind.sends]:
            return f"it was waited for at the publisher's new broker, for {FOLLOW_S:g} s"
        if self._was_taken_with_too_few_copies(sent) or self._was_taken_with_too_few_copies(behind):
            return "it was published at a broker with too few copies, and the later one at another"
        visits = self._publisher(sent).visits
        if any(one.is_anew and sent.begun_at <= one.asked_at <= behind.sends[-1].time for one in visits):
            return "its publisher began anew before the later one"
        if any(sent.begun_at <= one.asked_at <= late.at.time for one in subscriber.visits):
            return "the subscriber roamed, and the publisher did"
        return None

    def _was_taken_with_too_few_copies(self, sent: Sent) -> bool:
        """Whether a broker that it was sent to had too few copies then, or when it acknowledged it."""
        taken = [sent.acknowledged] if sent.acknowledged is not None else []
        return any(self._chronicle.has_lacked(one.broker, one.time, one.time) for one in (*sent.sends, *taken))

    def _was_served_alone(self, client: Client, since: float, until: float) -> bool:
        return any(since <= one.asked_at <= until and _was_alone(one, self._chronicle) for one in client.visits)

    def _publisher(self, sent: Sent) -> Publisher:
        return next(one for one in self._verdict.publishers if one.name == sent.publisher)

    def _was_known_to_one(self, client: Client, first: At, then: At) -> bool:
        """Something happened at a broker that had too few copies, and that was out of reach when the client had gone
        elsewhere."""
        lacked_until = first.time + ALONE_S
        if first.broker == then.broker or not self._chronicle.has_lacked(first.broker, first.time, lacked_until):
            return False
        moves = [one for one in client.visits if first.time <= one.asked_at <= then.time and one.before == first.broker]
        return any(self._chronicle.is_out(first.broker, one.asked_at, one.answered_at or then.time) for one in moves)


BegunAnew = dict[str, list[Visit]]
"""By client: where its session began anew."""


def _by_client(all_anew: Iterable[Anew]) -> BegunAnew:
    found: BegunAnew = {}
    for one in all_anew:
        found.setdefault(one.client.name, []).append(one.visit)
    return found


def _is_left_behind(anew: BegunAnew, subscriber: Subscriber, sent: Sent) -> bool:
    """It was published before the subscriber's session began anew, and was subscribed again."""
    visits = anew.get(subscriber.name, [])
    return any(sent.begun_at <= (visit.subscribed_at or visit.answered_at or 0.0) for visit in visits)


def _is_begun_anew(anew: BegunAnew, subscriber: Subscriber, sent: Sent, again: Again) -> bool:
    """It was under way when its publisher's session, or the subscriber's, began anew."""
    if any(at.time >= (visit.answered_at or 0.0) for visit in anew.get(sent.publisher, []) for at in sent.as_new[:1]):
        return True
    for visit in anew.get(subscriber.name, []):
        answered_at = visit.answered_at or 0.0
        is_found = again.then.time - answered_at > FOUND_S
        if again.first.time <= answered_at <= again.then.time or (visit.asked_at <= sent.begun_at and not is_found):
            return True
    return False
