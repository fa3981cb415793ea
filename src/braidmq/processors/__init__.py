"""Message processors: Python functions over the last messages of a topic, the same at the edge and on Spark."""

from braidmq.processors.processor import (
    Message,
    Notification,
    PayloadError,
    Processor,
    ProcessorError,
    Spool,
    SpoolState,
    processor,
    spool_step,
)

__all__ = [
    "Message",
    "Notification",
    "PayloadError",
    "Processor",
    "ProcessorError",
    "Spool",
    "SpoolState",
    "processor",
    "spool_step",
]
