"""Who clients are and what they may do, made of a configuration: `security` with what the file says.

What cannot be used, such as a plug-in that cannot be loaded, is a problem of the configuration.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from braidmq.config.problems import ConfigError, Problem
from braidmq.config.settings import Config
from braidmq.security import authentication
from braidmq.security.identity import Access, AuthenticationMethod, Authenticator
from braidmq.security.settings import Entrance, Policy, SettingError

Made = TypeVar("Made")
Given = TypeVar("Given")


def build_authenticator(config: Config) -> Authenticator:
    """All authenticators of a configuration as one, which always has a verdict. Reads password and key files anew."""
    return _made(authentication.build_authenticator, policy_of(config))


def build_methods(config: Config) -> dict[str, AuthenticationMethod]:
    """The methods of enhanced authentication by the names that clients know them by."""
    return _made(authentication.build_methods, policy_of(config))


def build_access(config: Config) -> Access:
    """The access rules, and with them the plug-in if there is one."""
    return _made(authentication.build_access, config.access)


def policy_of(config: Config) -> Policy:
    """What decides who comes in."""
    entrances = tuple(
        Entrance(
            listener.name,
            config.admits_anonymous(listener),
            listener.allow_users,
            listener.user_from_certificate,
            listener.client_certificate == "required",
        )
        for listener in config.listeners
    )
    return Policy(config.authentication, entrances, config.admits_anonymous(None))


def _made(make: Callable[[Given], Made], given: Given) -> Made:
    try:
        return make(given)
    except SettingError as error:
        raise ConfigError([Problem(error.key, error.value, error.expected)]) from error
