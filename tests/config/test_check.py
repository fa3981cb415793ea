"""What several values must be together, and with the files that they name."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from braidmq.config.settings import (
    AdminConfig,
)
from braidmq.security.passwords import set_password
from tests.config.reading import CHEAP, SECRET, Read, problems

# Values together


def test_tls_needs_its_files(read: Read, certificates: None) -> None:
    found = problems(
        read,
        """
        [[listeners]]
        kind = "tls"
        [[listeners]]
        kind = "wss"
        certificate = "none.pem"
        key = "."
        [[listeners]]
        kind = "tls"
        port = 1
        certificate = "server.pem"
        key = "other.key"
        client_ca = "server.key"
        [[listeners]]
        kind = "tls"
        port = 2
        certificate = "server.key"
        key = "server.key"
        client_certificate = "required"
        [[listeners]]
        kind = "tls"
        port = 3
        certificate = "server.pem"
        key = "server.key"
        user_from_certificate = "common_name"
        """,
    )
    said = {key: str(problem) for key, problem in found.items()}
    assert said.keys() == {
        "listeners[0].certificate",
        "listeners[0].key",
        "listeners[1].certificate",
        "listeners[1].key",
        "listeners[2].key",
        "listeners[2].client_ca",
        "listeners[3].certificate",
        "listeners[3].client_ca",
        "listeners[4].user_from_certificate",
    }
    assert "is missing; a tls listener needs a certificate file" in said["listeners[0].certificate"]
    assert 'listeners[1].certificate = "none.pem": there is no such file' in said["listeners[1].certificate"]
    assert "expected a file" in said["listeners[1].key"]
    assert "is not the key of the certificate server.pem" in said["listeners[2].key"]
    assert "expected certificates in PEM" in said["listeners[2].client_ca"]
    assert "expected two PEM files" in said["listeners[3].certificate"]
    assert "is missing" in said["listeners[3].client_ca"]
    assert "client_certificate" in said["listeners[4].user_from_certificate"]


def test_a_key_with_a_passphrase_is_refused_without_asking_for_it(read: Read, certificates: None) -> None:
    key = load_pem_private_key(Path("server.key").read_bytes(), None)
    locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"passphrase"))
    Path("locked.key").write_bytes(locked)
    found = problems(read, "[[listeners]]\nkind = 'tls'\ncertificate = 'server.pem'\nkey = 'locked.key'")
    assert "without passphrase" in found["listeners[0].certificate"].expected


def test_keys_for_other_kinds_are_not_ignored(read: Read, certificates: None) -> None:
    found = problems(
        read,
        """
        [[listeners]]
        certificate = "server.pem"
        key = "server.key"
        client_ca = "ca.pem"
        client_certificate = "required"
        path = "/mqtt"
        origins = ["https://example.com"]
        [[listeners]]
        kind = "unix"
        [[listeners]]
        kind = "unix"
        path = "none/braidmq.sock"
        [[listeners]]
        kind = "ws"
        path = "mqtt"
        """,
    )
    keys = ["certificate", "key", "client_ca", "client_certificate", "path", "origins"]
    assert found.keys() == {f"listeners[0].{key}" for key in keys} | {f"listeners[{n}].path" for n in (1, 2, 3)}
    assert "needs the path" in found["listeners[1].path"].expected
    assert "the folder none does not exist" in found["listeners[2].path"].expected
    long = problems(read, f"[[listeners]]\nkind = 'unix'\npath = '{'x' * 108}'")
    assert "107 bytes" in long["listeners[0].path"].expected


@pytest.mark.parametrize(
    ("one", "other", "clash"),
    [
        ("port = 1", "port = 1", "port"),
        ("port = 1", "port = 1\nhost = 'localhost'", "port"),
        ("port = 1", "port = 1\nhost = '0.0.0.0'", "port"),
        ("port = 1", "port = 1\nhost = '::1'\nname = 'x'", ""),
        ("port = 1", "port = 2", ""),
        ("port = 0\nname = 'a'", "port = 0\nname = 'b'", ""),
        ("port = 1\nname = 'a'", "port = 2\nname = 'a'", "name"),
        ("kind = 'unix'\npath = 'a'", "kind = 'unix'\npath = 'a'", "path"),
        ("kind = 'unix'\npath = 'a'", "kind = 'unix'\npath = 'b'", ""),
        ("kind = 'unix'\npath = '::'", "kind = 'unix'\npath = ':b'", ""),
    ],
)
def test_duplicates(read: Read, one: str, other: str, clash: str) -> None:
    opt_out = "[authentication]\nallow_anonymous_everywhere = true\n"
    text = f"{opt_out}[[listeners]]\n{one}\n[[listeners]]\n{other}\n"
    if clash:
        assert "listeners[0]" in problems(read, text)[f"listeners[1].{clash}"].expected
    else:
        assert len(read(text).listeners) == 2


def test_the_admin_port(read: Read) -> None:
    assert "token" in problems(read, "[admin]\nhost = '0.0.0.0'")["admin.host"].expected
    assert read("[admin]\nhost = '0.0.0.0'\ntoken = 'x'").admin == AdminConfig(host="0.0.0.0", token="x")
    assert read("[admin]").admin == AdminConfig()
    assert "listeners[0]" in problems(read, "[admin]\nport = 1883")["admin.port"].expected


def test_the_data_folder(read: Read) -> None:
    assert "a file" in problems(read, "data = 'braidmq.toml'")["data"].expected


@pytest.mark.parametrize(
    ("rule", "key"),
    [
        ("topics = ['a']", "access.rules[0]"),
        ("allow = ['publish']\ndeny = ['publish']\ntopics = ['a']", "access.rules[0].deny"),
        ("allow = ['publish']\ntopics = ['a', 'b#']", "access.rules[0].topics[1]"),
        ("allow = ['publish']\ntopics = ['$share/g/a']", "access.rules[0].topics[0]"),
        ("allow = ['publish']\ntopics = ['a']\nusers = []", "access.rules[0].users"),
    ],
)
def test_rules(read: Read, rule: str, key: str) -> None:
    assert problems(read, f"[[access.rules]]\n{rule}").keys() == {key}


def test_rules_for_client_ids(read: Read) -> None:
    assert (
        "{user}"
        in problems(read, "[[access.client_ids]]\nclient_id = '{name}-+'")["access.client_ids[0].client_id"].expected
    )


def test_password_and_token_files(read: Read) -> None:
    assert "No such file" in str(problems(read, "[authentication]\npassword_file = 'none'"))
    Path("passwords").write_text("alice\n", encoding="utf-8")
    found = problems(read, "[authentication]\npassword_file = 'passwords'")
    assert "line 1" in found["authentication.password_file"].expected
    jwt = "[authentication.jwt]\nalgorithms = ['HS256']\n"
    assert "got none" in problems(read, jwt)["authentication.jwt"].expected
    both = problems(read, f"{jwt}key = '{SECRET}'\nkey_file = 'x'")
    assert "got key and key_file" in both["authentication.jwt"].expected
    assert "too short" in problems(read, f"{jwt}key = 'x'")["authentication.jwt.key"].expected
    assert "No such file" in problems(read, f"{jwt}key_file = 'x'")["authentication.jwt.key_file"].expected


# Secure by default


OPEN = "[[listeners]]\nhost = '0.0.0.0'\n"


def test_an_open_listener_needs_authentication_and_says_how(read: Read) -> None:
    (problem,) = problems(read, OPEN).values()
    assert problem.key == "listeners[0].host"
    for way in (
        "braidmq passwd",
        "authentication.password_file",
        'client_certificate = "required"',
        "[authentication.jwt]",
        "127.0.0.1",
        "authentication.allow_anonymous_everywhere = true",
    ):
        assert way in str(problem)
    assert problems(read, "[[listeners]]\nhost = 'broker.example.com'\n").keys() == {"listeners[0].host"}
    assert problems(read, OPEN + "anonymous = true\n").keys() == {"listeners[0].host"}


def test_each_way_to_open_a_listener(read: Read, certificates: None) -> None:
    set_password("passwords", "alice", "x", hasher=CHEAP)
    for authentication in (
        "[authentication]\npassword_file = 'passwords'",
        f"[authentication.jwt]\nalgorithms = ['HS256']\nkey = '{SECRET}'",
        "[authentication]\nplugins = ['a:B']",
        "[authentication]\nenhanced = ['a:B']",
        "[authentication]\nallow_anonymous_everywhere = true",
    ):
        config = read(OPEN + authentication)
        opted_out = config.authentication.allow_anonymous_everywhere
        assert config.admits_anonymous(config.listeners[0]) is opted_out
    tls = "kind = 'tls'\ncertificate = 'server.pem'\nkey = 'server.key'\nclient_ca = 'ca.pem'\n"
    read(OPEN + tls + "client_certificate = 'required'")
    assert problems(read, OPEN + tls + "client_certificate = 'optional'").keys() == {"listeners[0].host"}
    # One listener's certificates do not vouch for another listener.
    both = OPEN + tls + "client_certificate = 'required'\n" + OPEN
    assert problems(read, both).keys() == {"listeners[1].host"}
    read(OPEN + "anonymous = false")


def test_anonymous_beside_authentication_is_not_silent(read: Read) -> None:
    set_password("passwords", "alice", "x", hasher=CHEAP)
    authentication = "[authentication]\npassword_file = 'passwords'\n"
    found = problems(read, OPEN + "anonymous = true\n" + authentication)
    assert "allow_anonymous_everywhere" in found["listeners[0].anonymous"].expected
    config = read(OPEN + "anonymous = true\n" + authentication + "allow_anonymous_everywhere = true")
    assert config.admits_anonymous(config.listeners[0])
    config = read(OPEN + authentication + "allow_anonymous_everywhere = true")
    assert not config.admits_anonymous(config.listeners[0])
    config = read("[[listeners]]\nkind = 'unix'\npath = 'a'\nanonymous = true\n" + authentication)
    assert config.admits_anonymous(config.listeners[0])


def test_a_mistyped_authentication_is_the_only_problem(read: Read) -> None:
    """No word about missing authentication if only the name of the key is wrong."""
    assert problems(read, OPEN + "[authentication]\npasword_file = 'x'").keys() == {"authentication.pasword_file"}


def test_policies_of_shared_subscriptions(read: Read) -> None:
    config = read('[[share]]\ngroup = "workers"\npolicy = "hash"\nkey = "bus"\n')
    assert [(one.group, one.policy, one.key) for one in config.share] == [("workers", "hash", "bus")]
    assert list(problems(read, '[[share]]\ngroup = "a/b"\n')) == ["share[0].group"]
    assert list(problems(read, '[[share]]\ngroup = "a"\n[[share]]\ngroup = "a"\n')) == ["share[1].group"]
    assert list(problems(read, '[[share]]\ngroup = "a"\npolicy = "fair"\n')) == ["share[0].policy"]


def test_spools_of_a_cluster_need_one(read: Read, tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("")
    processor = f'[[processor]]\nfile = "{tmp_path / "one.py"}"\nspool_scope = "cluster"\n'
    braid = '[braid]\nlisten = "127.0.0.1:0"\n'
    found = problems(read, processor + braid)
    assert list(found) == ["processor[0].spool_scope"]
    assert "set braid.cluster" in str(found["processor[0].spool_scope"])
    read(processor + braid + 'cluster = "east"\n')
