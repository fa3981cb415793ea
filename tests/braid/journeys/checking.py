"""What must hold when all is quiet again, and what may not: told for each subscriber and each publication.

A publication that was acknowledged after a subscription was has come: of QoS 1 at least once, of QoS 2 exactly once;
and the first time each, in the order in which one broker has taken it from one publisher for one topic, and also in
which several have one after the other, since the publisher has roamed with its session. What was sent to several
brokers, since the first did not acknowledge it, comes from one of them, and has no place in that order.

What may be otherwise:

- The broker that a client comes to cannot ask the one that had its session. If that one had fewer copies than are
  configured while the client was there, or none of its mirrors can be asked either, the client may get again what it
  had there, or what it has ended its subscription to.
- What comes to a client at a broker that has fewer copies, or that can ask neither the broker that had the session nor
  a mirror of it, may come late: its session is one that others have gone on with meanwhile.
- A client that is told that it has no session begins anew: what is published until it has subscribed again may be
  missing, and what it has had under a packet id of QoS 2 that was not brought to its end. The rest comes later, behind
  what has come meanwhile; and what is published until the older session is found may come twice.
- A publisher that roams is in order for subscribers that stay where they are meanwhile, as long as it was only at
  brokers with all their copies, and nobody has waited for its old broker for so long as they do.
- A publisher that is told so sends again what was not acknowledged: that may come twice. So may what a publisher has
  sent to a broker, and sends again to one that cannot ask that one, if that one was cut off from its mirror, or its
  mirrors cannot be asked either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from braidmq.braid.roaming.published_before import FOLLOW_S
from braidmq.mqtt.topics import matches
from tests.braid.journeys.publisher import Published, Publisher
from tests.braid.journeys.subscriber import Got, Subscriber, Subscription

ALONE_S = 3.0
"""How long after it has lost its mirror a broker goes on without it at the latest."""


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
    """Whether it was published under a subscription that was acknowledged, and not given up since."""
    if each.from_s is None or one.first_s is None or one.taken_s is None:
        return False
    return one.first_s >= each.from_s and each.ending_s is None


def _got(subscriber: Subscriber, one: Published) -> list[Got]:
    return [got for got in subscriber.got if got.payload == one.payload]


def _missing_and_twice(subscriber: Subscriber, publisher: Publisher) -> Iterator[str]:
    times = Counter(got.payload for got in subscriber.got)
    for one in publisher.all:
        matching = _matching(subscriber, one)
        promised = [each for each in matching if _is_promised(each, one)]
        count = times[one.payload]
        if promised and not count and one.payload not in subscriber.mistaken:
            yield f"{subscriber.client_id} misses {_name(one)}"
        if count > 1 and one.qos == 2 and all(each.qos == 2 for each in matching) and not one.was_repeated_anew:
            got = _got(subscriber, one)
            if _is_once(subscriber, one, got) and not _was_taken_alone(publisher, one):
                where = ", ".join(f"at {each.site} {each.at:.3f}" for each in got)
                yield f"{subscriber.client_id} got {_name(one)} {count} times: {where}"


def _was_taken_alone(publisher: Publisher, one: Published) -> bool:
    """Whether it was sent to several brokers, of which one had, or was about to have, fewer copies, and the next could
    not ask it; or the next could not ask its mirrors either."""
    unsafe_s = publisher.sites.unsafe_s
    was_alone = any(at <= unsafe <= at + ALONE_S for at, number in one.tried for unsafe in unsafe_s.get(number, ()))
    first_s, last_s = one.tried[0][0], one.tried[-1][0]
    lost = [each for each in publisher.connects if first_s <= each.at <= last_s and not each.is_home_reached]
    return any(was_alone or not each.is_known for each in lost)


def _is_once(subscriber: Subscriber, one: Published, got: list[Got]) -> bool:
    """Whether a publication that came several times should have come once."""
    first, last = got[0], got[-1]
    return not _was_doubtful(subscriber, one, first, last) and not subscriber.may_be_behind(first.at, last.at)


def _was_doubtful(subscriber: Subscriber, one: Published, first: Got, last: Got) -> bool:
    """Whether the client had begun anew, and an older session of it was somewhere."""
    begin_s = one.first_s or first.at
    return any(begin_s <= until_s and from_s <= last.at for from_s, until_s in subscriber.doubts)


def _was_safe(subscriber: Subscriber, one: Published, first: Got, last: Got) -> bool:
    """Whether the client was only at brokers with all their copies from one delivery to another, which could ask those
    that had its session, and had one session only."""
    was_doubtful = _was_doubtful(subscriber, one, first, last)
    is_safe = all(each.was_safe for each in subscriber.connects if first.at <= each.at <= last.at)
    return is_safe and not was_doubtful and not any(first.at <= at <= last.at for at in subscriber.unsafe_s)


def _out_of_order(subscriber: Subscriber, publisher: Publisher) -> Iterator[str]:
    by_payload = {one.payload: one for one in publisher.all}
    seen: set[bytes] = set()
    last: dict[tuple[str, str], tuple[Published, Got]] = {}
    anywhere: dict[str, tuple[Published, Got]] = {}
    for got in subscriber.got:
        one = by_payload.get(got.payload)
        if one is None or got.payload in seen or len({number for _, number in one.tried}) > 1:
            continue
        seen.add(got.payload)
        before = last.get((one.topic, one.taken_by))
        if before is None or before[0].number < one.number:
            last[one.topic, one.taken_by] = (one, got)
        elif _was_safe(subscriber, one, before[1], got):
            yield (
                f"{subscriber.client_id} got {_name(one)} at {got.site} {got.at:.3f} behind {before[0].number}, "
                f"which it got at {before[1].site} {before[1].at:.3f}"
            )
        before = anywhere.get(one.topic)
        if before is None or before[0].number < one.number:
            anywhere[one.topic] = (one, got)
        elif before[0].taken_by != one.taken_by and _has_roamed_in_order(subscriber, publisher, one, got, *before):
            yield (
                f"{subscriber.client_id} got {_name(one)} at {got.site} {got.at:.3f} behind {_name(before[0])} of "
                f"another broker, which it got at {before[1].site} {before[1].at:.3f}"
            )


def _has_roamed_in_order(
    subscriber: Subscriber, publisher: Publisher, one: Published, got: Got, later: Published, later_got: Got
) -> bool:
    """Whether what a publisher that has roamed published later had to come later."""
    from_s, until_s = one.first_s or 0.0, later.first_s or 0.0
    moves = [each for each in publisher.connects if from_s <= each.at <= until_s]
    was_whole = all(each.is_present and each.was_safe for each in moves) and not any(
        from_s - ALONE_S <= at <= until_s for at in publisher.unsafe_s
    )
    has_stayed = not any(from_s <= each.at <= got.at for each in subscriber.connects)
    has_waited = later_got.at - until_s >= FOLLOW_S
    return was_whole and has_stayed and not has_waited and _was_safe(subscriber, one, later_got, got)


def _unwanted(subscriber: Subscriber, publisher: Publisher) -> Iterator[str]:
    """What came though its subscription had ended before it was published."""
    came = {got.payload for got in subscriber.got}
    for one in publisher.all:
        if one.payload not in came or one.first_s is None:
            continue
        ends = [each.until_s for each in _matching(subscriber, one)]
        last_s = max((end for end in ends if end is not None), default=0.0)
        is_over = all(end is not None and end < one.first_s for end in ends)
        if is_over and not subscriber.may_be_behind(last_s, float("inf")):
            yield f"{subscriber.client_id} got {_name(one)}, to which it does not subscribe any more"


def _name(one: Published) -> str:
    taken = "never" if one.taken_s is None else f"{one.taken_s:.3f} by {one.taken_by}"
    return f"{one.payload.decode()} ({one.topic}, QoS {one.qos}, sent {one.first_s:.3f}, taken {taken})"
