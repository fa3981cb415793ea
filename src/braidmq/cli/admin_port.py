"""How commands about a braid, a drain or processors find a broker's admin port, and ask it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar
from urllib.parse import urlsplit

import typer

from braidmq.cli.errors import CliError, ExitCode, UsageError

if TYPE_CHECKING:
    from braidmq.admin.client import AdminClient
    from braidmq.admin.errors import AdminError

ADMIN_URL: Final = "http://127.0.0.1:9883"

T = TypeVar("T")

PANEL: Final = "Broker"

AdminOption = Annotated[
    str | None,
    typer.Option(
        "--admin",
        metavar="URL",
        help=f"The admin port of a broker of the braid; {ADMIN_URL} if not given.",
        rich_help_panel=PANEL,
    ),
]
TokenOption = Annotated[
    str | None,
    typer.Option(
        "--token",
        envvar="BRAIDMQ_TOKEN",
        help="Its bearer token. Other users of this machine can see it in the process list: prefer the variable.",
        rich_help_panel=PANEL,
    ),
]
DataOption = Annotated[
    Path | None,
    typer.Option(
        "-d", "--data", help="Instead of --admin: the folder of `braidmq up --brokers`.", rich_help_panel=PANEL
    ),
]


@dataclass(frozen=True)
class AdminOptions:
    """Which brokers are asked."""

    admin: AdminOption = None
    token: TokenOption = None
    data: DataOption = None

    def brokers(self) -> list[BrokerAdmin]:
        """The brokers to ask: the one that is named, or all that a folder tells of."""
        if self.data is None:
            return [BrokerAdmin(self.admin or ADMIN_URL, self.token)]
        if self.admin is not None:
            raise UsageError("--admin together with --data", "Either of them says where to ask.")
        return _brokers_in(self.data, self.token)

    def broker(self) -> BrokerAdmin:
        """The one broker to ask; any of a folder will do."""
        return self.brokers()[0]


class BrokerAdmin:
    """The admin port of a broker. Its name is that of its site, where that is known, else the address."""

    def __init__(self, url: str, token: str | None, name: str = "") -> None:
        from braidmq.admin.client import AdminClient

        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"{url} is no address of an admin port", f"Write --admin {ADMIN_URL}")
        if token is not None and (not token.isascii() or not token.isprintable()):
            raise UsageError("the token has characters that no token has")
        self.url = f"{parts.scheme}://{parts.netloc}"
        self.name = name or self.url
        self._client = AdminClient(self.url, token)

    def ask(self, question: Callable[[AdminClient], T]) -> T:
        """An answer; a CliError says why there is none."""
        from braidmq.admin.errors import AdminError

        try:
            return question(self._client)
        except AdminError as error:
            raise _cli_error(error) from None


def _cli_error(error: AdminError) -> CliError:
    from braidmq.admin.errors import TooSlow, Unanswered, Unreachable, WrongToken

    match error:
        case WrongToken():
            return CliError(
                str(error), hint="Give the token of [admin] in its configuration with --token or BRAIDMQ_TOKEN."
            )
        case TooSlow():
            return CliError(str(error), ExitCode.TIMEOUT)
        case Unreachable() | Unanswered():
            return CliError(
                str(error),
                ExitCode.UNAVAILABLE,
                "A broker has one with `braidmq up --admin-port 9883`; --admin says where, --data finds those of "
                "`braidmq up --brokers`.",
            )
    return CliError(str(error))


def _brokers_in(data: Path, token: str | None) -> list[BrokerAdmin]:
    """All brokers that a folder tells of."""
    import msgspec

    from braidmq.admin.contract import ADMIN_FILE, AdminFile

    brokers = []
    for path in (*sorted(data.glob(ADMIN_FILE)), *sorted(data.glob(f"*/{ADMIN_FILE}"))):
        try:
            told = msgspec.json.decode(path.read_bytes(), type=AdminFile)
        except (OSError, msgspec.MsgspecError):
            raise CliError(f"{path} cannot be read", ExitCode.UNAVAILABLE) from None
        brokers.append(BrokerAdmin(told.url, token, told.name))
    if not brokers:
        raise CliError(
            f"no broker that runs has its folder in {data}",
            ExitCode.UNAVAILABLE,
            f"Start a braid there with `braidmq up --brokers 3 --data {data}`.",
        )
    return brokers


def duration(seconds: float) -> str:
    """ "5 s", "3 min", "7 h", "12 d"."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
