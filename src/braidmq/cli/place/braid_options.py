"""Which braid `braidmq place` is about: the admin ports of all its sites."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from braidmq.cli.admin_port import PANEL, AdminOptions, BrokerAdmin, TokenOption
from braidmq.cli.errors import UsageError

BrokersOption = Annotated[
    str | None,
    typer.Option(
        "--brokers", metavar="URLS", help="The admin ports of all sites, with commas between.", rich_help_panel=PANEL
    ),
]
FolderOption = Annotated[
    Path | None,
    typer.Option(
        "-d", "--data", help="Instead of --brokers: the folder of `braidmq up --brokers`.", rich_help_panel=PANEL
    ),
]


@dataclass(frozen=True)
class BraidOptions:
    urls: BrokersOption = None
    token: TokenOption = None
    data: FolderOption = None

    def brokers(self) -> list[BrokerAdmin]:
        if (self.urls is None) == (self.data is None):
            raise UsageError("which braid?", "Give --brokers http://edge1:9883,http://edge2:9883 or --data FOLDER.")
        if self.urls is None:
            return AdminOptions(None, self.token, self.data).brokers()
        return [BrokerAdmin(url.strip(), self.token) for url in self.urls.split(",") if url.strip()]
