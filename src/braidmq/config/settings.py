"""The broker's configuration as data: one struct a table of the TOML file, with every default.

A struct here says what a single value may be. What several values must be together (a TLS listener needs a key, an open
one needs authentication) is in `check`; where values come from is in `load`. The text under a field is
its meaning in docs/configuration.md.
"""

from __future__ import annotations

import ipaddress
from typing import Annotated, Any, Final, Literal

import msgspec

from braidmq.broker.limits import Count, CountOrNone, Limits, Seconds
from braidmq.processors.processor import SPOOL_MAX

Text = Annotated[str, msgspec.Meta(min_length=1)]
Texts = tuple[Text, ...]
Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Action = Literal["publish", "subscribe", "will"]
Algorithm = Literal[
    "HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]

BY_KIND: Final = -1
"""A listener's port that was not given; the kind decides."""
_PORTS: Final = {"tcp": 1883, "tls": 8883, "ws": 8083, "wss": 8084, "unix": 0}


def is_loopback(host: str) -> bool:
    """True if only this machine can reach a socket bound to `host`. A name other than localhost could mean anything."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Listener(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str = ""
    """What logs and statistics call it. By default the kind with its port or path, such as `tcp:1883`."""
    kind: Literal["tcp", "tls", "ws", "wss", "unix"] = "tcp"
    """Plain TCP, TLS, WebSocket, secure WebSocket, or a Unix socket."""
    host: Text = "127.0.0.1"
    """The address to bind; `0.0.0.0` is every IPv4 address of the machine, `::` every IPv6 one."""
    port: Port = BY_KIND
    """1883 for tcp, 8883 for tls, 8083 for ws, 8084 for wss. 0 takes any free port."""
    path: str = ""
    """The socket's path (unix), or the path in the URL (ws, wss), there `/mqtt` by default."""
    certificate: Text | None = None
    """The server's certificate chain, a PEM file (tls, wss)."""
    key: Text | None = None
    """The certificate's private key, a PEM file without passphrase (tls, wss)."""
    client_ca: Text | None = None
    """The authorities that sign client certificates, a PEM file."""
    client_certificate: Literal["none", "optional", "required"] = "none"
    """Whether clients show a certificate. `required` counts as authentication for this listener."""
    user_from_certificate: Literal["none", "common_name", "alternative_name"] = "none"
    """Which name in the client's certificate is its user name; of alternative names it is the first."""
    anonymous: bool | None = None
    """Whether clients without credentials are let in. By default only if no authentication is configured."""
    allow_users: Texts = ()
    """Who may come in here, as globs; `anonymous` means clients without a user name. Empty: everyone who is known."""
    connections_max: CountOrNone = 0
    """Connections on this listener; 0 leaves it to `limits.connections_max`."""
    origins: Texts = ()
    """The `Origin`s of pages that may connect from a browser (ws, wss); `*` is any. Empty: pages of the same host."""

    def __post_init__(self) -> None:
        if self.port == BY_KIND:
            msgspec.structs.force_setattr(self, "port", _PORTS[self.kind])
        if not self.path and self.websocket:
            msgspec.structs.force_setattr(self, "path", "/mqtt")
        if not self.name:
            place = self.path if self.kind == "unix" else self.port
            msgspec.structs.force_setattr(self, "name", f"{self.kind}:{place}")

    @property
    def tls(self) -> bool:
        return self.kind in ("tls", "wss")

    @property
    def websocket(self) -> bool:
        return self.kind in ("ws", "wss")

    @property
    def local(self) -> bool:
        """True if only this machine can reach it."""
        return self.kind == "unix" or is_loopback(self.host)

    @property
    def address(self) -> str:
        """Where it listens, for people."""
        return self.path if self.kind == "unix" else f"{self.host}:{self.port}"


class StoreConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    enabled: bool = True
    """Without the store nothing survives a restart of the broker."""
    sync: Literal["normal", "full"] = "normal"
    """`normal` survives a crash of the broker; `full` also waits for the disk, and survives a power cut."""


class Plugin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A Python class to load. A plain string in the file is short for a table with `use` alone."""

    use: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
    """The class, as `package.module:Class`."""
    options: dict[str, Any] = {}
    """What the class is called with, as keyword arguments."""


class Jwt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    algorithms: Annotated[tuple[Algorithm, ...], msgspec.Meta(min_length=1)]
    """The signatures that are accepted. There is no default, and `none` is never accepted."""
    key: Text | None = None
    """The shared secret (HS algorithms). Exactly one of `key`, `key_file` and `jwks_file` is to be given."""
    key_file: Text | None = None
    """A file with the shared secret (HS), or with a public key or certificate in PEM (the others)."""
    jwks_file: Text | None = None
    """A file with a JSON Web Key Set; tokens choose a key by `kid`."""
    issuer: Text | None = None
    """What the claim `iss` must be."""
    audience: Text | None = None
    """What the claim `aud` must contain. Tokens with an audience are refused if this is not given."""
    user_claim: Text = "sub"
    """The claim that holds the user name."""
    leeway_s: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 0.0
    """How far clocks may differ."""


class Authentication(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    password_file: Text | None = None
    """Users and their argon2id hashes, kept with `braidmq passwd`."""
    jwt: Jwt | None = None
    """JSON Web Tokens, which clients send as their password."""
    plugins: tuple[Plugin, ...] = ()
    """Authenticators of your own, asked in this order after everything else."""
    enhanced: tuple[Plugin, ...] = ()
    """Methods for the AUTH exchange of MQTT 5."""
    allow_anonymous_everywhere: bool = False
    """Lets listeners that other machines can reach accept clients without credentials. Anyone can then connect."""

    @property
    def configured(self) -> bool:
        """True if there is any way to tell clients apart, beyond what a listener asks of their certificates."""
        return bool(self.password_file or self.jwt or self.plugins or self.enhanced)


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    users: Annotated[Texts, msgspec.Meta(min_length=1)] = ("*",)
    """Whom the rule is about, as globs: `*` is everyone, `anonymous` those without a user name."""
    clients: Annotated[Texts, msgspec.Meta(min_length=1)] = ("*",)
    """The client identifiers that the rule is about, as globs."""
    allow: tuple[Action, ...] = ()
    """What the rule allows."""
    deny: tuple[Action, ...] = ()
    """What the rule forbids."""
    topics: Annotated[Texts, msgspec.Meta(min_length=1)]
    """Topic filters. `%u` stands for the user name, `%c` for the client identifier."""


class ClientIdRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    users: Annotated[Texts, msgspec.Meta(min_length=1)] = ("*",)
    """Whom the rule is about, as globs: `*` is everyone, `anonymous` those without a user name."""
    client_id: Text
    """What their client identifiers look like, such as `{user}-+`: `{user}` is the user name, `{certificate}` the
    common name of the client's certificate, `+` any text, `*` any text or none."""


class AccessConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    default: Literal["allow", "deny"] | None = None
    """What holds where no rule does. By default `allow` if there are no rules at all, else `deny`."""
    rules: tuple[Rule, ...] = ()
    """The rules in order; the first that matches decides."""
    client_ids: tuple[ClientIdRule, ...] = ()
    """Which client identifiers users may connect with; the first rule that names the user decides. Without one: any."""
    foreign_session: Literal["refuse", "fresh"] = "refuse"
    """What a client gets whose identifier has a session of another user: a refusal, or a fresh session in its place. A
    user who is connected keeps the session in any case."""
    plugin: Plugin | None = None
    """A class of your own that must agree as well."""


class AdminConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    host: Text = "127.0.0.1"
    """The address of the admin port: metrics, health and readiness over HTTP."""
    port: Port = 9883
    """Its port; 0 takes any free one."""
    token: Text | None = None
    """The bearer token that requests must show. Needed if other machines can reach the port."""


class BraidConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    listen: Text = "127.0.0.1:7883"
    """Where other brokers reach this one, as `host:port`; port 0 takes any free one."""
    advertise: Text | None = None
    """What other brokers are told instead, if they reach this one at another address."""
    join: Texts = ()
    """Other brokers of the braid, as `host:port`; one that is up is enough. Without any, a new braid begins here."""
    name: Text | None = None
    """This broker's name in the braid, which no other may have. By default one that is made up with its store, and kept
    there. A new name over an old store is taken: the broker stays the one that it was."""
    cluster: str = ""
    """Where it stands, as a path such as `cloud1/edge1`. No level may be `-` or `.`."""
    method: Literal["adaptive", "relayfree", "suzaku", "locality", "scribe", "bayeux", "canmc"] = "adaptive"
    """How publications travel. All brokers of a braid need the same; the last three are for comparison."""
    table_size: Annotated[int, msgspec.Meta(ge=16, le=1024)] = 60
    """Entries of a routing table (adaptive): topics with fewer subscribing brokers take one hop."""
    key: Text | None = None
    """The braid's key: a passphrase of at least 12 characters, or 64 hexadecimal digits. `key_file` is safer."""
    key_file: Text | None = None
    """A file with the braid's key alone in it."""
    certificate: Text | None = None
    """This broker's certificate, a PEM file: mutual TLS between brokers, instead of a key."""
    certificate_key: Text | None = None
    """Its private key, a PEM file."""
    authority: Text | None = None
    """Who signs the certificates of the braid's brokers, a PEM file."""
    insecure: bool = False
    """Lets brokers talk without key and TLS beyond loopback. Anyone who reaches the port can then read and publish."""


class ProcessorConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message processor; what is not given here is as its function says."""

    file: Text
    """The Python file, or the module as `package.module`, with `:name` behind it if there are several in it."""
    name: Text | None = None
    """What it is called in topics and statistics. By default the function's name."""
    topic: Text | None = None
    """The topic filter whose messages it gets."""
    spool: Annotated[int, msgspec.Meta(ge=1, le=SPOOL_MAX)] | None = None
    """The messages of a topic that it sees."""
    output: Text | None = None
    """The topic on which it publishes."""
    time_limit_s: Seconds | None = None
    """What it may take for a message before its worker is killed and started again."""
    where: Literal["publishers", "here"] = "publishers"
    """`publishers`: what clients of this broker publish. `here`: what clients of all brokers of the braid publish."""


class ProcessingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    storage_bytes_max: Count = 256 * 1024 * 1024
    """What the spools of all topics may take when they are full (A_l). Topics beyond are delegated to Spark."""
    compute_max: Count = 10_000_000
    """Spooled messages times publishers, over all topics (B_l). Topics beyond are delegated to Spark."""
    queue_qos0_max: Count = 10_000
    """Messages that wait for a processor before QoS 0 is dropped."""
    queue_messages_max: Count = 100_000
    """Messages that wait for a processor before QoS 1 and 2 are dropped as well, and that is reported."""
    queue_bytes_max: Count = 64 * 1024 * 1024
    """Their bytes, whatever their QoS."""
    tries_max: Annotated[int, msgspec.Meta(ge=1, le=100)] = 2
    """How often a message may bring its worker down before it is left out."""
    idle_s: Seconds = 86_400.0
    """After so long without a message a topic's spool is forgotten."""


class LogConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    topics: Texts = ()
    """Topic filters: what clients of this broker publish there is kept in the log, for Spark and others to read. Topics
    that begin with `$` are never kept. Needs the extra `log`."""
    folder: Text | None = None
    """The folder of the log. By default `log` in the folder of the store."""
    partitions: Annotated[int, msgspec.Meta(ge=1, le=256)] = 8
    """Parts of the log, by topic, that can be read side by side. Stays as it was when the folder was made."""
    retain_bytes: CountOrNone = 4_294_967_296
    """What the log may take up on the disk; the oldest goes first. 0: no bound."""
    retain_age_s: Annotated[float, msgspec.Meta(ge=0)] = 604_800.0
    """How long rows of the log are kept, at least, if there is room; whole segments go. 0: no bound."""
    segment_bytes: Annotated[int, msgspec.Meta(ge=65_536, le=1_073_741_824)] = 33_554_432
    """How large a file of the log grows before the next begins, if `retain_bytes` leaves room for several."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least serious messages that are written."""
    format: Literal["text", "json"] = "text"
    """Lines for people, or one JSON object a line."""


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Text = "braidmq"
    """The broker's name in logs and statistics."""
    data: Text = "data"
    """The folder of the store."""
    listeners: Annotated[tuple[Listener, ...], msgspec.Meta(min_length=1)] = (Listener(),)
    """Where clients connect. By default one: plain TCP on loopback, port 1883."""
    limits: Limits = Limits()
    """Every bound."""
    store: StoreConfig = StoreConfig()
    """What is written to disk, and how."""
    authentication: Authentication = Authentication()
    """Who clients are."""
    access: AccessConfig = AccessConfig()
    """What clients may do."""
    admin: AdminConfig | None = None
    """The admin port; without this table there is none."""
    braid: BraidConfig | None = None
    """What joins this broker to others; without this table it stands alone."""
    processor: tuple[ProcessorConfig, ...] = ()
    """Message processors that run beside this broker."""
    processing: ProcessingConfig = ProcessingConfig()
    """What they may use."""
    sys_interval_s: Annotated[float, msgspec.Meta(ge=0)] = 10.0
    """How often the `$SYS` statistics are published; 0 turns them off."""
    log: LogConfig = LogConfig()
    """What the broker writes: the log of publications, and lines about itself."""

    def admits_anonymous(self, listener: Listener | None) -> bool:
        """Whether clients without credentials come in there; None stands for a listener that is not in this file."""
        if listener is None or listener.anonymous is None:
            return not self.authentication.configured
        return listener.anonymous
