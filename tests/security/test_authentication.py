"""The chain of authenticators, what each listener admits, and code of others that fails."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import argon2
import jwt as pyjwt
import pytest

from braidmq.config.clients import build_access, build_authenticator, build_methods
from braidmq.config.problems import ConfigError
from braidmq.config.settings import Config, Listener
from braidmq.mqtt.reasons import Reason
from braidmq.security.identity import (
    ANONYMOUS,
    Authenticator,
    Challenge,
    Credentials,
    Exchange,
    Identity,
    Origin,
    Refusal,
    Verdict,
)
from braidmq.security.passwords import set_password
from braidmq.security.settings import AccessConfig, Authentication, Jwt, Plugin, Rule

CHEAP = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
SECRET = "a secret of thirty-two bytes or more"


def plugin(name: str, /, **options: Any) -> Plugin:
    return Plugin(use=f"{__name__}:{name}", options=options)


async def ask(
    authenticator: Authenticator,
    username: str | None = None,
    password: bytes | None = None,
    origin: Origin | None = None,
) -> Verdict:
    answer = authenticator.authenticate(Credentials("client", username, password, origin or Origin("tcp:1883")))
    return await answer if isinstance(answer, Awaitable) else answer


def reason(verdict: Verdict) -> Reason:
    assert isinstance(verdict, Refusal), verdict
    return verdict.reason


@pytest.fixture
def password_file(tmp_path: Path) -> str:
    path = str(tmp_path / "passwords")
    set_password(path, "alice", "right", hasher=CHEAP)
    return path


# Plug-ins as others would write them.


class Directory:
    """Knows one user; answers at once."""

    def __init__(self, user: str = "dora") -> None:
        self._user = user

    def authenticate(self, credentials: Credentials) -> Verdict:
        return Identity(self._user) if credentials.username == self._user else None


class LaterDirectory(Directory):
    async def authenticate(self, credentials: Credentials) -> Verdict:  # type: ignore[override]
        return Directory.authenticate(self, credentials)


class Ban:
    def authenticate(self, credentials: Credentials) -> Verdict:
        return Refusal(Reason.BANNED, "go away")


class Fails:
    def authenticate(self, credentials: Credentials) -> Verdict:
        raise RuntimeError("the directory is down")


class FailsLater:
    async def authenticate(self, credentials: Credentials) -> Verdict:
        raise RuntimeError("the directory is down")


class SaysYes:
    def authenticate(self, credentials: Credentials) -> Any:
        return True


class SaysYesLater:
    async def authenticate(self, credentials: Credentials) -> Any:
        return "dora"


class CannotBeMade:
    def __init__(self) -> None:
        raise OSError("no such directory")


class Doubling:
    """A method with one question: what is twice this?"""

    def __init__(self, name: str = "DOUBLE") -> None:
        self.name = name

    def begin(self, credentials: Credentials) -> Exchange:
        if credentials.client_id == "broken":
            raise RuntimeError("cannot begin")
        return DoublingExchange(credentials.client_id)


class DoublingExchange:
    def __init__(self, user: str) -> None:
        self._user = user

    def step(self, data: bytes | None) -> Challenge | Identity | Refusal:
        if data is None:
            return Challenge(b"21")
        if data == b"odd":
            return "yes"  # type: ignore[return-value]
        return Identity(self._user) if int(data) == 42 else Refusal(Reason.NOT_AUTHORIZED)

    @property
    def final_data(self) -> bytes | None:
        if self._user == "forgetful":
            raise RuntimeError("forgotten")
        return b"well done"


class OnlyMornings:
    def __init__(self, topic: str) -> None:
        self._topic = topic

    def may_publish(self, identity: Identity, client_id: str, topic: str) -> bool:
        return topic == self._topic

    may_will = may_publish

    def may_subscribe(self, identity: Identity, client_id: str, topic_filter: str) -> bool:
        return topic_filter == self._topic

    def unrestricted(self, identity: Identity, client_id: str) -> bool:
        return False


# The chain


async def test_without_authentication_everyone_is_anonymous() -> None:
    authenticator = build_authenticator(Config())
    assert await ask(authenticator) is ANONYMOUS
    assert await ask(authenticator, "root", b"whatever") is ANONYMOUS  # nothing checked the name, so it is not given
    assert await ask(authenticator, origin=Origin("a listener that is not in the file")) is ANONYMOUS


async def test_with_authentication_nobody_is(password_file: str) -> None:
    authenticator = build_authenticator(Config(authentication=Authentication(password_file=password_file)))
    assert reason(await ask(authenticator)) is Reason.NOT_AUTHORIZED
    assert reason(await ask(authenticator, "", b"")) is Reason.NOT_AUTHORIZED
    assert reason(await ask(authenticator, "alice")) is Reason.BAD_USER_NAME_OR_PASSWORD
    assert reason(await ask(authenticator, None, b"x")) is Reason.BAD_USER_NAME_OR_PASSWORD
    assert reason(await ask(authenticator, "alice", b"wrong")) is Reason.BAD_USER_NAME_OR_PASSWORD
    assert reason(await ask(authenticator, "mallory", b"right")) is Reason.BAD_USER_NAME_OR_PASSWORD
    assert reason(await ask(authenticator, origin=Origin("unheard of"))) is Reason.NOT_AUTHORIZED
    assert await ask(authenticator, "alice", b"right") == Identity("alice")


async def test_anonymous_by_listener(password_file: str) -> None:
    config = Config(
        authentication=Authentication(password_file=password_file),
        listeners=(Listener(name="open", anonymous=True), Listener(name="shut", anonymous=False)),
    )
    authenticator = build_authenticator(config)
    assert await ask(authenticator, origin=Origin("open")) is ANONYMOUS
    assert reason(await ask(authenticator, origin=Origin("shut"))) is Reason.NOT_AUTHORIZED
    wrong = await ask(authenticator, "alice", b"wrong", Origin("open"))
    assert reason(wrong) is Reason.BAD_USER_NAME_OR_PASSWORD  # it claimed to be someone
    assert reason(await ask(authenticator, "mallory", b"x", Origin("open"))) is Reason.BAD_USER_NAME_OR_PASSWORD
    shut = build_authenticator(Config(listeners=(Listener(name="shut", anonymous=False),)))
    assert reason(await ask(shut, origin=Origin("shut"))) is Reason.NOT_AUTHORIZED


async def test_users_by_listener(password_file: str) -> None:
    config = Config(
        authentication=Authentication(password_file=password_file, plugins=(plugin("Directory"),)),
        listeners=(
            Listener(name="dora's", allow_users=("d*",), anonymous=True),
            Listener(name="guests", allow_users=("anonymous",), anonymous=True),
        ),
    )
    authenticator = build_authenticator(config)
    assert await ask(authenticator, "dora", b"", Origin("dora's")) == Identity("dora")
    assert reason(await ask(authenticator, "alice", b"right", Origin("dora's"))) is Reason.NOT_AUTHORIZED
    assert reason(await ask(authenticator, origin=Origin("dora's"))) is Reason.NOT_AUTHORIZED
    assert await ask(authenticator, origin=Origin("guests")) is ANONYMOUS
    assert reason(await ask(authenticator, "dora", b"", Origin("guests"))) is Reason.NOT_AUTHORIZED


async def test_certificates() -> None:
    config = Config(
        listeners=(
            Listener(name="cn", client_certificate="required", user_from_certificate="common_name"),
            Listener(name="san", client_certificate="optional", user_from_certificate="alternative_name"),
            Listener(name="door", client_certificate="required"),
        ),
    )
    authenticator = build_authenticator(config)
    names = ("device-7.example.com", "other")
    assert await ask(authenticator, origin=Origin("cn", "", "device-7", names)) == Identity("device-7")
    assert await ask(authenticator, origin=Origin("san", "", "device-7", names)) == Identity("device-7.example.com")
    assert await ask(authenticator, "root", b"x", Origin("cn", "", "device-7")) == Identity("device-7")
    assert reason(await ask(authenticator, origin=Origin("cn"))) is Reason.NOT_AUTHORIZED
    assert reason(await ask(authenticator, origin=Origin("cn", "", ""))) is Reason.NOT_AUTHORIZED
    assert reason(await ask(authenticator, origin=Origin("san", "", "device-7"))) is Reason.NOT_AUTHORIZED
    assert await ask(authenticator, origin=Origin("san")) is ANONYMOUS  # optional, and it showed none
    assert await ask(authenticator, origin=Origin("door", "", "device-7")) is ANONYMOUS  # no name is taken from it


async def test_certificate_and_password_are_both_needed_without_a_name(password_file: str) -> None:
    config = Config(
        authentication=Authentication(password_file=password_file),
        listeners=(Listener(name="door", client_certificate="required"),),
    )
    authenticator = build_authenticator(config)
    assert reason(await ask(authenticator, origin=Origin("door", "", "device-7"))) is Reason.NOT_AUTHORIZED
    assert await ask(authenticator, "alice", b"right", Origin("door", "", "device-7")) == Identity("alice")


async def test_all_kinds_in_order(password_file: str) -> None:
    config = Config(
        authentication=Authentication(
            password_file=password_file,
            jwt=Jwt(algorithms=("HS256",), key=SECRET),
            plugins=(plugin("LaterDirectory"), plugin("Directory", user="dave"), plugin("Ban")),
        )
    )
    authenticator = build_authenticator(config)
    token = pyjwt.encode({"sub": "tom", "exp": 4_000_000_000}, SECRET, "HS256").encode()
    assert await ask(authenticator, None, token) == Identity("tom", 4_000_000_000.0)
    assert reason(await ask(authenticator, "alice", token)) is Reason.BAD_USER_NAME_OR_PASSWORD
    assert reason(await ask(authenticator, None, token[:-2])) is Reason.BAD_USER_NAME_OR_PASSWORD
    assert await ask(authenticator, "alice", b"right") == Identity("alice")
    assert reason(await ask(authenticator, "alice", b"wrong")) is Reason.BAD_USER_NAME_OR_PASSWORD
    assert await ask(authenticator, "dora", b"x") == Identity("dora")
    assert await ask(authenticator, "dave", b"x") == Identity("dave")
    assert reason(await ask(authenticator, "mallory", b"x")) is Reason.BANNED
    assert reason(await ask(authenticator)) is Reason.BANNED


@pytest.mark.parametrize("name", ["Fails", "FailsLater", "SaysYes", "SaysYesLater"])
@pytest.mark.parametrize("after", [(), ("Directory",), ("LaterDirectory",)])
async def test_a_plugin_that_fails_lets_nobody_in(
    name: str, after: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    plugins = tuple(plugin(each) for each in (*after, name, "Directory"))
    config = Config(authentication=Authentication(plugins=plugins), listeners=(Listener(name="open", anonymous=True),))
    authenticator = build_authenticator(config)
    for username in ("mallory", None):
        verdict = await ask(authenticator, username, None, Origin("open"))
        assert reason(verdict) is Reason.UNSPECIFIED_ERROR
    assert f":{name}" in caplog.text
    assert ("the directory is down" in caplog.text) is name.startswith("Fails")


@pytest.mark.parametrize(
    ("use", "options", "expected"),
    [
        ("no_such_package_at_all:Class", {}, "ModuleNotFoundError"),
        (f"{__name__}:NoSuchClass", {}, "AttributeError"),
        (f"{__name__}:Directory", {"colour": 1}, "TypeError"),
        (f"{__name__}:CannotBeMade", {}, "no such directory"),
        (f"{__name__}:Doubling", {}, "lacks the method authenticate"),
    ],
)
def test_plugins_that_cannot_be_loaded(use: str, options: dict[str, Any], expected: str) -> None:
    authentication = Authentication(plugins=(plugin("Directory"), Plugin(use=use, options=options)))
    with pytest.raises(ConfigError) as caught:
        build_authenticator(Config(authentication=authentication))
    (problem,) = caught.value.problems
    assert problem.key == "authentication.plugins[1]"
    assert expected in str(problem)
    assert use in str(problem)


def test_files_that_went_away(tmp_path: Path) -> None:
    gone = str(tmp_path / "gone")
    for authentication in (
        Authentication(password_file=gone),
        Authentication(jwt=Jwt(algorithms=("HS256",), key_file=gone)),
    ):
        with pytest.raises(ConfigError, match="No such file"):
            build_authenticator(Config(authentication=authentication))


# Enhanced authentication


def begin(config: Config, client_id: str = "eve", listener: str = "tcp:1883") -> Exchange:
    return build_methods(config)["DOUBLE"].begin(Credentials(client_id, None, None, Origin(listener)))


def test_methods(caplog: pytest.LogCaptureFixture) -> None:
    authentication = Authentication(enhanced=(plugin("Doubling"), plugin("Doubling", name="OTHER")))
    config = Config(authentication=authentication, listeners=(Listener(), Listener(name="shut", allow_users=("adam",))))
    assert list(build_methods(config)) == ["DOUBLE", "OTHER"]
    assert build_methods(config)["OTHER"].name == "OTHER"
    exchange = begin(config)
    assert exchange.step(None) == Challenge(b"21")
    assert exchange.step(b"41") == Refusal(Reason.NOT_AUTHORIZED)
    assert exchange.step(b"42") == Identity("eve")
    assert exchange.final_data == b"well done"
    shut = begin(config, listener="shut").step(b"42")
    assert isinstance(shut, Refusal)
    assert shut.reason is Reason.NOT_AUTHORIZED
    with caplog.at_level(logging.ERROR):
        assert begin(config).step(b"not a number") == Refusal(Reason.UNSPECIFIED_ERROR)
        assert begin(config).step(b"odd") == Refusal(Reason.UNSPECIFIED_ERROR)
        broken = begin(config, "broken")
        assert broken.step(None) == Refusal(Reason.UNSPECIFIED_ERROR)
        assert broken.final_data is None
        assert begin(config, "forgetful").final_data is None
    assert "cannot begin" in caplog.text


async def test_methods_alone_are_authentication() -> None:
    """Clients that use no method are not let in for want of a password file."""
    config = Config(authentication=Authentication(enhanced=(plugin("Doubling"),)))
    assert reason(await ask(build_authenticator(config))) is Reason.NOT_AUTHORIZED


@pytest.mark.parametrize(
    ("plugins", "expected"),
    [
        ((plugin("Doubling"), plugin("Doubling")), "already there"),
        ((plugin("Doubling", name=""),), "has no name"),
        ((plugin("Directory"),), "lacks the method begin"),
    ],
)
def test_methods_that_cannot_be(plugins: tuple[Plugin, ...], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        build_methods(Config(authentication=Authentication(enhanced=plugins)))


# Access


def test_access_from_the_configuration() -> None:
    rule = Rule(allow=("publish",), topics=("morning", "evening"))
    access = build_access(Config(access=AccessConfig(rules=(rule,))))
    assert access.may_publish(ANONYMOUS, "c", "evening")
    both = build_access(Config(access=AccessConfig(rules=(rule,), plugin=plugin("OnlyMornings", topic="morning"))))
    assert both.may_publish(ANONYMOUS, "c", "morning")
    assert both.may_will(ANONYMOUS, "c", "morning")
    assert not both.may_publish(ANONYMOUS, "c", "evening")
    assert not both.may_subscribe(ANONYMOUS, "c", "morning")
    with pytest.raises(ConfigError, match="lacks the method may_publish, may_subscribe, may_will, unrestricted"):
        build_access(Config(access=AccessConfig(plugin=plugin("Directory"))))
