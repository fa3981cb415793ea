"""Streams of other brokers' topics from which nothing is missing: almost all of them, at almost any time.

Of such a stream only its last number must be known. A broker hears from a hundred thousand devices of other brokers, so
it is kept as one whole number: the incarnation of the stream, its last publication, and whether it was used lately.
"""

from __future__ import annotations

from itertools import islice

STREAMS_MAX = 1_000_000
"""Streams at rest that a broker remembers, of 200 bytes each; those that were silent for long go."""

FORGOTTEN_AT_ONCE = 256
"""Streams that go when there is no room for one more: of the oldest `FORGETTING_SAMPLE`, those unused of late first."""

FORGETTING_SAMPLE = 1024

NUMBER_BITS = 48
"""More publications than any stream has."""

_USED = 1


class RestingStreams:
    def __init__(self) -> None:
        self._by_origin: dict[str, dict[str, int]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def advance(self, origin: str, incarnation: int, topic: str, first: int, count: int) -> bool:
        """Notes so many publications of a stream; False if they do not follow directly on the last."""
        streams = self._by_origin.get(origin)
        if streams is None:
            return False
        noted = streams.get(topic)
        if noted is None or noted | _USED != _noted(incarnation, first - 1):
            return False
        streams[topic] = (noted | _USED) + (count << 1)
        return True

    def take(self, origin: str, incarnation: int, topic: str) -> int | None:
        """The last number of a stream, which is not at rest any more; None if it was not."""
        streams = self._by_origin.get(origin)
        noted = None if streams is None else streams.get(topic)
        if streams is None or noted is None or _incarnation(noted) != incarnation:
            return None
        del streams[topic]
        self._count -= 1
        return _last(noted)

    def put(self, origin: str, incarnation: int, topic: str, last: int) -> tuple[int, int] | None:
        """A stream comes to rest. Of a topic only the latest incarnation is kept: the other one, if there is one, and
        its last number."""
        streams = self._by_origin.get(origin)
        if streams is None:
            streams = self._by_origin[origin] = {}
        noted = streams.get(topic)
        if noted is None:
            if self._count >= STREAMS_MAX:
                self._forget_some()
            streams = self._by_origin.setdefault(origin, streams)
            self._count += 1
        elif _incarnation(noted) > incarnation:
            return incarnation, last
        streams[topic] = _noted(incarnation, last)
        return None if noted is None else (_incarnation(noted), _last(noted))

    def _forget_some(self) -> None:
        """Makes room at the origin that has most; what was used and is not forgotten counts as unused and new."""
        origin, streams = max(self._by_origin.items(), key=lambda one: len(one[1]))
        oldest = list(islice(streams.items(), FORGETTING_SAMPLE))
        oldest.sort(key=lambda one: one[1] & _USED)
        for topic, noted in oldest[FORGOTTEN_AT_ONCE:]:
            del streams[topic]
            streams[topic] = noted & ~_USED
        for topic, _ in oldest[:FORGOTTEN_AT_ONCE]:
            del streams[topic]
            self._count -= 1
        if not streams:
            del self._by_origin[origin]


def _noted(incarnation: int, last: int) -> int:
    return (incarnation << NUMBER_BITS | last) << 1 | _USED


def _incarnation(noted: int) -> int:
    return noted >> NUMBER_BITS + 1


def _last(noted: int) -> int:
    return noted >> 1 & (1 << NUMBER_BITS) - 1
