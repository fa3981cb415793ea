"""Topics in the cells of a table: one that is too long for its column goes on in the next line with a whole level."""

from __future__ import annotations

import re
from typing import Any

from rich.console import Console
from rich.containers import Lines
from rich.text import Text

from braidmq.cli import output


class Levels(Text):
    """Topics and filters, broken behind a slash or a space; within a level only if that alone is too long."""

    def __init__(self, text: str, style: str = "") -> None:
        super().__init__(output.printable(text), style)

    def wrap(self, console: Console, width: int, **_: Any) -> Lines:
        breaks: list[int] = []
        line = 0
        for level in re.finditer(r"[^/ ]*/*", self.plain):
            if level.end() - line > width and level.start() > line:
                line = level.start()
                breaks.append(line)
            while level.end() - line > width:
                line += width
                breaks.append(line)
        lines = self.divide(breaks)
        for one in lines:
            one.rstrip()
        return lines
