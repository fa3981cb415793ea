"""Processors with an output for each stream."""

from __future__ import annotations

from braidmq.processors import Message, Notification, Spool, processor
from braidmq.processors.processor import Output, spool_step
from braidmq.processors.stream_output import for_streams


@processor(topic="in/+/words", spool=2, output="elsewhere")
def said(spool: Spool, message: Message) -> Notification | None:
    return Notification(message.payload, properties={"k": "v"}) if message.payload else None


def test_each_stream_has_its_output_and_its_beginning() -> None:
    made = for_streams(said, 1, "flow/f/said/+", "since")
    spool = Spool(made.spool)
    first = spool_step(made, spool, Message("in/7/words", b"a", published_at=12.5, offset=1))
    again = spool_step(made, spool, Message("in/7/words", b"b", properties=(("since", "3.0"),), offset=2))
    assert first == Output("flow/f/said/7", b"a", 1, False, (("k", "v"), ("since", "12.500000")))
    assert isinstance(again, Output)
    assert again.properties == (("k", "v"), ("since", "3.0"))
    assert spool_step(made, spool, Message("in/7/words", b"", offset=3)) is None
