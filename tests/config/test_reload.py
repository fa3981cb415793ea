"""SIGHUP: what can change while the broker runs does, what cannot is named, and a broken file changes nothing."""

from __future__ import annotations

import signal
import socket
import ssl
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trustme

from braidmq.security.passwords import delete_user, set_password
from tests import raw
from tests.conformance import wire
from tests.conformance.wire import V3, V5, Type
from tests.patience import PATIENCE_S
from tests.raw import Client, opened, persistent, wait_until

if TYPE_CHECKING:
    from tests.conftest import Broker, StartBroker


class Site:
    """A broker with a configuration file that can be written anew."""

    def __init__(self, start: StartBroker, folder: Path, config: str, arguments: list[str] | None = None) -> None:
        self.config = folder / "site.toml"
        self.config.write_text(config)
        self.broker: Broker = start(arguments=["--config", str(self.config), *(arguments or [])])

    def reload(self, config: str | None = None) -> str:
        """Writes the file, if there is a new text, and sends the signal; returns what the broker said about it."""
        if config is not None:
            self.config.write_text(config)
        said_before = len(self.broker.log)
        self.broker.signal(signal.SIGHUP)
        wait_until(lambda: "reloaded: " in self.broker.log[said_before:], "the broker answers the signal")
        said = self.broker.log[said_before:]
        assert self.broker.running
        assert "Traceback" not in said, said
        return said


def answer_to(broker: Broker, user: str, password: bytes, version: int = V5) -> int:
    with Client(broker, f"{user}-client", version, username=user, password=password) as client:
        return client.connack.reason


# Files that the configuration names


def test_passwords(start_broker: StartBroker, tmp_path: Path) -> None:
    users = tmp_path / "users"
    set_password(str(users), "ada", b"old")
    set_password(str(users), "bob", b"bob")
    site = Site(start_broker, tmp_path, f'[authentication]\npassword_file = "{users}"\n')
    broker = site.broker
    staying = Client(broker, "staying", username="ada", password=b"old")
    assert staying.accepted
    assert answer_to(broker, "ada", b"new") == 0x86

    set_password(str(users), "ada", b"new")
    set_password(str(users), "cyd", b"cyd")
    delete_user(str(users), "bob")
    assert answer_to(broker, "ada", b"old") == 0  # not before the signal
    assert "not reloaded" not in site.reload()
    assert answer_to(broker, "ada", b"old") == 0x86
    assert answer_to(broker, "ada", b"old", V3) in (4, 5)
    assert answer_to(broker, "ada", b"new") == 0
    assert answer_to(broker, "bob", b"bob") == 0x86
    assert answer_to(broker, "cyd", b"cyd") == 0
    assert staying.so_far() == []  # a connected client stays

    users.write_text("this is no password file\n")
    said = site.reload()
    assert "not reloaded" in said
    assert str(users) in said
    assert answer_to(broker, "ada", b"new") == 0  # as before
    users.unlink()
    assert "not reloaded" in site.reload()
    assert answer_to(broker, "cyd", b"cyd") == 0


def test_certificates(start_broker: StartBroker, tmp_path: Path) -> None:
    certificate, key = tmp_path / "server.pem", tmp_path / "server.key"

    def renew() -> trustme.CA:
        authority = trustme.CA()
        issued = authority.issue_cert("localhost")
        issued.cert_chain_pems[0].write_to_path(str(certificate))
        issued.private_key_pem.write_to_path(str(key))
        return authority

    def is_trusted(authority: trustme.CA) -> bool:
        context = ssl.create_default_context()
        authority.configure_trust(context)
        plain = socket.create_connection(("127.0.0.1", site.broker.port_of("mqtts")), timeout=PATIENCE_S)
        try:
            with context.wrap_socket(plain, server_hostname="localhost") as encrypted:
                return Client(site.broker, "c", over=encrypted).accepted
        except ssl.SSLCertVerificationError:
            return False

    first = renew()
    tls = f'[[listeners]]\nkind = "tls"\nport = 0\ncertificate = "{certificate}"\nkey = "{key}"\n'
    site = Site(start_broker, tmp_path, f'[[listeners]]\nname = "plain"\n{tls}')
    assert is_trusted(first)
    second = renew()
    site.reload()
    assert is_trusted(second)
    assert not is_trusted(first)
    key.write_text("no key")
    said = site.reload()
    assert "not reloaded" in said
    assert str(certificate) in said
    assert is_trusted(second)


# Rules


def test_access_rules(start_broker: StartBroker, tmp_path: Path) -> None:
    def rules(*topics: str) -> str:
        return f"[[access.rules]]\nallow = ['publish', 'subscribe']\ntopics = [{', '.join(map(repr, topics))}]\n"

    site = Site(start_broker, tmp_path, rules("a/#", "b/#"))
    broker = site.broker
    reader, writer = Client(broker, "reader", **persistent(V5)), Client(broker, "writer")
    for topic_filter in ("a/#", "b/#"):
        assert reader.subscribe(topic_filter, 1) == 1
    assert reader.subscribe("c", 1) == 0x87

    def seen() -> set[tuple[str, int]]:
        """What comes of publications to each of the topics, many times and at each QoS."""
        for _ in range(3):
            for qos in (0, 1, 2):
                for topic in ("a/1", "b/1", "c"):
                    writer.publish(topic, b"x", qos)
        writer.send(*(writer.packet(topic, b"x") for topic in ("a/1", "b/1", "c") for _ in range(50)))
        writer.so_far()
        got = reader.so_far()
        for message in got:
            reader.acknowledge(message)
        return {(message.topic, message.qos) for message in got}

    assert seen() == {(topic, qos) for topic in ("a/1", "b/1") for qos in (0, 1)}
    said = site.reload(rules("b/#", "c"))
    assert "access.rules" in said
    assert seen() == {("b/1", 0), ("b/1", 1)}
    assert writer.publish("a/1", b"x", 1) == 0x87
    assert reader.subscribe("a/#", 1) == 0x87
    assert reader.subscribe("c", 1) == 1
    assert seen() == {(topic, qos) for topic in ("b/1", "c") for qos in (0, 1)}
    site.reload("")  # no rules at all: everything is allowed
    assert reader.subscribe("a/#", 1) == 1
    assert seen() == {(topic, qos) for topic in ("a/1", "b/1", "c") for qos in (0, 1)}


def test_rules_hold_for_clients_that_are_away(start_broker: StartBroker, tmp_path: Path) -> None:
    """A session that is kept may not bring back what its client may no longer read."""
    rules = (
        "[[access.rules]]\nallow = ['publish', 'subscribe']\nclients = ['writer']\ntopics = ['#']\n"
        "[[access.rules]]\nallow = ['subscribe']\ntopics = ['open/#']\n"
    )
    site = Site(start_broker, tmp_path, "")
    with Client(site.broker, "reader", **persistent(V5)) as reader:
        for topic_filter in ("secret", "open/1", "#"):
            reader.subscribe(topic_filter, 1)
    with opened(site.broker, "writer") as writer:
        writer.publish("secret", b"before", 1)
    site.reload(rules)
    with opened(site.broker, "writer") as writer:
        writer.publish("secret", b"after", 1)
        writer.publish("open/1", b"for all", 1)
        with Client(site.broker, "reader", **persistent(V5)) as reader:
            assert reader.present
            assert reader.next_message().payload == b"for all"
            writer.publish("secret", b"while it is here", 1)
            assert reader.so_far() == []


def test_limits(start_broker: StartBroker, tmp_path: Path) -> None:
    site = Site(start_broker, tmp_path, "[limits]\npacket_bytes_max = 100000\nreceive_max = 100\n")
    broker = site.broker
    old = Client(broker, "old")
    assert old.connack.properties["maximum_packet_size"] == 100_000
    old.subscribe("t", 0)
    said = site.reload(
        "[limits]\npacket_bytes_max = 5000\nreceive_max = 7\nsubscriptions_max = 1\nconnections_max = 2\n"
        "topic_alias_max = 3\nkeep_alive_max_s = 33\nretain = false\ntopic_levels_max = 5\n"
    )
    assert "limits.packet_bytes_max" in said
    new = Client(broker, "new", keep_alive=60)
    told = new.connack.properties
    assert (told["maximum_packet_size"], told["receive_maximum"], told["topic_alias_maximum"]) == (5000, 7, 3)
    assert (told["server_keep_alive"], told["retain_available"]) == (33, 0)
    with raw.dial(broker) as third, suppress(ConnectionError):
        third.sendall(wire.connect("third"))
        assert third.recv(1) == b""
    assert old.subscribe("another", 0) == 0x97
    new.send(new.packet("t", b"x" * 6000))
    farewell = new.expect_end()
    assert farewell is not None
    assert farewell.reason == 0x95
    old.send(old.packet("t", b"x" * 50_000))  # it was told 100,000
    assert len(old.next_message().payload) == 50_000
    site.reload("[limits]\nsubscriptions_max = 5\n")
    assert old.subscribe("another", 0) == 0
    with opened(broker, "newest") as newest:
        assert newest.connack.properties["receive_maximum"] == 1024


# What stays as it is


BROKEN = {
    "[limits\n": "",
    "[limits]\nreceive_max = 0\n": "limits.receive_max",
    "[limits]\nrecieve_max = 7\n": "recieve_max",
    "[limits]\nreceive_max = 'many'\n": "limits.receive_max",
    "[[access.rules]]\nallow = ['publish']\ntopics = ['a/#/b']\n": "access.rules",
    "[authentication]\npassword_file = '/nowhere/at/all'\n": "/nowhere/at/all",
    "\xff": "",
}
"""Files that are no good, and what the broker must name of them."""


def test_a_broken_file_changes_nothing(start_broker: StartBroker, tmp_path: Path) -> None:
    site = Site(start_broker, tmp_path, "[limits]\nreceive_max = 11\n")
    client = Client(site.broker, "staying")
    for broken, words in BROKEN.items():
        site.config.write_bytes(broken.encode("latin-1"))
        said = site.reload()
        assert "not reloaded" in said
        assert words in said
        assert "reloaded: " not in said.replace("not reloaded: ", "")
        assert client.so_far() == []
        with opened(site.broker, "new") as new:
            assert new.connack.properties["receive_maximum"] == 11
    site.config.unlink()
    assert "not reloaded" in site.reload()
    assert "not reloaded" not in site.reload("[limits]\nreceive_max = 12\n")
    with opened(site.broker, "newer") as newer:
        assert newer.connack.properties["receive_maximum"] == 12


def test_what_needs_a_restart_is_named(start_broker: StartBroker, tmp_path: Path) -> None:
    def config(second: str, more: str = "") -> str:
        return f'[[listeners]]\nname = "first"\n[[listeners]]\nname = "second"\n{second}\n{more}'

    site = Site(start_broker, tmp_path, config("port = 0"))
    broker = site.broker
    addresses = list(broker.addresses)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    third = f'[[listeners]]\nname = "third"\nkind = "unix"\npath = "{tmp_path}/third.sock"\n'
    said = site.reload(config(f"port = {port}", f"{third}[store]\nsync = 'full'\n[limits]\nreceive_max = 9\n"))
    lines = [line for line in said.splitlines() if "needs a restart" in line]
    assert any("listeners[1].port" in line and f"{port}" in line for line in lines), said
    assert any("listeners[2]" in line and "unix on" in line for line in lines), said
    assert any("store.sync" in line for line in lines), said
    assert not any("limits" in line for line in lines), said
    for address in addresses:  # they are where they were
        with Client(broker, "c", over=socket.create_connection(("127.0.0.1", int(address.rsplit(":")[2])))) as client:
            assert client.connack.properties["receive_maximum"] == 9
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    assert not (tmp_path / "third.sock").exists()
    broker.restart()
    assert f"mqtt://127.0.0.1:{port}" in broker.addresses
    assert (tmp_path / "third.sock").exists()


def test_an_open_door_is_not_left_unguarded(start_broker: StartBroker, tmp_path: Path) -> None:
    users = tmp_path / "users"
    set_password(str(users), "ada", b"secret")
    door = '[[listeners]]\nhost = "0.0.0.0"\n'
    site = Site(start_broker, tmp_path, f'{door}[authentication]\npassword_file = "{users}"\n')
    said = site.reload('[[listeners]]\nhost = "127.0.0.1"\n')  # safe as it stands, but the socket would stay open
    assert "not reloaded" in said
    port = int(site.broker.addresses[0].rsplit(":", 1)[1])
    for password, reason in ((b"secret", 0), (b"wrong", 0x86)):
        over = socket.create_connection(("127.0.0.1", port))
        with Client(site.broker, "c", over=over, username="ada", password=password) as client:
            assert client.connack.reason == reason
    with Client(site.broker, "c", over=socket.create_connection(("127.0.0.1", port))) as client:
        assert client.connack.reason == 0x87


def test_flags_and_variables_stay_over_the_file(start_broker: StartBroker, tmp_path: Path) -> None:
    site = Site(start_broker, tmp_path, "", ["--set", "limits.receive_max=7"])
    site.reload("[limits]\nreceive_max = 9\ntopic_alias_max = 9\n")
    with opened(site.broker, "c") as client:
        assert client.connack.properties["receive_maximum"] == 7
        assert client.connack.properties["topic_alias_maximum"] == 9


def test_signals_in_the_midst_of_traffic(start_broker: StartBroker) -> None:
    """Without a file there is nothing to read, and still nothing to die of; no message is lost meanwhile."""
    broker = start_broker()
    reader, writer = Client(broker, "reader"), Client(broker, "writer")
    reader.subscribe("t", 1)
    for number in range(200):
        if number % 10 == 0:
            broker.signal(signal.SIGHUP)
        writer.send(writer.packet("t", b"%d" % number, 1, number + 1))
    for number in range(200):
        writer.find(Type.PUBACK, number + 1)
        assert reader.next_message().payload == b"%d" % number
    assert broker.terminate() == 0
    assert "Traceback" not in broker.log
