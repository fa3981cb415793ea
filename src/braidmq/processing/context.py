"""What the parts of processing share: the clock, the settings, the log, the processors and their topics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from braidmq.processing.assignments import TopicAssignments
from braidmq.processing.runner import ProcessorRunner

if TYPE_CHECKING:
    from braidmq.config.settings import ProcessingConfig


class PublicationLog(Protocol):
    """What processing needs of the broker's log (`server.log_recorder`): where it stands, and whose rows it has."""

    @property
    def origin(self) -> str:
        """The broker's name in the rows."""
        ...

    @property
    def folder(self) -> Path: ...

    @property
    def last(self) -> int:
        """The offset of the publication that was handed over last, of a run that of its first; LOST if dropped."""
        ...

    @property
    def at(self) -> float:
        """When that publication was received, as its row says."""
        ...

    @property
    def next_offset(self) -> int:
        """The offset of the publication that is handed over next."""
        ...

    def is_written(self, offset: int) -> bool:
        """Whether readers find all rows below an offset."""
        ...


@dataclass(slots=True)
class ProcessingContext:
    now: Callable[[], float]
    settings: ProcessingConfig
    origin: str
    """This broker's name, as messages carry it: the log's, if there is one."""
    assignments: TopicAssignments
    runners: list[ProcessorRunner] = field(default_factory=list)
    log: PublicationLog | None = None
