"""Topics in the cells of a table: one that is too long for its column is broken between two levels."""

from __future__ import annotations

import re
from typing import Any

from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.containers import Lines
from rich.text import Text

from braidmq.cli import output


class TopicCell(Text):
    """Topics and filters, broken behind a slash or a space; within a level only if that alone is too long."""

    def __init__(self, text: str, style: str = "") -> None:
        super().__init__(output.printable(text), style)

    def wrap(self, console: Console, width: int, **_: Any) -> Lines:
        breaks: list[int] = []
        line = 0
        for level in re.finditer(r"[^/ ]*/?", self.plain):
            if cell_len(self.plain[line : level.end()]) > width and level.start() > line:
                line = level.start()
                breaks.append(line)
            while cell_len(self.plain[line : level.end()]) > width:
                line += len(chop_cells(self.plain[line : level.end()], width)[0])
                breaks.append(line)
        lines = self.divide(breaks)
        for one in lines:
            one.rstrip()
        return lines
