"""What all commands have in common: they start at once, and explain themselves with a page of `help_page`.

typer reads the value of an option through pydantic, whose import takes longer than all the rest of `braidmq version`.
The one option that every command has, --help, does not need it.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

from braidmq.cli import output


class _OwnHelp:
    params: list[Any]

    def get_help_option(self, ctx: Any) -> Any:
        option = super().get_help_option(ctx)  # type: ignore[misc]
        if option is not None:
            option.default = False  # a bool already: nothing to read
            panels = {getattr(param, "rich_help_panel", None) for param in self.params}
            option.rich_help_panel = output.PANEL if output.PANEL in panels else None
        return option

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from braidmq.cli import help_page

        help_page.show(self, ctx)


class BaseGroup(_OwnHelp, TyperGroup):
    pass


class BaseCommand(_OwnHelp, TyperCommand):
    pass
