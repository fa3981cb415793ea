"""What can go wrong on the way to Spark, in words for people: what it was, and in `hint` what to do."""

from __future__ import annotations

import re
from typing import Final

INSTALL: Final = 'pip install "braidmq[spark]"'


class PipelineError(Exception):
    """An expected failure of the pipeline."""

    def __init__(self, text: str, hint: str = "") -> None:
        super().__init__(f"{text}. {hint}" if hint else text)
        self.text = text
        self.hint = hint

    def __reduce__(self) -> tuple[type[PipelineError], tuple[str, str]]:
        return type(self), (self.text, self.hint)  # they cross from worker to driver


class MissingExtra(PipelineError, ImportError):
    """PySpark, or what it needs, is not installed."""

    def __init__(self, name: str | None, hint: str = f"Install it with `{INSTALL}`") -> None:
        super().__init__(f"the pipeline needs {name or 'pyspark'}, which is not installed", hint)
        self.missing = name

    def __reduce__(self) -> tuple[type[MissingExtra], tuple[str, str]]:
        return type(self), (self.missing or "", self.hint)


def from_spark(error: Exception) -> PipelineError:
    """What went wrong in a worker, without Spark's words around it: the BraidMQ exception in them, if there is one."""
    text = str(error).strip()
    found = re.search(r"^braidmq\.[\w.]+: (.+)$", text, re.MULTILINE)
    return PipelineError(found[1].strip() if found else text.split("\n", 1)[0][:500])
