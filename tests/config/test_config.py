"""The configuration: its sources, all that can be wrong with it, and what a reload makes of a change."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import argon2
import msgspec
import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from braidmq.broker.limits import Limits
from braidmq.config.docs import BEGIN, END, key_table, updated
from braidmq.config.load import load
from braidmq.config.problems import ConfigError, Problem
from braidmq.config.reload import reload_plan
from braidmq.config.settings import (
    AdminConfig,
    Config,
    Listener,
    LogConfig,
    StoreConfig,
    is_loopback,
)
from braidmq.security.passwords import set_password
from braidmq.security.settings import AccessConfig, Authentication, Jwt, Plugin, Rule

CHEAP = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
SECRET = "a secret of thirty-two bytes or more"
DOCUMENT = Path(__file__).parents[2] / "docs" / "configuration.md"

Read = Callable[[str], Config]


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Read:
    """Loads a configuration file with this text, in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def read(text: str) -> Config:
        Path("braidmq.toml").write_text(text, encoding="utf-8")
        return load("braidmq.toml", {}, {})

    return read


@pytest.fixture
def certificates(tmp_path: Path) -> None:
    """server.pem, server.key and ca.pem, and the key of another certificate."""
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    (tmp_path / "server.pem").write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
    (tmp_path / "server.key").write_bytes(issued.private_key_pem.bytes())
    (tmp_path / "other.key").write_bytes(authority.issue_cert("other").private_key_pem.bytes())
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")


def problems(read: Read, text: str) -> dict[str, Problem]:
    with pytest.raises(ConfigError) as caught:
        read(text)
    return {problem.key: problem for problem in caught.value.problems}


# Sources


def test_defaults() -> None:
    config = load(None, {}, {})
    assert config == Config()
    (listener,) = config.listeners
    assert (listener.kind, listener.host, listener.port, listener.name) == ("tcp", "127.0.0.1", 1883, "tcp:1883")
    assert config.limits == Limits()
    assert config.admin is None


def test_listener_defaults_by_kind() -> None:
    assert [Listener(kind=kind).port for kind in ("tcp", "tls", "ws", "wss")] == [1883, 8883, 8083, 8084]
    assert [Listener(kind=kind).path for kind in ("tcp", "ws", "wss")] == ["", "/mqtt", "/mqtt"]
    assert Listener(kind="ws", port=0, path="/x").name == "ws:0"
    unix = Listener(kind="unix", path="/run/b.sock")
    assert (unix.name, unix.address, unix.local) == ("unix:/run/b.sock", "/run/b.sock", True)
    assert Listener(name="mine", host="10.0.0.1").address == "10.0.0.1:1883"


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example.com", False),
        ("", False),
    ],
)
def test_loopback(host: str, local: bool) -> None:
    assert is_loopback(host) is local


def test_file_then_environment_then_flags(read: Read) -> None:
    read(
        """
        name = "file"
        data = "file"
        sys_interval_s = 1
        [limits]
        receive_max = 1
        inflight_max = 1
        qos_max = 1
        """
    )
    environ = {
        "BRAIDMQ_DATA": "environment",
        "BRAIDMQ_SYS_INTERVAL_S": "2.5",
        "BRAIDMQ_LIMITS__INFLIGHT_MAX": "2",
        "BRAIDMQ_LIMITS__QOS_MAX": "2",
        "PATH": "/bin",
    }
    config = load("braidmq.toml", environ, {"limits.qos_max": 0, "sys_interval_s": 3, "data": None})
    assert (config.name, config.data, config.sys_interval_s) == ("file", "environment", 3.0)
    assert (config.limits.receive_max, config.limits.inflight_max, config.limits.qos_max) == (1, 2, 0)


def test_environment_values_are_toml_or_text(read: Read) -> None:
    config = load(
        None,
        {
            "BRAIDMQ_NAME": "007",  # text, although it looks like something else
            "BRAIDMQ_DATA": '"quoted"',
            "BRAIDMQ_STORE__ENABLED": "false",
            "BRAIDMQ_STORE__SYNC": "full",
            "BRAIDMQ_LISTENERS": '[{ name = "one" }, { port = 1 }]',
            "BRAIDMQ_LISTENERS__0__PORT": "0",
            "BRAIDMQ_LISTENERS__1__ALLOW_USERS": '["a", "b"]',
            "BRAIDMQ_LISTENERS__2__KIND": "ws",
            "BRAIDMQ_ADMIN__PORT": "0",
            "BRAIDMQ_AUTHENTICATION__JWT__ALGORITHMS": '["HS256"]',
            "BRAIDMQ_AUTHENTICATION__JWT__KEY": "1" * 32,
            "BRAIDMQ_AUTHENTICATION__PLUGINS__0__USE": "a.b:C",
            "BRAIDMQ_AUTHENTICATION__PLUGINS__0__OPTIONS__DEPTH": "3",
            "BRAIDMQ_AUTHENTICATION__PLUGINS__0__OPTIONS__SERVER__HOST": "x",
        },
        {},
    )
    assert (config.name, config.data) == ("007", "quoted")
    assert config.store == StoreConfig(enabled=False, sync="full")
    assert [listener.name for listener in config.listeners] == ["one", "tcp:1", "ws:8083"]
    assert config.listeners[0].port == 0
    assert config.listeners[1].allow_users == ("a", "b")
    assert config.admin == AdminConfig(port=0)
    assert config.authentication.jwt == Jwt(algorithms=("HS256",), key="1" * 32)
    assert config.authentication.plugins == (Plugin(use="a.b:C", options={"depth": 3, "server": {"host": "x"}}),)


def test_flags_reach_into_lists_and_leave_the_callers_values_alone() -> None:
    listeners = [{"name": "one"}]
    config = load(None, {}, {"listeners": listeners, "listeners[0].port": 7, "listeners.1.kind": "ws"})
    assert [(listener.name, listener.port) for listener in config.listeners] == [("one", 7), ("ws:8083", 8083)]
    assert listeners == [{"name": "one"}]
    assert load(None, {}, {"listeners[0].port": "12"}).listeners[0].port == 12


def test_a_plugin_is_a_string_or_a_table(read: Read) -> None:
    config = read(
        """
        [authentication]
        plugins = ["a.b:C", { use = "d:E", options = { x = 1 } }]
        [access]
        plugin = "f:G"
        """
    )
    assert config.authentication.plugins == (Plugin(use="a.b:C"), Plugin(use="d:E", options={"x": 1}))
    assert config.access.plugin == Plugin(use="f:G")


def test_variables_that_are_not_keys() -> None:
    """Kubernetes sets most of these for a service named braidmq, and the command line reads the first."""
    environ = {
        "BRAIDMQ_CONFIG": "/etc/braidmq.toml",
        "BRAIDMQ_SERVICE_HOST": "10.0.0.1",
        "BRAIDMQ_SERVICE_PORT": "1883",
        "BRAIDMQ_SERVICE_PORT_MQTT": "1883",
        "BRAIDMQ_PORT": "tcp://10.0.0.1:1883",
        "BRAIDMQ_PORT_1883_TCP": "tcp://10.0.0.1:1883",
        "BRAIDMQ_PORT_1883_TCP_ADDR": "10.0.0.1",
    }
    assert load(None, environ, {}) == Config()


@pytest.mark.parametrize(
    ("environ", "overrides", "expected"),
    [
        (
            {"BRAIDMQ_LIMITS__RECEIVE_MAX": "many"},
            {},
            'limits.receive_max = "many" (from the variable BRAIDMQ_LIMITS__RECEIVE_MAX): '
            "expected a whole number from 1 to 65535",
        ),
        ({"BRAIDMQ_LIMITS__RECIEVE_MAX": "5"}, {}, "did you mean limits.receive_max?"),
        ({"BRAIDMQ_LISTENERS__1__PORT": "5"}, {}, "listeners[1] = 5 (from the variable BRAIDMQ_LISTENERS__1__PORT)"),
        ({"BRAIDMQ_LISTENERS__X__PORT": "5"}, {}, "expected a list of tables"),
        ({"BRAIDMQ_NAME__X": "5"}, {"name": "y"}, ""),
        ({"BRAIDMQ_LIMITS": "5"}, {}, "expected a table"),
        ({"BRAIDMQ_LIMITS": "5", "BRAIDMQ_LIMITS__QOS_MAX": "5"}, {}, '"qos_max" cannot be set in it'),
        ({}, {"limits.qos_max": 3}, "limits.qos_max = 3 (from a flag): expected one of 0, 1, 2"),
        ({}, {"listeners[5].port": 3}, "expected the number of one of the 0 items of listeners, or 0 to add one"),
    ],
)
def test_problems_name_their_source(environ: Mapping[str, str], overrides: Mapping[str, object], expected: str) -> None:
    if not expected:  # a flag over a variable that made no sense: the flag holds
        assert load(None, environ, overrides).name == "y"
        return
    with pytest.raises(ConfigError) as caught:
        load(None, environ, overrides)
    assert expected in str(caught.value)


# Files that cannot be read


def test_files_that_cannot_be_read(read: Read, tmp_path: Path) -> None:
    for path, expected in [("none.toml", "No such file"), (str(tmp_path), "Is a directory")]:
        with pytest.raises(ConfigError, match=expected):
            load(path, {}, {})
    assert "line 2" in str(problems(read, "name = 'x'\nname = y")["braidmq.toml"])
    Path("bad.toml").write_bytes(b"name = '\xff'")
    with pytest.raises(ConfigError, match="UTF-8"):
        load("bad.toml", {}, {})


# Single values


def test_all_problems_at_once(read: Read) -> None:
    found = problems(
        read,
        """
        name = ""
        sys_interval_s = nan
        colour = "red"
        password_file = "x"
        listeners = [
            { port = 70000, anonymous = "yes" },
            { kind = "tpc", allow_users = ["a", "", 5] },
        ]
        [limits]
        paket_bytes_max = 5
        packet_bytes_max = 5
        queue_full = "drop_all"
        connect_timeout_s = 0
        retain = 1
        [authentication.jwt]
        algorithms = ["none"]
        [[access.rules]]
        allow = ["write"]
        [log]
        level = "trace"
        [admin]
        port = "x"
        """,
    )
    said = {key: str(problem) for key, problem in found.items()}
    assert said == {
        "name": 'name = "": expected text that is not empty',
        "sys_interval_s": "sys_interval_s = nan: expected a number of at least 0",
        "colour": "colour: is not a known key; the top level has name, data, listeners, limits, store, "
        "authentication, access, admin, braid, processor, processing, sys_interval_s, log",
        "password_file": "password_file: is not a known key here; did you mean authentication.password_file?",
        "listeners[0].port": "listeners[0].port = 70000: expected a whole number from 0 to 65535",
        "listeners[0].anonymous": 'listeners[0].anonymous = "yes": expected true or false',
        "listeners[1].kind": 'listeners[1].kind = "tpc": expected one of "tcp", "tls", "unix", "ws", "wss"',
        "listeners[1].allow_users[1]": 'listeners[1].allow_users[1] = "": expected text that is not empty',
        "listeners[1].allow_users[2]": "listeners[1].allow_users[2] = 5: expected text that is not empty",
        "limits.paket_bytes_max": "limits.paket_bytes_max: is not a known key; did you mean limits.packet_bytes_max?",
        "limits.packet_bytes_max": "limits.packet_bytes_max = 5: expected a whole number from 1024 to 268435460",
        "limits.queue_full": 'limits.queue_full = "drop_all": expected one of "drop_newest", "drop_oldest"',
        "limits.connect_timeout_s": "limits.connect_timeout_s = 0: expected a number above 0",
        "limits.retain": "limits.retain = 1: expected true or false",
        "authentication.jwt.algorithms[0]": 'authentication.jwt.algorithms[0] = "none": expected one of "ES256", '
        '"ES384", "ES512", "EdDSA", "HS256", "HS384", "HS512", "PS256", "PS384", "PS512", "RS256", "RS384", "RS512"',
        "access.rules[0].allow[0]": 'access.rules[0].allow[0] = "write": expected one of "publish", "subscribe", '
        '"will"',
        "access.rules[0].topics": "access.rules[0].topics: is missing; expected a list of texts, at least 1",
        "log.level": 'log.level = "trace": expected one of "debug", "error", "info", "warning"',
        "admin.port": 'admin.port = "x": expected a whole number from 0 to 65535',
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("listeners = []", "listeners = []: expected a list of tables, at least 1"),
        ("listeners = [5]", "listeners[0] = 5: expected a table"),
        ("limits = 5", "limits = 5: expected a table"),
        ("data = 1979-05-27", "data = 1979-05-27: expected text"),
        ("[[access.rules]]\nallow=['publish']\ntopics='a'", 'access.rules[0].topics = "a": expected a list of texts'),
        ("[access.plugin]\nuse = 'nothing'", 'access.plugin.use = "nothing": expected a class as "package.module'),
        ("[access]\nplugin = 5", "access.plugin = 5: expected a class as"),
        ("sys_interval_s = inf", "expected a number"),
        (f"name = ['{'x' * 500}']", "…: expected text"),
    ],
)
def test_single_problems(read: Read, text: str, expected: str) -> None:
    (problem,) = problems(read, text).values()
    assert expected in str(problem)
    assert len(str(problem)) < 200


def test_secrets_are_not_shown(read: Read) -> None:
    text = """
        [admin]
        token = ["hush"]
        tokn = "hush"
        [authentication.jwt]
        algorithms = ["RS256"]
        key = "hush"
        [[authentication.plugins]]
        use = "a:B"
        options = ["hush"]
        """
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert {problem.key for problem in caught.value.problems} == {
        "admin.token",
        "admin.tokn",
        "authentication.jwt.key",
        "authentication.plugins[0].options",
    }
    assert "hush" not in str(caught.value)


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


# Reload


def test_what_a_reload_applies() -> None:
    old = Config(
        limits=Limits(receive_max=1),
        access=AccessConfig(rules=(Rule(allow=("publish",), topics=("a",)),)),
        authentication=Authentication(jwt=Jwt(algorithms=("HS256",), key=SECRET)),
        listeners=(Listener(name="a", kind="tls", certificate="old"), Listener(name="gone", port=1)),
    )
    new = Config(
        name="renamed",
        data="elsewhere",
        store=StoreConfig(sync="full"),
        limits=Limits(receive_max=2),
        access=AccessConfig(
            rules=(Rule(allow=("publish",), topics=("b",)), Rule(deny=("will",), topics=("c",))), default="allow"
        ),
        authentication=Authentication(jwt=Jwt(algorithms=("HS256",), key="b" + SECRET)),
        admin=AdminConfig(token="hush"),
        sys_interval_s=1,
        log=LogConfig(level="debug", format="json"),
        listeners=(
            Listener(name="new", kind="ws", port=2),
            Listener(name="a", kind="tls", certificate="new", anonymous=False),
        ),
    )
    plan = reload_plan(old, new)
    assert {change.key: (change.old, change.new) for change in plan.applied} == {
        "limits.receive_max": (1, 2),
        "access.default": (None, "allow"),
        "access.rules[0].topics": (("a",), ("b",)),
        "access.rules[1]": (None, new.access.rules[1]),
        "authentication.jwt.key": (SECRET, "b" + SECRET),
        "sys_interval_s": (10.0, 1.0),
        "log.level": ("info", "debug"),
        "listeners[1].certificate": ("old", "new"),
        "listeners[1].anonymous": (None, False),
    }
    assert {change.key: (change.old, change.new) for change in plan.restart} == {
        "name": ("braidmq", "renamed"),
        "data": ("data", "elsewhere"),
        "store.sync": ("normal", "full"),
        "admin": (None, new.admin),
        "log.format": ("text", "json"),
        "listeners[0]": (None, "ws on 127.0.0.1:2"),
        "listeners[1]": ("tcp on 127.0.0.1:1", None),
    }
    said = "\n".join(map(str, [*plan.applied, *plan.restart]))
    assert "limits.receive_max: 1 -> 2" in said
    assert "authentication.jwt.key: (secret) -> (secret)" in said
    assert SECRET not in said
    assert "hush" not in said
    assert plan.effective == msgspec.structs.replace(
        new,
        name="braidmq",
        data="data",
        store=StoreConfig(),
        admin=None,
        log=LogConfig(level="debug", format="text"),
        listeners=(new.listeners[1], old.listeners[1]),
    )


def test_a_moved_listener_waits_as_a_whole() -> None:
    old = Config(listeners=(Listener(name="a", port=1),))
    new = Config(listeners=(Listener(name="a", port=2, connections_max=5),))
    plan = reload_plan(old, new)
    assert plan.applied == []
    assert [change.key for change in plan.restart] == ["listeners[0].port", "listeners[0].connections_max"]
    assert plan.effective == old


def test_nothing_changed() -> None:
    plan = reload_plan(Config(), Config())
    assert (plan.applied, plan.restart, plan.effective) == ([], [], Config())


def test_a_listener_only_changes_its_place_in_the_file() -> None:
    one, two = Listener(name="a", port=1), Listener(name="b", port=2)
    plan = reload_plan(Config(listeners=(one, two)), Config(listeners=(two, one)))
    assert (plan.applied, plan.restart) == ([], [])


def test_a_reload_does_not_open_what_stays_open_until_the_restart() -> None:
    """Authentication goes, and so does the open listener: but that one only at the restart."""
    authentication = Authentication(password_file="passwords")
    old = Config(listeners=(Listener(name="a", host="0.0.0.0"),), authentication=authentication)
    new = Config(listeners=(Listener(name="a", host="127.0.0.1"),))
    with pytest.raises(ConfigError, match="stays open until the broker is restarted"):
        reload_plan(old, new)
    assert reload_plan(old, msgspec.structs.replace(new, authentication=authentication)).effective == old


# The document


def test_the_document_has_all_keys() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    command = "python -m braidmq.config.docs docs/configuration.md"
    assert updated(text) == text, f"the structs have changed; run: {command}"
    for name in ("`port`", "`receive_max`", "`user_claim`", "`topics`", "`sync`", "`level`"):
        assert f"| {name} |" in key_table()


def test_a_document_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="expected"):
        updated(f"{BEGIN} and no end")
    assert updated(f"a{BEGIN}{END}b") == f"a{BEGIN}\n{key_table()}\n{END}b"


def test_the_examples_in_the_document_work(read: Read, certificates: None) -> None:
    example, plugins = re.findall(r"```toml\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    Path("ca.pem").rename("devices-ca.pem")
    Path("jwt.secret").write_text(SECRET, encoding="utf-8")
    set_password("passwords", "alice", "x", hasher=CHEAP)
    config = read(example)
    assert [listener.name for listener in config.listeners] == ["local", "devices", "dashboards"]
    assert [config.admits_anonymous(listener) for listener in config.listeners] == [True, False, False]
    config = read(plugins)
    assert config.authentication.enhanced == (Plugin(use="company.mqtt:Scram", options={"iterations": 10_000}),)
