"""A component of a dataflow as a query on Spark: the processor of its file, with an output for each stream."""

from __future__ import annotations

from typing import Final

import msgspec

from braidmq.flows import Dataflow, FlowComponent
from braidmq.pipeline.portable import PortableProcessor

FUNCTION: Final = "_flow_component"
"""What the processor with its outputs is called, behind the text of the file."""

_TEXT: Final = """

from braidmq.processors.stream_output import for_streams as _for_streams
{function} = _for_streams({processor}, {level}, {output!r}, {since!r})
"""


def portable_of(flow: Dataflow, component: FlowComponent, source: str, since: str) -> PortableProcessor:
    """`source` is the component's file, as it is found from here; `since` is the user property that says when a
    device's message came into the flow. A ProcessorError says why not."""
    (taken_from,) = component.sources
    taken = flow.output_filter(flow.component(taken_from))
    portable = PortableProcessor.of(source, name=flow.group_of(component), topic=taken)
    text = portable.text + _TEXT.format(
        function=FUNCTION,
        processor=portable.function,
        level=taken.split("/").index("+"),
        output=flow.output_filter(component),
        since=since,
    )
    return msgspec.structs.replace(portable, text=text, function=FUNCTION, output=None)
