"""Makes spools from a log: `python -m braidmq.processors.restorer`, for a broker that starts after a crash.

An order comes on standard input, spools go to standard output. It is a process of its own, as the edge's workers are:
to read a log takes Arrow, and memory that a broker need not have from then on.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from braidmq.log.errors import LogError
from braidmq.log.filters import TopicFilters
from braidmq.log.reader import LogReader
from braidmq.processors.frames import encode_message
from braidmq.processors.processor import Spool
from braidmq.processors.restoring import Found, Order, Wanted
from braidmq.processors.rows import latest_of, messages_of


def restored(order: Order) -> list[list[Found]]:
    """For each that is wanted; a LogError says why the log cannot be read."""
    log = LogReader(Path(order.folder))
    return [_spools(log, one, order) for one in order.wanted]


def _spools(log: LogReader, wanted: Wanted, order: Order) -> list[Found]:
    state = log.state()
    start = max(state.first_offset, state.next_offset - order.rows_max)
    spools: dict[str, Spool] = {}
    for partition in TopicFilters((wanted.topic,)).partitions(state.partitions):
        for batch in log.read(partition, start, state.next_offset, (wanted.topic,)):
            for message in messages_of(latest_of(batch, wanted.spool)):
                spool = spools.get(message.topic)
                if spool is None:
                    spool = spools[message.topic] = Spool(wanted.spool)
                spool.put(message)
    found: list[Found] = []
    left = order.bytes_max
    for topic, spool in sorted(spools.items(), key=lambda one: one[1].last, reverse=True):
        messages = tuple([encode_message(one) for one in spool])
        left -= sum(map(len, messages))
        if left < 0 or spool[-1].received_at < order.since:
            break
        found.append(Found(topic, spool.last, messages, spool[-1].received_at))
    return found


def main() -> None:
    order = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Order)
    try:
        found = restored(order)
    except (LogError, OSError) as error:
        sys.exit(str(error))
    sys.stdout.buffer.write(msgspec.msgpack.encode(found))


if __name__ == "__main__":
    main()
