"""Commands that start at once. typer reads the value of an option through pydantic, whose import takes longer than all
the rest of `braidmq version`; the one option that every command has, --help, needs no such reading.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup


class _QuickHelp:
    def get_help_option(self, ctx: Any) -> Any:
        option = super().get_help_option(ctx)  # type: ignore[misc]
        if option is not None:
            option.default = False  # a bool already: nothing to read
        return option


class QuickGroup(_QuickHelp, TyperGroup):
    pass


class QuickCommand(_QuickHelp, TyperCommand):
    pass
