"""What several configuration values must be together, and with the files that they name.

Secure by default: a listener that other machines can reach is refused unless it can tell clients apart; the message
says how to configure that.
"""

from __future__ import annotations

import os
import ssl
from typing import Final

from braidmq.config.braid_security import security_of
from braidmq.config.log_check import check_log
from braidmq.config.problems import NOTHING, Findings
from braidmq.config.settings import AdminConfig, BraidConfig, Config, Listener, ProcessorConfig, is_loopback
from braidmq.keys import cluster_problem
from braidmq.mqtt.errors import PacketError
from braidmq.mqtt.topics import check_filter, check_topic, matches
from braidmq.net.addresses import parse_address
from braidmq.net.hello import NAME_LENGTH_MAX
from braidmq.processors.loading import is_file, split_source
from braidmq.security.client_id_patterns import client_id_problem
from braidmq.security.passwords import PasswordFileError, read_password_file
from braidmq.security.tokens import TokenKeyError, read_token_keys
from braidmq.security.topic_patterns import pattern_problem

ADVERTISED_LENGTH_MAX: Final = 256
"""Characters of what a listener advertises; brokers tell each other."""

UNIX_PATH_BYTES_MAX: Final = 107
"""What the kernel takes as a Unix socket's path."""

BOUND_BY_PATH: Final = -1
"""Stands for the port of a Unix socket."""

_EVERYWHERE: Final = ("0.0.0.0", "::")  # noqa: S104 - compared with, never bound

HOW_TO_AUTHENTICATE: Final = (
    "other machines can reach it, and nothing tells clients apart. Choose one: "
    '(1) make a password file with "braidmq passwd" and name it in authentication.password_file; '
    '(2) let this listener demand client certificates: kind = "tls", client_ca, client_certificate = "required"; '
    "(3) configure tokens in [authentication.jwt]; "
    '(4) bind it to loopback: host = "127.0.0.1". '
    "If anyone at all may connect, say so with authentication.allow_anonymous_everywhere = true"
)


def check(config: Config, findings: Findings) -> None:
    """Adds every problem between values, except those that rest on a value already found wrong."""
    if os.path.exists(config.data) and not os.path.isdir(config.data):
        findings.add("data", config.data, "expected a folder, and this is a file")
    _check_authentication(config, findings)
    _check_access(config, findings)
    if not findings.spoiled("log"):
        check_log(config.log, findings)
    if config.admin is not None and not findings.spoiled("admin"):
        _check_admin(config.admin, findings)
    if config.braid is not None and not findings.spoiled("braid"):
        _check_braid(config.braid, findings)
    for index, listener in enumerate(config.listeners):
        key = f"listeners[{index}]"
        if not findings.spoiled(f"{key}.kind"):
            _check_kind(key, listener, findings)
            _check_tls(key, listener, findings)
    if not findings.spoiled("share"):
        _check_shares(config, findings)
    if not findings.spoiled("home"):
        _check_homes(config, findings)
    for index, processor in enumerate(config.processor):
        if not findings.spoiled(f"processor[{index}]"):
            _check_processor(f"processor[{index}]", processor, config, findings)
    check_openness(config, findings)
    _check_duplicates(config, findings)


def _check_homes(config: Config, findings: Findings) -> None:
    for index, home in enumerate(config.home):
        key = f"home[{index}]"
        if (home.clients is None) == (home.topic is None):
            findings.add(key, home.broker, "either clients or topic")
        elif home.topic is not None:
            try:
                check_filter(home.topic)
            except PacketError as error:
                findings.add(f"{key}.topic", home.topic, error.text)


def _check_shares(config: Config, findings: Findings) -> None:
    names: dict[str, int] = {}
    for index, share in enumerate(config.share):
        key = f"share[{index}].group"
        if any(character in share.group for character in "/+#"):
            findings.add(key, share.group, "a name without /, + and #, as in $share/<group>/<filter>")
        elif share.group in names:
            findings.add(key, share.group, f"another name: share[{names[share.group]}] is for this one")
        names.setdefault(share.group, index)


def _check_processor(key: str, processor: ProcessorConfig, config: Config, findings: Findings) -> None:
    """What can be known without running its file."""
    source, _ = split_source(processor.file)
    if is_file(source):
        _check_file(f"{key}.file", source, findings)
    for name in ("topic", "output"):
        text = getattr(processor, name)
        try:
            if text is not None:
                (check_filter if name == "topic" else check_topic)(text)
        except PacketError as error:
            findings.add(f"{key}.{name}", text, error.text)
    if processor.topic is not None and processor.output is not None and matches(processor.topic, processor.output):
        expected = "it matches the processor's own input, and would go round for ever: choose another topic"
        findings.add(f"{key}.output", processor.output, expected)
    if processor.spool_scope == "cluster" and config.braid is not None and not config.braid.cluster:
        expected = "this broker is in no cluster: set braid.cluster, or choose braid or site"
        findings.add(f"{key}.spool_scope", processor.spool_scope, expected)
    if processor.name is not None and any(one.name == processor.name for one in config.processor if one != processor):
        findings.add(f"{key}.name", processor.name, "another processor has the same name; expected each name once")


def _check_authentication(config: Config, findings: Findings) -> None:
    authentication = config.authentication
    if authentication.password_file is not None:
        try:
            read_password_file(authentication.password_file)
        except PasswordFileError as error:
            findings.add("authentication.password_file", authentication.password_file, str(error))
    jwt = authentication.jwt
    if jwt is not None and not findings.spoiled("authentication.jwt"):
        given = [name for name in ("key", "key_file", "jwks_file") if getattr(jwt, name) is not None]
        if len(given) != 1:
            which = " and ".join(given) or "none"
            findings.add(
                "authentication.jwt", NOTHING, f"expected exactly one of key, key_file and jwks_file, got {which}"
            )
            return
        try:
            read_token_keys(jwt)
        except TokenKeyError as error:
            findings.add(f"authentication.jwt.{given[0]}", getattr(jwt, given[0]), str(error))


def _check_access(config: Config, findings: Findings) -> None:
    for index, rule in enumerate(config.access.rules):
        key = f"access.rules[{index}]"
        if not rule.allow and not rule.deny and not findings.spoiled(f"{key}.allow", f"{key}.deny"):
            findings.add(key, NOTHING, 'expected allow or deny, with any of "publish", "subscribe", "will"')
        for action in rule.allow:
            if action in rule.deny:
                findings.add(f"{key}.deny", list(rule.deny), f'"{action}" is also in allow; expected it in one of them')
        for number, pattern in enumerate(rule.topics):
            problem = pattern_problem(pattern)
            if problem:
                findings.add(f"{key}.topics[{number}]", pattern, f"expected a topic filter: {problem}")
    for index, bound in enumerate(config.access.client_ids):
        problem = client_id_problem(bound.client_id)
        if problem:
            expected = f"expected a pattern of client identifiers such as {{user}}-+: {problem}"
            findings.add(f"access.client_ids[{index}].client_id", bound.client_id, expected)


def _check_admin(admin: AdminConfig, findings: Findings) -> None:
    if not is_loopback(admin.host) and admin.token is None:
        expected = (
            "other machines can reach the admin port: set admin.token to a long random text, "
            'or bind it to loopback with host = "127.0.0.1"'
        )
        findings.add("admin.host", admin.host, expected)


def _check_braid(braid: BraidConfig, findings: Findings) -> None:
    for name, addresses in (("listen", (braid.listen,)), ("advertise", (braid.advertise,)), ("join", braid.join)):
        for address in addresses:
            try:
                parse_address(address or "localhost:1", port_min=0 if name == "listen" else 1)
            except ValueError as error:
                findings.add(f"braid.{name}", address, f"expected an address as host:port: {error}")
    if len(braid.name or "") > NAME_LENGTH_MAX:
        findings.add("braid.name", braid.name, f"expected a name of at most {NAME_LENGTH_MAX} characters")
    if any(character <= "\x02" for character in braid.name or ""):
        findings.add("braid.name", braid.name, "expected a name without U+0000 to U+0002")
    if braid.copies_required > braid.copies:
        expected = f"expected at most braid.copies, which is {braid.copies}"
        findings.add("braid.copies_required", braid.copies_required, expected)
    if problem := cluster_problem(braid.cluster):
        findings.add("braid.cluster", braid.cluster, f"expected a path such as cloud1/edge1: {problem}")
    try:
        security_of(braid)
    except ValueError as error:
        findings.add("braid.key", NOTHING, str(error))
        return
    ways = [braid.key, braid.key_file, braid.certificate]
    if not any(ways) and not braid.insecure and not findings.spoiled("braid.listen"):
        if not is_loopback(parse_address(braid.listen, port_min=0)[0]):
            expected = (
                "other machines can reach it, and nothing tells brokers of the braid from others: name a key in "
                "braid.key_file, or certificates in braid.certificate, certificate_key and authority"
            )
            findings.add("braid.listen", braid.listen, expected)


def _check_kind(key: str, listener: Listener, findings: Findings) -> None:
    if listener.kind == "unix":
        folder = os.path.dirname(listener.path) or "."
        if not listener.path:
            if not findings.spoiled(f"{key}.path"):
                findings.add(f"{key}.path", NOTHING, "is missing; a unix listener needs the path of its socket")
        elif len(os.fsencode(listener.path)) > UNIX_PATH_BYTES_MAX:
            expected = f"expected a path of at most {UNIX_PATH_BYTES_MAX} bytes; the system takes no longer one"
            findings.add(f"{key}.path", listener.path, expected)
        elif not os.path.isdir(folder):
            findings.add(f"{key}.path", listener.path, f"the folder {folder} does not exist")
    elif listener.websocket:
        if not listener.path.startswith("/"):
            findings.add(f"{key}.path", listener.path, 'expected a path that begins with "/"')
    elif listener.path:
        findings.add(f"{key}.path", listener.path, f"only unix, ws and wss listeners have a path, not {listener.kind}")
    if listener.origins and not listener.websocket:
        expected = f"only ws and wss listeners have origins, not {listener.kind}"
        findings.add(f"{key}.origins", list(listener.origins), expected)
    if listener.advertise is not None:
        _check_advertise(f"{key}.advertise", listener, listener.advertise, findings)


def _check_advertise(key: str, listener: Listener, advertise: str, findings: Findings) -> None:
    """A Server Reference is a list with spaces between its parts (MQTT 5 §4.11): this is one of them."""
    if listener.kind == "unix":
        findings.add(key, advertise, "clients of other brokers cannot reach a unix listener")
    elif len(advertise) > ADVERTISED_LENGTH_MAX:
        findings.add(key, advertise, f"expected at most {ADVERTISED_LENGTH_MAX} characters")
    elif not advertise.isprintable() or any(character.isspace() for character in advertise):
        findings.add(key, advertise, "expected host:port or a URI, without spaces")


def _check_tls(key: str, listener: Listener, findings: Findings) -> None:
    if not listener.tls:
        for name in ("certificate", "key", "client_ca"):
            value = getattr(listener, name)
            if value is not None:
                expected = f"only tls and wss listeners have it; this one is {listener.kind}"
                findings.add(f"{key}.{name}", value, expected)
        if listener.client_certificate != "none":
            expected = f"only tls and wss listeners see certificates; this one is {listener.kind}"
            findings.add(f"{key}.client_certificate", listener.client_certificate, expected)
        return
    for name in ("certificate", "key"):
        if getattr(listener, name) is None and not findings.spoiled(f"{key}.{name}"):
            findings.add(f"{key}.{name}", NOTHING, f"is missing; a {listener.kind} listener needs a {name} file (PEM)")
    for name in ("certificate", "key", "client_ca"):
        _check_file(f"{key}.{name}", getattr(listener, name), findings)
    if listener.certificate and listener.key and not findings.spoiled(f"{key}.certificate", f"{key}.key"):
        _check_pair(key, listener.certificate, listener.key, findings)
    if listener.client_ca and not findings.spoiled(f"{key}.client_ca"):
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(listener.client_ca)
        except (ssl.SSLError, OSError):
            findings.add(f"{key}.client_ca", listener.client_ca, "expected certificates in PEM, and found none")
    if listener.client_certificate != "none":
        if listener.client_ca is None and not findings.spoiled(f"{key}.client_ca"):
            expected = "is missing; client certificates can only be checked against their authorities (PEM)"
            findings.add(f"{key}.client_ca", NOTHING, expected)
    elif listener.user_from_certificate != "none" and not findings.spoiled(f"{key}.client_certificate"):
        expected = 'clients are not asked for certificates; set client_certificate = "required" or "optional"'
        findings.add(f"{key}.user_from_certificate", listener.user_from_certificate, expected)


def _check_file(key: str, path: str | None, findings: Findings) -> None:
    if path is None:
        return
    if not os.path.exists(path):
        findings.add(key, path, "there is no such file")
    elif not os.path.isfile(path):
        findings.add(key, path, "expected a file, and this is none")
    elif not os.access(path, os.R_OK):
        findings.add(key, path, "the broker may not read this file; change its owner or mode")


def _check_pair(key: str, certificate: str, private: str, findings: Findings) -> None:
    """Loads both once: files that OpenSSL would refuse later are refused now."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, private, password=lambda: b"")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            findings.add(f"{key}.key", private, f"is not the key of the certificate {certificate}")
        else:
            expected = f"cannot be used with its key: expected two PEM files, the key without passphrase ({error})"
            findings.add(f"{key}.certificate", certificate, expected)
    except OSError as error:
        findings.add(f"{key}.certificate", certificate, f"cannot be read: {error.strerror}")


def check_openness(config: Config, findings: Findings) -> None:
    """No client without credentials from other machines, unless that was asked for by name."""
    if config.authentication.allow_anonymous_everywhere or findings.spoiled("authentication"):
        return
    for index, listener in enumerate(config.listeners):
        key = f"listeners[{index}]"
        if listener.local or listener.client_certificate == "required" or not config.admits_anonymous(listener):
            continue
        if findings.spoiled(*(f"{key}.{name}" for name in ("kind", "host", "client_certificate", "anonymous"))):
            continue
        if config.authentication.configured:
            expected = (
                "other machines can reach this listener, so clients without credentials are let in only if you also "
                "say authentication.allow_anonymous_everywhere = true"
            )
            findings.add(f"{key}.anonymous", True, expected)
        else:
            findings.add(f"{key}.host", listener.host, HOW_TO_AUTHENTICATE)


def _check_duplicates(config: Config, findings: Findings) -> None:
    names: dict[str, str] = {}
    bound: list[tuple[str, tuple[str, int]]] = []
    for index, listener in enumerate(config.listeners):
        key = f"listeners[{index}]"
        if findings.spoiled(f"{key}.kind", f"{key}.host", f"{key}.port", f"{key}.path", f"{key}.name"):
            continue
        unix = listener.kind == "unix"
        address = (listener.path, BOUND_BY_PATH) if unix else (listener.host, listener.port)
        other = next((taken for taken, occupied in bound if _clash(address, occupied)), None)
        if other is not None:
            name = "path" if unix else "port"
            findings.add(f"{key}.{name}", getattr(listener, name), f"{other} already listens on that address")
        elif listener.name in names:
            expected = f"{names[listener.name]} has the same name; expected each name once"
            findings.add(f"{key}.name", listener.name, expected)
        names.setdefault(listener.name, key)
        bound.append((key, address))
    admin = config.admin
    if admin is not None and not findings.spoiled("admin"):
        for key, address in bound:
            if _clash((admin.host, admin.port), address):
                findings.add("admin.port", admin.port, f"{key} already listens on that address")


def _clash(one: tuple[str, int], other: tuple[str, int]) -> bool:
    """Whether not both can be bound. Port 0 is a new one each time; 0.0.0.0 and :: hold all addresses of their kind."""
    (host, port), (other_host, other_port) = one, other
    if port != other_port or port == 0:
        return False
    host, other_host = ("127.0.0.1" if name == "localhost" else name.strip("[]") for name in (host, other_host))
    same_family = (":" in host) == (":" in other_host)
    wide = port != BOUND_BY_PATH and (host in _EVERYWHERE or other_host in _EVERYWHERE)
    return host == other_host or (wide and same_family)
