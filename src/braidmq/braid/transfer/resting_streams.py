"""Streams of other brokers' topics from which nothing is missing: almost all of them, at almost any time.

Of such a stream only its last number must be known. A broker hears from a hundred thousand devices of other brokers, so
it is kept as one whole number: the incarnation of the stream, its last publication, and whether it was used lately. The
incarnation is counted from the first that was heard of its origin, so for most streams the number is small, and takes
no memory at all.
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


class _Origin:
    """The streams of one broker, by their topics."""

    __slots__ = ("began_at", "streams")

    def __init__(self, began_at: int) -> None:
        self.began_at = began_at
        """The incarnation of the first stream that was heard."""
        self.streams: dict[str, int] = {}

    def noted(self, incarnation: int, last: int) -> int:
        return (incarnation - self.began_at << NUMBER_BITS | last) << 1

    def read(self, noted: int) -> tuple[int, int]:
        """The incarnation of a stream, and its last number."""
        return (noted >> NUMBER_BITS + 1) + self.began_at, noted >> 1 & (1 << NUMBER_BITS) - 1


class RestingStreams:
    def __init__(self) -> None:
        self._by_origin: dict[str, _Origin] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def advance(self, origin: str, incarnation: int, topic: str, first: int, count: int) -> bool:
        """Notes so many publications of a stream; False if they do not follow directly on the last."""
        of_origin = self._by_origin.get(origin)
        if of_origin is None:
            return False
        noted = of_origin.streams.get(topic)
        if noted is None or noted & ~_USED != of_origin.noted(incarnation, first - 1):
            return False
        of_origin.streams[topic] = (noted | _USED) + (count << 1)
        return True

    def has(self, origin: str, incarnation: int, topic: str) -> bool:
        of_origin = self._by_origin.get(origin)
        noted = None if of_origin is None else of_origin.streams.get(topic)
        return of_origin is not None and noted is not None and of_origin.read(noted)[0] == incarnation

    def take(self, origin: str, incarnation: int, topic: str) -> int | None:
        """The last number of a stream, which is not at rest any more; None if it was not."""
        if not self.has(origin, incarnation, topic):
            return None
        of_origin = self._by_origin[origin]
        _, last = of_origin.read(of_origin.streams[topic])
        del of_origin.streams[topic]
        self._count -= 1
        return last

    def put(self, origin: str, incarnation: int, topic: str, last: int) -> tuple[int, int] | None:
        """A stream comes to rest. Of a topic only the latest incarnation is kept: the other one, if there is one, and
        its last number."""
        if self._count >= STREAMS_MAX:
            self._forget_some()
        of_origin = self._by_origin.get(origin)
        if of_origin is None:
            of_origin = self._by_origin[origin] = _Origin(incarnation)
        noted = of_origin.streams.get(topic)
        earlier = None
        if noted is None:
            self._count += 1
        else:
            earlier = of_origin.read(noted)
            if earlier[0] > incarnation:
                return incarnation, last
        of_origin.streams[topic] = of_origin.noted(incarnation, last)
        return earlier

    def _forget_some(self) -> None:
        """Makes room at the origin that has most; what was used and is not forgotten counts as unused and new."""
        origin, of_origin = max(self._by_origin.items(), key=lambda one: len(one[1].streams))
        streams = of_origin.streams
        oldest = sorted(islice(streams.items(), FORGETTING_SAMPLE), key=lambda one: one[1] & _USED)
        for topic, noted in oldest[FORGOTTEN_AT_ONCE:]:
            del streams[topic]
            streams[topic] = noted & ~_USED
        for topic, _ in oldest[:FORGOTTEN_AT_ONCE]:
            del streams[topic]
            self._count -= 1
        if not streams:
            del self._by_origin[origin]
