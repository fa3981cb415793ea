"""The options by which `pub` and `sub` reach a broker, and what they come to: an address, credentials, TLS and a will.

`ConnectionOptions` is a group of options (`option_groups`), so that all commands that are clients offer the same.
"""

from __future__ import annotations

import secrets
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import unquote, urlsplit

import typer

from braidmq.cli.errors import UsageError
from braidmq.mqtt import topics
from braidmq.mqtt.errors import PacketError

PORTS: Final = {"mqtt": 1883, "mqtts": 8883, "ws": 80, "wss": 443}
WEBSOCKET_PATH: Final = "/mqtt"
KEPT_SESSION_EXPIRY_S: Final = 86_400
"""How long `--keep-session` asks the broker to keep a session (MQTT 5), unless `--session-expiry` says otherwise."""
VERSIONS: Final = {"5": 5, "5.0": 5, "mqttv5": 5, "3.1.1": 4, "311": 4, "mqttv311": 4}
"""What `--version` takes, and the protocol level that it stands for."""
LEVELS_MAX: Final = 65_536
"""More than fit into a topic: how many levels are allowed is the broker's to say."""

_CONNECTION: Final = "Connection"
_SECURITY: Final = "Security"
_WILL: Final = "Last will"


def qos_option(*names: str, what: str, panel: str | None = None) -> Any:
    return typer.Option(
        *names, min=0, max=2, help=f"{what}: 0 at most once, 1 at least once, 2 exactly once.", rich_help_panel=panel
    )


@dataclass(frozen=True)
class BrokerAddress:
    """Where a URL, or `--host` and `--port`, lead to. A Unix socket has its path as `host`."""

    scheme: str
    host: str
    port: int
    path: str = WEBSOCKET_PATH
    user: str | None = None
    password: str | None = None

    @property
    def secure(self) -> bool:
        return self.scheme in ("mqtts", "wss")

    @property
    def transport(self) -> str:
        return {"ws": "websockets", "wss": "websockets", "unix": "unix"}.get(self.scheme, "tcp")

    def __str__(self) -> str:
        if self.scheme == "unix":
            return f"unix:{self.host}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


@dataclass(frozen=True)
class ConnectionOptions:
    host: Annotated[
        str, typer.Option("-h", "--host", help="The broker's host name or address.", rich_help_panel=_CONNECTION)
    ] = "127.0.0.1"
    port: Annotated[
        int | None,
        typer.Option(
            "-p", "--port", min=1, max=65535, help="1883 if not given; 8883 with TLS.", rich_help_panel=_CONNECTION
        ),
    ] = None
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            metavar="URL",
            help="All in one: mqtt://user:password@host:port, mqtts://…, ws://host:port/path, wss://…, unix:/path.",
            rich_help_panel=_CONNECTION,
        ),
    ] = None
    version: Annotated[
        str,
        typer.Option("-V", "--version", metavar="5|3.1.1", help="The version of MQTT.", rich_help_panel=_CONNECTION),
    ] = "5"
    client_id: Annotated[
        str | None,
        typer.Option("-i", "--client-id", help="A random one if not given.", rich_help_panel=_CONNECTION),
    ] = None
    keep_alive_s: Annotated[
        int,
        typer.Option(
            "-k",
            "--keepalive",
            min=0,
            max=65535,
            help="Seconds between keep-alive packets.",
            rich_help_panel=_CONNECTION,
        ),
    ] = 60
    session_expiry_s: Annotated[
        int | None,
        typer.Option(
            "--session-expiry",
            min=0,
            max=0xFFFFFFFF,
            help="Seconds that the broker keeps the session after the end (MQTT 5).",
            rich_help_panel=_CONNECTION,
        ),
    ] = None
    timeout_s: Annotated[
        float,
        typer.Option(
            "--timeout", min=0.001, help="Seconds to wait for the broker's answers.", rich_help_panel=_CONNECTION
        ),
    ] = 10.0

    user: Annotated[
        str | None, typer.Option("-u", "--user", "--username", help="The user's name.", rich_help_panel=_SECURITY)
    ] = None
    password: Annotated[
        str | None,
        typer.Option(
            "-P",
            "--password",
            envvar="BRAIDMQ_PASSWORD",
            help="Other users of this machine can see it in the process list: prefer the variable.",
            rich_help_panel=_SECURITY,
        ),
    ] = None
    ask_password: Annotated[
        bool, typer.Option("--ask-password", help="Ask for the password.", rich_help_panel=_SECURITY)
    ] = False
    tls: Annotated[
        bool,
        typer.Option("--tls", help="TLS, trusting the authorities that this system trusts.", rich_help_panel=_SECURITY),
    ] = False
    cafile: Annotated[
        Path | None,
        typer.Option("--cafile", help="TLS, trusting the authorities in this PEM file.", rich_help_panel=_SECURITY),
    ] = None
    cert: Annotated[
        Path | None, typer.Option("--cert", help="The client's certificate (PEM).", rich_help_panel=_SECURITY)
    ] = None
    key: Annotated[
        Path | None,
        typer.Option("--key", help="Its private key (PEM), if not in the same file.", rich_help_panel=_SECURITY),
    ] = None
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="TLS without checking the broker's certificate. For tests only.",
            rich_help_panel=_SECURITY,
        ),
    ] = False

    will_topic: Annotated[
        str | None,
        typer.Option("--will-topic", help="Where the broker publishes if this client vanishes.", rich_help_panel=_WILL),
    ] = None
    will_payload: Annotated[
        str | None, typer.Option("--will-payload", help="What it publishes then.", rich_help_panel=_WILL)
    ] = None
    will_qos: Annotated[int, qos_option("--will-qos", what="Quality of service of the will", panel=_WILL)] = 0
    will_retain: Annotated[
        bool, typer.Option("--will-retain", help="The broker keeps it for later subscribers.", rich_help_panel=_WILL)
    ] = False
    will_delay_s: Annotated[
        int | None,
        typer.Option(
            "--will-delay",
            min=0,
            max=0xFFFFFFFF,
            help="Seconds to wait for its return (MQTT 5).",
            rich_help_panel=_WILL,
        ),
    ] = None

    @property
    def level(self) -> int:
        """The protocol level on the wire: 5, or 4 for MQTT 3.1.1."""
        try:
            return VERSIONS[self.version.lower()]
        except KeyError:
            raise UsageError(f"--version {self.version} is not a version of MQTT", "Use 5 or 3.1.1.") from None

    def check(self) -> None:
        """Raises a UsageError for options that contradict each other."""
        if self.level != 5:
            self.require_version_5({"--session-expiry": self.session_expiry_s, "--will-delay": self.will_delay_s})
        if self.will_topic is None:
            for name, value in {
                "--will-payload": self.will_payload,
                "--will-qos": self.will_qos,
                "--will-retain": self.will_retain,
                "--will-delay": self.will_delay_s,
            }.items():
                if value:
                    raise UsageError(f"{name} without --will-topic", "A will needs a topic.")
        else:
            check_topic(self.will_topic, "--will-topic")
        if self.key is not None and self.cert is None:
            raise UsageError("--key without --cert", "Give the certificate that belongs to the key.")
        if self.password is not None and self.ask_password:
            raise UsageError("--ask-password, but there is a password already", "Leave one of the two out.")

    def require_version_5(self, options: dict[str, Any]) -> None:
        """Raises a UsageError if any of these options is used although MQTT 3.1.1 has no such thing."""
        if self.level == 5:
            return
        for name, value in options.items():
            if value not in (None, False, [], ()):
                raise UsageError(f"{name} needs MQTT 5", f"Leave {name} out, or `--version {self.version}`.")

    def address(self) -> BrokerAddress:
        if self.url is not None:
            address = parse_url(self.url)
            if self.port is not None:
                raise UsageError("--port beside --url", "Write the port into the URL.")
        else:
            scheme = "mqtts" if self.tls or self.cafile or self.cert or self.insecure else "mqtt"
            address = BrokerAddress(scheme, self.host, self.port or PORTS[scheme])
        if not address.secure and (self.tls or self.cafile or self.cert or self.insecure):
            raise UsageError(f"TLS options, but {address} is without TLS", "Use mqtts:// or wss://.")
        return address

    def credentials(self, address: BrokerAddress) -> tuple[str | None, str | None]:
        """User and password; options go over what the URL says. Asks, if it should."""
        user = self.user if self.user is not None else address.user
        password = self.password if self.password is not None else address.password
        if self.ask_password:
            import getpass

            try:
                password = getpass.getpass(f"Password of {user}: " if user else "Password: ")
            except EOFError:
                raise UsageError("--ask-password, but there is nobody to ask", "Set BRAIDMQ_PASSWORD.") from None
        if password is not None and user is None and self.level != 5:
            raise UsageError("a password without a user", "MQTT 3.1.1 needs --user beside it.")
        return user, password

    def tls_context(self) -> ssl.SSLContext:
        if self.cafile is not None and not self.cafile.is_file():
            raise UsageError(f"--cafile {self.cafile}: there is no such file")
        try:
            context = ssl.create_default_context(cafile=self.cafile)
        except (ssl.SSLError, OSError) as error:
            raise UsageError(f"--cafile {self.cafile} cannot be used: {error}", "It must be a PEM file.") from None
        if self.cert is not None:
            try:
                context.load_cert_chain(self.cert, self.key)
            except (ssl.SSLError, OSError) as error:
                raise UsageError(
                    f"--cert {self.cert} cannot be used: {error}", "Both --cert and --key must be PEM files that match."
                ) from None
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def client_id_or_random(self, command: str) -> str:
        return self.client_id if self.client_id is not None else f"braidmq-{command}-{secrets.token_hex(4)}"


def parse_url(url: str) -> BrokerAddress:
    """`mqtt://user:password@host:port`, its secure and WebSocket kin, or `unix:/path`; else a UsageError."""
    scheme, separator, rest = url.partition(":")
    scheme = scheme.lower()
    if not separator or scheme not in (*PORTS, "unix"):
        raise UsageError(
            f"--url {url} is not the address of a broker",
            "It begins with mqtt://, mqtts://, ws://, wss:// or unix:, as in mqtt://localhost:1883",
        )
    if scheme == "unix":
        path = unquote(rest.removeprefix("//"))
        if not path:
            raise UsageError(f"--url {url} has no path", "Write unix:/run/braidmq.sock")
        return BrokerAddress("unix", path, 1)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"--url {url}: {error}") from None
    if not parts.hostname or port == 0:
        raise UsageError(f"--url {url} names no {'port' if parts.hostname else 'host'}", "Write mqtt://localhost:1883")
    return BrokerAddress(
        scheme,
        parts.hostname,
        port or PORTS[scheme],
        parts.path if parts.path not in ("", "/") else WEBSOCKET_PATH,
        unquote(parts.username) if parts.username is not None else None,
        unquote(parts.password) if parts.password is not None else None,
    )


def check_topic(topic: str, name: str) -> None:
    """A topic to publish to; `name` is the option that it comes from."""
    try:
        topics.check_topic(topic, LEVELS_MAX)
    except PacketError as error:
        raise UsageError(f"{name}: {error.text}", "A topic is like sensors/kitchen; wildcards are for `sub`.") from None
    check_text(topic, name)


def check_filter(topic_filter: str) -> None:
    try:
        topics.check_filter(topics.split_share(topic_filter)[1], LEVELS_MAX)
    except PacketError as error:
        raise UsageError(
            error.text, "A filter is like sensors/+/temperature or sensors/#, quoted for the shell."
        ) from None
    check_text(topic_filter, "FILTER")


def check_text(text: str, name: str) -> None:
    """A string that MQTT can carry: at most 65,535 bytes of UTF-8, and no U+0000."""
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{name} is not UTF-8") from None
    if len(encoded) > 65535:
        raise UsageError(f"{name} is {len(encoded)} bytes long", "MQTT allows at most 65535.")
    if b"\0" in encoded:
        raise UsageError(f"{name} has the character U+0000 in it", "MQTT does not allow it.")


def parse_pairs(pairs: list[str], name: str) -> list[tuple[str, str]]:
    """`key=value`, several times, as user properties are given."""
    parsed = []
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator:
            raise UsageError(f"{name} {pair} has no `=`", f"Write {name} key=value")
        check_text(key, name)
        check_text(value, name)
        parsed.append((key, value))
    return parsed
