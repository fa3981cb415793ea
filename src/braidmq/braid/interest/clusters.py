"""Which clusters there are: what each broker says of itself when it enters, passed on when brokers compare and differ.

A path names a cluster if a broker is in it or below it. Clusters are remembered for long, and in the store: what is
published into one whose brokers are all down just now is no mistake, and waits for them in the history.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import msgspec

from braidmq.broker.store import Store
from braidmq.keys import cluster_problem

CLUSTERS_MAX = 4096
"""Clusters that are remembered; the one that was seen longest ago goes."""

KEPT_S = 7 * 86_400.0
"""How long one is remembered of which nobody has said anything; after half of it other brokers are asked."""

DIGEST_BYTES = 8

SAVE_S = 3600.0
"""How often it is written when clusters were last seen, if no new one has come."""

CLUSTERS_ROW = "$clusters"
"""The key of the store's row for them, among the cursors."""

Seen = tuple[str, float]
"""A cluster, and when it was last known to have a broker (Unix time)."""


class Clusters:
    def __init__(self, own: str, store: Store, saved: Iterable[tuple[str, bytes]]) -> None:
        self.own = own
        """That of this broker; empty if it is in none."""
        self._store = store
        self._seen: dict[str, float] = {}
        self._paths: dict[str, None] | None = None
        """Every path that names a cluster; None if that is to be found out again."""
        self._saved_at = 0.0
        for key, row in saved:
            if key == CLUSTERS_ROW:
                self._seen.update(msgspec.msgpack.decode(row, type=list[Seen]))

    def __contains__(self, path: str) -> bool:
        return path in self.paths

    @property
    def paths(self) -> dict[str, None]:
        """Every path that names a cluster, those above included."""
        if self._paths is None:
            self._paths = {}
            for cluster in (self.own, *self._seen):
                levels = cluster.split("/") if cluster else []
                self._paths.update(dict.fromkeys("/".join(levels[: count + 1]) for count in range(len(levels))))
        return self._paths

    def digest(self, now: float) -> bytes:
        """What this broker knows, in short; nothing if it wants to be told whatever the other one knows."""
        self._expire(now)
        if any(now - at > KEPT_S / 2 for path, at in self._seen.items() if path != self.own):
            return b""
        return blake2b("\0".join(sorted(self.paths)).encode(), digest_size=DIGEST_BYTES).digest()

    def told(self, now: float, digest: bytes) -> tuple[Seen, ...]:
        """What this broker says to another one with this digest: of itself, and if they differ of all."""
        if digest and digest == self.digest(now):
            return self.own_seen(now)
        return (*self.own_seen(now), *((path, at) for path, at in self._seen.items() if path != self.own))

    def own_seen(self, now: float) -> tuple[Seen, ...]:
        return ((self.own, now),) if self.own else ()

    def learn(self, told: Iterable[Seen], now: float) -> None:
        """Another broker has said which it knows; what comes from a clock that is fast counts as seen now."""
        is_new = False
        for path, at in told:
            if path == self.own or now - at > KEPT_S or cluster_problem(path) is not None:
                continue
            is_new = is_new or path not in self._seen
            self._seen[path] = max(min(at, now), self._seen.get(path, 0.0))
        if is_new:
            self._expire(now)
        if is_new or (self._seen and now - self._saved_at > SAVE_S):
            self._paths = None
            self._saved_at = now
            self._store.save_cursor(CLUSTERS_ROW, msgspec.msgpack.encode(list(self._seen.items())))

    def _expire(self, now: float) -> None:
        old = [path for path, at in self._seen.items() if now - at > KEPT_S]
        surplus = len(self._seen) - len(old) - CLUSTERS_MAX
        if surplus > 0:
            old += sorted(set(self._seen) - set(old), key=lambda path: self._seen[path])[:surplus]
        for path in old:
            del self._seen[path]
            self._paths = None
