"""The broker's configuration as data: one struct a table of the TOML file, with every default.

A struct says what a single value may be. What several values must be together (a TLS listener needs a key, an open one
needs authentication) is in `check`; where values come from is in `load`. The text under a field is its meaning in
docs/configuration.md.
"""

from __future__ import annotations

import ipaddress
from typing import Annotated, Final, Literal

import msgspec

from braidmq.broker.limits import Count, CountOrNone, Limits, Seconds
from braidmq.broker.share_policies import PolicyName
from braidmq.processors.processor import SPOOL_MAX
from braidmq.pubsub.registry import METHOD_DEFAULT, TABLE_SIZE_DEFAULT, MethodName
from braidmq.security.settings import AccessConfig, Authentication, Text, Texts

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]

BY_KIND: Final = -1
"""A listener's port that was not given; the kind decides."""
COPIES_MAX: Final = 8
"""Of a store."""
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
    advertise: Text | None = None
    """Where clients reach this listener, as `host:port` or a URI: what brokers of the braid that are drained tell their
    MQTT 5 clients as Server Reference. Not for unix."""

    def __post_init__(self) -> None:
        if self.port == BY_KIND:
            msgspec.structs.force_setattr(self, "port", _PORTS[self.kind])
        if not self.path and self.websocket:
            msgspec.structs.force_setattr(self, "path", "/mqtt")
        if not self.name:
            where = self.path if self.kind == "unix" else self.port
            msgspec.structs.force_setattr(self, "name", f"{self.kind}:{where}")

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
    copies: Annotated[int, msgspec.Meta(ge=1, le=COPIES_MAX)] = 2
    """Copies of this broker's store, its own included, that acknowledgements wait for as soon as there are other
    brokers with a store; 1: only its own."""
    copies_required: Annotated[int, msgspec.Meta(ge=1, le=COPIES_MAX)] = 1
    """With fewer copies, publications of QoS 1 and 2 are refused (0x97), and clients whose sessions stay (0x88)."""
    failure_domain: str = ""
    """What fails together, such as a rack or a site. If it is set, copies are in other domains only."""
    cluster: str = ""
    """Where it stands, as a path such as `cloud1/edge1`. No level may be `-` or `.`."""
    method: MethodName = METHOD_DEFAULT
    """How publications travel. All brokers of a braid need the same; those but `covers` have a key for each topic and
    filter, and `bayeux`, `canmc` and `scribe` are for comparison."""
    table_size: Annotated[int, msgspec.Meta(ge=16, le=1024)] = TABLE_SIZE_DEFAULT
    """Entries of a routing table (covers, adaptive). With adaptive, topics that fewer brokers want take one hop."""
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
    drain_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """At SIGTERM, clients and sessions are moved to other brokers for at most so long before this one ends; 0: it ends
    at once, as at a second SIGTERM. `braidmq drain` does the same."""
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
    spool_scope: Literal["braid", "cluster", "site"] = "braid"
    """With `where = "publishers"`: whose messages are in its spools beside those of clients here. `braid`: those of all
    brokers of the braid that have publishers of the topic. `cluster`: of those in the same `braid.cluster`. `site`: no
    others."""


class ShareConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The groups of shared subscriptions with one name; those that are not named here are `near`."""

    group: Text
    """The name, as in `$share/<group>/<filter>`."""
    policy: PolicyName = "near"
    """Which member gets a message. `near`: the nearest that is free, by cluster. `round-robin`: brokers take turns.
    `balanced`: brokers in proportion to what their members can take. `least-loaded`: the broker, and there the member,
    that can take most. `hash`: messages of one key go to one member."""
    key: Text = "topic"
    """Of `hash`: `topic`, `client` (who published it), or the name of a user property; without that, the topic."""


class HomeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Clients that are at home at one broker, whatever a plan says. Of several rules the first that fits counts."""

    broker: Text
    """The name of that broker (`braid.name`)."""
    clients: Text | None = None
    """Their ids, with `*` for anything: `bus-*`. They are told to go there when they connect elsewhere (MQTT 5)."""
    topic: Text | None = None
    """Or a topic filter: plans have everybody who publishes to it there."""


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
    share: tuple[ShareConfig, ...] = ()
    """How groups of shared subscriptions choose a member. All brokers of a braid need the same."""
    home: tuple[HomeConfig, ...] = ()
    """Clients that are at home at a certain broker of the braid."""
    sys_interval_s: Annotated[float, msgspec.Meta(ge=0)] = 10.0
    """How often the `$SYS` statistics are published; 0 turns them off."""
    log: LogConfig = LogConfig()
    """What the broker writes: the log of publications, and lines about itself."""

    def admits_anonymous(self, listener: Listener | None) -> bool:
        """Whether clients without credentials come in there; None stands for a listener that is not in this file."""
        if listener is None or listener.anonymous is None:
            return not self.authentication.configured
        return listener.anonymous
