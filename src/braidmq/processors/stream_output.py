"""Processors with an output for each stream: what stands at one level of the topic of a message is its stream."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from braidmq.processors.processor import Message, Notification, Processor, Spool

STREAM = "+"
"""What stands for the stream in an output."""


def for_streams(processor: Processor, level: int, output: str, since: str) -> Processor:
    """The same processor, which publishes on `output` with the stream in it, whatever topic its function names.

    The user property `since` tells when that began which a message comes of: it is passed on, or begins here.
    """

    def function(spool: Spool, message: Message) -> Notification | None:
        given = processor(spool, message)
        if not isinstance(given, Notification):
            return given
        stream = message.topic.split("/")[level]
        topic = "/".join(stream if one == STREAM else one for one in output.split("/"))
        own = given.properties.items() if isinstance(given.properties, Mapping) else given.properties
        began = dict(message.properties).get(since, f"{message.published_at:.6f}")
        return msgspec.structs.replace(given, topic=topic, properties=[*own, (since, began)])

    return Processor(
        function,
        name=processor.name,
        topic=processor.topic,
        spool=processor.spool,
        time_limit_s=processor.time_limit_s,
    )
