"""How far a command is, on a terminal: a bar, the time, and a few words. Elsewhere nothing is shown."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Self

from braidmq.cli import output


class Bar:
    """Shown while the `with` block runs; commands that show more than a fraction and words extend it."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._progress: Any = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            self._progress = Progress(
                TextColumn(self._what),
                BarColumn(),
                TimeElapsedColumn(),
                TextColumn("[cyan]{task.description}"),
                console=output.console(stderr=True),
                transient=True,
            )
            self._task = self._progress.add_task("", total=1.0)
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    @property
    def is_shown(self) -> bool:
        return self._progress is not None

    def show(self, part: float, words: str) -> None:
        self._progress.update(self._task, completed=min(part, 1.0), description=words)
