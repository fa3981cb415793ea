"""What of a changed configuration holds at once, and what waits for a restart."""

from __future__ import annotations

import msgspec
import pytest

from braidmq.broker.limits import Limits
from braidmq.config.problems import ConfigError
from braidmq.config.reload import reload_plan
from braidmq.config.settings import (
    AdminConfig,
    Config,
    Listener,
    LogConfig,
    StoreConfig,
)
from braidmq.security.settings import AccessConfig, Authentication, Jwt, Rule
from tests.config.reading import SECRET

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
