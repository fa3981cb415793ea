"""Where values come from, and what a single one may be."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from braidmq.broker.limits import Limits
from braidmq.config.load import load
from braidmq.config.problems import ConfigError
from braidmq.config.settings import (
    AdminConfig,
    Config,
    Listener,
    StoreConfig,
    is_loopback,
)
from braidmq.security.settings import Jwt, Plugin
from tests.config.reading import Read, problems

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
        "authentication, access, admin, braid, processor, processing, share, home, sys_interval_s, log",
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


def test_a_home_is_for_clients_or_for_a_topic(read: Read) -> None:
    found = problems(
        read,
        """
        [[home]]
        broker = "edge1"
        [[home]]
        broker = "edge1"
        clients = "bus-*"
        topic = "bus/#"
        [[home]]
        broker = "edge1"
        topic = "bus/#/x"
        [[home]]
        broker = "edge1"
        clients = "bus-*"
        """,
    )
    assert sorted(found) == ["home[0]", "home[1]", "home[2].topic"]
    assert "either clients or topic" in str(found["home[0]"])
