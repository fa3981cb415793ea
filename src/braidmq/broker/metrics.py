"""What the broker counts: plain integers, so that counting costs nothing worth counting."""

from __future__ import annotations

import msgspec


class Metrics(msgspec.Struct):
    """Totals since the start, and (the first five) how many there are now."""

    connections: int = 0
    sessions: int = 0
    subscriptions: int = 0
    retained_messages: int = 0
    queued_messages: int = 0
    connects: int = 0
    connect_refused: int = 0
    auth_failures: int = 0
    tls_handshakes_failed: int = 0
    messages_received: int = 0
    messages_sent: int = 0
    messages_dropped: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0
    publish_refused: int = 0
    packets_malformed: int = 0
    slow_readers: int = 0
    store_commits: int = 0
    store_failures: int = 0
