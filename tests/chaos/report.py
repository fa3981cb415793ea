"""A verdict for people: figures, then each thing that is wrong, with the faults that there were then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from tests.chaos.chronicle import Chronicle
from tests.chaos.client import Client, Visit
from tests.chaos.judge import Anew, Missing, Verdict
from tests.chaos.load import Again, Late, Sent, Subscriber

SHOWN_MAX = 12
FAULTS_SHOWN_MAX = 6
BEFORE_S = 2.0
"""Faults so long before something may have to do with it."""


class Report:
    def __init__(self, verdict: Verdict) -> None:
        self._verdict = verdict

    def lines(self) -> list[str]:
        verdict = self._verdict
        refused = sum(len(publisher.refused) for publisher in verdict.publishers)
        again = sum(one.got.again for one in verdict.subscribers)
        found = [
            f"{len(verdict.sent)} published, {verdict.acknowledged} acknowledged, {refused} refused; "
            f"{verdict.deliveries} deliveries, {again} again at QoS 1",
            f"missing: {len(verdict.missing)}, twice at QoS 2: {len(verdict.twice)}, out of order: "
            f"{len(verdict.late)}, sessions lost: {len(verdict.anew)}, never answered: {len(verdict.unanswered)}",
            self._ways_of_late(),
            f"because of the sessions lost, besides: {_counts(verdict.followed)}",
            self._allowed(),
            *connack_lines(verdict.clients, verdict.chronicle),
        ]
        found += [self._missing(one) for one in verdict.missing[:SHOWN_MAX]]
        found += [self._twice(*one) for one in verdict.twice[:SHOWN_MAX]]
        found += [self._late(*one) for one in verdict.late[:SHOWN_MAX]]
        found += [self._anew(one) for one in verdict.anew[:SHOWN_MAX]]
        found += [f"never answered: {self._sent(one)}" for one in verdict.unanswered[:SHOWN_MAX]]
        return found

    def _allowed(self) -> str:
        verdict = self._verdict
        why = Counter(str(one.why_allowed) for one in verdict.allowed_anew)
        text = f"allowed: {len(verdict.allowed_anew)} sessions that began anew, {_counts(verdict.allowed)}"
        found = [*why.most_common(SHOWN_MAX), *verdict.excuses.most_common()]
        return text + "".join(f"\n  {count} x {reason}" for reason, count in found)

    def _ways_of_late(self) -> str:
        """Whether publishers had roamed in between."""
        sent = self._verdict.sent
        pairs = [(sent[late.name], sent[late.name[0], late.name[1], late.behind]) for _, late in self._verdict.late]
        apart = sum(one.sends[0].broker != other.sends[0].broker for one, other in pairs)
        return f"out of order, of these: {apart} behind what was published at another broker"

    # One thing that is wrong

    def _missing(self, one: Missing) -> str:
        sent, to = one.sent, one.subscriber
        assert sent.acknowledged is not None
        text = f"missing: {self._sent(sent)}: not at {self._subscriber(to)}"
        if sent.name in to.got.hidden:
            text += f", to whom it came under another's packet id {self._at(*to.got.hidden[sent.name])}"
        visits = _around(to, sent.begun_at)
        text += "; it " + ", ".join(self._visit(visit) for visit in visits)
        return text + self._faults(sent.begun_at, sent.acknowledged.time, _brokers(sent, visits))

    def _twice(self, to: Subscriber, again: Again) -> str:
        sent = self._verdict.sent[again.name]
        visits = [one for one in to.visits if again.first.time <= one.asked_at <= again.then.time]
        text = f"twice: {self._sent(sent)}: at {self._subscriber(to)} {self._at(*again.first)} "
        text += f"and {self._at(*again.then)}; it {', '.join(self._visit(one) for one in visits) or 'stayed'}"
        brokers = {again.first.broker, again.then.broker, *_brokers(sent, visits)}
        return text + self._faults(min(sent.begun_at, again.first.time), again.then.time, brokers)

    def _late(self, to: Subscriber, late: Late) -> str:
        sent = self._verdict.sent[late.name]
        first, *_, last = sorted([sent.begun_at, late.at.time])
        behind = self._verdict.sent[late.name[0], late.name[1], late.behind]
        overtaken = to.got.first[behind.name]
        visits = [one for one in to.visits if first <= one.asked_at <= last]
        text = f"late: {self._sent(sent)}: at {self._subscriber(to)} {self._at(*late.at)}, behind #{late.behind} of "
        text += f"b{behind.sends[0].broker}, which came {self._at(*overtaken)}; "
        text += f"it {', '.join(self._visit(one) for one in visits) or 'stayed'}"
        return text + self._faults(first, last, {late.at.broker, *_brokers(sent, visits)})

    def _anew(self, one: Anew) -> str:
        visit = one.visit
        assert visit.before is not None
        brokers = [visit.broker, visit.before, *visit.tried]
        copies = self._verdict.chronicle.copies(visit.before, visit.asked_at)
        mirrors = ", ".join(f"b{mirror}" for mirror in sorted(copies.mirrors)) or "nobody"
        text = f"session lost: {one.client.name} (MQTT {one.client.version}) {self._visit(visit)}, from "
        text += f"b{visit.before}, of whose store {mirrors} had a copy; tried in between: {list(visit.tried)}"
        earlier = one.client.visits[: one.client.visits.index(visit)]
        text += f"; before, it {', '.join(self._visit(each) for each in earlier[-3:])}"
        return text + self._faults(visit.asked_at, visit.answered_at or visit.asked_at, [*brokers, *copies.mirrors])

    # Words

    def _sent(self, sent: Sent) -> str:
        sends = ", ".join(self._at(*one) for one in sent.sends[:4])
        acknowledged = "never" if sent.acknowledged is None else self._at(*sent.acknowledged)
        return (
            f"{sent.topic} #{sent.number} (QoS {sent.qos}) of {sent.publisher}, sent {sends}"
            f"{' as new' if sent.as_new else ''}, acknowledged {acknowledged}"
        )

    def _subscriber(self, to: Subscriber) -> str:
        return f"{to.name} ({', '.join(to.filters)}, QoS {to.qos}{', roams' if to.roams else ''})"

    def _visit(self, visit: Visit) -> str:
        what = "waited in vain" if visit.took_s is None else f"came in {visit.took_s:.2f} s"
        text = f"{what} {self._at(visit.asked_at, visit.broker)}{' (anew)' if visit.is_anew else ''}"
        if visit.ended_at is not None:
            text += f" until {visit.ended_at - self._verdict.began_at:.2f} s"
        return text + (f" ({visit.dismissal or visit.refusal})" if visit.dismissal or visit.refusal else "")

    def _at(self, at: float, broker: int) -> str:
        return f"at {at - self._verdict.began_at:.2f} s at b{broker}"

    def _faults(self, since: float, until: float, brokers: Iterable[int]) -> str:
        began_at = self._verdict.began_at
        found = self._verdict.chronicle.during(since - BEFORE_S, until, brokers)
        told = [
            f"{one.kind} {','.join(map(str, one.targets))} {one.began_at - began_at:.1f}-"
            f"{'' if one.ended_at is None else f'{one.ended_at - began_at:.1f}'} s"
            for one in found[:FAULTS_SHOWN_MAX]
        ]
        return f"; faults: {', '.join(told) or 'none'}" + (", …" if len(found) > FAULTS_SHOWN_MAX else "")


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{counts.get(what, 0)} {what}" for what in ("missing", "twice", "late"))


def connack_lines(clients: Iterable[Client], chronicle: Chronicle) -> list[str]:
    """How long CONNACKs took, by what was with the broker before."""
    found: dict[str, list[float]] = {}
    refused: Counter[str] = Counter()
    unanswered: Counter[str] = Counter()
    for client in clients:
        for visit in client.visits:
            situation = _situation(visit, chronicle)
            if visit.took_s is None:
                (refused if visit.refusal else unanswered)[situation] += 1
            else:
                found.setdefault(situation, []).append(visit.took_s)
    lines = []
    for situation in sorted({*found, *refused, *unanswered}):
        times = sorted(found.get(situation, []))
        text = f"CONNACK, {situation}: {len(times)}"
        if times:
            p99 = times[min(len(times) - 1, len(times) * 99 // 100)]
            text += f", median {times[len(times) // 2]:.3f} s, p99 {p99:.3f} s, longest {times[-1]:.3f} s"
        lines.append(f"{text}; {refused[situation]} refused, {unanswered[situation]} without an answer")
    return lines


def _situation(visit: Visit, chronicle: Chronicle) -> str:
    until = visit.answered_at or visit.asked_at
    if chronicle.is_out(visit.broker, visit.asked_at, until):
        return "at a broker that was out of reach itself"
    if visit.before is None:
        return "for the first time"
    if visit.before == visit.broker and not visit.tried:
        return "at the same broker again"
    return f"at another broker, the one before {chronicle.situation(visit.before, visit.asked_at)}"


def _around(client: Client, at: float) -> list[Visit]:
    """Where a client was at a moment, and went next."""
    earlier = [one for one in client.visits if one.asked_at <= at]
    return [*earlier[-1:], *[one for one in client.visits if one.asked_at > at][:3]]


def _brokers(sent: Sent, visits: Iterable[Visit]) -> set[int]:
    return {*(one.broker for one in sent.sends), *(one.broker for one in visits)}
