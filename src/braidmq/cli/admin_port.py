"""How `ring`, `topics`, `demand`, `trace` and `process` ask a broker: over its admin port, as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlencode, urlsplit

import typer

from braidmq.cli.errors import CliError, ExitCode, UsageError

ADMIN_URL: Final = "http://127.0.0.1:9883"
TIMEOUT_S: Final = 30.0
ANSWER_BYTES_MAX: Final = 64 << 20

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
        help="Its bearer token. Others on this machine can see it in the process list: prefer the variable.",
        rich_help_panel=PANEL,
    ),
]
DataOption = Annotated[
    Path | None,
    typer.Option(
        "-d", "--data", help="Instead of --admin: the folder of `braidmq up --brokers`.", rich_help_panel=PANEL
    ),
]


class Broker:
    """A broker's admin port. Its name is that of its site, where that is known, else the address."""

    def __init__(self, url: str, token: str | None, name: str = "") -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"{url} is no address of an admin port", f"Write --admin {ADMIN_URL}")
        self.url = f"{parts.scheme}://{parts.netloc}"
        self.name = name or self.url
        self._token = token

    def get(self, path: str, **query: str | int) -> dict[str, Any]:
        """An answer; a CliError says why there is none."""
        return self._ask(f"{self.url}{path}" + (f"?{urlencode(query)}" if query else ""), None)

    def post(self, path: str, **content: str | int) -> dict[str, Any]:
        """The answer to something that is to be done; a CliError says why it was not."""
        return self._ask(f"{self.url}{path}", json.dumps(content).encode())

    def _ask(self, address: str, body: bytes | None) -> dict[str, Any]:
        import http.client
        import urllib.error
        import urllib.request

        request = urllib.request.Request(address, body)  # noqa: S310 - the scheme is checked above
        if body is not None:
            request.add_header("Content-Type", "application/json")
        if self._token is not None:
            if not self._token.isascii() or not self._token.isprintable():
                raise UsageError("the token has characters that no token has")
            request.add_header("Authorization", f"Bearer {self._token}")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=TIMEOUT_S) as response:
                return _parse(self.url, response.read(ANSWER_BYTES_MAX))
        except urllib.error.HTTPError as error:
            raise self._refusal(error.code, error.read(65536)) from None
        except TimeoutError:
            raise CliError(f"{self.url} did not answer within {TIMEOUT_S:g} s", ExitCode.TIMEOUT) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise CliError(
                f"there is no admin port at {self.url}: {getattr(reason, 'strerror', None) or reason}",
                ExitCode.UNAVAILABLE,
                "A broker has one with `braidmq up --admin-port 9883`; --admin says where, --data finds those of "
                "`braidmq up --brokers`.",
            ) from None

    def _refusal(self, status: int, body: bytes) -> CliError:
        if status == 401:
            return CliError(
                f"{self.url} asks for the right token",
                hint="Give the token of [admin] in its configuration with --token or BRAIDMQ_TOKEN.",
            )
        try:
            text = str(json.loads(body)["error"])
        except (ValueError, KeyError, TypeError):
            text = f"it answered {status}: is that the admin port of a broker?"
        return CliError(f"{self.url}: {text}")


def _parse(url: str, body: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(body)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise CliError(f"{url} gave no JSON: is that the admin port of a broker?")
    return answer


def brokers_of(admin: str | None, token: str | None, data: Path | None) -> list[Broker]:
    """The brokers to ask: the one that is named, or all that a folder tells of."""
    if data is None:
        return [Broker(admin or ADMIN_URL, token)]
    if admin is not None:
        raise UsageError("--admin together with --data", "Either of them says where to ask.")
    brokers = []
    for path in (*sorted(data.glob("admin.json")), *sorted(data.glob("*/admin.json"))):
        try:
            told = json.loads(path.read_text())
            brokers.append(Broker(str(told["url"]), token, str(told["name"])))
        except (OSError, ValueError, KeyError, TypeError):
            raise CliError(f"{path} cannot be read", ExitCode.UNAVAILABLE) from None
    if not brokers:
        raise CliError(
            f"no broker that runs has its folder in {data}",
            ExitCode.UNAVAILABLE,
            f"Start a braid there with `braidmq up --brokers 3 --data {data}`.",
        )
    return brokers


def broker_of(admin: str | None, token: str | None, data: Path | None) -> Broker:
    """The one broker to ask; any of a folder will do."""
    return brokers_of(admin, token, data)[0]


def duration(seconds: float) -> str:
    """ "5 s", "3 min", "7 h", "12 d"."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
