"""What must hold when all is quiet again, and what may not: told for each subscriber and each publication.

A publication that was acknowledged after a subscription was has come: of QoS 1 at least once, of QoS 2 exactly once;
and the first time each, in the order in which one broker has taken it from one publisher for one topic.

What may be otherwise:

- A broker that has fewer copies than are configured goes on, and says so. What it has sent to a client meanwhile may
  come a second time at another broker, if that gets the session from a copy.
- A client that is told that it has no session, since nobody who has it can be reached, begins anew: what is published
  until it has subscribed again may be missing, and what it has had under a packet id of QoS 2 that was not brought to
  its end. The rest comes later, behind what has come meanwhile.
- A publisher that is told so sends again what was not acknowledged: that may come twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from braidmq.mqtt.topics import matches
from tests.braid.journeys.publisher import Published, Publisher
from tests.braid.journeys.subscriber import Got, Subscriber, Subscription


def complaints_of(subscribers: Sequence[Subscriber], publishers: Sequence[Publisher]) -> list[str]:
    found: list[str] = []
    for subscriber in subscribers:
        for publisher in publishers:
            found += _missing_and_twice(subscriber, publisher)
            found += _out_of_order(subscriber, publisher)
            found += _unwanted(subscriber, publisher)
    for publisher in publishers:
        if not publisher.is_through:
            found.append(f"{publisher.client_id} has not brought all to its end")
    return found


def _matching(subscriber: Subscriber, one: Published) -> list[Subscription]:
    return [each for each in subscriber.subscriptions if matches(each.topic_filter, one.topic)]


def _is_promised(each: Subscription, one: Published) -> bool:
    """Whether it was published while a subscription was acknowledged and not given up."""
    if each.from_s is None or one.first_s is None or one.taken_s is None:
        return False
    return one.first_s >= each.from_s and (each.ending_s is None or one.taken_s < each.ending_s)


def _got(subscriber: Subscriber, one: Published) -> list[Got]:
    return [got for got in subscriber.got if got.payload == one.payload]


def _missing_and_twice(subscriber: Subscriber, publisher: Publisher) -> Iterator[str]:
    times = Counter(got.payload for got in subscriber.got)
    for one in publisher.all:
        matching = _matching(subscriber, one)
        promised = [each for each in matching if _is_promised(each, one)]
        count = times[one.payload]
        if promised and not count:
            yield f"{subscriber.client_id} misses {_name(one)}"
        if count > 1 and one.qos == 2 and all(each.qos == 2 for each in matching) and not one.was_repeated_anew:
            got = _got(subscriber, one)
            if all(each.was_safe for each in got[:-1]):
                where = ", ".join(f"at {each.site} {each.at:.3f}" for each in got)
                yield f"{subscriber.client_id} got {_name(one)} {count} times: {where}"


def _out_of_order(subscriber: Subscriber, publisher: Publisher) -> Iterator[str]:
    by_payload = {one.payload: one for one in publisher.all}
    seen: set[bytes] = set()
    last: dict[tuple[str, str], tuple[Published, Got]] = {}
    for got in subscriber.got:
        one = by_payload.get(got.payload)
        if one is None or got.payload in seen or one.was_repeated_anew:
            continue
        seen.add(got.payload)
        before = last.get((one.topic, one.taken_by))
        if before is None or before[0].number < one.number:
            last[one.topic, one.taken_by] = (one, got)
        elif not any(one.first_s is not None and one.first_s <= at <= got.at for at in subscriber.fresh_starts):
            yield (
                f"{subscriber.client_id} got {_name(one)} at {got.site} {got.at:.3f} behind {before[0].number}, "
                f"which it got at {before[1].site} {before[1].at:.3f}"
            )


def _unwanted(subscriber: Subscriber, publisher: Publisher) -> Iterator[str]:
    """What came though its subscription had ended before it was published."""
    came = {got.payload for got in subscriber.got}
    for one in publisher.all:
        if one.payload not in came or one.first_s is None:
            continue
        if all(each.until_s is not None and each.until_s < one.first_s for each in _matching(subscriber, one)):
            yield f"{subscriber.client_id} got {_name(one)}, to which it does not subscribe any more"


def _name(one: Published) -> str:
    taken = "never" if one.taken_s is None else f"{one.taken_s:.3f} by {one.taken_by}"
    return f"{one.payload.decode()} ({one.topic}, QoS {one.qos}, sent {one.first_s:.3f}, taken {taken})"
