"""Authentication: one authenticator is asked after the other, and the first verdict counts.

The order is: certificates, tokens, the password file, plug-ins. If none has a verdict, a client that showed credentials
is refused for them; one that showed none comes in as anonymous where its listener admits that, and else is refused. A
broker with no authentication at all has nothing to check credentials against: they are ignored, and give no user name.
Whatever fails, refuses.
"""

from __future__ import annotations

import importlib
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from braidmq.mqtt.reasons import Reason
from braidmq.security.access import AccessRules, BothAccess, UserGlobs
from braidmq.security.identity import (
    ANONYMOUS,
    Access,
    AuthenticationMethod,
    Authenticator,
    Challenge,
    Credentials,
    Exchange,
    Identity,
    Origin,
    Refusal,
    Verdict,
)
from braidmq.security.passwords import PasswordFile, PasswordFileError
from braidmq.security.settings import AccessConfig, Entrance, Plugin, Policy, SettingError
from braidmq.security.tokens import TokenAuthenticator, TokenKeyError

PASSWORD_FILE_KEY = "authentication.password_file"  # noqa: S105 - a key of the configuration

log = logging.getLogger(__name__)


def build_authenticator(policy: Policy) -> Authenticator:
    """All authenticators as one, which always has a verdict. Reads password and key files anew, or a SettingError."""
    authenticators: list[tuple[str, Authenticator]] = [("certificates", CertificateUsers(policy.entrances))]
    authentication = policy.authentication
    if authentication.jwt is not None:
        try:
            authenticators.append(("jwt", TokenAuthenticator(authentication.jwt)))
        except TokenKeyError as error:
            raise SettingError("authentication.jwt", None, str(error)) from error
    if authentication.password_file is not None:
        try:
            authenticators.append(("password_file", PasswordFile.load(authentication.password_file)))
        except PasswordFileError as error:
            raise SettingError(PASSWORD_FILE_KEY, authentication.password_file, str(error)) from error
    for index, plugin in enumerate(authentication.plugins):
        loaded = load_plugin(plugin, f"authentication.plugins[{index}]", ["authenticate"])
        authenticators.append((plugin.use, loaded))
    return Chain(authenticators, policy)


def build_methods(policy: Policy) -> dict[str, AuthenticationMethod]:
    """The methods of enhanced authentication by the names that clients know them by."""
    doors = Doors(policy)
    methods: dict[str, AuthenticationMethod] = {}
    for index, plugin in enumerate(policy.authentication.enhanced):
        key = f"authentication.enhanced[{index}]"
        loaded = load_plugin(plugin, key, ["begin"])
        name = getattr(loaded, "name", None)
        if not isinstance(name, str) or not name:
            raise SettingError(key, plugin.use, "the class has no name; expected text that clients send")
        if name in methods:
            raise SettingError(key, plugin.use, f'the method "{name}" is already there')
        methods[name] = GuardedMethod(loaded, doors)
    return methods


def build_access(config: AccessConfig) -> Access:
    """The access rules, and with them the plug-in if there is one."""
    rules = AccessRules(config)
    if config.plugin is None:
        return rules
    questions = ["may_publish", "may_subscribe", "may_will", "unrestricted"]
    return BothAccess(rules, load_plugin(config.plugin, "access.plugin", questions))


def load_plugin(plugin: Plugin, key: str, methods: Sequence[str]) -> Any:
    """An object of the plug-in's class, made with its options; SettingError if that fails or a method is missing."""
    module_name, _, class_name = plugin.use.partition(":")
    try:
        made = getattr(importlib.import_module(module_name), class_name)(**plugin.options)
    except Exception as error:
        # Whatever code of others raises while it is loaded, the person gets told which key it was.
        log.debug("%s: loading %s failed", key, plugin.use, exc_info=True)
        expected = f"the class cannot be loaded: {type(error).__name__}: {error}"
        raise SettingError(key, plugin.use, expected) from error
    missing = [name for name in methods if not callable(getattr(made, name, None))]
    if missing:
        raise SettingError(key, plugin.use, f"the class lacks the method {', '.join(missing)}")
    return made


class CertificateUsers:
    """Takes the user name from the client's certificate, on listeners that say which name in it that is.

    The certificate was verified when the connection came in. It outranks a user name in CONNECT, which is ignored.
    """

    def __init__(self, entrances: Sequence[Entrance]) -> None:
        self._sources = {one.name: one for one in entrances if one.user_from_certificate != "none"}

    def authenticate(self, credentials: Credentials) -> Verdict:
        origin = credentials.origin
        entrance = self._sources.get(origin.listener)
        if entrance is None:
            return None
        if entrance.user_from_certificate == "common_name":
            user = origin.common_name
        else:
            user = next((name for name in origin.alternative_names if name), None)
        if user:
            return Identity(user)
        shown = origin.common_name is not None or bool(origin.alternative_names)
        if shown or entrance.demands_certificate:
            words = entrance.user_from_certificate.replace("_", " ")
            return Refusal(Reason.NOT_AUTHORIZED, f"the certificate has no {words}")
        return None


class Doors:
    """What each listener asks of clients that come in, once they are known."""

    def __init__(self, policy: Policy) -> None:
        self._anonymous = {one.name: one.admits_anonymous for one in policy.entrances}
        self._anonymous_elsewhere = policy.admits_anonymous
        self._users: Mapping[str, UserGlobs] = {
            one.name: UserGlobs(one.allow_users) for one in policy.entrances if one.allow_users
        }

    def admits_anonymous(self, origin: Origin) -> bool:
        return self._anonymous.get(origin.listener, self._anonymous_elsewhere)

    def judge(self, identity: Identity, origin: Origin) -> Identity | Refusal:
        users = self._users.get(origin.listener)
        if users is None or users.match(identity.user):
            return identity
        return Refusal(Reason.NOT_AUTHORIZED, "this user may not connect here")


class Chain:
    """Authenticators in order. Answers at once where all that are asked do, and else returns an awaitable."""

    def __init__(self, authenticators: Sequence[tuple[str, Authenticator]], policy: Policy) -> None:
        self._authenticators = list(authenticators)
        self._doors = Doors(policy)
        self._configured = policy.authentication.configured

    def authenticate(self, credentials: Credentials) -> Verdict | Awaitable[Verdict]:
        for index, (name, authenticator) in enumerate(self._authenticators):
            try:
                verdict = authenticator.authenticate(credentials)
            except Exception:
                return _failed(name)
            if inspect.isawaitable(verdict):
                return self._finish(index, verdict, credentials)
            if verdict is not None:
                return self._judged(name, verdict, credentials)
        return self._without_verdict(credentials)

    async def _finish(self, index: int, under_way: Awaitable[Verdict], credentials: Credentials) -> Verdict:
        """Go on from the authenticator that answers later."""
        name, _ = self._authenticators[index]
        try:
            verdict = await under_way
            while verdict is None and index + 1 < len(self._authenticators):
                index += 1
                name, authenticator = self._authenticators[index]
                answer = authenticator.authenticate(credentials)
                verdict = await answer if inspect.isawaitable(answer) else answer
        except Exception:
            return _failed(name)
        if verdict is not None:
            return self._judged(name, verdict, credentials)
        return self._without_verdict(credentials)

    def _judged(self, name: str, verdict: object, credentials: Credentials) -> Identity | Refusal:
        if isinstance(verdict, Identity):
            return self._doors.judge(verdict, credentials.origin)
        return verdict if isinstance(verdict, Refusal) else _not_a_verdict(name, verdict)

    def _without_verdict(self, credentials: Credentials) -> Identity | Refusal:
        given = bool(credentials.username or credentials.password)
        if self._doors.admits_anonymous(credentials.origin) and not (given and self._configured):
            return self._doors.judge(ANONYMOUS, credentials.origin)
        return Refusal(Reason.BAD_USER_NAME_OR_PASSWORD if given else Reason.NOT_AUTHORIZED)


def _failed(name: str) -> Refusal:
    """For use where an exception is being handled."""
    log.exception("the authenticator %s failed; the client is refused", name)
    return Refusal(Reason.UNSPECIFIED_ERROR)


def _not_a_verdict(name: str, answer: object) -> Refusal:
    log.error("the authenticator %s answered with a %s, which is no verdict; refused", name, type(answer).__name__)
    return Refusal(Reason.UNSPECIFIED_ERROR)


class GuardedMethod:
    """A plug-in's method of enhanced authentication: its failures refuse, and the listener's rules hold for it too."""

    def __init__(self, method: AuthenticationMethod, doors: Doors) -> None:
        self.name = method.name
        self._method = method
        self._doors = doors

    def begin(self, credentials: Credentials) -> Exchange:
        exchange: Exchange | None = None
        try:
            exchange = self._method.begin(credentials)
        except Exception:
            _failed(self.name)
        return GuardedExchange(self.name, exchange, lambda identity: self._doors.judge(identity, credentials.origin))


class GuardedExchange:
    def __init__(self, name: str, exchange: Exchange | None, judge: Callable[[Identity], Identity | Refusal]) -> None:
        self._name = name
        self._exchange = exchange
        self._judge = judge

    def step(self, data: bytes | None) -> Challenge | Identity | Refusal:
        if self._exchange is None:
            return Refusal(Reason.UNSPECIFIED_ERROR)
        try:
            answer: object = self._exchange.step(data)
        except Exception:
            return _failed(self._name)
        if isinstance(answer, Identity):
            return self._judge(answer)
        return answer if isinstance(answer, Challenge | Refusal) else _not_a_verdict(self._name, answer)

    @property
    def final_data(self) -> bytes | None:
        if self._exchange is None:
            return None
        try:
            return self._exchange.final_data
        except Exception:
            log.exception("the authentication method %s failed to give its final data", self._name)
            return None
