"""Makes spools from a log: `python -m braidmq.processors.restorer`, for a broker that starts after a crash.

A request comes on standard input, spools go to standard output, each as a frame. It is a process of its own, as the
edge's workers are: reading a log takes Arrow, and memory that a broker does not need afterwards.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from braidmq.log.errors import LogError
from braidmq.log.filters import TopicFilters
from braidmq.log.reader import LogReader
from braidmq.processors.processor import Spool
from braidmq.processors.restore_messages import RestoredSpool, RestoreRequest, SpoolQuery
from braidmq.processors.rows import latest_of, messages_of
from braidmq.processors.worker_messages import encode_message
from braidmq.system.framing import FrameWriter, read_frame

_INPUT, _OUTPUT = 0, 1


def restored(request: RestoreRequest) -> list[list[RestoredSpool]]:
    """The spools of each query; a LogError says why the log cannot be read."""
    log = LogReader(Path(request.folder))
    return [_spools(log, one, request) for one in request.queries]


def _spools(log: LogReader, query: SpoolQuery, request: RestoreRequest) -> list[RestoredSpool]:
    state = log.state()
    start = max(state.first_offset, state.next_offset - request.rows_max)
    spools: dict[str, Spool] = {}
    for partition in TopicFilters((query.topic,)).partitions(state.partitions):
        for batch in log.read(partition, start, state.next_offset, (query.topic,)):
            for message in messages_of(latest_of(batch, query.spool)):
                spool = spools.get(message.topic)
                if spool is None:
                    spool = spools[message.topic] = Spool(query.spool)
                spool.put(message)
    found: list[RestoredSpool] = []
    left = request.bytes_max
    for topic, spool in sorted(spools.items(), key=lambda one: one[1].last, reverse=True):
        messages = tuple([encode_message(one) for one in spool])
        left -= sum(map(len, messages))
        if left < 0 or spool[-1].received_at < request.since:
            break
        found.append(RestoredSpool(topic, spool.last, messages, spool[-1].received_at))
    return found


def main() -> None:
    body = read_frame(_INPUT)
    if body is None:
        return
    request = msgspec.msgpack.decode(body, type=RestoreRequest)
    try:
        found = restored(request)
    except (LogError, OSError) as error:
        sys.exit(str(error))
    FrameWriter().write(_OUTPUT, found)


if __name__ == "__main__":
    main()
